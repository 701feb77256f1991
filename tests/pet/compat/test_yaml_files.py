"""Other systems' job files become recipes that say the same."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from model_zoo.errors import InputError
from pet.compat.yaml_files import convert, load_any
from pet.names import bundled_models

MINDFORMERS = """
seed: 7
run_mode: finetune
output_dir: ./out
load_checkpoint: llama_tiny
resume_training: False
context: {{mode: 0, device_target: Ascend, enable_graph_kernel: True}}
use_parallel: {parallel}
parallel_config: {{data_parallel: 2, model_parallel: 1, pipeline_stage: 2, micro_batch_num: 2, vocab_emb_dp: True}}
recompute_config: {{recompute: True}}
runner_config: {{epochs: 2, batch_size: 3, sink_mode: True, sink_size: 4}}
runner_wrapper: {{type: MFTrainOneStepCell, use_clip_grad: True, max_grad_norm: 0.5}}
trainer: {{type: CausalLanguageModelingTrainer, model_name: llama_7b_lora}}
optimizer: {{type: FP32StateAdamWeightDecay, beta1: 0.9, beta2: 0.95, eps: 1.e-6, weight_decay: 1.e-3}}
lr_schedule: {{type: CosineWithWarmUpLR, learning_rate: 1.e-4, lr_end: 1.e-5, warmup_ratio: 0.1, total_steps: -1}}
train_dataset: &train
  data_loader: {{type: MindDataset, dataset_dir: {base}/data.jsonl, shuffle: True}}
  input_columns: [input_ids]
  num_parallel_workers: 8
train_dataset_task: {{type: CausalLanguageModelDataset, dataset_config: *train}}
eval_dataset: {{data_loader: {{dataset_dir: {base}/held_out.jsonl}}}}
do_eval: True
eval_step_interval: -1
eval_epoch_interval: 1
model:
  model_config:
    type: LlamaConfig
    hidden_size: 128
    n_kv_heads: 2
    rms_norm_eps: 1e-5
    hidden_dropout_rate: 0.1
    seq_length: 64
    pet_config: {{pet_type: lora, lora_rank: 16, lora_alpha: 32, lora_dropout: 0.05, target_modules: '.*wq|.*wv'}}
  arch: {{type: LlamaForCausalLM}}
callbacks:
  - {{type: MFLossMonitor, per_print_times: 2}}
  - {{type: CheckpointMonitor, prefix: llama, save_checkpoint_steps: 5, integrated_save: False, async_save: False}}
  - {{type: ObsMonitor, upload_sequence: 3}}
eval_callbacks: [{{type: ObsMonitor}}]
remote_save_url: file:///tmp/somewhere
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_mindformers(base, tmp_path):
    recipe = load_any(write(tmp_path / "run_llama.yaml", MINDFORMERS.format(base=base, parallel=True)))
    assert recipe.model.path == "llama_tiny"
    assert recipe.adapter.model_dump(include={"method", "rank", "alpha", "dropout", "targets"}) == {
        "method": "lora",
        "rank": 16,
        "alpha": 32.0,
        "dropout": 0.05,
        "targets": ["q_proj", "v_proj"],
    }
    train = recipe.train
    assert (train.seed, train.epochs, train.batch_size, train.clip_norm, train.recompute) == (7, 2.0, 12, 0.5, True)
    assert (train.optimizer, train.betas, train.eps, train.weight_decay) == ("adamw", [0.9, 0.95], 1e-6, 1e-3)
    assert (train.schedule, train.learning_rate, train.warmup) == ("cosine", 1e-4, 0.1)
    assert train.final_ratio == pytest.approx(0.1)
    assert (train.log_every, train.save_every, recipe.data.max_length) == (2, 5, 65)
    assert (recipe.parallel.data, recipe.parallel.pipeline, recipe.parallel.micro_batches) == (2, 2, 2)
    assert recipe.eval.every_epochs == 1.0
    assert recipe.eval.every_steps is None
    assert recipe.callbacks[0].args == {"url": "file:///tmp/somewhere", "every": 3}


def test_a_vocabulary_at_the_top_of_a_mindformers_file(base, tmp_path, caplog):
    """As files for research/llama3 have it: of a directory that is there it is the tokenizer, else it lies beside the
    checkpoint, which a line says."""
    text = MINDFORMERS.format(base=base, parallel=True)
    tokenizer = bundled_models()["llama_tiny"]
    recipe = load_any(write(tmp_path / "a.yaml", f"vocab_file: {tokenizer}/tokenizer.model\n{text}"))
    assert recipe.model.tokenizer == str(tokenizer)
    recipe = load_any(write(tmp_path / "b.yaml", f"vocab_file: /nowhere/tokenizer.model\n{text}"))
    assert recipe.model.tokenizer == "llama_tiny"
    assert "vocab_file: the tokenizer lies beside the checkpoint" in caplog.text


def test_converted_text_is_the_same_recipe(base, tmp_path):
    file = write(tmp_path / "run_llama.yaml", MINDFORMERS.format(base=base, parallel=False))
    text, ignored = convert(file)
    assert any(line.startswith("context: ") for line in ignored)
    assert any(line.startswith("parallel_config: use_parallel is off") for line in ignored)
    assert "model.model_config: hidden_dropout_rate: LLaMA has no dropout, there as here" in ignored
    assert all(f"# ignored: {line}" in text for line in ignored)
    again = load_any(write(tmp_path / "recipe.yaml", text))
    assert again == load_any(file)
    with pytest.raises(InputError, match="is a recipe already"):
        convert(tmp_path / "recipe.yaml")


def test_mindformers_refuses_what_would_change_results(base, tmp_path):
    text = MINDFORMERS.format(base=base, parallel=False) + "layer_decay: 0.65\nlayer_scale: True\nno_such_key: 1\n"
    with pytest.raises(InputError) as error:
        load_any(write(tmp_path / "run.yaml", text))
    assert "layer_scale" in str(error.value)
    assert "no_such_key: is not known" in str(error.value)
    assert "layer_decay:" not in str(error.value)
    # a file that describes another model than the checkpoint is, or an engine's setting that is none of speed alone
    for old, new, message in (
        ("hidden_size: 128", "hidden_size: 4096", "model_config.hidden_size: 4096, but the model has 128"),
        ("rms_norm_eps: 1e-5", "rms_norm_eps: 1e-6", "model_config.rms_norm_eps: 1e-06, but the model has 1e-05"),
        ("type: LlamaConfig", "type: GPT2Config", "GPT2Config, but the checkpoint's model_type is 'llama'"),
        ("n_kv_heads: 2", "extend_method: NTK", "extend_method: NTK, but the model has {'rope_type': 'default'"),
        ("lr_end: 1.e-5", "warmup_epochs: 2", "lr_schedule.warmup_epochs"),
        ("seed: 7", "moe_config: {expert_num: 4}", "moe_config.expert_num: 4"),
    ):
        changed = MINDFORMERS.format(base=base, parallel=False).replace(old, new)
        with pytest.raises(InputError, match=re.escape(message)):
            load_any(write(tmp_path / "run.yaml", changed))


@pytest.mark.parametrize("name", ("optimizer", "runner_config", "model"))
def test_what_is_no_section_is_refused(base, tmp_path, name):
    values = {**yaml.safe_load(MINDFORMERS.format(base=base, parallel=False)), name: "adam"}
    with pytest.raises(InputError, match=f"run.yaml: {name}: 'adam'; a section was expected"):
        load_any(write(tmp_path / "run.yaml", yaml.safe_dump(values)))
    with pytest.raises(InputError, match=f"{name}.more: {name} is no section, it holds a value"):
        load_any(tmp_path / "run.yaml", changes={f"{name}.more": 1})


# What MindFormers' own files say of a model, besides its sizes.
ENGINE = {
    "batch_size": 1, "use_flash_attention": False, "use_prompt_flash_attention": False, "param_init_type": "float16",
    "layernorm_compute_type": "float32", "softmax_compute_type": "float32", "compute_dtype": "float16",
    "checkpoint_name_or_path": "", "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0, "repetition_penalty": 1,
    "max_decode_length": 64, "top_k": 5, "top_p": 1, "do_sample": True, "use_past": False, "seq_length": 64,
    "hidden_size": 64, "num_layers": 2,
}  # fmt: skip
WHOLE = {
    "GPT2Config": (
        {"vocab_size": 300, "num_heads": 4, "expand_ratio": 3, "hidden_act": "gelu", "hidden_dropout_rate": 0.1},
        (2, 64, 4, 4, 16, 192, 300, 64),
    ),
    "LlamaConfig": (
        {"vocab_size": 320, "num_heads": 4, "n_kv_heads": 2, "multiple_of": 64, "rms_norm_eps": 1e-6, "offset": 0,
         "rotary_dtype": "float16", "pretrain_seqlen": 2048, "extend_method": "None", "ignore_token_id": -100},
        (2, 64, 4, 2, 16, 192, 320, 64),
    ),
    "GLMConfig": (
        {"vocab_size": 1300, "num_heads": 4, "inner_hidden_size": 256, "layernorm_order": "post", "ignore_index": -100,
         "embedding_dropout_prob": 0.0, "hidden_size_per_attention_head": None, "use_final_layernorm": True,
         "activation_func": "GELU", "position_encoding_2d": True, "is_enhanced_encoder": True, "mask_token_id": 3},
        (2, 64, 4, 4, 16, 256, 1300, 64),
    ),
    "ChatGLM2Config": (
        {"padded_vocab_size": 650, "ffn_hidden_size": 128, "kv_channels": 16, "num_attention_heads": 4, "rope_ratio": 1,
         "multi_query_attention": True, "multi_query_group_num": 2, "rmsnorm": True, "add_qkv_bias": True,
         "bias_dropout_fusion": True, "attention_softmax_in_fp32": True, "quantization_bit": 0, "pre_seq_len": None,
         "prefix_projection": False, "gmask_token_id": 64790, "hidden_dropout": 0.0},
        (2, 64, 4, 2, 16, 128, 650, 64),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE)
def test_a_file_that_trains_from_nothing_says_the_sizes(base, tmp_path, kind):
    """The whole of what MindFormers' files of each family have in them."""
    from model_zoo.counting import sizes

    more, expected = WHOLE[kind]
    file = {
        "run_mode": "train",
        "load_checkpoint": "",
        "trainer": {"type": "CausalLanguageModelingTrainer"},
        "model": {"model_config": {"type": kind, **ENGINE, **more}},
        "train_dataset": {"data_loader": {"dataset_dir": str(base / "data.jsonl")}},
        "processor": {"tokenizer": {"vocab_file": str(base / "vocab.json")}},
    }
    recipe = load_any(write(tmp_path / "run.yaml", yaml.safe_dump(file)))
    assert recipe.model.from_scratch
    assert recipe.model.tokenizer == str(base)
    assert sizes(recipe.model.config)[:8] == expected
    assert recipe.data.max_length == 64


def test_what_a_file_is_for(base, tmp_path, capsys):
    from pet.cli.main import main

    text = MINDFORMERS_SMALL.format(base=base).replace("run_mode: finetune", "run_mode: eval")
    write(tmp_path / "job.yaml", text)
    assert main(["finetune", "job.yaml"]) == 2
    assert "run_mode is eval, which is no training; see pet evaluate job.yaml --base" in capsys.readouterr().err
    # the other commands take it as well
    assert main(["validate", "job.yaml"]) == 0
    assert capsys.readouterr().out == "job.yaml: ok\n"
    write(tmp_path / "job.yaml", text.replace("data.jsonl", "absent.jsonl"))
    assert main(["validate", "job.yaml"]) == 2
    assert "absent.jsonl: no such file" in capsys.readouterr().err
    write(tmp_path / "job.yaml", text)
    assert main(["data", "job.yaml", "--samples", "1"]) == 0
    assert "What is 0?" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "base", "expression", "expected", "noted"),
    [
        ("LlamaConfig", "llama_tiny", ".*wq|.*wk|.*wv|.*wo", ["q_proj", "k_proj", "v_proj", "o_proj"], False),
        ("LlamaConfig", "llama_tiny", "w1|w2", ["gate_proj", "down_proj"], False),
        ("LlamaConfig", "llama_tiny", ".*w_qkv.*", ["q_proj", "k_proj", "v_proj"], False),
        ("LlamaConfig", "glm_tiny", ".*wq|.*wv", ["query_key_value"], True),
        ("ChatGLM2Config", "glm4_tiny", ".*query_key_value*", ["q_proj", "k_proj", "v_proj"], False),
        ("ChatGLM2Config", "glm4_tiny", ".*dense_left$", ["gate_up_proj"], True),
        ("GLMConfig", "glm_tiny", ".*query_key_value*|.*dense$", ["query_key_value", "attention.dense"], False),
        ("GPT2Config", "gpt_tiny", ".*dense1$|.*dense3$", ["c_attn"], True),
        ("GPT2Config", "gpt_tiny", ".*dense.*|.*projection", ["c_attn", "attn.c_proj", "mlp.c_proj"], False),
        (None, "llama_tiny", ".*word_embeddings|.*linear_fc2|.*linear_fc1", ["gate_proj", "up_proj", "down_proj"], 0),
        ("LlamaConfig", "llama_tiny", ["q_proj", ".*v_proj$|[kq]_proj"], ["q_proj", "v_proj", "re:[kq]_proj"], False),
    ],
)
def test_targets_by_mindformers_expressions(kind, base, expression, expected, noted):
    from pet.compat.mindformers.targets import targets_of
    from pet.names import model_config
    from pet.recipe.translation import Translation

    t = Translation("file")
    assert targets_of(t, expression, kind, model_config(base)) == expected
    assert bool(t.ignored) == noted


def test_mindformers_callbacks_in_a_recipe(base, caplog):
    from pet.recipe.loading import from_dict

    values = {
        "model": {"path": str(base)},
        "data": {"train": str(base / "data.jsonl"), "max_length": 48},
        "train": {"keep_last": 7},
        "callbacks": [
            {"name": "MFLossMonitor", "args": {"per_print_times": 3}},
            "csv",
            "SummaryMonitor",
            {"type": "CheckpointMonitor", "prefix": "x", "save_checkpoint_steps": 4, "keep_checkpoint_max": 2},
            {"name": "ObsMonitor", "args": {"target_dir": "file:///tmp/somewhere", "upload_sequence": 5}},
        ],
    }
    recipe = from_dict(values)
    assert [(one.name, one.args) for one in recipe.callbacks] == [
        ("csv", {}),
        ("pet.compat.modelarts:Upload", {"url": "file:///tmp/somewhere", "every": 5}),
    ]
    # what the recipe says itself stays
    assert (recipe.train.log_every, recipe.train.save_every, recipe.train.keep_last) == (3, 4, 7)
    assert recipe.train.save_prefix == "x"
    with pytest.raises(InputError, match=r"callbacks: ObsMonitor: give target_dir"):
        from_dict({**values, "callbacks": ["ObsMonitor"]})
    with pytest.raises(InputError, match=r"callbacks: TrainCallBack: is not known"):
        from_dict({**values, "callbacks": [{"type": "TrainCallBack", "stop_step": 3}]})
    assert from_dict({**values, "callbacks": ["OnRequestExit"]}).callbacks == []
    assert "callbacks.OnRequestExit: left out: a run that is sent SIGTERM ends after its step" in caplog.text
    trainer = {"model": str(base), "train_dataset": str(base / "data.jsonl")}
    monitor = {"type": "CheckpointMonitor", "save_checkpoint_steps": 6}
    import pet

    made = pet.Trainer(**trainer, callbacks=["MFLossMonitor", monitor]).recipe()
    assert (made.train.save_every, made.callbacks) == (6, [])
    never = {**monitor, "save_checkpoint_steps": 0}
    assert pet.Trainer(**trainer, callbacks=[never]).recipe().train.save_every is None


def test_what_the_script_adds_does_not_push_out_the_files_callbacks(base, tmp_path):
    import pet

    text = MINDFORMERS.format(base=base, parallel=False)
    recipe = pet.Trainer(recipe=str(write(tmp_path / "job.yaml", text)), args={"profile": True}).recipe()
    assert [one.name for one in recipe.callbacks] == ["pet.compat.modelarts:Upload", "profiler"]


def test_evaluation_data_counts_where_only_training_is_not_to_measure(base, tmp_path):
    import pet

    text = MINDFORMERS.format(base=base, parallel=False).replace("do_eval: True", "do_eval: False")
    trainer = pet.Trainer(recipe=str(write(tmp_path / "job.yaml", text)))
    assert trainer.recipe("finetune").data.eval is None
    assert trainer.recipe("evaluate").data.eval == [str(base / "held_out.jsonl")]
    text = text.replace("run_mode: finetune", "run_mode: eval")
    assert load_any(write(tmp_path / "eval.yaml", text)).data.eval == [str(base / "held_out.jsonl")]


MINDFORMERS_SMALL = """
run_mode: finetune
load_checkpoint: {base}
output_dir: out
runner_config: {{epochs: 1, batch_size: 4, sink_mode: True}}
optimizer: {{type: FP32StateAdamWeightDecay, learning_rate: 1.e-2, weight_decay: 0.0}}
lr_schedule: {{type: ConstantWarmUpLR, learning_rate: 1.e-2, warmup_steps: 0, total_steps: -1}}
runner_wrapper: {{use_clip_grad: False}}
model:
  model_config:
    type: GPT2Config
    seq_length: 48
    pet_config: {{pet_type: lora, lora_rank: 4, lora_alpha: 8, lora_dropout: 0.0, target_modules: '.*c_attn'}}
train_dataset: {{data_loader: {{dataset_dir: {base}/data.jsonl, shuffle: False}}}}
"""
COMMON = {"output_dir": "out", "learning_rate": 1e-2, "max_steps": 2, "weight_decay": 0.0}


@pytest.mark.parametrize("kind", ["mindformers", "llama_factory", "axolotl"])
def test_pet_finetune_takes_the_files_as_they_are(base, tmp_path, kind, numpy_loss, asked):
    """Two steps; the first loss is that of the base by NumPy, the second is lower on the same rows."""
    import pet
    from pet.cli.main import main

    model, tokenizer = pet.AutoModel.from_pretrained(str(base)), pet.AutoTokenizer.from_pretrained(str(base))
    rows = [json.loads(line) for line in (base / "data.jsonl").read_text().splitlines()][:4]
    (tmp_path / "rows.json").write_text(
        json.dumps([{"instruction": row["prompt"], "output": row["completion"]} for row in rows])
    )
    llama_factory = {"model_name_or_path": str(base), "stage": "sft", "finetuning_type": "lora", "lora_rank": 4}
    llama_factory |= {"dataset": "rows.json", "dataset_dir": str(tmp_path), "cutoff_len": 48, "warmup_steps": 0}
    llama_factory |= {"lora_target": "c_attn", "per_device_train_batch_size": 4, "lr_scheduler_type": "constant"}
    axolotl = {"base_model": str(base), "adapter": "lora", "lora_r": 4, "lora_alpha": 8, "sequence_len": 48}
    prompt = {"format": "{instruction}", "no_input_format": "{instruction}", "field_output": "output"}
    axolotl |= {"datasets": [{"path": str(tmp_path / "rows.json"), "type": prompt}], "micro_batch_size": 4}
    axolotl |= {"lora_target_modules": ["c_attn"], "lr_scheduler": "constant", "warmup_steps": 0}
    text = {
        "mindformers": MINDFORMERS_SMALL.format(base=base),
        "llama_factory": yaml.safe_dump({**llama_factory, **COMMON}),
        "axolotl": yaml.safe_dump({**axolotl, **COMMON}),
    }[kind]
    write(tmp_path / "job.yaml", text)
    more = [f"data.train={tmp_path}/rows.json", "train.steps=2"] if kind == "mindformers" else []
    assert main(["finetune", "job.yaml", "generation.max_new_tokens=1", "data.shuffle=false", *more]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["loss"] == pytest.approx(numpy_loss(model, asked(tokenizer, rows)), rel=1e-4)
    assert lines[1]["loss"] < lines[0]["loss"]
    settings = json.loads((tmp_path / "out/adapter/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["target_modules"]) == (4, 8, ["c_attn"])


def test_a_job_file_goes_on_from_another_run(base, tmp_path):
    """``load_checkpoint`` of a run: its adapter and base; with ``resume_training`` its last checkpoint as well."""
    import shutil

    import pet

    text = MINDFORMERS_SMALL.format(base=base)
    first = load_any(write(tmp_path / "job.yaml", text), [f"output.dir={tmp_path}/first", "train.save_every=2"])
    from pet.train.run import finetune

    whole = finetune(first, show=lambda text: None)
    assert whole["steps"] == 4
    text = text.replace(f"load_checkpoint: {base}", "load_checkpoint: first")
    recipe = load_any(write(tmp_path / "job.yaml", text))
    assert recipe.model.path == str(base)
    assert recipe.adapter.load == str(tmp_path / "first/adapter")
    shutil.rmtree(tmp_path / "first/checkpoints/step-000004")
    write(tmp_path / "job.yaml", text + "resume_training: True\n")
    trainer = pet.Trainer(recipe="job.yaml")
    assert trainer.finetune()["steps"] == 4
    from model_zoo.checkpoint.safetensors_io import read_file

    lines = (tmp_path / "out/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 4
    mine, other = (read_file(tmp_path / run / "adapter/adapter_model.safetensors") for run in ("out", "first"))
    assert all((mine[name] == other[name]).all() for name in other)
    # the name of a checkpoint that is not the last
    assert {one.name for one in (tmp_path / "out/checkpoints").glob("step-*")} == {"step-000002", "step-000004"}
    named = text.replace("output_dir: out", "output_dir: new").replace("load_checkpoint: first", "load_checkpoint: out")
    write(tmp_path / "job.yaml", named + "resume_training: step-000002\n")
    assert load_any("job.yaml").train.resume
    assert [one.name for one in (tmp_path / "new/checkpoints").glob("step-*")] == ["step-000002"]
    write(tmp_path / "job.yaml", named + "resume_training: step-000003\n")
    with pytest.raises(InputError, match="step-000003 holds no whole checkpoint"):
        load_any("job.yaml")
    (tmp_path / "x.ckpt").write_bytes(b"0")
    write(tmp_path / "job.yaml", text.replace("first", "x.ckpt") + "resume_training: True\n")
    with pytest.raises(InputError, match=r"resume_training: x\.ckpt is taken as weights"):
        load_any("job.yaml")
