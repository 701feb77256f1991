"""What is no argument is refused at the door, and leaves everything as it was; what only looks odd is taken."""

import enum

import numpy as np
import pytest

import pet
from model_zoo.errors import InputError
from pet.cli import recipes
from pet.cli.parser import Parser

IDS = np.array([[5, 6, 7]], np.int32)


class Name(str, enum.Enum):
    """Members equal their text, and are written otherwise."""

    LORA = "lora"


@pytest.fixture(scope="module")
def model():
    return pet.AutoModel.from_pretrained("llama_tiny")


@pytest.fixture(scope="module")
def tokenizer():
    return pet.AutoTokenizer.from_pretrained("llama_tiny")


def test_a_member_of_an_enumeration_is_its_text(model, tmp_path, monkeypatch):
    pet.apply_lora(model, rank=2, name=Name.LORA)
    assert pet.list_adapters(model) == ["lora"] and type(pet.list_adapters(model)[0]) is str
    pet.freeze_delta(model, Name.LORA)
    monkeypatch.chdir(tmp_path)
    pet.save_adapter(model, Name.LORA, Name.LORA)
    pet.Trainer(model, [{"input_ids": IDS, "labels": IDS}], steps=1, directory=Name.LORA)
    assert [path.name for path in tmp_path.iterdir()] == ["lora"]
    pet.delete_adapter(model, Name.LORA)
    assert pet.load_adapter(model, Name.LORA, Name.LORA) == [] and pet.list_adapters(model) == ["lora"]
    pet.delete_adapter(model, "lora")


def test_values_of_an_iterator_are_looked_at_and_still_there(model, tmp_path):
    with pytest.raises(InputError, match=r"^adapter is \[1, 2\]; a text or a path or a list of texts or paths was"):
        pet.merge_checkpoint("llama_tiny", iter([1, 2]), tmp_path / "merged")
    pet.apply_lora(model, rank=2, name="a")
    with pytest.raises(InputError, match=r"^names is \[3\]; a text or a list of texts was expected"):
        pet.set_adapter(model, iter([3]))
    assert pet.adapter_status(model)["a"]["active"]
    pet.set_adapter(model, iter(["a"]))
    assert pet.adapter_status(model)["a"]["active"]
    pet.delete_adapter(model, "a")


def test_bad_words_of_no_token_are_refused(model):
    for wrong in ([[]], [[5], []]):
        with pytest.raises(InputError, match=r"^bad_words_ids: \[.*\]; lists of token ids, none of them empty, were"):
            model.generate(IDS, max_new_tokens=1, bad_words_ids=wrong)
    taken = model.generate(IDS, max_new_tokens=1)[0, -1]
    for words in ([[taken]], ((7, taken),), [np.array([taken])]):
        assert model.generate(IDS, max_new_tokens=1, bad_words_ids=words)[0, -1] != taken
    assert model.generate(IDS, max_new_tokens=1, bad_words_ids=[])[0, -1] == taken


def test_numpys_numbers_count_as_pythons(model, caplog):
    model.generate(IDS, max_new_tokens=1, top_k=np.int64(3), length_penalty=np.float32(2))
    said = [record.message for record in caplog.records]
    assert [one.partition(" has no effect without ")[2] for one in said] == ["do_sample=True", "num_beams"]


def test_what_a_pipeline_is_made_of_is_looked_at_when_it_is_made(model, tokenizer):
    for wrong in (True, [], {"a": 1}, tokenizer):
        with pytest.raises(InputError, match=r"^pipeline: model is .* a text or a path or an opened model"):
            pet.pipeline("text_generation", model=wrong, tokenizer=tokenizer)
    for wrong in ("x", -1, [None], np.zeros(3), object()):
        with pytest.raises(InputError, match=r"^pipeline: top_k is .*; a whole number of at least 0 was expected"):
            pet.pipeline("text_generation", model=model, tokenizer=tokenizer, top_k=wrong)
    answers = pet.pipeline("text_generation", model=model, tokenizer=tokenizer, top_k=np.int64(1), max_new_tokens=2)
    with pytest.raises(InputError, match=r"^pipeline: top_p is \[0.5, 0.5\]; a number of at least 0 and at most 1"):
        answers("a", top_p=np.array([0.5, 0.5]))
    assert answers("a", stop_strings={"q"}) == answers("a", stop_strings="q")


def test_a_tokenizers_switches_are_no_texts(tokenizer):
    conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    calls = {
        "skip_special_tokens is 'no'; True or False": lambda: tokenizer.decode([5], skip_special_tokens="no"),
        "enable_thinking is 'off'; True or False": lambda: tokenizer.example(conversation, enable_thinking="off"),
        r"train_on is \['last'\]; a text": lambda: tokenizer.example(conversation, train_on=["last"]),
    }
    for words, call in calls.items():
        with pytest.raises(InputError, match=f"^{words} was expected$"):
            call()
    assert tokenizer.decode([5], skip_special_tokens=np.bool_(False)) == tokenizer.decode([5], False)


def test_numbers_that_a_feed_forwards_width_is_made_of():
    for name, wrong in {"hidden_size": "64", "multiple_of": 0, "ffn_dim_multiplier": [1.3]}.items():
        with pytest.raises(InputError, match=f"^LlamaConfig: {name} is .* number above 0 was expected"):
            pet.LlamaConfig(**{name: wrong})
    assert pet.LlamaConfig(ffn_dim_multiplier=1.3).intermediate_size == 14336


def test_a_model_class_of_mindformers_takes_a_directory(model):
    made = pet.LlamaForCausalLM(model.loaded_from)
    assert made(IDS).shape == model(IDS).shape


def test_two_dashes_behind_an_equals_sign_are_a_name():
    parser = Parser("pet x", "", ())
    parser.add_shared("--output")
    assert parser.read(["--output=--"]).output == "--"


def test_what_is_no_text_file_is_not_copied_as_a_recipe(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    for source, words in {tmp_path / "latin.yaml": "not UTF-8 text", "/dev/null": ".*is a device"}.items():
        with pytest.raises(InputError, match=f"^{source}: {words}"):
            recipes.main(["copy", str(source), str(tmp_path / "copy.yaml")])
    assert not (tmp_path / "copy.yaml").exists()
