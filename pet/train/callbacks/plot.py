"""loss.png: how the run went, in one picture."""

from __future__ import annotations

import functools
import gc
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_zoo.errors import first_line
from pet.files import atomic_file
from pet.train.callbacks.base import Callback

log = logging.getLogger("pet")

# Where the loss falls by more than this factor, its scale is logarithmic: the later part would lie flat on the axis.
WIDE = 15.0
INK, FAINT, GRID = "#1f2933", "#9aa5b1", "#e4e7eb"
TRAIN, EVALUATION, RATE = "#2563eb", "#d9480f", "#0f766e"


def _decaying(values: Sequence[float], memory: float) -> list[tuple[float, float]]:
    """The exponentially weighted sum up to each value, and the sum of its weights."""
    out, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = memory * total + value, memory * weight + 1.0
        out.append((total, weight))
    return out


def smoothed(values: Sequence[float], memory: float, logarithmic: bool = False) -> list[float]:
    """An exponential average over both sides, so that the curve does not lag behind what it smooths.

    At an end the side that is there counts with all its weight, so that the last value alone does not bend the curve.
    ``logarithmic`` averages positive values as they lie on such a scale; a steep fall is followed more closely then.
    """
    if logarithmic:
        return [math.exp(value) for value in smoothed([math.log(value) for value in values], memory)]
    before, after = _decaying(values, memory), _decaying(values[::-1], memory)[::-1]
    return [
        (left + right - value) / (left_weight + right_weight - 1.0)
        for (left, left_weight), (right, right_weight), value in zip(before, after, values, strict=True)
    ]


def draw(lines: list[dict[str, Any]], path: Path, title: str, before: float | None = None) -> None:
    """Puts the `picture` of a run into a file."""
    atomic_file(path, functools.partial(picture(lines, title, before).savefig, format="png"))
    # A figure holds itself: beside all that MindSpore imports, Python would collect it only after many evaluations
    gc.collect()


def picture(lines: list[dict[str, Any]], title: str, before: float | None = None):
    """The training loss (each step faint, smoothed bold), the evaluations, the rewards where answers are compared, and
    the learning rate below.

    Args:
        lines: those of metrics.jsonl.
        before: evaluation loss of the untrained model, if it was measured.

    Returns:
        A matplotlib figure with an axis for each of these.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    steps, losses = [line["step"] for line in lines], [line["loss"] for line in lines]
    figure = Figure(figsize=(9, 5.6), dpi=140, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    compared = [line for line in lines if "reward_margin" in line]
    heights = [4, 2, 1] if compared else [4, 1]
    figure.set_figheight(0.8 * sum(heights) + 1.6)
    upper, *middle, lower = axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    few = len(steps) < 20
    upper.plot(steps, losses, color=TRAIN, alpha=0.9 if few else 0.25, linewidth=1.8 if few else 0.9)
    measured = [(line["step"], line["eval_loss"]) for line in lines if math.isfinite(line.get("eval_loss", math.nan))]
    before = before if before is not None and math.isfinite(before) else None
    if before is not None:
        measured.insert(0, (0, before))
    memory = 0.0 if few else 1.0 - 1.0 / max(3.0, len(steps) / 50)
    average = smoothed(losses, memory)
    shown = [*average, *(value for _, value in measured)]
    wide = not few and min(*shown, *losses) > 0 and max(shown) > WIDE * min(shown)
    if wide:
        average = smoothed(losses, memory, logarithmic=True)
    upper.plot(steps, average, color=TRAIN, linewidth=2.2, label="train" if few else "train, smoothed")
    if measured:
        places, values = zip(*measured, strict=True)
        upper.plot(places, values, "o-", color=EVALUATION, linewidth=1.6, markersize=5, mec="white", label="held out")
        best = min(range(len(values)), key=values.__getitem__)
        marks = {0, best} if before is not None else {best}
        for index in marks:
            how = {"textcoords": "offset points", "xytext": (6, 8), "color": EVALUATION, "fontsize": 9}
            upper.annotate(f"{values[index]:.3g}", (places[index], values[index]), fontweight="bold", **how)
    counted = next((one for one in ("pair", "answer", "text") if f"{one}s" in lines[0]), "label token")
    upper.set_ylabel(f"loss per {counted}", color=INK)
    top, bottom = max(shown), min(shown)
    if wide:
        upper.set_yscale("log")
        upper.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        upper.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        upper.yaxis.set_minor_formatter(NullFormatter())
        upper.set_ylim(bottom / 1.6, top * 1.5)
    else:
        # from zero, unless that would leave most of the picture empty
        upper.set_ylim(0 if bottom < 0.6 * top else bottom - 0.4 * (top - bottom), top + 0.08 * abs(top) or 1.0)
    upper.legend(frameon=False, labelcolor=INK, loc="best")
    upper.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold")
    rates = [line["learning_rate"] for line in lines]
    lower.plot(steps, rates, color=RATE, linewidth=1.6)
    lower.fill_between(steps, rates, color=RATE, alpha=0.12, linewidth=0)
    lower.set_ylabel("learning rate", color=INK)
    lower.set_ylim(0, max(rates) * 1.15 or 1.0)
    lower.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    lower.set_xlabel("step", color=INK)
    lower.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if compared:
        axes = [*axes, draw_rewards(middle[0], compared, memory)]
    for axis in axes:
        if axis not in axes[len(heights) :]:  # another scale over an axis that has its grid
            axis.grid(color=GRID, linewidth=0.8)
        axis.set_axisbelow(True)
        axis.tick_params(colors=INK, length=0, which="both")
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axis.spines[side].set_color(FAINT)
    return figure


def draw_rewards(axis, lines: list[dict[str, Any]], memory: float):
    """The rewards of preferred and other answers, smoothed, with the margin between them as the area; the share of
    answers in the right order by an axis on the right, which is returned."""
    steps = [line["step"] for line in lines]
    chosen, rejected, ahead = (
        smoothed([line[f"reward_{name}"] for line in lines], memory) for name in ("chosen", "rejected", "accuracy")
    )
    axis.plot(steps, chosen, color=TRAIN, linewidth=1.8, label="chosen")
    axis.plot(steps, rejected, color=EVALUATION, linewidth=1.8, label="rejected")
    axis.fill_between(steps, chosen, rejected, color=TRAIN, alpha=0.08, linewidth=0)
    axis.set_ylabel("reward", color=INK)
    right = axis.twinx()
    right.plot(steps, ahead, "--", color=RATE, linewidth=1.4, label="accuracy")
    held_out = [(line["step"], line["eval_reward_accuracy"]) for line in lines if "eval_reward_accuracy" in line]
    if held_out:
        right.plot(*zip(*held_out, strict=True), "o", color=RATE, markersize=5, mec="white", label="held out")
    right.set_ylim(-0.05, 1.05)
    right.set_ylabel("accuracy", color=INK)
    handles = [*axis.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    axis.legend(handles=handles, frameon=False, labelcolor=INK, loc="center right", fontsize=8, ncols=2)
    return right


class LossPlot(Callback):
    """Draws loss.png after every evaluation, and at the end if a line came since. Without matplotlib it says so once,
    and draws nothing. Nor does a run end because of a picture that cannot be drawn or written (a full disk): that is
    said once, and the next one tried."""

    needs_directory = True

    def __init__(self) -> None:
        self.able, self.failed = True, False
        self.drawn: dict[str, Any] | None = None  # the last line of the picture

    def _draw(self, trainer) -> None:
        if not self.able or not trainer.history or trainer.history[-1] is self.drawn:
            return
        if not Path(trainer.directory).is_dir():  # moved away: a new one, with a picture alone, would be in its way
            return
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.able = False
            log.warning("no loss.png: it needs matplotlib (pip install 'mindspore-pet[report]')")
            return
        before = (trainer.before or {}).get("loss")
        try:
            draw(trainer.history, Path(trainer.directory) / "loss.png", trainer.title, before)
        except Exception as error:
            if not self.failed:
                log.warning("loss.png is not drawn: %s; the run goes on", first_line(error))
            self.failed = True
            return
        self.drawn = trainer.history[-1]

    def step(self, trainer, record) -> None:
        if "eval_loss" in record:
            self._draw(trainer)

    def end(self, trainer, summary) -> None:
        self._draw(trainer)
