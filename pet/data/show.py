"""What the model will see, as text for a terminal: tokens, lengths, padding, and what was cut or dropped."""

from __future__ import annotations

import difflib
import os
import re
import sys
import unicodedata
from typing import IO, Any

import numpy as np

from model_zoo.arguments import checked

from .dataset import IGNORED, TokenDataset
from .loader import Loader
from .packing import LayoutFunction
from .settings import DataSettings
from .streaming import StreamDataset

LEARNT, CONTEXT, BOLD, PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
WORSE = "\x1b[31m"
WORD = re.compile(r"[A-Za-z0-9_]+|.", re.DOTALL)
"""What is compared between two answers: words, or single characters of other scripts."""
NAMED = 12
"""Columns that are listed."""


def visible(text: str) -> str:
    """Text whose line breaks are shown, and whose other control characters cannot reach the terminal."""
    shown = []
    for character in text:
        if character == "\n":
            shown.append("↵\n")
        elif unicodedata.category(character) in ("Cc", "Cf"):
            shown.append(f"\\u{ord(character):04x}" if ord(character) > 0xFF else f"\\x{ord(character):02x}")
        else:
            shown.append(character)
    return "".join(shown)


def sample_text(ids: np.ndarray, labels: np.ndarray, tokenizer: Any, colour: bool) -> str:
    """One sample with what is learnt in green, or between ``[[`` and ``]]`` where there is no colour.

    The first token is never learnt, since nothing predicts it. A label that is another token stands before its token.
    """
    decoder = tokenizer.stream_decoder(skip_special_tokens=False)
    pieces: list[tuple[bool, str]] = []
    for place, (number, label) in enumerate(zip(ids.tolist(), labels.tolist(), strict=True)):
        learnt = label == number and place > 0
        if label not in (number, IGNORED):
            pieces.append((True, tokenizer.decode([label], skip_special_tokens=False)))
        text = decoder.put(number)
        if pieces and pieces[-1][0] == learnt:
            pieces[-1] = (learnt, pieces[-1][1] + text)
        else:
            pieces.append((learnt, text))
    pieces.append((pieces[-1][0] if pieces else False, decoder.end()))
    marks = {True: (LEARNT, PLAIN), False: (CONTEXT, PLAIN)} if colour else {True: ("[[", "]]"), False: ("", "")}
    return "".join(marks[learnt][0] + visible(text) + marks[learnt][1] for learnt, text in pieces if text)


def pair_text(chosen, rejected, tokenizer: Any, colour: bool) -> str:
    """Two answers to one question, each ``(ids, trained)``: what they share, then the chosen one behind ``+`` and the
    rejected one behind ``-``. With colour, what only the chosen one says is green and what only the other says red."""

    def text(ids: np.ndarray) -> str:
        decoder = tokenizer.stream_decoder(skip_special_tokens=False)
        return "".join(map(decoder.put, ids.tolist())) + decoder.end()

    begin = int(np.argmax(chosen[1]))
    better, worse = (WORD.findall(text(ids[begin:])) for ids, _ in (chosen, rejected))
    parts: tuple[list[str], list[str]] = ([], [])
    for same, i, j, k, m in difflib.SequenceMatcher(None, better, worse, autojunk=False).get_opcodes():
        for side, words, mark in ((0, better[i:j], LEARNT), (1, worse[k:m], WORSE)):
            shown = visible("".join(words))
            parts[side].append(f"{mark}{shown}{PLAIN}" if colour and shown and same != "equal" else shown)
    question = visible(text(chosen[0][:begin]))
    shared = f"{CONTEXT}{question}{PLAIN}" if colour else question
    return "\n".join([shared, f"+ {''.join(parts[0])}", f"- {''.join(parts[1])}"])


def histogram(lengths: np.ndarray, width: int = 40, bars: int = 12) -> str:
    """Samples by length, a line for each range."""
    edges = np.unique(np.linspace(int(lengths.min()) - 1, int(lengths.max()), bars + 1).astype(int))
    numbers, _ = np.histogram(lengths, bins=edges + 0.5)
    lines = []
    for low, high, number in zip(edges[:-1], edges[1:], numbers, strict=True):
        bar = "█" * round(width * number / numbers.max())
        if number and not bar:
            bar = "▏"
        lines.append(f"  {low + 1:>6} … {high:<6} {number:>8}  {bar}".rstrip())
    return "\n".join(lines)


def first_samples(dataset: TokenDataset, samples: int) -> list[int]:
    """Which samples are shown: the first ones, and one more of each way that files are read in besides."""
    found = list(range(0, min(samples * dataset.documents, len(dataset)), dataset.documents))
    seen: set[str] = set()
    for file, first in zip(*np.unique(dataset.origin[:, 0], return_index=True), strict=True) if found else ():
        way = repr(dataset.own.get(dataset.files[file]))
        if way not in seen and first > found[-1]:
            found.append(int(first))
        seen.add(way)
    return found


@checked
def describe(
    dataset: TokenDataset | StreamDataset,
    tokenizer: Any,
    *,
    settings: DataSettings | None = None,
    layout: LayoutFunction | None = None,
    batch_size: int = 8,
    samples: int = 3,
    colour: bool = False,
) -> str:
    """What the model will see, as text. Of a streaming dataset the first window is described.

    Args:
        dataset: as :func:`pet.data.load_dataset` gives it.
        tokenizer: the one it was made with.
        settings: what ``max_length`` and ``packing`` to compare, and whether pairs share their questions.
        layout: see :class:`pet.data.loader.Loader`; it decides what a pair can share.
        batch_size: rows in an optimizer step, for the shares of padding.
        samples: how many to show in full.
        colour: with the codes of a terminal.
    """
    settings = settings or getattr(dataset, "settings", None) or DataSettings()
    lines = []
    if isinstance(dataset, StreamDataset):
        lines.append(f"{dataset.rows} rows in {len(dataset.windows)} windows; of the first window:")
        dataset = dataset.window(0)

    def heading(text: str) -> str:
        return f"{BOLD}{text}{PLAIN}" if colour else text

    if len(dataset) == 0:
        return "\n".join([*lines, f"no sample: {dataset.counts}"])
    for index in first_samples(dataset, samples):
        members = [dataset[number] for number in range(index, index + dataset.documents)]
        tokens = " and ".join(str(len(ids)) for ids, _ in members)
        learnt = " and ".join(str(int(dataset.label_counts[index + number])) for number in range(len(members)))
        said = dataset.label(index)
        told = ", undesirable" if said is False else "" if said in (None, True) else f", label {said}"
        lines.append(heading(f"{dataset.where(index)} · {tokens} tokens, {learnt} learnt{told}"))
        if len(members) == 2:
            lines.append(pair_text(*members, tokenizer, colour))
        else:
            every = range(index, index + dataset.documents)
            lines += [sample_text(dataset[one][0], dataset.labels(one), tokenizer, colour) for one in every]
        lines.append("")
    loaders = {
        packing: Loader(dataset, batch_size, DataSettings.of(settings, packing=packing), layout=layout)
        for packing in ("pack", "buckets", "longest", "none")
    }
    total, labels = int(dataset.lengths.sum()), int(dataset.label_counts.sum())
    lines.append(heading("samples"))
    lines.append(f"  {dataset.counts}")
    if beside := list(dataset.counts.beside):
        more = f" and {len(beside) - NAMED} more" if len(beside) > NAMED else ""
        lines.append(f"  columns not read: {', '.join(map(visible, beside[:NAMED]))}{more}")
    lines.append(f"  {total} tokens, {labels} learnt ({labels / total:.1%})")
    if shared := total - int(loaders["none"].row_lengths(dataset).sum()):
        lines.append(f"  {total - shared} tokens in rows: a pair's question stands there once")
    lines.append("")
    lines.append(heading(f"tokens in a sample (mean {dataset.lengths.mean():.0f}, max_length {settings.max_length})"))
    lines.append(histogram(dataset.lengths))
    lines.append("")
    lines.append(heading(f"padding, with {batch_size} rows in a step"))
    for packing, loader in loaders.items():
        shapes, steps = len(loader.shapes()), loader.steps_per_epoch()
        chosen = "  ← chosen" if packing == settings.packing else ""
        lines.append(
            f"  {packing:<8} {loader.padding():>6.1%} in {steps} step{'s' * (steps != 1)}, "
            f"{shapes} shape{'s' * (shapes > 1)}{chosen}"
        )
    return "\n".join(lines)


def show(
    dataset: TokenDataset | StreamDataset, tokenizer: Any, *, stream: IO[str] | None = None, **settings: Any
) -> None:
    """Prints what :func:`describe` gives, whose arguments these are.

    Args:
        stream: standard output when left out. Colour only on a terminal.
    """
    stream = stream or sys.stdout
    # NO_COLOR: no-color.org
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()
    print(describe(dataset, tokenizer, colour=colour, **settings), file=stream)
