"""What a job file's result is for: merged, measured and asked by `pet COMMAND FILE`."""

from __future__ import annotations

import json
import shutil

import mindspore as ms
import numpy as np
import pytest
import yaml

import pet
from adapters.registry import registry
from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.cli.main import main
from pet.compat import llama_factory, merging
from pet.compat.results import of_job
from pet.compat.yaml_files import load_any
from pet.train.prepare import attach_adapter


def write(path, **values):
    path.write_text(yaml.safe_dump(values))
    return str(path)


def saved(base, directory, seed=0):
    """An adapter that changes the base."""
    model = pet.apply_lora(pet.AutoModel.from_pretrained(base), rank=2)
    draw = np.random.default_rng(seed)
    for weight in model.trainable_params():
        weight.set_data(ms.Tensor(draw.normal(size=weight.shape).astype(np.float32)))
    pet.save_adapter(model, directory)
    return directory


def merged(directory):
    return {name: value.tobytes() for name, value in read_file(directory / "model.safetensors").items()}


@pytest.fixture
def run(base, tmp_path):
    """The directory of a run, as both systems name one: with its adapter."""
    saved(base, tmp_path / "saves" / "adapter")
    return tmp_path / "saves"


def test_llama_factorys_export(base, run, tmp_path, caplog):
    file = write(
        tmp_path / "merge.yaml",
        model_name_or_path=str(base),
        adapter_name_or_path=str(run),
        template="qwen3_nothink",
        trust_remote_code=True,
        export_dir=str(tmp_path / "merged"),
        export_size=5,
        export_device="cpu",
        export_legacy_format=False,
    )
    assert main(["merge", file]) == 0
    assert main(["merge", str(run / "adapter"), "--base", str(base), "--output", "by_hand"]) == 0
    assert merged(tmp_path / "merged") == merged(tmp_path / "by_hand") != merged(base)
    assert "export_device" in caplog.text
    other = saved(base, tmp_path / "other", seed=1)
    assert main(["merge", file, str(other), "--output", "others"]) == 0, "what the command line says counts"
    assert merged(tmp_path / "others") not in (merged(base), merged(tmp_path / "merged"))
    assert main(["merge", file, "--output", "in_parts", "--max-shard-size", "100KB"]) == 0
    assert len(list((tmp_path / "in_parts").glob("*.safetensors"))) > 1, "though the file says 5 GB"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"adapter_name_or_path": "a, b"}, {"adapters": ["a", "b"]}),
        ({"adapter_name_or_path": ["a"], "infer_dtype": "float16"}, {"adapters": ["a"], "dtype": "float16"}),
        ({"adapter_name_or_path": "a", "infer_dtype": "auto", "export_size": 2}, {"max_shard_size": "2GB"}),
        ({"output_dir": "run", "do_train": True, "stage": "ppo"}, {"adapters": ["run"], "output": "m"}),
    ],
)
def test_what_an_export_file_says(tmp_path, more, expected):
    said = merging.of_file(write(tmp_path / "m.yaml", model_name_or_path="base", export_dir="m", **more))
    assert {name: said[name] for name in expected} == expected
    assert said["base"] == "base"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"quantization_bit": 4}, "quantization_bit: 4: a base that is packed cannot take it in"),
        ({"export_quantization_bit": 4}, "export_quantization_bit: 4: merge first; pet quantize"),
        ({"add_tokens": "<a>"}, "add_tokens: '<a>': not so in the base's tokenizer; pet add-tokens"),
        ({"exprot_size": 5}, "exprot_size: is not known"),
        ({"adapter_name_or_path": None}, "no adapter is named, or every weight was trained"),
    ],
)
def test_exports_that_are_refused(tmp_path, given, problem):
    values = {"model_name_or_path": "base", "adapter_name_or_path": "a", "export_dir": "m", **given}
    with pytest.raises(InputError, match=problem):
        merging.of_file(write(tmp_path / "m.yaml", **values))


def test_what_a_file_merges_has_its_prompt(base, run, tmp_path, caplog):
    """Unless the base's tokenizer has one: then as there."""

    def made(base, template):
        names = {"model_name_or_path": str(base), "adapter_name_or_path": str(run), "template": template}
        assert main(["merge", write(tmp_path / "m.yaml", export_dir="merged", **names), "--force"]) == 0
        tokenizer = AutoTokenizer.from_pretrained("merged")
        return tokenizer.decode(tokenizer.prompt([{"role": "user", "content": "Who?"}]), skip_special_tokens=False)

    assert made(base, "default") == "Human: Who?<|endoftext|>\nAssistant:"
    ends = json.loads((tmp_path / "merged" / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [AutoTokenizer.from_pretrained(base).eos_token_id]
    (tmp_path / "merged").rename(tmp_path / "other")
    made(base, "qwen3_nothink")
    assert "merged: has no chat template: " in caplog.text and not (tmp_path / "merged/chat_template.jinja").exists()
    shutil.copytree(base, tmp_path / "told")
    (tmp_path / "told" / "chat_template.jinja").write_text("Say: {{ messages[0]['content'] }}")
    assert made(tmp_path / "told", "default") == "Say: Who?"


def test_axolotls_merge(base, run, tmp_path, caplog):
    values = {"base_model": str(base), "adapter": "qlora", "load_in_4bit": True, "rl": "grpo"}
    values["datasets"] = [{"path": "org/rows", "type": "alpaca"}]
    file = write(tmp_path / "job.yml", output_dir=str(run), **values)
    assert main(["merge", file]) == 0, "what it trains, and on which data, is no matter"
    assert "load_in_4bit: the unquantised base gets the adapter; --dequantize" in caplog.text
    assert main(["merge", str(run / "adapter"), "--base", str(base), "--output", "by_hand"]) == 0
    assert merged(run / "merged") == merged(tmp_path / "by_hand")
    said = merging.of_file(write(tmp_path / "job.yml", lora_model_dir="a", **values))
    assert (said["adapters"], said["output"]) == (["a"], "model-out/merged")


def test_a_recipes_run_is_merged(base, tmp_path, capsys):
    saved(base, tmp_path / "out" / "adapter")
    file = write(tmp_path / "r.yaml", model={"path": str(base)}, data={"train": "x.jsonl"}, output={"dir": "out"})
    assert main(["merge", file]) == 2
    assert "--output DIR" in capsys.readouterr().err
    assert main(["merge", file, "--output", "plain"]) == 0
    (tmp_path / "out" / "adapter").rename(tmp_path / "out" / "model")
    assert main(["merge", file, "--output", "two"]) == 2
    assert "every weight was trained" in capsys.readouterr().err


def test_a_file_is_measured_and_asked_with_its_adapter(base, run, tmp_path, capsys, caplog):
    values = {"model_name_or_path": str(base), "adapter_name_or_path": str(run), "template": "empty"}
    values |= {"temperature": 0.9, "max_new_tokens": 3}
    file = write(tmp_path / "chat.yaml", infer_backend="huggingface", dataset="gone", **values)

    def answer(*words):
        assert main(["predict", *words, "--input", "What is 3?", "--json", "--seed", "1"]) == 0
        return json.loads(capsys.readouterr().out)["answer"]

    by_hand = ["--model", str(base), "--template", "{prompt}", "--temperature", "0.9", "--max-new-tokens", "3"]
    tuned = answer(*by_hand, "--adapter", str(run / "adapter"))
    assert answer(file) == answer("--run", file) == tuned != answer(*by_hand)
    gone = {"model_name_or_path": "org/gone", "adapter_name_or_path": "gone"}
    elsewhere = write(tmp_path / "there.yaml", **{**values, **gone})
    plain = write(tmp_path / "plain.yaml", **{**values, "adapter_name_or_path": None})
    assert answer(plain) == answer(*by_hand) and "the base itself answers" in caplog.text
    assert answer(elsewhere, "--model", str(base), "--adapter", str(run / "adapter")) == tuned

    rows = [{"instruction": f"What is {number}?", "input": "", "output": f"It is {number}."} for number in range(4)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    more = {"stage": "sft", "do_predict": True, "eval_dataset": "rows.json", "dataset_dir": str(tmp_path)}
    more |= {"finetuning_type": "lora", "cutoff_len": 64, "output_dir": "predicted"}
    file = write(tmp_path / "predict.yaml", **values, **more)

    def measured(*words):
        assert main(["evaluate", file, "--output", "numbers.json", *words]) == 0
        return json.loads((tmp_path / "numbers.json").read_text())

    assert measured() == measured("--adapter", str(run / "adapter")) != measured("--base")
    file = write(tmp_path / "predict.yaml", **{**values, **more, "adapter_name_or_path": "gone"})
    assert measured("--adapter", str(run / "adapter")) != measured("--base", "adapter.load=null")


def test_what_llama_factory_predicts_on(base, tmp_path):
    rows = str(base / "data.jsonl")
    for given, expected in (
        ({"do_predict": True, "dataset": rows}, (None, [rows])),
        ({"do_predict": True, "dataset": "other", "eval_dataset": rows}, (["data/other"], [rows])),
        ({"do_predict": True, "do_train": True, "dataset": rows}, ([rows], None)),
    ):
        t = llama_factory.translate({"model_name_or_path": str(base), "stage": "sft", **given}, tmp_path / "job.yaml")
        assert (t.get("data.train"), t.get("data.eval")) == expected


def test_a_file_whose_run_has_written_another_adapter_than_it_names(base, run, tmp_path):
    values = {"base_model": str(base), "adapter": "lora", "datasets": [{"path": str(base / "data.jsonl")}]}
    file = write(tmp_path / "job.yml", output_dir="out", lora_model_dir=str(run), **values)
    recipe = load_any(file, check_files=False)
    assert of_job(recipe) == (run / "adapter", None)
    (tmp_path / "out" / "adapter").mkdir(parents=True)
    with pytest.raises(InputError, match=r"but its run has written .*out/adapter; give --adapter"):
        of_job(recipe)
    recipe.adapter.load = None
    assert of_job(recipe) == (tmp_path / "out" / "adapter", None)
    (tmp_path / "out" / "adapter").rename(tmp_path / "out" / "model")
    assert of_job(recipe) == (None, tmp_path / "out" / "model")


def test_a_run_of_every_weight_is_a_base(base, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "model").symlink_to(base)
    file = write(tmp_path / "chat.yaml", model_name_or_path=str(tmp_path / "full"), template="empty")
    assert load_any(file, check_files=False).model.path == str(tmp_path / "full" / "model")
    t = llama_factory.translate({"model_name_or_path": "b", "adapter_name_or_path": "a,b"}, tmp_path / "job.yaml")
    assert t.problems == ["job.yaml: adapter_name_or_path: 'a,b': give one; pet merge FILE merges several"]


@pytest.mark.parametrize(
    ("given", "expected", "ignored"),
    [
        ({"temperature": 0.7, "top_p": 0.8}, {"do_sample": True, "temperature": 0.7, "top_p": 0.8}, []),
        ({"do_sample": False, "temperature": 0.7, "max_new_tokens": 9}, {"max_new_tokens": 9}, ["temperature"]),
        ({"num_beams": 1, "length_penalty": 2.0}, {"num_beams": 1}, ["length_penalty"]),
        (
            {"num_beams": 4, "length_penalty": 2.0, "repetition_penalty": 1.1},
            {"num_beams": 4, "length_penalty": 2.0},
            [],
        ),
        ({}, {"do_sample": False}, []),
    ],
)
def test_how_llama_factory_writes_answers(base, tmp_path, given, expected, ignored):
    t = llama_factory.translate({"model_name_or_path": str(base), **given}, tmp_path / "job.yaml")
    assert {f"generation.{name}": value for name, value in expected.items()}.items() <= t.settings.items()
    assert [name for name in given if name in t.ignored] == ignored
    load_any(write(tmp_path / "job.yaml", model_name_or_path=str(base), **given), check_files=False)


@pytest.mark.parametrize(
    ("said", "more", "dora"),
    [
        (
            {"model_name_or_path": "BASE", "adapter_name_or_path": "RUN", "finetuning_type": "lora"},
            {"lora_rank": 2, "lora_dropout": 0.3, "lora_target": "c_attn", "additional_target": "wpe"},
            False,
        ),
        (
            {"base_model": "BASE", "lora_model_dir": "RUN", "adapter": "lora"},
            {"lora_r": 16, "lora_alpha": 8, "lora_target_modules": ["c_attn"], "peft_use_rslora": True},
            True,
        ),
    ],
)
def test_an_adapter_that_is_trained_on_has_its_own_settings(base, tmp_path, caplog, said, more, dora):
    """As PEFT reads it there: a file's own, and what a system has where a file says nothing, are of new adapters."""
    model = pet.apply_lora(pet.AutoModel.from_pretrained(base), rank=2, alpha=32, targets=["c_proj"], use_dora=dora)
    pet.save_adapter(model, tmp_path / "run" / "adapter")
    places = {"BASE": str(base), "RUN": str(tmp_path / "run")}
    file = write(tmp_path / "job.yaml", **{key: places.get(value, value) for key, value in said.items()}, **more)
    recipe = load_any(file)
    model = pet.AutoModel.from_pretrained(base)
    attach_adapter(model, recipe)
    config = registry(model).get("default").config
    assert (config.rank, config.alpha, config.dropout, config.use_rslora) == (2, 32.0, 0.0, False)
    assert config.use_dora == dora
    assert all("c_proj" in parameter.name for parameter in pet.trainable_parameters(model))
    assert "the adapter in adapter.load has its own" in caplog.text
