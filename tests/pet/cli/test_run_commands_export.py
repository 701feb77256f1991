"""Exports of a run."""

import json
import shutil

import pytest

from model_zoo.quantization.cells import quantized_cells
from pet.cli.chat_session import add_chat_session, make_chat_session
from pet.cli.main import main
from pet.cli.parser import Parser


def test_export(here, capsys):
    from model_zoo.tokenizers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(here / "base")
    for name in ("given", "best", "plain", "merged"):
        shutil.rmtree(here / name, ignore_errors=True)
    assert main(["export", "output/job", "--output", "given"]) == 0
    config = json.loads((here / "given" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(here / "base")
    weights = (here / "given" / "adapter_model.safetensors").read_bytes()
    assert weights == (here / "output" / "job" / "adapter" / "adapter_model.safetensors").read_bytes()
    assert main(["export", "output/job", "--output", "best", "--best"]) == 0
    assert (here / "best" / "adapter_model.safetensors").read_bytes() == weights, "the last step was the best"
    assert main(["export", "output/job", "--output", "plain", "--merged"]) == 0
    assert main(["merge", "output/job/adapter", "--base", "base", "--output", "merged"]) == 0
    assert (here / "plain" / "model.safetensors").read_bytes() == (here / "merged" / "model.safetensors").read_bytes()
    assert main(["predict", "--adapter", "given", "--input", "What is 3?", "--max-new-tokens", "2"]) == 0
    for name, kind in (("given", "peft"), ("plain", "transformers")):
        card = (here / name / "README.md").read_text()
        assert f"library_name: {kind}" in card and "| trained on | data.jsonl |" in card and "| rank | 8 |" in card
        assert "| held-out loss | " in card and "![loss of the run](loss.png)" in card
        assert (here / name / "loss.png").read_bytes() == (here / "output" / "job" / "loss.png").read_bytes()
        assert AutoTokenizer.from_pretrained(here / name).encode("What is 3?") == tokenizer.encode("What is 3?")
        settings = json.loads((here / name / "generation_config.json").read_text())
        assert settings["do_sample"] is False and settings["eos_token_id"] == tokenizer.eos_token_ids
    capsys.readouterr()
    assert main(["export", "output/job", "--output", "given"]) == 2
    assert main(["export", "output/job", "--output", "other", "--step", "2"]) == 2
    assert "(checkpoints: step-000003)" in capsys.readouterr().err
    assert not (here / "other").exists()


def test_the_best_step_is_exported_without_its_checkpoint_where_it_was_the_last(copied, capsys):
    shutil.rmtree("output/job/checkpoints")
    assert main(["export", "output/job", "--output", "again", "--best"]) == 0
    summary = json.loads((copied / "output/job/summary.json").read_text())
    (copied / "output/job/summary.json").write_text(json.dumps({**summary, "best": {"step": None}}))
    assert main(["export", "output/job", "--output", "other", "--best"]) == 2
    assert "nothing was evaluated along the way, so there is no best step" in capsys.readouterr().err


@pytest.mark.parametrize("how", [["--best"], ["--step", "3"], ["--step", "3", "--merged"], None], ids=str)
def test_a_damaged_adapter_of_a_checkpoint_is_not_exported(copied, capsys, how):
    adapter = copied / "output/job/checkpoints/step-000003/adapter"
    weights = adapter / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # its header and its size are right
    weights.write_bytes(content)
    source, options = (adapter, ["--base", "base"]) if how is None else ("output/job", how)
    assert main(["export", str(source), "--output", "other", *options]) == 2
    said = capsys.readouterr().err
    assert "step-000003: damaged: adapter/adapter_model.safetensors has changed since it was written" in said
    assert not (copied / "other").exists()


def test_an_export_carries_the_text_of_its_prompts(copied):
    """As a chat template, which other programs take, too."""
    from model_zoo.tokenizers import AutoTokenizer

    text = 'data.template=In {{short}}: "{prompt}"\n{system}> '
    assert main(["finetune", "job.yaml", text, "train.steps=1", "output.dir=texted", "data.system=Hm."]) == 0
    assert main(["export", "texted", "--output", "texted_adapter"]) == 0
    assert '| prompt | `"In {{short}}: ' in (copied / "texted_adapter" / "README.md").read_text()
    base, given = AutoTokenizer.from_pretrained("base"), AutoTokenizer.from_pretrained("texted_adapter")
    asked = [
        {"role": "user", "content": "What?"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "你 '\"{}{{ 1 }}?"},
    ]
    for messages, system in ((asked, "Hm."), ([{"role": "system", "content": "Be kind."}, *asked], "Be kind.")):
        assert given.prompt(messages) == base.encode(f'In {{short}}: "你 \'"{{}}{{{{ 1 }}}}?"\n{system}> ')


def test_a_run_of_a_packed_base_with_a_tokenizer_of_elsewhere_is_asked_and_measured(copied):
    shutil.copytree(copied / "base", copied / "bare")
    (copied / "words").mkdir()
    for path in (copied / "bare").iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.rename(copied / "words" / path.name)
    changed = ["model.path=bare", "model.tokenizer=words", "model.quantization.type=nf4", "model.quantization.block=32"]
    assert main(["finetune", "job.yaml", *changed, "output.dir=packed"]) == 0
    parser = Parser("pet predict", "", "")
    add_chat_session(parser)
    session = make_chat_session(parser.parse_args(["--run", "packed"]))
    assert {cell.storage.kind for cell in quantized_cells(session.model).values()} == {"nf4"}
    assert main(["predict", "--run", "packed", "--input", "What is 3?", "--max-new-tokens", "4"]) == 0
    assert main(["evaluate", "packed", "--output", "again.json"]) == 0
    after = json.loads((copied / "packed" / "summary.json").read_text())["after"]
    assert json.loads((copied / "again.json").read_text())["loss"] == pytest.approx(after["loss"], rel=1e-6)


def test_a_damaged_summary_is_not_put_into_a_model_card(copied, capsys):
    path = copied / "output" / "job" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "total": [0]}))
    assert main(["export", "output/job", "--output", "carded"]) == 2
    assert "summary.json: total: a number was expected" in capsys.readouterr().err
