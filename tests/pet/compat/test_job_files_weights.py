"""What job files of LLaMA-Factory and axolotl train of a model, and in what numbers it is kept."""

from __future__ import annotations

import json

import pytest
import yaml
from job_files import JOBS, write

from model_zoo.errors import InputError
from pet.compat import axolotl, llama_factory
from pet.compat.yaml_files import load_any


def test_targets_that_a_base_lacks_are_passed_over_as_in_peft(tmp_path, fixtures, base, caplog):
    """GLM-4 calls two of LLaMA's modules gate_up_proj."""
    names = ["gate_proj", "down_proj", "up_proj", "q_proj"]
    given = [f"model.path={fixtures / 'glm4_0414'}", f"data.train={base / 'data.jsonl'}", "data.max_length=32"]
    for system, key, value in (
        ("llama_factory", "lora_target", ",".join(names)),
        ("axolotl", "lora_target_modules", names),
    ):
        file = {**JOBS[system], "output_dir": str(tmp_path / "out"), "lora_target_linear": None, key: value}
        path = write(tmp_path / "job.yaml", yaml.safe_dump(file))
        assert load_any(path, given).adapter.targets == ["down_proj", "q_proj"]
        assert "gate_proj, up_proj: the base has no such modules, and PEFT passes over them" in caplog.text
        caplog.clear()
        write(path, yaml.safe_dump({**file, key: "gate_proj" if system == "llama_factory" else ["gate_proj"]}))
        with pytest.raises(
            InputError, match=r"adapter.targets: 'gate_proj' matches no cell \(did you mean 'gate_up_proj'"
        ):
            load_any(path, given)


def test_axolotls_loftq(tmp_path):
    file = {**JOBS["axolotl"], "peft": {"loftq_config": {"loftq_bits": 4}}, "test_value": True}
    translation = axolotl.translate(file, tmp_path / "job.yaml")
    assert not translation.problems
    assert (translation.get("model.quantization.type"), translation.get("adapter.init")) == ("nf4", "loftq")
    assert "model.quantization.double" not in translation.settings  # PEFT does not quantise the factors
    file["peft"] = {"loftq_config": {"loftq_bits": 4, "loftq_iter": 5}}
    assert "loftq_iter: 1 is supported" in axolotl.translate(file, tmp_path / "job.yaml").problems[0]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"chat_template": "gemma3", "eot_tokens": ["<end_of_turn>"]}, None),
        ({"eot_tokens": ["<stop>"]}, "eot_tokens: <stop>"),
        ({"eot_tokens": "<stop>"}, "eot_tokens: <stop>"),
        ({"plugins": "my.Plugin"}, "plugins: my.Plugin: see callbacks"),
        ({"plugins": "axolotl.integrations.liger.LigerPlugin"}, None),
        ({"tokens": {"bos_token": "<s>", "pad_token": "[PAD]"}}, None),
        ({"tokens": {"bos_token": "<begin>"}}, "tokens: '<begin>'"),
        ({"tokens": ["<call>"]}, "tokens: '<call>'"),
        ({"unfrozen_parameters": ["^lm_head.*"]}, None),
        ({"unfrozen_parameters": ["^lm_head.*"], "adapter": None}, None),
        ({"dp_shard_size": 4, "tensor_parallel_size": 2, "context_parallel_size": 2, "tiled_mlp": True}, None),
    ],
)
def test_axolotls_tokens_freezing_and_layouts(tmp_path, given, problem):
    problems = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml").problems
    assert [line.startswith(f"job.yaml: {problem}") for line in problems] == [True] * bool(problem)


def test_targets_within_a_model_that_also_sees(tmp_path, fixtures):
    text = json.loads((fixtures / "gemma3" / "config.json").read_text())
    seeing = {"model_type": "gemma3", "text_config": text, "vision_config": {"model_type": "siglip_vision_model"}}
    for name, config in (("text", text), ("seeing", seeing)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    end = ".layers.[\\d]+.(mlp|self_attn).(up|down|q|o)_proj"
    for inside in ("model.language_model", "language_model.model"):
        job = {**JOBS["axolotl"], "lora_target_linear": None, "lora_target_modules": inside + end}
        path = write(tmp_path / "job.yaml", yaml.safe_dump(job))
        for name, root in (("text", "model"), ("seeing", "model.language_model")):
            given = {"model.path": str(tmp_path / name), "data.train": "rows.jsonl"}
            assert load_any(path, given, check_files=False).adapter.targets == [f"re:{root}{end}"]


def test_axolotls_new_weights(tmp_path):
    t = axolotl.translate({**JOBS["axolotl"], "adapter": None, "reinit_weights": True}, tmp_path / "job.yaml")
    assert t.get("model.from_scratch") is True and not t.problems
    for given in ({"qat": {"weight_dtype": "int4"}}, {"fp8": True}, {"lisa_n_layers": 2}):
        t = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml")
        assert t.problems[0].endswith("every weight is trained as it is, in fp32, bf16 or fp16")
    t = llama_factory.translate({**JOBS["llama_factory"], "task": "mmlu_test", "n_shot": 5}, tmp_path / "job.yaml")
    assert len(t.problems) == 2 and all("no benchmark is run" in one for one in t.problems)


def test_quantised_bases(tmp_path):
    four = {"model.quantization.type": "nf4", "model.quantization.double": True}
    eight = {"model.quantization.type": "int8"}
    for translate, system, given, expected in (
        (llama_factory.translate, "llama_factory", {"quantization_bit": 4}, four),
        (
            llama_factory.translate,
            "llama_factory",
            {"double_quantization": False, "quantization_bit": 4},
            {**four, "model.quantization.double": False},
        ),
        (llama_factory.translate, "llama_factory", {"quantization_bit": 8}, eight),
        (axolotl.translate, "axolotl", {"load_in_4bit": True, "adapter": "qlora"}, four),
        (axolotl.translate, "axolotl", {"load_in_8bit": True, "load_in_4bit": False}, eight),
    ):
        translation = translate({**JOBS[system], **given}, tmp_path / "job.yaml")
        assert not translation.problems
        found = {key: value for key, value in translation.settings.items() if key.startswith("model.quantization")}
        assert found == expected


@pytest.mark.parametrize("system", ["llama_factory", "axolotl"])
def test_adapters_of_embeddings_have_a_rate_of_their_own_under_lora_plus(tmp_path, system):
    key = "lora_target" if system == "llama_factory" else "lora_target_modules"
    module = {"llama_factory": llama_factory, "axolotl": axolotl}[system]
    for targets, given, rate in (
        ("q_proj,embed_tokens", {}, 1e-6),
        ("q_proj,embed_tokens", {"loraplus_lr_embedding": "1e-5"}, 1e-5),
        ("q_proj", {"loraplus_lr_embedding": 1e-5}, None),
    ):
        file = {**JOBS[system], "lora_target_linear": None, "loraplus_lr_ratio": 16, key: targets, **given}
        t = module.translate(file, tmp_path / "job.yaml")
        match = "*lora_embedding_B*" if system == "llama_factory" else "*lora_embedding_*"  # as PEFT's own function
        expected = [{"match": [match], "learning_rate": rate}] if rate else None
        assert t.get("train.groups") == expected and not t.problems
        assert ("loraplus_lr_embedding" in t.ignored) == (rate is None)


def test_a_file_that_trains_every_weight_may_say_something_of_lora(base, tmp_path):
    told = {"model_name_or_path": str(base), "dataset": "x", "finetuning_type": "full", "cutoff_len": 64}
    told |= {"use_rslora": False, "additional_target": "lm_head", "lora_rank": 4, "lora_dropout": 0.1}
    adapter = load_any(write(tmp_path / "lf.yaml", yaml.safe_dump(told)), [f"data.train={base / 'data.jsonl'}"]).adapter
    assert adapter.method == "none"


def test_the_magnitudes_of_dora_decay_as_in_transformers(tmp_path):
    group = {"match": ["*lora_magnitude_vector*"], "weight_decay": 0.1}
    for module, given in ((llama_factory, {"use_dora": True}), (axolotl, {"adapter": "lora", "peft_use_dora": True})):
        t = module.translate({**given, "weight_decay": 0.1}, tmp_path / "job.yaml")
        assert t.get("train.groups") == [group]
        assert module.translate(given, tmp_path / "job.yaml").get("train.groups") is None


def test_what_is_trained_whole_is_named_as_peft_reads_it(base, tmp_path):
    """Each module whose path ends so, dot or no dot."""
    files = [f"data.train={base / 'data.jsonl'}", "data.max_length=64"]
    told = {"model_name_or_path": "llama_tiny", "dataset": "x", "finetuning_type": "lora", "additional_target": "norm"}
    recipe = load_any(write(tmp_path / "lf.yaml", yaml.safe_dump(told)), files)
    assert recipe.adapter.modules_to_save == ["norm", "input_layernorm", "post_attention_layernorm"]
    told = {"base_model": "llama_tiny", "adapter": "lora", "lora_target_modules": ["q_proj"], "micro_batch_size": 1}
    told |= {"lora_modules_to_save": ["model.norm", "head", "1.mlp"], "lora_r": 4, "lora_alpha": 8}
    recipe = load_any(write(tmp_path / "ax.yaml", yaml.safe_dump(told)), files)
    assert recipe.adapter.modules_to_save == ["model.norm", "1.mlp", "lm_head"]
