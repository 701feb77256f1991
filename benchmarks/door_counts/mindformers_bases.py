"""The tiny bases in the place of MindFormers' models, and the files of theirs that documents and tests speak of."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import shutil
import sys
from pathlib import Path

MODULES = ("mindspore.dataset", "mindspore.mindrecord", "pet.train.run", "pet.compat.objects")
MODULES += tuple(f"pet.compat.mindformers.{name}" for name in ("classes", "high_level", "asking", "script"))
"""What most texts import, once for all copies of a process."""
FAMILIES = {
    "chatglm4_tiny": r"glm4|glm_4|GLM4",
    "glm_tiny": r"glm_6b|\bGLMConfig|GLMForPreTraining|/glm/|ChatGLMTokenizer",
    "chatglm3_tiny": r"glm3|glm32k",
    "glm2_tiny": r"glm|codegeex",
    "gpt_tiny": r"gpt",
    "llama_tiny": "",
}
"""The base in the place of a text's models: the first whose words it has."""
JOBS = {
    "glm_tiny": r"configs/glm/\w+\.yaml",
    "chatglm3_tiny": r"configs/glm3/(predict|run)_\w+\.yaml",
    "glm2_tiny": r"configs/glm2/(predict|run)_\w+\.yaml",
    "chatglm4_tiny": r"configs/glm4/(predict|run)_\w+\.yaml",
    "gpt_tiny": r"configs/gpt2/(predict|run)_\w+\.yaml",
    "llama_tiny": r"configs/llama2?/(predict|run)_\w+\.yaml",
}
"""The job file in the place of one that a text does not name."""
NAMES = {
    "glm_tiny": "glm_6b glm_6b_chat",
    "chatglm3_tiny": "glm3_6b glm3_6b_32k glm32k",
    "glm2_tiny": "glm2_6b codegeex2_6b",
    "chatglm4_tiny": "glm4_9b",
    "gpt_tiny": "gpt2 gpt2_xl gpt2_13b gpt2_52b gpt2_xlarge",
    "llama_tiny": "llama_7b llama_13b llama_65b llama2_7b llama2_13b llama2_70b llama3_8b llama3_70b codellama_34b",
}
"""Whose published weights they stand for."""
TYPES = {
    "glm_tiny": "GLMConfig",
    "chatglm3_tiny": "ChatGLM2Config",
    "glm2_tiny": "ChatGLM2Config",
    "chatglm4_tiny": "ChatGLM2Config",
    "gpt_tiny": "GPT2Config",
    "llama_tiny": "LlamaConfig",
}
LAYERS = ("n_layer", "num_layers", "num_hidden_layers")
CONTEXTS = ("n_positions", "n_ctx", "max_position_embeddings", "max_sequence_length", "seq_length")
CHATGLM2 = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "padded_vocab_size": 1344,
    "hidden_size": 64,
    "num_layers": 1,
    "num_attention_heads": 4,
    "multi_query_group_num": 2,
    "kv_channels": 16,
    "ffn_hidden_size": 96,
    "seq_length": 4096,
}
JOB = {
    "run_mode": "predict",
    "use_parallel": False,
    "context": {"device_target": "CPU"},
    "parallel": {},
    "parallel_config": {"data_parallel": 1, "model_parallel": 1},
    "trainer": {"type": "CausalLanguageModelingTrainer"},
}


def given(word: str, place: Path) -> str:
    """A word, or the file that it stands for."""
    if word == ".":
        return str(place)
    if word in ("TOKENIZER", "ROWS"):
        names = ("tokenizer.model", "ice_text.model") if word == "TOKENIZER" else ("rows.mindrecord", "rows.jsonl")
        return str(next((place / name for name in names if (place / name).is_file()), place))
    return str(place / word) if re.search(r"^(?!out/).*\.\w{2,}$", word) else word


def shrink(work: Path) -> None:
    """Makes every configuration the tiny one of its family."""
    from model_zoo.families import chatglm, chatglm2, gpt2, llama

    for own, base in {
        gpt2.GPT2Config: "gpt_tiny",
        llama.LlamaConfig: "llama_tiny",
        chatglm.GLMConfig: "glm_tiny",
        chatglm2.ChatGLM2Config: "glm2_tiny",
    }.items():
        tiny = json.loads((work / "models" / base / "config.json").read_text())
        width = "n_embd" if "n_embd" in tiny else "hidden_size"

        def small(values, made=own.from_dict, tiny=tiny, width=width):
            free = dict.fromkeys(("n_inner", "bos_token_id", "eos_token_id", "pad_token_id"))
            return made(values if values.get(width) == tiny[width] else {**values, **free, **tiny})

        own.from_dict = staticmethod(small)


def write_files(base: str, directory: Path, data: dict[str, Path]) -> None:
    """A base with the files that documents speak of."""
    import mindspore as ms

    import pet
    from pet.compat.ckpt.doors import to_file
    from pet.compat.ckpt.lora import to_lora_file
    from pet.compat.ckpt.names import Form
    from pet.names import bundled_models

    if (directory / "lora.ckpt").is_file():
        return
    same = {"glm2_tiny": "llama_tiny", "chatglm3_tiny": "llama_tiny", "chatglm4_tiny": "glm4_tiny"}
    source = bundled_models()[same.get(base, base)]
    shutil.copytree(source, directory, dirs_exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    if base == "chatglm3_tiny":
        (directory / "tokenizer_config.json").write_text(json.dumps({"prompt_style": "chatglm3"}))
    if base in same:
        config = dict(CHATGLM2)
    config |= dict.fromkeys({*LAYERS} & {*config}, 1) | dict.fromkeys({*CONTEXTS} & {*config}, 4096)
    model = pet.AutoModel.from_config(config)
    pet.save_pretrained(model, directory)
    if base == "gpt_tiny":
        shutil.copytree(source, directory / "judge")
        judges = {"architectures": ["GPT2ForSequenceClassification"], "num_labels": 2}
        pet.save_pretrained(pet.AutoModel.from_config({**config, **judges}), directory / "judge")
    to_file(directory, directory / "model.ckpt")
    if TYPES[base] == "ChatGLM2Config":
        to_file(directory, directory / "apart.ckpt", Form(qkv_concat=False, mlp_concat=False))
    with contextlib.suppress(ImportError):
        import torch

        weights = {name: torch.from_numpy(value.asnumpy()) for name, value in model.parameters_dict().items()}
        torch.save(weights, directory / "pytorch_model.bin")
    adapter = directory.parents[1] / "adapters" / base  # not in the directory, which would be a run's
    pet.save_adapter(pet.apply_lora(model, rank=8, alpha=16), adapter)
    rows = data["content,summary" if "glm" in base else "MindDataset"]
    for file in rows.parent.glob(f"{rows.name}*"):
        shutil.copy(file, directory / file.name.replace(rows.name, f"rows{rows.suffix}"))
    asked = {"question": "what?", "answers": [{"text": "grey", "answer_start": 0}], "id": "0"}
    named = {"type": TYPES[base], "checkpoint_name_or_path": str(directory)}
    texts = {
        "squad.json": {"data": [{"paragraphs": [{"context": "grey", "qas": [asked]}]}]},
        "conversation.json": [
            {
                **{"instruction": "what?", "input": "", "output": "grey"},
                **{"id": "1", "conversations": [{"from": "human", "value": "what?"}, {"from": "gpt", "value": "grey"}]},
            }
        ],
        "messages.jsonl": {
            "messages": [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "grey"}]
        },
        "job.yaml": {**JOB, "model": {"model_config": named}},
    }
    for name, values in texts.items():
        (directory / name).write_text(json.dumps(values) + "\n")
    sold = [{"content": "a red shirt", "summary": "grey", "text": "a red shirt"}] * 6
    (directory / "advertise.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sold))
    for name in ("lines.txt", "wiki.txt"):
        lines = [" = A title = ", *["a red cotton shirt , and a grey scarf . " * 20] * 8]
        (directory / name).write_text("\n\n".join(lines))
    to_lora_file(adapter, directory / "lora.ckpt", directory)
    both = [ms.load_checkpoint(str(directory / f"{name}.ckpt")) for name in ("model", "lora")]
    values = [{"name": name, "data": value} for one in both for name, value in one.items()]
    ms.save_checkpoint(values, str(directory / "both.ckpt"))


def load() -> None:
    """Imports what copies of this process need; nothing is computed before they are made."""
    for module in MODULES:
        importlib.import_module(module)


def stand_in(work: Path) -> None:
    """Puts `pet.compat.mindformers` in the place of ``mindformers``, and tiny bases in that of published weights."""
    from pet.names import bundled_models

    for name, module in [item for item in sys.modules.items() if item[0].startswith("pet.compat.mindformers")]:
        sys.modules[name.replace("pet.compat.mindformers", "mindformers")] = module
    for tiny, names in NAMES.items():
        bundled_models().update(dict.fromkeys((*names.split(), tiny), work / "models" / tiny))
