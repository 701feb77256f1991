"""metrics.jsonl and metrics.csv: a line per step, with the evaluation's numbers on the line of its step; samples.jsonl:
what the model wrote at each evaluation."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model_zoo.errors import warn_once
from pet.files import append_text, finite, json_text, write_text
from pet.recipe.training import METRICS
from pet.train.callbacks.base import Callback


def with_nan(record: dict[str, Any]) -> dict[str, Any]:
    """A record as it was before `pet.files.finite`; infinities are NaN, too."""
    return {name: math.nan if value is None else value for name, value in record.items()}


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl or samples.jsonl. What is no record of a step is left out, with a warning; without
    one the last where it has no end: a kill may have cut it off. A number that JSON has not (null) is NaN."""
    path, found = Path(path), []
    # not splitlines: a text may hold what that takes for the end of a line, and JSON leaves as it is
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and type(record.get("step")) is int:
            found.append(with_nan(record))
        elif line.strip() and number < len(lines):
            warn_of(path, number)
    return found


def warn_of(path: Path, number: int) -> None:
    """Says once that a line is left out."""
    warn_once(f"{path}, line {number}: no record of a step; the line is left out")


class MetricsFile(Callback):
    """metrics.jsonl: step, loss, learning_rate, useful_tokens_per_second, …, all in full precision.

    A resumed run cuts off the lines behind its checkpoint, so that every step has exactly one.
    """

    needs_directory = True
    name, head = "metrics.jsonl", ""

    def start(self, trainer) -> None:
        self.path = Path(trainer.directory) / self.name
        kept = [line for line in self.read() if line["step"] <= trainer.recorded]
        write_text(self.path, self.head + self.text(kept))

    def read(self) -> list[dict[str, Any]]:
        return read_metrics(self.path)

    def text(self, lines: list[dict[str, Any]]) -> str:
        return "".join(json_text(line) + "\n" for line in lines)

    def step(self, trainer, record) -> None:
        append_text(self.path, self.text([record]))


class SamplesFile(Callback):
    """samples.jsonl: step, question, answer and reference of the shown samples, at each evaluation that writes any.

    Step 0 is the untrained model. A resumed run cuts off what lies behind its checkpoint.
    """

    needs_directory = True
    name = "samples.jsonl"

    def start(self, trainer) -> None:
        self.path = Path(trainer.directory) / self.name
        kept = [line for line in read_metrics(self.path) if line["step"] <= trainer.recorded]
        self.begun = bool(kept)
        if self.path.exists():
            write_text(self.path, "".join(self.line(line) for line in kept))

    def line(self, values: dict[str, Any]) -> str:
        return json_text(values) + "\n"

    def evaluation(self, trainer, record) -> None:
        answers = []
        if not self.begun:
            answers += [(0, answer) for answer in trainer.before_samples]
        measured = trainer.last_measured
        if measured is not None and measured[0] == trainer.measured_state():  # otherwise nothing was written this time
            answers += [(record["step"], answer) for answer in getattr(trainer.evaluation, "samples", [])]
        if answers:
            self.begun = True
            lines = [self.line({"step": step, **dataclasses.asdict(one)}) for step, one in answers]
            append_text(self.path, "".join(lines))


class CsvFile(MetricsFile):
    """metrics.csv: the same lines for a spreadsheet; columns of evaluations are empty where none was made."""

    name = "metrics.csv"
    columns = (
        *("step", "epoch", "loss", "learning_rate", "gradient_norm", "label_tokens", "useful_tokens_per_second"),
        *("tokens_per_second", "padding", "seconds", "memory_mb", "loss_scale", *(f"eval_{name}" for name in METRICS)),
    )
    head = ",".join(columns) + "\n"

    def read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8", errors="replace").replace("\0", "\ufffd").split("\n")
        rows, found = csv.DictReader(lines, quoting=csv.QUOTE_NONE), []
        self.widen(rows.fieldnames or ())
        for row in rows:
            if re.fullmatch("[0-9]{1,18}", row.get("step") or ""):
                found.append({**row, "step": int(row["step"])})
            elif rows.line_num < len(lines):
                warn_of(self.path, rows.line_num)
        return found

    def widen(self, names: Iterable[str]) -> None:
        """Adds columns for these: what an objective or a user's evaluation measures."""
        new = [name for name in names if name not in self.columns and set(name).isdisjoint(',"\r\n')]
        self.columns = (*self.columns, *new)
        self.head = ",".join(self.columns) + "\n"

    def step(self, trainer, record) -> None:
        if not record.keys() <= {*self.columns}:
            lines = self.read()
            self.widen(record)
            write_text(self.path, self.head + self.text(lines))
        super().step(trainer, record)

    def text(self, lines: list[dict[str, Any]]) -> str:
        stream = io.StringIO()
        csv.DictWriter(stream, self.columns, extrasaction="ignore", lineterminator="\n").writerows(map(finite, lines))
        return stream.getvalue()
