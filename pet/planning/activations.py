"""Memory of one forward and backward pass: what the layers keep for the backward, and the most that is there besides.

On a CPU in float32, where layers run as one operator each way, the compiled program says what they save and need
(`layer_memory.py`). Where they run operator by operator (tensor parallelism, adapters that are not traceable), the
formulas say it, tensor by tensor, following the lifetimes of all tensors in MindSpore's graphs. Tests hold both to
within a tenth of the peak of its memory pool. In narrower types the cells go by their plain operators, which keep more,
above all every attention probability; there the formulas follow the operators, and nothing was measured, since a CPU
has no such products. Nor was recomputation operator by operator: on a CPU MindSpore merges the second computation with
the first and saves nothing by it, so that only an accelerator could show what is planned.

All sizes are numbers per token. H: hidden; Q and K: all query heads, all key heads of a process; F: its feed-forward
columns; V: vocabulary.
"""

from __future__ import annotations

import functools
import itertools

from model_zoo.engine import MemoryProfile, available, logit_bytes
from pet.parallel.shares import STAGES, Layout, cell_of, in_feed_forward, place_of, side_of
from pet.planning.layer_memory import layer_memory


def activation_bytes(work, divided: Layout, steps, stage: int) -> int:
    """Bytes at the peak of one piece on a stage.

    Args:
        work: model, adapter, types (`pet.planning.search.Work`).
        divided: who holds what.
        steps: layout and size of a piece (`pet.planning.traffic.Steps`).
        stage: the pipeline stage.
    """
    sizes = sizes_of(work, divided, steps.tensor, stage)
    layers, again = divided.layers[stage], steps.again(divided.layers[stage])
    whole = work.width == 4 and not divided.gathered
    if whole and steps.tensor == 1:
        kinds = [twice for twice, count in ((False, len(layers) - len(again)), (True, len(again))) if count]
        profiles = {twice: layer_memory(work.meta_model, work.adapter, twice, work.precision) for twice in kinds}
        if None not in profiles.values():
            return sizes.whole(profiles, layers, again, steps.tokens)
    kept, besides = (sizes.fused if whole else sizes.plain)()
    once = sizes.once() if work.width == 4 else 0
    held = len(layers) * kept + once
    if again:  # these keep their input; one at a time is there in full
        held = len(again) * sizes.hidden * work.width + (len(layers) - len(again) + 1) * kept
    found = steps.tokens * (held + besides)
    if stage == steps.pipeline - 1:
        found = max(found, steps.tokens * held + sizes.head_bytes(steps.tokens))
    return int(found)


def operators(layers: range, again: range) -> list[tuple[bool, int]]:
    """The operators of a stage as (whether it is computed again, its layers): those are single, the others between them
    one."""
    runs = itertools.groupby(layers, lambda layer: layer if layer in again else -1)
    return [(layer >= 0, len(list(run))) for layer, run in runs]


ALL_LOGITS = {(False, False): 3, (True, False): 5, (False, True): 7, (True, True): 10}
"""How many tensors of their size a loss of all logits holds at its peak, as measured: by whether operators are launched
one by one, beside layers by kernels, and not in a compiled graph, and by whether the loss is R-Drop's."""


class Sizes:
    """The widths of a stage's tensors on one process of a tensor-parallel group, in numbers per token."""

    def __init__(self, work, divided: Layout, tensor: int, stage: int):
        self.work, self.divided, self.stage = work, divided, stage
        dims = work.meta_model.config.dims
        self.hidden, self.vocabulary = dims.hidden, dims.vocab
        self.heads = dims.heads // tensor
        self.query = self.heads * dims.head_dim
        self.key = dims.kv_heads // tensor * dims.head_dim
        self.ffn = dims.ffn // tensor * work.meta_model.config.feed_forwards
        self.inner = 2 if work.meta_model.family.gated else 1
        first = f"{work.meta_model.family.layers}.0."
        norms = {
            path.rpartition(".")[2]: cell
            for path, cell in work.meta_model.cells.items()
            if path.startswith(first) and len(cell.weight.shape) == 1
        }
        self.centred = any(cell.bias is not None for cell in norms.values())
        of_heads = {"q_norm": (self.query, self.heads), "k_norm": (self.key, dims.kv_heads // tensor)}
        sides = [of_heads.get(name, (self.hidden, 1)) for name in norms]
        self.norms = sum(name not in of_heads for name in norms)
        self.norm_inputs, self.norm_rows = (sum(column) for column in zip(*sides, strict=True))
        self.dropout = getattr(work.adapter, "dropout", 0.0) > 0
        self.rotated = 0 if work.meta_model.family.positions else dims.head_dim

    @functools.cached_property
    def inputs(self) -> dict[str, float]:
        """What something trained needs for its gradient, the rest of a layer's being frozen: by name, how wide.

        That is the inputs of linear cells, and what lies between the two factors of a low rank. Counted are those of
        the layer that has most of them.
        """
        widths = {"attention in": self.hidden, "attention out": self.query, "mlp in": self.hidden, "mlp out": self.ffn}
        if self.work.adapter is None:
            return widths
        layers: dict[int, dict[str, float]] = {}
        for share in self.divided.of_stage(self.stage):
            place = place_of(self.work.meta_model, share.name)
            if not (share.trained and isinstance(place, int)):
                continue
            cell = cell_of(self.work.meta_model, share.name)
            end = side_of(self.work.meta_model, cell)
            if end is None:
                continue
            side = "mlp" if in_feed_forward(self.work.meta_model, cell) else "attention"
            side += " out" if end == "row" else " in"
            found = layers.setdefault(place, {})
            # a dropout's result is another tensor for every cell
            found[f"{cell} {side}" if self.dropout else side] = widths[side]
            if share.adapter and len(share.part) == 2:
                found[share.name] = min(share.part) / 2  # both factors say how wide it is
        return max(layers.values(), key=lambda found: sum(found.values()), default={})

    def fused(self) -> tuple[float, float]:
        """Bytes per token (kept by a layer, most besides) with the C kernels of `model_zoo.engine`.

        Kept are the inputs of the norms and their scales (and means); queries, keys and values, attention's output and
        two numbers per row and head; what goes into the activation; and `inputs`, of which attention's output is one
        already.

        Besides there are, in the backward of the last layer's feed-forward, the stream's gradient, that of the
        activation's output and those of its inputs. Where something trained takes that output, two terms make its
        gradient, and it is no longer kept itself.
        """
        inputs = self.inputs
        kept = self.norm_inputs + self.norm_rows * (2 if self.centred else 1)
        kept += 2 * self.query + 2 * self.key + 2 * self.heads
        kept += self.inner * self.ffn + sum(inputs.values()) - inputs.get("attention out", 0)
        gradients = (1 + self.inner) * self.ffn
        if "mlp out" in inputs:
            gradients = (3 if self.work.adapter is not None else 1 + self.inner) * self.ffn - self.ffn
        besides = gradients + self.hidden
        if self.norms > 2:  # a norm behind the feed-forward has had its gradient by then
            besides -= self.hidden
        return 4 * kept, 4 * besides

    def whole(self, profiles: dict[bool, MemoryProfile], layers: range, again: range, tokens: int) -> int:
        """Bytes at the peak where layers are one operator each way: what they keep, what goes into each operator and
        the tables; besides, in the backward pass, what is forgotten, the gradient that came in, and the one that goes
        out.

        Args:
            profiles: of layers that are computed again (True) and of others, as far as there are any.
            layers: of the stage.
            again: those that are computed again, each an operator of its own; the others between them are one.
            tokens: of a piece.
        """
        held, peak = 2 * self.rotated, 0
        for index, (twice, count) in enumerate(operators(layers, again)):
            profile, out = profiles[twice], 0 if index == 0 and self.into_frozen else self.hidden
            held += count * profile.saved + self.hidden
            # in the backward pass what the operators behind this one kept is gone
            peak = max(peak, held + self.hidden + max(profile.backward + out, profile.forward))
        peak *= 4 * tokens
        if self.stage == len(self.divided.layers) - 1:
            peak = max(peak, 4 * tokens * held + self.head_bytes(tokens))
        return int(peak)

    def once(self) -> float:
        """Bytes per token that all layers share: cosines and sines. The first norm keeps no input that needs no
        gradient."""
        return 4 * (2 * self.rotated - (self.hidden if self.into_frozen else 0))

    @functools.cached_property
    def into_frozen(self) -> bool:
        """Whether what comes into the first layer needs no gradient: nothing in front of it is trained."""
        if self.stage > 0 or self.work.adapter is None:
            return False
        meta_model, held = self.work.meta_model, self.divided.of_stage(self.stage)
        return not any(share.trained and place_of(meta_model, share.name) == "first" for share in held)

    def plain(self) -> tuple[float, float]:
        """The same with plain operators in a type of ``width`` bytes."""
        width, scores = self.work.width, self.heads * self.work.length
        kept = width * (
            2 * self.hidden
            + self.norm_inputs
            + self.query
            + 2 * self.key
            + 2 * self.inner * self.ffn
            + sum(self.inputs.values())
        )
        kept += 4 * self.norm_inputs + (4 + width) * scores  # norms and softmax compute in float32
        return kept, max(2 * self.ffn * width, 6 * scores)

    def head_bytes(self, tokens: int) -> int:
        """The head and the loss, in float32: piece by piece where the head is nothing but a float32 product that the
        loss can be computed with (`pet.train.objectives.base.Objective.loss_of_hidden`).

        Then there are one piece's logits and their gradient, and the final norm's input, its output and the gradient
        of that; otherwise `ALL_LOGITS` tensors as large as all logits.
        """
        adapted, trained = self.head_state
        capped = self.work.meta_model.config.logit_cap > 0
        launched, r_drop = available() and self.work.width == 4, self.work.r_drop
        if self.work.width == 4 and not adapted and (launched or not (trained or capped or r_drop)):
            return logit_bytes(tokens, self.vocabulary) + 12 * tokens * self.hidden
        return 4 * tokens * self.vocabulary * ALL_LOGITS[launched, r_drop] + 8 * tokens * self.hidden

    @functools.cached_property
    def head_state(self) -> tuple[bool, bool]:
        """Whether an adapter sits on the head, and whether its weight is trained."""
        meta_model = self.work.meta_model
        tied = meta_model.config.tied_head()
        weights = {f"{meta_model.family.head}.weight"} | ({tied[1]} if tied is not None else set())
        adapted, trained = False, self.work.adapter is None
        for share in self.divided.of_stage(self.stage):
            adapted = adapted or (share.adapter and cell_of(meta_model, share.name) == meta_model.family.head)
            trained = trained or (share.trained and share.name in weights)
        return adapted, trained


sizes_of = functools.lru_cache(STAGES)(Sizes)
"""`Sizes`, worked out once for all sizes of a micro-batch."""
