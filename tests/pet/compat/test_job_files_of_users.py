"""What files of users of axolotl and LLaMA-Factory have, beside what these systems' own examples have."""

from __future__ import annotations

import json
import logging

import pytest
from user_job_files import JOBS, job

from model_zoo.counting import config_of
from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.compat import axolotl, llama_factory
from pet.compat.merging import of_file
from pet.compat.yaml_files import load_any
from pet.data.encode import Encoder
from pet.data.formats import read_rows
from pet.data.settings import DataSettings
from pet.names import bundled_models

TALK = [
    [("human", "Who are you?"), ("gpt", "A model."), ("human", "Again?"), ("gpt", "The same.")],
    [("system", "Be short."), ("human", "Hi"), ("gpt", "Hello.")],
]
HEADS = {
    "chatml": ("<|im_start|>{}", "\n{}<|im_end|>\n", "<|im_end|>"),
    "llama3": ("<|start_header_id|>{}<|end_header_id|>", "\n\n{}<|eot_id|>", "<|eot_id|>"),
}
CONTROLS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


@pytest.fixture
def talkative(tmp_path):
    """A base whose tokenizer has the control tokens of both prompts, and whose end token may be chosen."""

    def made(eos="</s>"):
        place = tmp_path / f"base{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        for file in bundled_models()["llama_tiny"].iterdir():
            (place / file.name).write_bytes(file.read_bytes())
        config = json.loads((place / "config.json").read_text())
        said = json.loads((place / "tokenizer_config.json").read_text())
        first = config["vocab_size"]
        added = {str(first + place): {"content": token, "special": True} for place, token in enumerate(CONTROLS)}
        said["added_tokens_decoder"] = {**said.get("added_tokens_decoder", {}), **added}
        (place / "tokenizer_config.json").write_text(json.dumps({**said, "eos_token": eos}))
        (place / "config.json").write_text(json.dumps({**config, "vocab_size": first + len(CONTROLS)}))
        return place

    return made


def turn_by_turn(tokenizer, turns, conversation):
    """Ids and labels as axolotl 0.4 makes them of a sharegpt row: of every turn by itself."""
    head, rest, end = HEADS[conversation]
    turns = list(turns)
    system = turns.pop(0)[1] if turns[0][0] == "system" else "You are a helpful assistant."
    ids = tokenizer(head.format("system") + rest.format(system))["input_ids"]
    labels = [-100] * len(ids)
    for who, text in turns:
        name = {"human": "user", "gpt": "assistant"}[who]
        heading, turn = (
            tokenizer(head.format(name) + more, add_special_tokens=False)["input_ids"]
            for more in ("", rest.format(text))
        )
        if who == "gpt" and tokenizer.eos_token != end:
            turn.append(tokenizer.eos_token_id)
        ids += turn
        labels += [-100] * len(heading) + turn[len(heading) :] if who == "gpt" else [-100] * len(turn)
    return ids, labels


@pytest.mark.parametrize(
    ("conversation", "eos"),
    [("chatml", "</s>"), ("chatml", "<|im_end|>"), ("llama3", "</s>"), ("llama3", "<|eot_id|>")],
)
def test_sharegpt_is_read_turn_by_turn(tmp_path, talkative, conversation, eos):
    theirs = pytest.importorskip("transformers").AutoTokenizer
    base, rows = talkative(eos), tmp_path / "rows.jsonl"
    lines = [{"conversations": [{"from": who, "value": text} for who, text in turns]} for turns in TALK]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    entry = {"path": str(rows), "type": "sharegpt", "conversation": conversation}
    recipe = load_any(job(tmp_path, base_model=str(base), adapter="lora", sequence_len=256, datasets=[entry]))
    encoder = Encoder(AutoTokenizer.from_pretrained(base), DataSettings.of(recipe.data))
    for row, turns in zip(read_rows(str(rows), **encoder.settings.reading), TALK, strict=True):
        ids, learnt = encoder.tokens(row)
        expected = turn_by_turn(theirs.from_pretrained(base), turns, conversation)
        assert (list(ids), [each if yes else -100 for each, yes in zip(ids, learnt, strict=True)]) == expected


def test_sharegpts_system_text_speakers_and_whole_conversations(tmp_path):
    entry = {"path": "a", "type": "sharegpt", "conversation": "chatml", "field_human": "asker", "field_model": "teller"}
    given = {"base_model": "llama_tiny", "adapter": "lora", "datasets": [entry], "default_system_message": "Be kind."}
    t = axolotl.translate({**given, "chat_template": "chatml", "train_on_inputs": True}, tmp_path / "job.yaml")
    assert not t.problems and t.get("data.roles") == {"asker": "user", "teller": "assistant"}
    assert '"Be kind."' in t.get("data.template") and t.get("data.train_on") == "all" and t.get("data.system") is None
    t = axolotl.translate(given, tmp_path / "job.yaml")  # which counts there beside chat_template: chatml alone
    assert '"You are a helpful assistant."' in t.get("data.template")


SCHEDULES = {"axolotl": "lr_scheduler", "llama_factory": "lr_scheduler_type"}


@pytest.mark.parametrize("system", JOBS)
def test_a_deepspeed_file_has_the_say_of_schedule_and_optimizer(tmp_path, system):
    module = {"axolotl": axolotl, "llama_factory": llama_factory}[system]
    told = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto"}
    schedule = {"type": "WarmupDecayLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto"}}
    file = {
        **JOBS[system],
        SCHEDULES[system]: "cosine",
        "warmup_ratio": 0.1,
        "weight_decay": 0.2,
        "learning_rate": 1e-3,
    }

    def read(more, **settings):
        path = tmp_path / "zero.json"
        path.write_text(json.dumps({**told, **more}))
        t = module.translate({**file, "deepspeed": str(path), **settings}, tmp_path / "job.yaml")
        return t, (t.get("train.schedule"), t.get("train.warmup"), t.get("train.weight_decay"))

    assert read({})[1] == ("cosine", 0.1, 0.2)
    t, found = read({"scheduler": schedule})
    assert found == ("linear", 0.1, 0.2) and t.get("parallel.shard_optimizer") is None and not t.problems
    assert "it takes the place of the job's own schedule" in t.ignored["zero.json: scheduler.type"]
    plain = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_type": "linear"}}
    adam = {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}}
    t, found = read({"scheduler": plain, "optimizer": adam})  # DeepSpeed's own warm-up, and no decay
    assert found == ("constant", 1000, 0.0) and t.get("train.betas") == [0.9, 0.95]
    t, _ = read({"optimizer": {"type": "AdamW", "params": {"weight_decay": "auto"}}}, learning_rate=2e-3)
    assert (t.get("train.weight_decay"), t.get("train.schedule"), t.get("train.learning_rate")) == (0.2, "cosine", 2e-3)
    assert (
        "zero.json: scheduler.type: 'OneCycle' is not supported"
        in read({"scheduler": {"type": "OneCycle"}})[0].problems[0]
    )
    t, found = read({}, deepspeed={"scheduler": schedule})  # in the job file itself
    assert found[0] == "linear"
    t, found = read({}, deepspeed="elsewhere.json")
    assert found[0] == "cosine" and "schedule and optimizer would count" in t.ignored["deepspeed: elsewhere.json"]


@pytest.mark.parametrize(
    ("given", "kind", "problem"),
    [
        ({"special_tokens": {"eos_token": "<|im_end|>"}}, "alpaca", r"special_tokens: '<\|im_end\|>': not so in"),
        ({"special_tokens": {"eos_token": "<|im_end|>"}}, "chat_template", None),
        ({"special_tokens": {"eos_token": "<end>"}}, "chat_template", "add-tokens .* --eos '<end>' --output"),
        (
            {"special_tokens": {"bos_token": "<|im_start|>"}},
            "chat_template",
            r"special_tokens: '<\|im_start\|>': not so in",
        ),
        ({"special_tokens": {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<p>"}}, "alpaca", None),
        ({"special_tokens": {"additional_special_tokens": ["<|eot_id|>"]}}, "alpaca", None),
        ({"tokens": ["<|im_start|>", "<|im_end|>"]}, "alpaca", None),
        (
            {"tokens": ["<|im_start|>", "<call>"]},
            "alpaca",
            "tokens: '<call>': not so in the base's tokenizer; pet add-tokens .* '<call>' --plain",
        ),
        ({"eot_tokens": ["<|end_header_id|>"]}, "alpaca", None),
        ({"eot_tokens": ["<end>"]}, "alpaca", "eot_tokens: <end>: turns end"),
    ],
)
def test_tokens_are_those_of_the_base_that_there_will_be(tmp_path, talkative, given, kind, problem):
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"instruction": "Q", "output": "A", "messages": messages}) + "\n")
    file = {**JOBS["axolotl"], "base_model": "someone/a-base", "datasets": [{"path": "x", "type": kind}]}
    file |= {"chat_template": "chatml", "tokenizer_config": "someone/a-base", "sequence_len": 64, **given}
    words = [f"model.path={talkative()}", f"data.train={rows}"]
    if problem:
        with pytest.raises(InputError, match=problem):
            load_any(job(tmp_path, **file), words)
    else:
        recipe = load_any(job(tmp_path, **file), words)
        assert recipe.model.tokenizer == recipe.model.path  # not the name that the file has for both


def test_axolotls_settings_of_the_models_config(tmp_path):
    for given, expected in (
        ({"model_config": {"rope_theta": 5e5, "attention_bias": None}}, {"rope_theta": 5e5}),
        ({"overrides_of_model_config": {"rope_scaling": {"type": "linear", "factor": 2.0}}}, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, None),
        ({"model_config": {"rope_scaling": {"type": None, "factor": None}}}, {}),
    ):
        t = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml")
        expected = {"rope_scaling": {"type": "linear", "factor": 2.0}} if expected is None else expected
        assert (t.get("model.config") or {}) == expected and not t.problems


@pytest.mark.parametrize(
    ("system", "given", "found", "noted"),
    [
        ("axolotl", {"hub_strategy": "every_save", "hub_private_repo": True}, {}, ("hub_strategy", "hub_model_id")),
        ("axolotl", {"logging_steps": 0.2}, {"train.log_every": None}, ("logging_steps", "a line per step")),
        ("axolotl", {"logging_steps": 0.2, "max_steps": 9}, {"train.log_every": 2}, None),
        ("llama_factory", {"save_steps": 0.25, "max_steps": 8}, {"train.save_every": 0.25}, None),
        (
            "llama_factory",
            {"logging_steps": 10, "optim_args": "eps=1"},
            {"train.log_every": 10},
            ("optim_args", "other"),
        ),
        ("axolotl", {"data_seed": 49, "world_size": 2, "unsloth_rope": True}, {}, ("data_seed", "reads no such key")),
        ("axolotl", {"peft": {"loftq_config": {"loftq_bits": None}}}, {"adapter.init": None}, None),
        (
            "axolotl",
            {"quantize_moe_experts": True, "dion_lr": 0.1, "lr_div_factor": 9, "do_bench_eval": True, "device": "cpu"},
            {},
            ("quantize_moe_experts", "speed or memory"),
        ),
        ("axolotl", {"save_first_step": True, "eval_sequence_len": None}, {}, ("save_first_step", "train.save_every")),
        ("llama_factory", {"stage": "dpo", "ref_model": "llama_tiny"}, {"train.reference": None}, None),
        ("llama_factory", {"run_name": "grade=02/from a b"}, {"name": "grade_02_from_a_b"}, None),
        ("llama_factory", {"create_new_adapter": True}, {}, ("create_new_adapter", "no adapter_name_or_path")),
        ("llama_factory", {"hub_model_id": "me/mine", "hub_private_repo": True}, {"callbacks": None}, None),
        (
            "llama_factory",
            {"push_to_hub": True, "output_dir": "out/it", "hub_strategy": "end"},
            {"callbacks": [{"name": "hub", "args": {"name": "it"}}]},
            ("hub_strategy", "once, at the end"),
        ),
        (
            "llama_factory",
            {"push_to_hub": "true", "hub_model_id": "me/mine", "hub_private_repo": True},
            {"callbacks": [{"name": "hub", "args": {"name": "me/mine", "private": True}}]},
            None,
        ),
        (
            "axolotl",
            {"hub_model_id": "me/mine", "hub_strategy": "end"},
            {"callbacks": [{"name": "hub", "args": {"name": "me/mine", "private": True}}]},
            ("hub_strategy", "once, at the end"),
        ),
        ("llama_factory", {"reserved_label_len": 1, "cpu_infer": 32}, {}, ("cpu_infer", "KTransformers")),
        ("axolotl", {"bnb_4bit_quant_type": "nf4"}, {}, ("bnb_4bit_quant_type", "within bnb_config_kwargs")),
        ("axolotl", {"push_to_hub": True, "report_to": "wandb"}, {}, ("push_to_hub", "reads no such key")),
        ("llama_factory", {"train_mm_proj_only": True, "audio_sampling_rate": 9}, {}, ("audio_sampling_rate", "text")),
    ],
)
def test_what_changes_no_result_is_no_problem(tmp_path, system, given, found, noted):
    module = {"axolotl": axolotl, "llama_factory": llama_factory}[system]
    t = module.translate({**JOBS[system], **given}, tmp_path / "job.yaml")
    assert not t.problems and {key: t.get(key) for key in found} == found
    assert noted is None or noted[1] in t.ignored[noted[0]]


def test_what_is_refused_says_how_to_go_on(tmp_path):
    t = axolotl.translate({**JOBS["axolotl"], "push_dataset_to_hub": "me"}, tmp_path / "job.yaml")
    assert "rows are not uploaded; push_dataset_to_hub=null on the command line leaves it out" in t.problems[0]
    given = {key: one for key, one in JOBS["llama_factory"].items() if key != "output_dir"}
    t = llama_factory.translate({**given, "push_to_hub": True}, tmp_path / "job.yaml")
    assert t.problems == ["job.yaml: push_to_hub: hub_model_id or output_dir has to say where to"]
    t = llama_factory.translate({**JOBS["llama_factory"], "stage": "dpo", "ref_model": "other"}, tmp_path / "job.yaml")
    assert "'other': the reference is the base without adapters, where this is left out" in t.problems[0]


def test_a_warm_up_on_the_command_line(tmp_path, caplog):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"instruction": "Q", "output": "A"}) + "\n")
    file = job(tmp_path, **JOBS["axolotl"], sequence_len=64, push_dataset_to_hub="me")
    with caplog.at_level(logging.WARNING):
        recipe = load_any(file, [f"data.train={rows}", "train.warmup=1", "push_dataset_to_hub=null"])
    assert (recipe.train.warmup, recipe.train.warmup_most) == (1, None)


@pytest.mark.parametrize("system", JOBS)
def test_a_target_that_is_trained_whole_gets_no_adapter(tmp_path, system, caplog):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"instruction": "Q", "output": "A"}) + "\n")
    both = ["embed_tokens", "lm_head"]
    names = {
        "axolotl": ("lora_target_modules", "lora_modules_to_save"),
        "llama_factory": ("lora_target", "additional_target"),
    }
    targets = {"axolotl": ["q_proj", *both], "llama_factory": "q_proj,embed_tokens,lm_head"}[system]
    file = {**JOBS[system], names[system][0]: targets, names[system][1]: both}
    with caplog.at_level(logging.WARNING):
        recipe = load_any(job(tmp_path, **file), [f"data.train={rows}", "data.max_length=64"])
    assert (recipe.adapter.targets, recipe.adapter.modules_to_save) == (["q_proj"], both)
    assert "they are trained whole, and PEFT makes no adapters of them" in caplog.text


def test_problems_name_the_files_own_keys(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"instruction": "Q", "output": "A"}) + "\n")
    file = job(tmp_path, **JOBS["axolotl"], sequence_len=4096, lora_r=0)
    with pytest.raises(InputError) as error:
        load_any(file, [f"data.train={rows}", "adapter.alpha=-1"])
    told = error.value.whole or str(error.value)
    assert "job.yaml: lora_r=0: adapter.rank:" in told and "command line: adapter.alpha=-1: adapter.alpha:" in told
    with pytest.raises(InputError, match=r"job\.yaml: sequence_len=4096: data\.max_length: 4096 is longer"):
        load_any(file, [f"data.train={rows}", "adapter.rank=4"])


@pytest.mark.parametrize(
    ("system", "given"),
    [
        ("axolotl", {"rl": "kto", "rl_beta": 0.2, "kto_desirable_weight": 0.5}),
        ("llama_factory", {"stage": "dpo", "pref_beta": 0.2, "pref_loss": "simpo", "simpo_gamma": 0.5}),
    ],
)
def test_a_job_of_preferences_can_be_merged(tmp_path, system, given):
    merge = of_file(str(job(tmp_path, **JOBS[system], **given, output_dir="saves/run")))
    assert (merge["base"], merge["adapters"]) == ("llama_tiny", ["saves/run"])


def test_the_base_of_the_command_line_is_the_reference_that_the_file_names(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"instruction": "Q", "chosen": "A", "rejected": "B"}) + "\n")
    file = {
        **JOBS["llama_factory"],
        "model_name_or_path": "someone/a-base",
        "ref_model": "someone/a-base",
        "stage": "dpo",
    }
    recipe = load_any(job(tmp_path, **file, output_dir="someone"), ["model.path=llama_tiny", f"data.train={rows}"])
    assert (recipe.model.path, recipe.train.objective, recipe.train.reference) == ("llama_tiny", "dpo", None)


def scaled(kind, factor, **more):
    return {"rope_type": kind, "factor": factor, **more}


@pytest.mark.parametrize(
    ("base", "kind", "length", "expected"),
    [
        ({}, "linear", 200, {"rope_scaling": scaled("linear", 4.0)}),
        ({}, "dynamic", 128, {"rope_scaling": scaled("dynamic", 2.0, original_max_position_embeddings=64)}),
        (
            {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            "llama3",
            65,
            {
                "rope_parameters": {
                    **scaled("llama3", 2.0, original_max_position_embeddings=64),
                    **{"rope_theta": 5e5, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
                }
            },
        ),
        (
            {"rope_scaling": scaled("yarn", 4.0, original_max_position_embeddings=16)},
            "yarn",
            60,
            {"rope_scaling": scaled("yarn", 4.0, original_max_position_embeddings=16)},
        ),
        ({}, "yarn", 64, None),
        ({"model_type": "chatglm", "max_position_embeddings": None, "seq_length": 64}, "yarn", 200, None),
    ],
)
def test_llama_factory_scales_positions_to_its_length(base, kind, length, expected, tmp_path):
    """What `configure_rope` of 0.9.4 makes of the same config.json; only a factor that is needed counts."""
    config = json.loads((bundled_models()["llama_tiny"] / "config.json").read_text())
    config = {key: value for key, value in {**config, "max_position_embeddings": 64, **base}.items() if value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    values = {"model_name_or_path": str(tmp_path), "rope_scaling": kind, "cutoff_len": length}
    t = llama_factory.translate({"stage": "sft", "do_train": True, **values}, tmp_path / "job.yaml")
    if expected is None:
        assert not t.get("model.config") and "LLaMA-Factory" in t.ignored["rope_scaling"]
        return
    given = expected.get("rope_scaling") or expected["rope_parameters"]
    context = given.get("original_max_position_embeddings", 64) * given["factor"]
    assert t.get("model.config") == {"max_position_embeddings": context, **expected}
    assert config_of({**config, **t.get("model.config")}).max_position_embeddings == context


def test_llama_factorys_own_length_scales_positions_too(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"instruction": "Q", "output": "A"}) + "\n")
    file = {**JOBS["llama_factory"], "rope_scaling": "linear", "model_name_or_path": "llama_tiny"}
    recipe = load_any(
        job(tmp_path, **{key: one for key, one in file.items() if key != "cutoff_len"}), [f"data.train={rows}"]
    )
    assert (recipe.data.max_length, recipe.model.config["max_position_embeddings"]) == (2048, 2048)
