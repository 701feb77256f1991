"""Memory of one forward and backward pass: what the layers keep for the backward, and the most that is there besides.

The formulas say, tensor by tensor, what this library's compiled step holds. For float32 they were fitted to the peak of
MindSpore's memory pool on a CPU, and a test holds them to within a tenth of it. In narrower types the cells go by their
plain operators, which keep more, above all every attention probability; there the formulas follow the operators, and
nothing was measured, since a CPU has no such products. Nor was recomputation: on a CPU MindSpore merges the second
computation with the first and saves nothing by it, so that only an accelerator could show what is planned.

All sizes are numbers per token. H: hidden; Q and K: all query heads, all key heads of a process; F: its feed-forward
columns; V: vocabulary.
"""

from __future__ import annotations

from model_zoo.counting import layout_of
from model_zoo.fused import chunk_rows
from pet.parallel.shares import Layout, cell_of, in_feed_forward, place_of, side_of

GATED = ("llama", "glm4", "chatglm2")
"""Layouts whose feed-forward has two projections in."""


def activation_bytes(work, divided: Layout, steps, stage: int) -> int:
    """Bytes at the peak of one piece on a stage.

    Args:
        work: model, adapter, types (`pet.planning.search.Work`).
        divided: who holds what.
        steps: layout and size of a piece (`pet.planning.traffic.Steps`).
        stage: the pipeline stage.
    """
    sizes = Sizes(work, divided, steps, stage)
    layers = len(divided.layers[stage])
    kept, besides = (sizes.fused if work.width == 4 else sizes.plain)()
    peak = layers * kept + besides
    if work.recompute:  # every layer keeps its input; one at a time is there in full
        peak = layers * sizes.hidden * work.width + kept + besides
    found = steps.tokens * peak
    if stage == steps.pipeline - 1:
        found = max(found, steps.tokens * (peak - besides) + sizes.head_bytes())
    return int(found)


class Sizes:
    """The widths of a stage's tensors on one process, in numbers per token."""

    def __init__(self, work, divided: Layout, steps, stage: int):
        self.work, self.steps, self.divided, self.stage = work, steps, divided, stage
        dims = work.outline.config.dims
        self.hidden, self.vocabulary = dims.hidden, dims.vocab
        self.heads = dims.heads // steps.tensor
        self.query = self.heads * dims.head_dim
        self.key = dims.kv_heads // steps.tensor * dims.head_dim
        self.ffn = dims.ffn // steps.tensor
        self.inner = 2 if layout_of(work.outline.values) in GATED else 1
        first = f"{work.outline.family.layers}.0."
        norms = [
            cell for path, cell in work.outline.cells.items() if path.startswith(first) and len(cell.weight.shape) == 1
        ]
        self.norms, self.centred = len(norms), any(cell.bias is not None for cell in norms)

    def inputs(self) -> int:
        """Inputs of linear cells that something trained needs for its gradient, the rest of a layer's being frozen.

        Counted are those of the layer that has most of them.
        """
        widths = {"attention in": self.hidden, "attention out": self.query, "mlp in": self.hidden, "mlp out": self.ffn}
        if self.work.adapter is None:
            return sum(widths.values())
        dropout = getattr(self.work.adapter, "dropout", 0.0) > 0
        layers: dict[int, dict[str, int]] = {}
        for share in self.divided.of_stage(self.stage):
            place = place_of(self.work.outline, share.name)
            if not (share.trained and isinstance(place, int)):
                continue
            cell = cell_of(self.work.outline, share.name)
            end = side_of(self.work.outline, cell)
            if end is None:
                continue
            side = "mlp" if in_feed_forward(self.work.outline, cell) else "attention"
            side += " out" if end == "row" else " in"
            # a dropout's result is another tensor for every cell
            layers.setdefault(place, {})[f"{cell} {side}" if dropout else side] = widths[side]
        return max((sum(found.values()) for found in layers.values()), default=0)

    def fused(self) -> tuple[int, int]:
        """Bytes per token (kept by a layer, most besides) with the C kernels of `model_zoo.native`.

        Kept are the inputs of the norms, queries, keys and values, attention's output, what goes into the
        activation, and `inputs`. Besides: the feed-forward's backward.
        """
        kept = self.norms * self.hidden + 2 * self.query + 2 * self.key + self.inner * self.ffn + self.inputs()
        besides = (1 + self.inner) * self.ffn + (8 if self.centred else 6) * self.hidden
        return 4 * kept, 4 * besides

    def plain(self) -> tuple[float, float]:
        """The same with plain operators in a type of ``width`` bytes."""
        width, scores = self.work.width, self.heads * self.work.length
        kept = width * (
            (2 + self.norms) * self.hidden + self.query + 2 * self.key + 2 * self.inner * self.ffn + self.inputs()
        )
        kept += 4 * self.norms * self.hidden + (4 + width) * scores  # norms and softmax compute in float32
        return kept, max(2 * self.ffn * width, 6 * scores)

    def head_bytes(self) -> int:
        """The head and the loss, in float32: piece by piece where the head is a frozen float32 product."""
        tokens, row = self.steps.tokens, 4 * self.vocabulary
        trains_head = self.work.adapter is None or any(
            share.trained and not isinstance(place_of(self.work.outline, share.name), int)
            for share in self.divided.of_stage(self.stage)
        )
        if self.work.width == 4 and not trains_head:
            return 2 * row * min(tokens, chunk_rows(self.vocabulary)) + 36 * tokens * self.hidden
        return 3 * tokens * row + 32 * tokens * self.hidden
