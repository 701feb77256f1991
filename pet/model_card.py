"""What goes with an exported adapter or model: tokenizer, chat template, generation settings, and a README.md."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from adapters.peft_config import CONFIG, TASK_SCORE
from adapters.stored import StoredAdapter
from model_zoo.atomic import read_json, write_json, write_text
from model_zoo.errors import InputError, first_line
from model_zoo.labels import CLASSIFIER, Labels
from model_zoo.tokenizers import AutoTokenizer
from model_zoo.tokenizers.base import Tokenizer
from model_zoo.tokenizers.style_templates import template_of
from pet.companions import generation_settings, put_template
from pet.data.template import as_chat_template, chat_template
from pet.files import copy
from pet.hub import bare, hub_name
from pet.names import find_model, find_tokenizer, own_tokenizer
from pet.recipe.fields import is_jinja
from pet.recipe.schema import Recipe
from pet.serving import ENGINES, RANKS, check_served


class Source(NamedTuple):
    """An adapter or a model that others are to open.

    Attributes:
        result: its directory.
        base: the base that it belongs on, or was made of, as it is called; None of a model by itself.
        name: for messages and inside files.
        run, recipe: the run directory that it comes from with its recipe; None for another directory.
    """

    result: Path
    base: str | None
    name: str
    run: Path | None = None
    recipe: Recipe | None = None

    @property
    def adapter(self) -> bool:
        return (self.result / CONFIG).is_file()

    def needs_adapter(self, asked: str) -> None:
        if not self.adapter:
            whole = f"{self.run}: every weight was trained" if self.run else f"{self.result}: is a model"
            raise InputError(f"{whole}, so there is no adapter to {asked}")

    def accompany(self, stage: Path) -> None:
        """Puts what an adapter or a merged model needs beside its weights, which lie in `stage`."""
        base = find_model(self.base)
        tokenizer = tokenizer_of(base, self.recipe, self.result)
        tokenizer.save_pretrained(stage)
        if (template := template_of(tokenizer)) != tokenizer.chat_template:  # here its own prompt style goes first
            put_template(stage, template)
        write_json(stage / "generation_config.json", generation_settings(base, tokenizer, self.recipe))
        if self.run is not None and (self.run / "loss.png").is_file():
            shutil.copyfile(self.run / "loss.png", stage / "loss.png")
        write_text(stage / "README.md", "\n".join(card(stage, self, base, tokenizer)) + "\n")


def share(stage: Path, source: Source) -> None:
    """Fills a directory with an adapter or a model as others open it, with the base's name in it, and what goes with
    it."""
    copy(source.result, stage)
    if (stage / CONFIG).is_file():
        values = read_json(stage / CONFIG)
        # so that whoever gets the adapter knows what it belongs on
        values["base_model_name_or_path"] = values.get("base_model_name_or_path") or source.base
        write_json(stage / CONFIG, values)
    source.accompany(stage)


def tokenizer_of(base: Path, recipe: Recipe | None, result: Path) -> Tokenizer:
    """The tokenizer of a run, with the run's own chat template, or text of a prompt, where it has one; without a run
    the one beside the result."""
    given = recipe.model.tokenizer if recipe is not None else own_tokenizer(result)
    tokenizer = AutoTokenizer.from_pretrained(find_tokenizer(given) if given else base)
    template = recipe.data.template if recipe is not None else None
    if (jinja := chat_template(template)) is not None:
        tokenizer = tokenizer.with_chat_template(*jinja)
    elif template is not None:
        template = recipe.data.template_without_input or template  # messages have none
        opening = "".join(filter(None, map(tokenizer.control_text, tokenizer.around[0])))
        text = as_chat_template(template, opening, recipe.data.system)
        tokenizer = tokenizer.with_chat_template(text, "data.template")
    return tokenizer


def card(stage: Path, source: Source, base: Path, tokenizer: Tokenizer) -> list[str]:
    """The lines of README.md."""
    adapter, recipe, run = (stage / CONFIG).is_file(), source.recipe, source.run
    known = bare(source.base) if hub_name(source.base) else Path(source.base).name
    kind = "adapter for" if adapter else "model tuned from"
    method = recipe.adapter.method if recipe is not None else read_json(source.result / CONFIG)["peft_type"].lower()
    lines = [
        "---",
        f"base_model: {known}",
        f"library_name: {'peft' if adapter else 'transformers'}",
        f"pipeline_tag: text-{'generation' if labels_of(stage) is None else 'classification'}",
        f"tags: [{method}, mindspore]",
        "---",
        "",
        f"# {source.name}",
        "",
        f"A `{method}` {kind} {known}, trained by mindspore-pet.",
    ]
    if recipe is not None:
        lines += ["", "## Data and method", "", *_facts(recipe, run)]
    if run is not None:
        lines += _numbers(run)
    return [*lines, "", "## How to load it", "", *_loading(stage, base, known, adapter, tokenizer)]


def _summary(run: Path) -> dict[str, Any]:
    """What a run's summary.json holds; {} where there is none. Raises InputError: it is damaged."""
    path = run / "summary.json"
    found = read_json(path) if path.is_file() else {}
    wanted = {"trainable": int, "total": int, "before": dict, "after": dict}
    for key, kind in wanted.items():
        if found.get(key) is not None and not isinstance(found[key], kind):
            raise InputError(f"{path}: {key}: {'a number' if kind is int else 'a table of numbers'} was expected")
    return found


def _facts(recipe: Recipe, run: Path | None) -> list[str]:
    summary = _summary(run) if run is not None else {}
    share = recipe.data.eval_fraction
    files = ", ".join(Path(path).name for path in recipe.data.train or []) or "objects of a program"
    held_out = ", ".join(Path(path).name for path in recipe.data.eval or [])
    adapter, train, template = recipe.adapter, recipe.train, recipe.data.template
    trained, total = summary.get("trainable"), summary.get("total")
    shown = {
        "trained on": files,
        "rows": recipe.data.rows and ", ".join(recipe.data.rows),
        "evaluated on": held_out or (share and (f"{share:.0%} of it" if share < 1 else f"{share} rows of it")) or None,
        "prompt": None if template is None or is_jinja(template) else f"`{json.dumps(template)}`",
        "labels": recipe.data.train_on,
        "longest row": f"{recipe.data.max_length} tokens",
        "method": adapter.method,
        "rank": getattr(adapter, "rank", None),
        "alpha": getattr(adapter, "alpha", None),
        "targets": ", ".join(targets) if isinstance(targets := getattr(adapter, "targets", None), list) else targets,
        "base in": recipe.model.quantization and recipe.model.quantization.type,
        "trained weights": f"{trained:,} of {total:,}" if trained is not None and total is not None else None,
        "objective": train.objective,
        "steps": summary.get("steps"),
        "batch size": train.batch_size,
        "learning rate": train.learning_rate,
        "optimizer": train.optimizer,
        "precision": summary.get("precision"),
        "seed": train.seed,
        "answers end at": ", ".join(f"`{json.dumps(text)}`" for text in recipe.generation.stop),
    }
    rows = [f"| {key} | {value} |" for key, value in shown.items() if value not in (None, "")]
    return ["| | |", "|---|---|", *rows]


def _numbers(run: Path) -> list[str]:
    summary, picture = _summary(run), (run / "loss.png").is_file()
    before, after = summary.get("before") or {}, summary.get("after") or {}
    lines = ["", "## Numbers"] if after or picture else []
    if after:
        from pet.train.report import titles_of

        lines += ["", "| | base | tuned |", "|---|---|---|"]
        for key, title in titles_of(after).items():
            first, last = (f"{one[key]:.4f}" if isinstance(one.get(key), float) else "" for one in (before, after))
            lines.append(f"| {title} | {first} | {last} |")
    return [*lines, *(["", "![loss of the run](loss.png)"] if picture else [])]


def _published_code(base: Path, tokenizer: Tokenizer) -> list[str]:
    """What transformers opens by code beside the checkpoint alone: ChatGLM's model, its tokenizer and GLM-4's first."""
    needed = {
        "model": read_json(base / "config.json").get("model_type") == "chatglm",
        "tokenizer": tokenizer.class_name.startswith("ChatGLM"),
    }
    return [name for name, is_needed in needed.items() if is_needed]


def labels_of(place: Path) -> Labels | None:
    """What the head of an adapter or of a checkpoint gives, where it judges texts."""
    if not (place / CONFIG).is_file():
        return Labels.of(read_json(place / "config.json"))
    if read_json(place / CONFIG).get("task_type") != TASK_SCORE:
        return None
    with contextlib.closing(StoredAdapter(place)) as stored:
        return stored.labels


def _loading(stage: Path, base: Path, known: str, adapter: bool, tokenizer: Tokenizer) -> list[str]:
    coded = _published_code(base, tokenizer)
    trusted = coded or read_json(base / "config.json").get("auto_map")
    remote, flag = (", trust_remote_code=True", " --trust-remote-code") if trusted else ("", "")
    places = "these files and the base's" if adapter else "these files"
    what = " and the ".join(coded)
    by_code = f"transformers and vLLM open the {what} by the code (`*.py`) that is published with ChatGLM and GLM-4"
    if (labels := labels_of(stage)) is None:
        auto, count, ask, served = "AutoModelForCausalLM", "", "pet chat", [f"vllm serve .{flag}"]
    else:
        auto, count, ask, served = f"AutoModel{CLASSIFIER}", f", num_labels={len(labels.names)}", "pet predict", []
    given = ' --input "…"' if count else ""
    if adapter:
        model = [
            f'base = {auto}.from_pretrained("{known}"{count}{remote})',
            'model = PeftModel.from_pretrained(base, ".")',
        ]
    else:
        model = [f'model = {auto}.from_pretrained("."{remote})']
    lines = [
        *([f"{by_code}; it has to lie beside {places}.", ""] if coded else []),
        "```python",
        *(["from peft import PeftModel"] if adapter else []),
        f"from transformers import {auto}, AutoTokenizer",
        "",
        *model,
        f'tokenizer = AutoTokenizer.from_pretrained("."{remote})',
        "```",
        "",
        "```sh",
    ]
    if not adapter:
        return [*lines, *served, f"{ask} --model .{given}", "```"]
    try:
        rank = check_served(stage, base, ENGINES["vllm"])
        limit = next(allowed for allowed in RANKS if allowed >= rank)
        lines.append(f"vllm serve {known}{flag} --enable-lora --max-lora-rank {limit} --lora-modules tuned=.")
        after = []
    except InputError as error:
        reason = first_line(error).removeprefix(f"{stage}: ")
        after = ["", f"vLLM cannot serve it beside its base: {reason}"]
    return [*lines, f"{ask} --model {known} --adapter .{given}", "```", *after]
