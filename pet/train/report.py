"""What a user reads before and after a run: plain tables, the same on a terminal and in a log."""

from __future__ import annotations

import itertools
import shutil
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pet.recipe.classes import COMPARED, OPTIONS
from pet.recipe.fields import ADAPTERS_OFF, PRECOMPUTE
from pet.train.checkpoint import path_of
from pet.train.evaluate import Answer

WIDTH = 100
NARROW = 60
"""Columns below which answers stand below one another: side by side the terminal would break their lines."""
# Metrics as they are told, in this order.
TITLES = {
    "loss": "held-out loss",
    "perplexity": "perplexity",
    "accuracy": "accuracy",
    "f1": "macro F1",
    "rouge_1": "ROUGE-1",
    "rouge_2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "bleu": "BLEU",
    "exact_match": "exact match",
}


CONTENTS = {
    "adapter": "the adapter, in PEFT's format",
    "model": "the model, a Hugging Face checkpoint",
    "merged": "the model with the adapter merged in",
    "checkpoints": "to resume from, each with its adapter",
    "metrics.jsonl": "a line of numbers per step",
    "samples.jsonl": "what the model answered, at each evaluation",
    "profile": "some steps by MindSpore's profiler, for MindStudio Insight",
    "loss.png": "the run in one picture",
    "summary.json": "before, after, times and sizes",
    "recipe.yaml": "the recipe, every default in its place",
}


CLOSING = " ，。、；：！？）」』》】”’…"
"""Characters that no line begins with."""


def width(text: str) -> int:
    """Columns that a text takes on a terminal; Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def padded(text: str, columns: int) -> str:
    """The text, filled up with spaces."""
    return text + " " * max(0, columns - width(text))


def wrapped(text: str, columns: int) -> list[str]:
    """The text in lines of at most so many columns, broken at spaces and beside Chinese characters where there are any;
    no line begins with Chinese punctuation."""
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        line, cut = "", 0
        for character in paragraph:
            wide = [width(neighbour) == 2 for neighbour in (line[-1:], character)]
            if line and (line[-1] == " " or any(wide)) and character not in CLOSING:
                cut = len(line)
            line += character
            while width(line) > columns:
                cut = len(line) if character == " " else cut or len(line) - 1
                lines.append(line[:cut].rstrip())
                line, cut = line[cut:], 0
        lines.append(line)
    return lines


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned columns; all but the first are set to the right. The first row is the head."""
    columns = [max(width(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = []
        for index, cell in enumerate(row):
            space = " " * (columns[index] - width(cell))
            cells.append(space + cell if index else cell + space)
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("─" * column for column in columns))
    return lines


def number(value: float | None) -> str:
    """A measure with as many digits as mean something."""
    if value is None:
        return "–"
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"


def before(facts: dict[str, Any]) -> str:
    """The summary in front of a run.

    Args:
        facts: label → what stands beside it, in order; values are texts.
    """
    widest = max(width(label) for label in facts)
    return "\n".join(f"{padded(label, widest)}  {value}" for label, value in facts.items())


def titles_of(measured: dict[str, float]) -> dict[str, str]:
    """Name → title of what was measured: those in `TITLES` in their order, then an objective's own."""
    return {name: TITLES.get(name, name.replace("_", " ")) for name in (*TITLES, *measured) if name in measured}


def comparison(first: dict[str, float] | None, last: dict[str, float] | None) -> str:
    """The measures before and after, side by side; empty where nothing was measured."""
    first, last = first or {}, last or {}
    titles = titles_of({**first, **last})
    if not titles:
        return ""
    rows = [
        ["", "before", "after"],
        *([title, number(first.get(n)), number(last.get(n))] for n, title in titles.items()),
    ]
    return "\n".join(table(rows))


def samples(first: Sequence[Answer], last: Sequence[Answer], columns: int = WIDTH, base: Sequence[Answer] = ()) -> str:
    """Answers side by side, or below one another where there is no room: before and after training, and the base's in
    front where the run started from a tuned adapter."""
    titles = ("base", "before", "after") if base else ("base", "tuned")
    earlier = [{(answer.where, answer.prompt): answer.answer for answer in each} for each in (base, first) if each]
    earlier = earlier or [{}]
    share = (columns - 3 * (len(titles) - 1)) // len(titles)
    blocks = []
    for answer in last:
        lines = [*(f"  {line}" for line in wrapped(f"question: {answer.prompt}", columns - 2))]
        if answer.reference:
            lines += [f"  {line}" for line in wrapped(f"expected: {answer.reference}", columns - 2)]
        texts = [each.get((answer.where, answer.prompt), "–") for each in earlier] + [answer.answer]
        if columns < NARROW:
            for title, text in zip(titles, texts, strict=True):
                lines += wrapped(f"{title}: {text or '(nothing)'}", columns)
            blocks.append("\n".join(lines))
            continue
        cells = [wrapped(text or "(nothing)", share) for text in texts]
        lines.append(" │ ".join(padded(title, share) for title in titles).rstrip())
        lines.append("─┼─".join("─" * share for _ in titles))
        for row in itertools.zip_longest(*cells, fillvalue=""):
            lines.append(" │ ".join(padded(cell, share) for cell in row).rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def where(directory: Path, contents: dict[str, str]) -> str:
    """Where everything lies: file or directory → what it is; what does not exist is left out."""
    there = {name: text for name, text in contents.items() if (directory / name).exists()}
    widest = max((len(name) for name in there), default=0)
    lines = [str(directory)]
    lines += [f"  {name:<{widest}}  {text}" for name, text in there.items()]
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """``75`` → ``1 min 15 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def facts(recipe, prepared, trainer, counted: tuple[int, int]) -> dict[str, str]:
    """What the summary in front of the run says."""
    train, (trainable, total) = recipe.train, counted
    feed = prepared.train_feed
    known = hasattr(prepared.train, "counts")  # what streams has none
    dims = prepared.model.config.dims
    method = recipe.adapter.method
    settings = recipe.adapter.model_dump(exclude_unset=True, exclude={"method", "name", "load"})
    chosen = ", ".join(f"{key} {plain(value)}" for key, value in settings.items() if value is not None)
    rows = train.batch_size * train.accumulation
    tokens = f"{rows * max(length for _, length in feed.shapes(0)):,} tokens" if known else "lengths vary"
    epochs = "" if not known else f" ({trainer.total_steps / feed.steps_per_epoch(0):.2f} epochs)"
    done = f", {trainer.position.step:,} of them done" if trainer.position.step else ""
    counted_rows = f"{prepared.train.counts.samples:,} to train on" if known else "streamed"
    if prepared.evaluation is not None:
        counted_rows += f", {prepared.evaluation.counts.samples:,} held out"
    lines = {
        "model": f"{prepared.base} ({prepared.model.family.name}, {dims.layers} layers, hidden {dims.hidden})",
        "method": f"{method}{f' ({chosen})' if chosen else ''}" if method != "none" else chosen or "every weight",
        "parameters": f"trainable params: {trainable:,} || all params: {total:,} || "
        f"trainable%: {100 * trainable / total:.4f}",
        "samples": counted_rows,
        "steps": f"{trainer.total_steps:,}{epochs}{done}",
        "batch": f"{train.batch_size} rows × {train.accumulation} = {rows} rows ({tokens}) per step",
        "padding": f"{100 * feed.padding(0):.1f}%" if known else "unknown until the data has been read",
        "optimizer": f"{train.optimizer}, {train.schedule} from {train.learning_rate:g}, {trainer.precision}",
        **({"objective": learnt} if (learnt := preferred(recipe, trainer.objective)) else {}),
        "output": str(trainer.directory),
    }
    dropped = prepared.train.counts if known else None
    if dropped is not None and (dropped.cut or dropped.dropped):
        lines["samples"] += f" ({dropped})"
    return lines


def preferred(recipe, objective) -> str:
    """The objective of a run that compares answers, its settings and its reference; empty for others."""
    train = recipe.train
    if train.objective not in COMPARED:
        return ""
    names = [name for name, users in OPTIONS.items() if train.objective in users and name not in ("beta", "reference")]
    values = {"beta": getattr(objective, "beta", None)}
    values |= {name: getattr(train, name) for name in names if name in train.model_fields_set}
    chosen = ", ".join(f"{name} {value:g}" for name, value in values.items() if value is not None)
    said = f"{train.objective}{f' ({chosen})' if chosen else ''}"
    if train.objective not in OPTIONS["reference"]:
        return said
    started = getattr(recipe.adapter, "load", None)
    if recipe.adapter.method == "none":
        started = "the weights before the first step"
    if train.reference not in (None, PRECOMPUTE):
        started = None if train.reference == ADAPTERS_OFF else train.reference
    return f"{said}, reference: {started or 'the base without adapters'}"


def plain(value) -> str:
    """A setting as a word: lists without brackets."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def told(trainer, evaluation, summary: dict[str, Any], directory: Path) -> str:
    """What the user reads at the end."""
    padding = f"{100 * summary['padding']:.1f}% padding"
    rates = [summary[name] for name in ("useful_tokens_per_second", "tokens_per_second")]
    speed = padding if None in rates else f"{rates[0]:,.0f} useful tokens/s ({rates[1]:,.0f} with {padding})"
    parts = [
        f"{summary['steps']} steps in {duration(summary['train_seconds'])}, compilation "
        f"{duration(summary['compile_seconds'])}, in all {duration(summary['seconds'])}; "
        f"peak memory {summary['peak_memory_mb']:,.0f} MB\n{speed}"
    ]
    if summary["stopped"]:
        parts.append(f"stopped early: {summary['stopped']}")
    best = trainer.best.step
    if best is not None and best != summary["steps"]:
        name, result = trainer.eval_settings.best_metric, "model" if summary["method"] == "none" else "adapter"
        text = f"the best {name} ({trainer.best.value:.4f}) was at step {best}"
        if summary["weights_step"] == best:
            parts.append(f"{text}: {result}/ holds its weights, not those of the last step")
        else:
            place = path_of(trainer.checkpoint_directory, best).name
            parts.append(f"{text}: checkpoints/{place}/{result}; {result}/ is of the last step")
    compared = comparison(trainer.before, summary["after"])
    if compared:
        parts.append(compared)
    if evaluation is not None and evaluation.samples:
        columns = shutil.get_terminal_size((WIDTH, 24)).columns
        parts.append(
            samples(trainer.before_samples, evaluation.samples, max(20, min(columns, 120)), trainer.base_samples)
        )
    parts.append(where(directory, CONTENTS))
    if "uploaded" in summary:
        parts.append(f"uploaded: {summary['uploaded']}")
    return "\n" + "\n\n".join(parts)
