"""A saved adapter names its base by the word that finds it again."""

import json

import pytest

import pet
from model_zoo.errors import InputError
from pet.cli.main import main
from pet.names import bundled_models


def test_a_bundled_base_is_named_and_a_directory_has_its_whole_path(tmp_path, monkeypatch):
    directory = bundled_models()["gpt_tiny"]
    monkeypatch.chdir(directory.parent)
    for asked, expected in (("gpt_tiny", "gpt_tiny"), ("./gpt_tiny", str(directory))):
        model = pet.AutoModel.from_pretrained(asked)
        pet.apply_lora(model, rank=2)
        pet.save_adapter(model, tmp_path / "adapter")
        config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == expected
    model = pet.AutoModel.from_config({**json.loads((directory / "config.json").read_text()), "_name_or_path": "a/b"})
    pet.apply_lora(model, rank=2)
    pet.save_adapter(model, tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == "a/b"


def test_only_bundled_bases_are_called_bundled(tmp_path, monkeypatch):
    """Of the directories around, a name that is nearly right is proposed."""
    for name in ("a_folder", "my_base", "output"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    for asked, words in (("nosuch", f"(there is: {', '.join(bundled_models())})"), ("my_bse", "mean 'my_base'?)")):
        with pytest.raises(InputError) as error:
            pet.AutoModel.from_pretrained(asked)
        assert str(error.value).endswith(words)


@pytest.mark.parametrize("open_it", [pet.AutoModel.from_pretrained, pet.AutoTokenizer.from_pretrained])
@pytest.mark.parametrize("name", [None, 5])
def test_what_is_no_name_is_an_error(open_it, name):
    with pytest.raises(InputError, match=f"a name or a path was expected, got {name}"):
        open_it(name)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("model-Q8_0.gguf", "model-Q8_0.gguf is in llama.cpp's own format; write it once with transformers"),
        ("consolidated.00.pth", "consolidated.00.pth is in Meta's own format; get model.safetensors"),
    ],
)
def test_a_directory_without_config_json_says_whose_files_it_holds(tmp_path, capsys, file, words):
    (tmp_path / file).touch()
    for name in (tmp_path, tmp_path / file):
        with pytest.raises(InputError, match=f"expected a Hugging Face checkpoint directory; {words}"):
            pet.AutoModel.from_pretrained(str(name))
    assert main(["info", str(tmp_path)]) == 2 and words in capsys.readouterr().err
