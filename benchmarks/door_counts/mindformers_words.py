"""The words of a line of MindFormers' documents: what a reader fills in is a tiny base, rows and two processes."""

from __future__ import annotations

import fnmatch
import functools
import json
import re
import shlex
from pathlib import Path

from .mindformers_bases import FAMILIES, JOBS, NAMES, TYPES, given as file_of
from .mindformers_calls import CARDS

SLIPS = (
    (r"inpurt_path", "input_path"),
    (r"\.ymal", ".yaml"),
    (r"msrunlauncher", "msrun_launcher"),
    (r"run_stanalone", "run_standalone"),
    (r"ckpt_transorm", "ckpt_transform"),
    (r"yaml--", "yaml --"),
    (r"configs/pangualpha/run_llama", "configs/llama/run_llama"),
    (r"root/mindformers/run_mindformer", "run_mindformer"),
    (r"^bash bash ", "bash "),
    (r"[:：]$", ""),
)
"""Of the documents' spelling."""
PLACES = (
    (r"\{RANK_TABLE_FILE[^}]*\}|\[?\$?\{?\bRANK_TABLE(_FILE|_PATH)?\b\}?\]?", "hccl.json"),
    (r"path/to/rank_table_file", "hccl.json"),
    (r"\{?CONFIG_PATH\}?|\[CONFIG_PATH\]|xxx\.yaml|path/to/config_yaml", "config.yaml"),
    (r"\[?DEVICE_RANGE\]?", "[0,2]"),
    (r"\[?RUN_STATUS\]?|\{RUN_STATUS\}|\[?RUN_MODE\]?|\{train(/finetune\S*)?\}", "MODE"),
    (r"\$?\bdevice_num\b|\bDEVICE_NUM\b|\bRANK_SIZE\b|\bWORKER_NUM\b|\bLOCAL_WORKER\b", "8"),
    (r"\[?DEVICE_ID\]?", "0"),
    (r"\bMASTER_ADDR\b", "127.0.0.1"),
    (r"\bMASTER_PORT\b", "8118"),
    (r"\bNODE_RANK\b", "0"),
    (r"\bLOG_DIR\b", "output/msrun_log"),
    (r"\bJOIN\b", "False"),
    (r"\bCLUSTER_TIME_OUT\b", "300"),
    (r"\bPARALLEL\b", "single"),
    (r"\bPREDICT_MODE\b", "Base"),
    (r"\bCKPT_PATH\b", "path/model.ckpt"),
    (r"\bTOKENIZER(_PATH)?\b", "path/tokenizer.model"),
    (r"\bDTYPE\b", "fp32"),
    (r"--model model_name", "--model MODEL"),
    (r" --otherargs", ""),
    (r"--layers LAYERS", "--layers 1"),
    (r"lora_alpha/lora_rank", "2"),
    (r"run_distribute_\{single/multi\}_node", "run_distribute_single_node"),
    (r"\{(the )?path of [^}]*\}|\"the path of pretrained ckpt or gpt2\"", "path/model.ckpt"),
    (r"\{your_path/([^}]*)\}", r"path/\1"),
    (r"\{(ip_addr|主节点ip)\}", "127.0.0.1"),
    (r"\{node_num\}", "0"),
    (r"\{(path|\w*根目录)\}", "path"),
    (r" \./train --run_mode predict", " --run_mode predict"),
    (r" *\\?(&>|>) *\S+( 2>&1)?( *&)?$", ""),
)
"""What stands for something in a line, and what it becomes; names of files are looked at afterwards."""
WORDS = (
    (r"config|config_path|yaml_file", "YAML"),
    (
        r"load_checkpoint|checkpoint_path|src_checkpoint|src_ckpt_path_or_dir|src_ckpt_dir",
        "BASE",
    ),
    (r"(train|eval)_(dataset(_dir)?|data)|dataset_dir", "ROWS"),
    (r"(vocab|model|tokenizer)_(file|path)|tokenizer", "TOKENIZER"),
    (r"input_glob|input_file|input_file_path|data_path", "TEXTS"),
    (r"input_path|ms_not_concat_ckpt_path|torch_\w*(path|dir)|pt_ckpt_path|pretrained_model_dir|model_dir", "SOURCE"),
    (r"output_\w+|mindspore_\w+|dst_\w*dir|dst_checkpoint|ms_ckpt_path", "RESULT"),
    (r"model_type", "NAME"),
    (r"(src|dst)_(ckpt_)?strategy", "NONE"),
    (r"seq_length|max_length|max_source_length|max_target_length", "64"),
)
"""Options by their names."""
MODELS = {"gpt_tiny": "gpt", "chatglm3_tiny": "glm-n", "glm2_tiny": "glm-n", "glm_tiny": "glm"}
"""What ``convert_weight.py`` calls them."""
PARTS = ("model_parallel", "data_parallel", "pipeline_parallel")


def filled(line: str) -> str:
    """A line without slips, and with something in the place of what a reader fills in."""
    for words, meant in (*SLIPS, *PLACES):
        line = re.sub(words, meant, line)
    return re.sub(r"\bMODE\b", "train" if "pretrain" in line else "finetune", line).strip()


def family(told: str) -> str:
    """The base in the place of a line's models."""
    told = re.sub(r"/glm\.md", "/glm_6b", told.replace("gpt4", ""))  # of which a set of data has its name
    return next(base for base, words in FAMILIES.items() if re.search(words, told))


def meant(words: list[str], tree: Path, base: str, place: Path, line: str) -> list[str] | None:
    """The words with files of this machine, and two processes. None where a configuration is another model's."""
    done, option = [], ""
    wrapper = next((word for word in words if word.endswith(".sh")), "")
    numbers = 0
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        kind = name.lstrip("-") if equals else option
        option = word.lstrip("-") if word.startswith("--") and not equals else ""
        if option:
            done.append(word)
            continue
        if " " in value and ".py" in value:  # what a wrapper starts
            inner = meant(shlex.split(value), tree, base, place, line)
            if inner is None:
                return None
            done.append(" ".join(one if re.fullmatch(r"[\w./*=:,\[\]-]+", one) else shlex.quote(one) for one in inner))
            continue
        sort = next((sort for names, sort in WORDS if re.fullmatch(names, kind)), "")
        if not sort and not kind:
            sort = bare(value, wrapper)
            numbers += value.isdigit()
            if value.isdigit() and wrapper and numbers <= 2 and not value.startswith("8118"):
                value = str(CARDS) if int(value) > 1 else value
            value = re.sub(r"^\[\d+, ?\d+([\])])$", r"[0,2\1", value)
            value = re.sub(r"^\d+(\.\d+){3}$", "127.0.0.1", value)
        if sort == "YAML":
            value = configuration(value, tree, base, line)
            if value is None:
                return None
        elif sort:
            value = stands_for(sort, value, place, line)
        elif kind == "tokenizer_type" or value == "MODEL":
            value = MODELS.get(base, "llama") if value == "MODEL" else value
            value = str(place) if "/" in value else value
        done.append(f"{name}={value}" if equals else value)
    return done if not any(word in ("--data_parallel", "--model_parallel") for word in done) else divided(done)


def divided(words: list[str]) -> list[str]:
    """As many parts of each kind as two processes have."""
    said = {name: words.index(f"--{name}") + 1 for name in PARTS if f"--{name}" in words}
    whole = next((name for name in PARTS if name in said and int(words[said[name]]) > 1), None)
    for name, at in said.items():
        words[at] = str(CARDS if name == whole else 1)
    return words


def bare(word: str, wrapper: str) -> str:
    """What a word without an option is."""
    if not wrapper:
        return ""
    kinds = ((r".*\.ya?ml", "YAML"), (r".*(hccl|rank_table).*\.json", "TABLE"), (r".*tokenizer.*", "TOKENIZER"))
    kinds += (
        ((r".*ckpt.*|.*model_dir.*|.*checkpoint(_dir|\.ckpt)?", "BASE"),) if not word.endswith((".py", ".sh")) else ()
    )
    return next((sort for words, sort in kinds if re.fullmatch(words, word)), "")


def stands_for(sort: str, word: str, place: Path, line: str) -> str:
    """The file in the place of a word; a model's name stays."""
    if sort in ("64", "NONE"):
        return "64" if sort == "64" else "None"  # of whole files
    if sort == "TABLE":
        table = place / "hccl.json"
        devices = [{"device_id": str(one), "device_ip": f"192.1.1.{one}", "rank_id": str(one)} for one in range(CARDS)]
        server = {"server_id": "127.0.0.1", "device": devices}
        table.write_text(json.dumps({"version": "1.0", "server_count": "1", "server_list": [server]}))
        return str(table)
    if sort == "NAME" and re.fullmatch(r"\w+_lora(_chat)?", word):
        return word
    if sort in ("BASE", "NAME"):
        for tiny, names in NAMES.items():
            if word in names.split():
                return str(place.parent / tiny)
        both = ("lora" in line + word and "eval" in line) or "transform" in line
        alone = word.endswith(".ckpt") and "txtcls" not in line  # GPT-2's file has a row for each of 4096 positions
        return str(place / ("both.ckpt" if both else "model.ckpt" if alone else "."))
    if sort == "SOURCE":
        kinds = (
            (r"--reversed", "model.ckpt"),
            (r"--concat", "apart.ckpt"),
            (r"--config", "."),
            (r"", "pytorch_model.bin"),
        )
        return str(place / next(name for words, name in kinds if re.search(words, line)))
    if sort == "RESULT":
        kinds = ((r"\.mindrecord$", "rows.mindrecord"), (r"\.json$", "rows.json"), (r"dir$|output/?$", "."))
        name = next(
            (name for words, name in kinds if re.search(words, word)), "hf" if "--reversed" in line else "model.ckpt"
        )
        return str(place.parents[1] / "results" / name)
    if sort == "TEXTS":
        kinds = (
            (r"squad", "squad.json"),
            (r"alpaca_glm4", "messages.jsonl"),
            (r"qa|conversation|alpaca", "conversation.json"),
            (r"wiki", "wiki.txt"),
            (r"Advertise", "advertise.jsonl"),
        )
        return str(place / next((name for words, name in kinds if re.search(words, line)), "wiki.txt"))
    return file_of(sort, place)


def configuration(word: str, tree: Path, base: str, line: str) -> str | None:
    """The file that a word names, or the first of its family in the line's run_mode. None of another model's."""
    every = [path for top in ("configs", "research") for path in sorted((tree / top).rglob("*.y*ml"))]
    named = [path for path in every if fnmatch.fnmatch(path.name, Path(word).name)]
    named.sort(key=lambda path: path.parent.name != Path(word).parent.name)
    modes = re.findall(r"\b(train|finetune|eval|predict|export)\b", line)
    mode = modes[0] if modes else "predict"

    for path in named[:1]:
        return str(path) if kind(path)[0] in TYPES.values() or kind(path)[0] == "None" else None
    like = [path for path in every if kind(path)[0] == TYPES[base] and family(str(path.relative_to(tree))) == base]
    usual = [path for path in like if re.match(JOBS[base], str(path.relative_to(tree)))]
    section = {"train": "train_dataset:", "finetune": "train_dataset:", "eval": "eval_dataset:"}.get(mode, "")
    fit = [path for path in like if kind(path)[1] == mode and section in path.read_text("utf-8")]
    ranked = ([path for path in usual if path in fit], fit, usual, like)
    return next((str(some[0]) for some in ranked if some), None)


@functools.cache
def kind(file: Path) -> tuple[str, str]:
    """A job file's model and run_mode."""
    text = file.read_text("utf-8")
    model = re.search(r"(?m)^  model_config: *\n(?:    .*\n| *#.*\n)*?    type: *['\"]?(\w+)", text)
    mode = re.search(r"(?m)^run_mode: *['\"]?(\w+)", text)
    return model[1] if model else "None", mode[1] if mode else "None"
