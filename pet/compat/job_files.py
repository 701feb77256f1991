"""What the tables of LLaMA-Factory's and axolotl's job files have in common: rules, reasons, data sets.

A key that a file leaves out has that system's default, not ours: what it says is what is run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.matching import matches
from adapters.patterns import within
from adapters.peft_config import CONFIG
from model_zoo.atomic import read_json
from model_zoo.counting import sizes
from model_zoo.errors import InputError
from model_zoo.rope_config import with_changes
from model_zoo.tokenizers import AutoTokenizer
from pet.compat.deepspeed import put_deepspeed
from pet.compat.measured import interval, logged, saved
from pet.compat.results import of_run
from pet.compat.translation import EVALUATIONS, elsewhere, number, positive, same, switched_on
from pet.data.messages import ROLE_NAMES
from pet.hub import hub_name
from pet.meta_model import MetaModel
from pet.names import bundled_models, find_model, model_config, preset_names
from pet.recipe.classes import OPTIONS
from pet.recipe.data import WITHOUT_QUESTIONS
from pet.recipe.translation import Ignored, Refused, Translation, is_off

SPEED = Ignored("it changes speed or memory, not the result")
LOGS = Ignored("metrics.jsonl and loss.png are written in any case")
MODEL = Ignored("the checkpoint's own files say it")
CACHE = Ignored("tokenised data is kept in data.cache_dir")
LAYOUT = Ignored("how the work is divided is said by the section parallel")
GENERATION = Ignored("the section generation says how answers are written")
DOWNLOADS = Ignored("nothing is downloaded")
MEDIA = Refused("models here read text only")
TOKENS = Refused("the tokenizer and the embedding stay as they are")
LOSS = Refused("a loss that is not here; see train.objective")
TEMPLATES = ("tokenizer_default", "jinja", "chatglm2", "chatglm3", "glm4", "gemma", "qwen3")
TEMPLATES += ("mistral_v1", "mistral_v2v3", "mistral_v3_tekken", "mistral_v7_tekken")
"""Prompts of the families here, by both systems' names: that of a model's own tokenizer, unless the text is here."""
NO_TEMPLATE = "the base's tokenizer has no chat template; give it one, or data.template"
FALLBACK = "tokenizer_default_fallback_"
"""axolotl's: before the name of a prompt that serves where the tokenizer has none."""
OWN_TOKENS = ("<s>", "</s>", "<unk>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|endoftext|>")
OWN_TOKENS += ("<|im_start|>", "<|im_end|>", "<|startoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
"""Tokens that begin, end or stand for unknown text in the families here."""


def listed(value: Any) -> list[str]:
    """The words of a list, or of a text with commas between them."""
    return [word.strip() for word in (value.split(",") if isinstance(value, str) else value)]


def targets(t: Translation, name: str, value: Any) -> None:
    """Names of modules in a list or with commas between them, or a regular expression."""
    if isinstance(value, str) and set(value) & set("\\[(|*+?^$"):
        t.put("adapter.targets", [f"re:{value}"])
        return
    t.put("adapter.targets", ["all-linear" if word == "all" else word for word in listed(value)])


def fit_targets(t: Translation, base: Any) -> None:
    """Names what is trained whole as PEFT reads it, and leaves out targets that are, and those that match no cell of
    the base, if others do: PEFT passes over them. GLM-4 has a gate_up_proj where LLaMA has two.

    Args:
        base: what ``model.path`` will be.
    """
    with contextlib.suppress(InputError):  # reported where it is used
        paths = list(MetaModel(model_config(base)).cells) if isinstance(base, str) else []
        t.put("adapter.modules_to_save", _ending_so(t.get("adapter.modules_to_save"), paths))
    entries, whole = t.get("adapter.targets") or [], t.get("adapter.modules_to_save")
    if isinstance(whole, list) and (left := [each for each in entries if each not in whole]) and left != entries:
        t.ignore(f"targets {', '.join(map(str, whole))}", "they are trained whole, and PEFT makes no adapters of them")
        t.put("adapter.targets", entries := left)
    if not all(isinstance(each, str) for each in (base, *entries)):
        return  # refused with the other values
    with contextlib.suppress(InputError, re.error):  # reported where they are used
        meta = MetaModel(model_config(base))
        sites = list(meta.adapter_sites())

        def fits(entry: str) -> bool:
            return any(matches(entry, site, meta.family) for site in sites)

        found = [next((one for one in called(each) if fits(one)), None) for each in entries]
        for entry, one in zip(entries, found, strict=True) if any(found) else ():
            if one is None:
                t.ignore(entry, "the base has no such modules, and PEFT passes over them")
        t.put("adapter.targets", [one for one in found if one] or entries or None)


def _ending_so(entries: Any, paths: list[str]) -> Any:
    """Entries of PEFT's modules_to_save, and what they mean there besides: cells whose paths end so, as that of an
    ``input_layernorm`` does in ``norm``."""
    if not isinstance(entries, list):
        return entries
    kept, more = [], set()
    for entry in map(str, entries):
        besides = [path for path in paths if path.endswith(entry) and not within(path, entry)]
        more |= {path if "." in entry else path.rpartition(".")[2] for path in besides}
        kept += [entry] if not besides or any(within(path, entry) for path in paths) else []
    return [*kept, *sorted(more)]


def called(entry: str) -> list[str]:
    """A target as it is written, as transformers' releases call it in a model that also sees, and in one that reads
    text only."""
    other = entry.replace("language_model.model.", "model.language_model.")
    return list(dict.fromkeys((entry, other, entry.replace("language_model.", ""))))


def fit_length(t: Translation, base: Any) -> None:
    """Cuts the systems' own ``data.max_length`` to the context of the base, see `fit_targets`; a file's own is left."""
    length = t.get("data.max_length")
    if (
        not isinstance(base, str)
        or type(length) is not int
        or any(t.values.get(name) is not None for name in ("cutoff_len", "sequence_len"))
    ):
        return
    with contextlib.suppress(InputError):  # reported where it is used
        context = sizes(with_changes(model_config(base), t.get("model.config") or {})).context
        if context < length:
            t.put("data.max_length", context)
            t.ignore("data.max_length", f"{length} unless the file says it; the base has a context of {context}")


def own_template(t: Translation, name: str, value: Any) -> None:
    """A prompt's name whose text is not here: that of the model's own tokenizer, where it has one."""
    told = "the prompt is that of the model's own tokenizer"
    if value not in TEMPLATES and not str(value).startswith(FALLBACK):
        t.refuse(name, f"{value!r}: {told} where this is left out, or data.template=FILE")
    elif without_template(t):
        t.refuse(name, f"{value!r}: {NO_TEMPLATE}")
    else:
        t.ignore(name, f"{told}; data.template puts another in its place")


def tokenizer_of(t: Translation) -> Any:
    """The base's tokenizer, where it lies here; else None."""
    base = t.get("model.tokenizer") or t.get("model.path") or t.get("base")
    with contextlib.suppress(InputError, TypeError):  # reported where it is read
        here = Path(base).exists() or base in bundled_models()
        return AutoTokenizer.from_pretrained(find_model(base)) if here else None


def without_template(t: Translation) -> bool:
    """Whether the base lies here and its tokenizer has no prompt of its own, in its files or in ChatGLM's code."""
    own = tokenizer_of(t)
    return own is not None and not own.chat_template and own.default_style == "plain"


def upload(t: Translation, name: str, value: Any, private: bool | None = None) -> None:
    """The name of the repository that the result goes to; in angle brackets it is a place for one."""
    if re.fullmatch("<.*>", str(value)):
        t.ignore(name, f"{value} is a place for a name")
    elif not is_off(value):
        made = {} if private is None else {"private": private}
        t.add_callback({"name": "hub", "args": {"name": str(value), **made}})


def packing(t: Translation, name: str, value: Any) -> None:
    """Whether rows are filled with several samples; where they are not, those of like length may come together."""
    whole = switched_on(value)
    if whole or t.get("data.packing") == "pack":
        t.put("data.packing", "pack" if whole else "longest")


BITS = {
    4: {"model.quantization.type": "nf4", "model.quantization.double": True},
    8: {"model.quantization.type": "int8"},
}
"""How both systems pack a base."""


def _dropped(t: Translation, name: str, value: Any) -> None:
    """Rows that fill no batch; ``data.drop_last`` leaves out those that fill no step."""
    if switched_on(value) and t.get("train.accumulation", 1) > 1:
        t.refuse(name, f"{value}: with gradient_accumulation_steps an epoch would end with a step of fewer batches")
    elif switched_on(value):
        t.put("data.drop_last", True)


def base_model(t: Translation, name: str, value: Any) -> None:
    """The base: a directory, or a name on a hub."""
    value = of_run(value, "model")
    t.put("model.path", value)
    known = Path(value).expanduser().exists() or value in (*bundled_models(), *preset_names())
    if not known and hub_name(value) is None:
        t.lack("model.path", name, f"{value!r}: no such directory")


def adapter(t: Translation, name: str, value: Any) -> None:
    """The adapter to go on from, or that a run has written."""
    several = value.split(",") if isinstance(value, str) else value
    if len(several) > 1:
        t.refuse(name, f"{value!r}: give one; pet merge FILE merges several")
    else:
        t.put("adapter.load", of_run(several[0].strip(), "adapter"))


def revision(t: Translation, name: str, value: Any) -> None:
    """The base's state on a hub; read after its name."""
    hub = hub_name(str(t.get("model.path")))
    if hub is None:
        t.ignore(name, "the base is no name on a hub")
    elif value != "main":  # what a name means without one
        t.put("model.path", hub.pinned(str(value)))


COMMON = {
    "lora_alpha": number("adapter.alpha"),
    "lora_dropout": number("adapter.dropout"),
    "loraplus_lr_ratio": number("train.lora_plus_ratio"),
    "loraplus_lr_embedding": Ignored("it is about the adapters of embeddings"),  # see settle
    "lr_scheduler_kwargs": elsewhere,
    "streaming": "data.streaming",
    "remove_unused_columns": Ignored("columns without a role are not read"),
    "save_steps": interval("train.save_every"),
    "save_strategy": saved,
    "logging_steps": logged,
    "save_total_limit": positive("train.keep_last"),
    "eval_steps": interval("eval.every_steps"),
    "save_only_model": Ignored("checkpoints can be resumed from in any case"),
    "trust_remote_code": MODEL,
    **same(Ignored("transformers reads it for other optimizers"), "optim_args optim_target_modules"),
    "dataloader_drop_last": _dropped,
    **same(SPEED, "dataloader_* torch_compile* tf32 device_map low_cpu_mem_usage gradient_checkpointing_kwargs"),
    **same(LAYOUT, "deepspeed fsdp fsdp_* ray_* resources_per_worker context_parallel_size"),
    **same(LOGS, "*swanlab* wandb_*"),
}
"""Names and rules that both systems' tables have, behind the length of the run."""


def put_data(t: Translation, key: str, name: str, found: list[dict[str, Any]]) -> None:
    """Data sets as files. How the first with questions is read is said of all, and of the others what differs from it.

    Args:
        key: ``data.train`` or ``data.eval``.
        name: the other system's key.
        found: the path of each and how its rows are read (`pet.recipe.data.DataPath`); None is as if it were not said.
    """
    if gone := [str(one["path"]) for one in found if not Path(one["path"]).expanduser().exists()]:
        t.lack(key, name, f"{', '.join(gone)}: no such file; nothing is downloaded")
    ranked = {"format": "auto"} if t.get("train.objective", "sft") != "sft" else {}  # the objective reads rows itself
    told = [{setting: value for setting, value in one.items() if value not in (None, "")} for one in found]
    readings = [{**AT_REST, **reading, **ranked} for reading in told]
    for one in readings:  # but for words that mean it in any file
        one["roles"] = {word: role for word, role in one["roles"].items() if ROLE_NAMES.get(word) != role}
    if not t.sources and found:
        asked = [one for one in readings if one["format"] not in WITHOUT_QUESTIONS]
        t.sources += (asked or readings)[:1]
        for setting in t.sources[0].keys() - {"path"}:
            t.drop(f"data.{setting}")
            t.put(f"data.{setting}", None if t.sources[0][setting] == {} else t.sources[0][setting])
    entries = []
    for reading in readings:
        own = {setting: value for setting, value in reading.items() if value != t.sources[0].get(setting)}
        if reading["format"] in WITHOUT_QUESTIONS:
            own = {setting: own[setting] for setting in ("format", "columns", "too_long") if setting in own}
        path = str(own.pop("path", reading["path"]))
        entries.append({"path": path, **own} if own else path)
    t.put(key, entries)


AT_REST: dict[str, Any] = {"format": "auto", "columns": {}, "roles": {}}
AT_REST |= dict.fromkeys(("template", "template_without_input", "system", "enable_thinking"))
"""How rows are read where nothing is said of it."""


def preferences(
    t: Translation,
    objective: str,
    given: Mapping[str, Any],
    keys: Mapping[str, str],
    random: tuple[str, ...] = ("sft", "reward"),
) -> dict[str, Any]:
    """Puts an objective and those of its settings that a file has; both systems' beta is 0.1 for all of them.

    Args:
        objective: of the recipe; sft for none.
        given: all settings of the file.
        keys: names of settings of preferences -> the recipe's key; of several names of one key the first counts.
        random: objectives that the system trains with an adapter's dropout; with the others it sets it to 0, as TRL.

    Returns:
        The other settings.
    """
    if objective != "sft":
        t.put("train.objective", objective)
        if objective in OPTIONS["beta"]:
            t.put("train.beta", 0.1)
    said = set()
    for name in (name for name in keys if name in given):
        key = keys[name]
        if objective in OPTIONS.get(key, ()) and given[name] is not None:
            if key in said:
                t.ignore(name, "another name of the same setting is given, too")
                continue
            said.add(key)
            with t.reading(name, given[name]):
                t.put(f"train.{key}", given[name] if isinstance(given[name], str) else float(given[name]))
        elif not is_off(given[name]) and given[name] != 0:
            t.ignore(name, f"it has no part in the objective {objective}")
    if objective not in random and given.get("lora_dropout") not in (None, 0, "", "0", "0.0"):
        t.ignore("lora_dropout", "answers are compared without dropout there; adapter.dropout=… would have it")
        keys = {**keys, "lora_dropout": ""}
    return {name: value for name, value in given.items() if name not in keys}


def settle(t: Translation, of_embeddings: str = "*lora_embedding_*") -> None:
    """Leaves out what has no effect: epochs beside steps, a window where nothing streams, when to evaluate where
    nothing is held out, settings of a new adapter beside one that is loaded. Takes a DeepSpeed file's schedule. Gives
    adapters of embeddings (``of_embeddings``) their rate under LoRA+, and DoRA's magnitudes the decay that transformers
    gives all but biases and norms."""
    with contextlib.suppress(InputError):  # reported where it is read
        if (load := t.get("adapter.load")) and (file := Path(str(load)) / CONFIG).is_file():
            t.put("adapter.method", "dora" if read_json(file).get("use_dora") else "lora")
    if t.get("adapter.method") == "dora" and (decay := t.get("train.weight_decay")):
        magnitudes = {"match": ["*lora_magnitude_vector*"], "weight_decay": decay}
        t.put("train.groups", [*t.get("train.groups", []), magnitudes])
    if t.get("train.lora_plus_ratio") and any(EMBEDDINGS.search(str(one)) for one in t.get("adapter.targets", [])):
        rate = t.values.get("loraplus_lr_embedding")
        with t.reading("loraplus_lr_embedding", rate):
            own = {"match": [of_embeddings], "learning_rate": float(1e-6 if rate is None else rate)}
            t.put("train.groups", [*t.get("train.groups", []), own])
            t.ignored.pop("loraplus_lr_embedding", None)
    deepspeed = t.values.get("deepspeed")
    if isinstance(deepspeed, Mapping) or Path(str(deepspeed)).is_file():
        put_deepspeed(t, deepspeed, beside=True)
    elif not is_off(deepspeed):
        t.ignore(f"deepspeed: {deepspeed}", "no such file here, whose schedule and optimizer would count")
    if t.get("train.steps"):
        t.drop("train.epochs")
    if not t.get("data.streaming"):
        t.drop("data.stream_window")
    if not (t.get("data.eval") or t.get("data.eval_fraction")):
        for key in EVALUATIONS:
            if t.settings.pop(key, None) is not None:
                t.ignore(key, "nothing is held out to evaluate on")
    if t.get("adapter.load"):  # PEFT reads that adapter's own settings, and none of the file's
        for key in [key for key in t.settings if key.startswith("adapter.") and key not in OF_ANY_ADAPTER]:
            t.drop(key)
            if key in t.settings.said:
                t.ignore(key, "the adapter in adapter.load has its own")


OF_ANY_ADAPTER = ("adapter.load", "adapter.method")
EMBEDDINGS = re.compile(r"embed|wte|wpe")
"""Names of the families' embeddings."""


def part(t: Translation, key: str, name: str, entry: Mapping[str, Any]) -> str:
    """Which rows of a data set are used, as the recipe has it: ``:5%`` of ``split: train[:5%]``."""
    for field, whole in (("shards", 1), ("num_samples", None)):  # one of so many, or drawn without a seed
        if (value := entry.get(field)) and value != whole:
            t.lack(key, f"{name}.{field}", f"{value!r} takes a part of the rows; a file with these alone is needed")
    found = re.fullmatch(r"\w+(?:\[(.*)\])?", str(entry.get("split") or "train"))
    if found is None:  # train+test, say
        t.lack(key, f"{name}.split", f"{entry['split']!r}: one split, or a part of it as in train[:5%], is read")
    return (found and found[1]) or ":"


def put_parts(t: Translation, key: str, parts: list[str]) -> None:
    """The parts of the data sets: none where all rows are used, one where it is the same of all."""
    if set(parts) - {":"}:
        t.put(key, parts if len(set(parts)) > 1 else parts[:1])
