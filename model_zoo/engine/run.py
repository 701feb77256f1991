"""All layers as one operator forward and one backward, for training and evaluation, in compiled graphs or without.

MindSpore's compiler takes time for every operator of every layer, and its runtime for every launch; layers in one piece
take none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn
from mindspore.common import _Function

from model_zoo.engine.call import as_it_is
from model_zoo.engine.cells import Eagerly
from model_zoo.engine.gradients import Backward
from model_zoo.engine.ir import RESULT, WORKSPACE, Buffer, Instruction, NotTraceable, Value, buffers
from model_zoo.engine.lowering import Pieces, read_by, round_between_products, without_copies, written_by
from model_zoo.engine.plain import cast, ones_like
from model_zoo.engine.trace import SequenceTracer, Tracer
from model_zoo.turns import changed

log = logging.getLogger("pet")


def needed(instructions: Sequence[Instruction], by: Sequence[Instruction]) -> list[Instruction]:
    """Those of the instructions whose results the others read, by themselves or by one another."""
    wanted = set(buffers([value for instruction in by for value in instruction.read]))
    kept = []
    for instruction in reversed(instructions):
        if wanted.intersection(buffers(instruction.outputs)):
            kept.append(instruction)
            wanted.update(buffers(instruction.read))
    return kept[::-1]


def split_low_rank(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The same with LoRA's sums in two parts, of which the second is a product that can run with others."""
    parts = []
    for instruction in instructions:
        if instruction.op != "low_rank":
            parts.append(instruction)
            continue
        (y, x, a, b, scale), (out, inner) = instruction.inputs, instruction.outputs
        parts.append(Instruction("low_rank_inner", [x, a, scale], [inner], instruction.group))
        parts.append(Instruction("product_of_rows_onto", [inner, b, y], [out], instruction.group))
    return parts


class ForwardProgram(nn.Cell):
    """The operators of some layers forward: one, and more where a group of processes adds something up.

    Args:
        tracer: that has traced them.
        result: what the last layer gives.
        back: the instructions of the backward pass.
        held: buffers of the forward pass that it reads.
        recompute: whether none of them is saved.

    Attributes:
        saved: numbers per token that are saved for the backward pass.
        workspace: numbers per token of workspace, for each direction.
        sums: how often a group of processes adds something up.
    """

    def __init__(
        self,
        tracer: Tracer,
        result: Value,
        back: Sequence[Instruction] = (),
        held: Sequence[Buffer] = (),
        recompute: bool = False,
    ):
        super().__init__()
        result.buffer.storage = RESULT
        pieces = Pieces("forward", without_copies(split_low_rank(tracer.instructions), back))
        round_between_products([*pieces.sums, *(one for piece in pieces.each for one in piece), *back])
        saved = () if recompute else held
        pieces.allocate(held, saved)
        self.workspace, self.sums, self.group_sum = (max(pieces.workspace),), len(pieces.sums), tracer.group_sum
        count = len(pieces.each)
        self.programs = tuple(Tensor(pieces.lower(i, tracer.operands, [pieces.first(i)])) for i in range(count))
        self.forward = tuple(pieces.operator(index) for index in range(count))
        there, sizes = {buffer.storage for buffer in saved}, pieces.block_sizes()
        self.kept = tuple(index for index, name in enumerate(sizes) if name in there)
        self.kept_names, self.input_gradient = [name for name in sizes if name in there], False
        self.saved = sum(sizes[name] for name in self.kept_names)

    def construct(self, x, given, frozen, trained):
        """Hidden states ``(N, H)``; start, end, key mask and tables; the weights → hidden states, and the blocks
        that the backward pass reads."""
        blocks = ()
        for index in range(self.sums):
            made = self.forward[index](x, self.programs[index], *given, *frozen, *trained, *blocks)
            blocks = blocks + (self.group_sum(made[0]), made[1])
        made = self.forward[-1](x, self.programs[-1], *given, *frozen, *trained, *blocks)
        blocks, found = blocks + made[:2], (made[0],)
        for index in self.kept:
            found = found + (blocks[index],)
        return found

    def bprop(self, x, given, frozen, trained, out, dout):
        return x, given, frozen, trained  # nobody asks for them


class TrainingProgram(ForwardProgram):
    """The operators of some layers forward, and those backward.

    Args:
        tracer, result: as in `ForwardProgram`.
        recompute: save nothing for the backward pass, which computes it again from what came in.
    """

    def __init__(self, tracer: SequenceTracer, result: Value, recompute: bool):
        backward = Backward(tracer.instructions, tracer.trained, result)
        back = backward.instructions
        tracer.instructions = without_copies(tracer.instructions, back)
        forward = written_by(tracer.instructions)
        held = [buffer for buffer in read_by(back) if buffer in forward]
        again = needed(split_low_rank(tracer.instructions), back) if recompute else []
        if result.buffer in held and not recompute:
            raise NotTraceable("layers whose backward pass reads their result")
        if tracer.input_trained:
            backward.gradient_of(tracer.hidden).buffer.storage = RESULT
        behind = pieces_of_weights(backward, again)
        tracer.sort_weights(behind)
        super().__init__(tracer, result, back, held, recompute)
        for buffer in buffers([value for instruction in again for value in instruction.values]):
            buffer.storage = WORKSPACE
        pieces = Pieces("backward", [*again, *back])
        pieces.allocate()
        self.workspace, self.input_gradient = (*self.workspace, max(pieces.workspace)), tracer.input_trained
        self.back_sums = len(pieces.sums)
        operands = [*tracer.operands, *self.kept_names, backward.outer]
        programs, operators, ends = [], [], []
        for index in range(len(pieces.each)):
            weights = [place for place, value in enumerate(tracer.operands) if behind.get(value) == index]
            # those that nobody asked for come last
            weights.sort(key=lambda place: tracer.operands[place] not in tracer.trained)
            first = [pieces.first(index)] if index < len(pieces.sums) or self.input_gradient else []
            found = [backward.of_weights[tracer.operands[place]] for place in weights]
            programs.append(Tensor(pieces.lower(index, operands, [*first, *found])))
            operators.append(pieces.operator(index, bool(first), weights))
            wanted = sum(tracer.operands[place] in tracer.trained for place in weights)
            ends.append(len(first) + wanted)
        self.back_programs, self.backward, self.ends = tuple(programs), tuple(operators), tuple(ends)

    def bprop(self, x, given, frozen, trained, out, dout):
        read, blocks, gradients = out[1:], (dout[0],), ()
        for index in range(self.back_sums):
            made = self.backward[index](x, self.back_programs[index], *given, *frozen, *trained, *read, *blocks)
            gradients = gradients + made[1 : self.ends[index]]
            blocks = blocks + (self.group_sum(made[0]), made[-2])
        made = self.backward[-1](x, self.back_programs[-1], *given, *frozen, *trained, *read, *blocks)
        if self.input_gradient:
            return made[0], given, frozen, gradients + made[1 : self.ends[-1]]
        return x, given, frozen, gradients + made[: self.ends[-1]]


def pieces_of_weights(backward: Backward, again: Sequence[Instruction]) -> dict[Value, int]:
    """In which piece of the backward pass each weight's gradient is computed, behind what is computed again."""
    index, found = sum(one.op == "sum_over_group" for one in again), {}
    weights = {gradient: weight for weight, gradient in backward.of_weights.items()}
    for one in backward.instructions:
        index += one.op == "sum_over_group"
        made = [single for value in one.outputs for single in value.each or (value,)]
        found.update({weights[value]: index for value in made if value in weights})
    return found


def key_mask_of(start, keep):
    """Who sees each key ``(B, S)``: keep as numbers, or 1."""
    mask = ones_like(start)
    if keep is not None:
        mask = mask * cast(keep, ms.int32)
    return mask


class LastKeyMask:
    """Outside of graphs: all layers of a pass are called with the same two, and what they make is made once."""

    asked: tuple = (None, None)
    made = None

    @classmethod
    def of(cls, start, keep):
        if start is not cls.asked[0] or keep is not cls.asked[1]:
            cls.asked, cls.made = (start, keep), key_mask_of(start, keep)
        return cls.made


class LaunchLayers(_Function):
    """A program outside of graphs. What it keeps for the backward pass is none of its results: MindSpore would make a
    gradient of zeros for each of these, as large as they are.

    Attributes:
        left: the program whose backward pass was the last one, and what it had kept, which its next pass writes over.
            MindSpore's pool might have put something small there meanwhile, and take as much memory again.
    """

    left: tuple = (None, ())

    @classmethod
    def take_left(cls, program) -> dict:
        """What is left for a program, by the places of its outputs; another's is freed."""
        (owner, blocks), cls.left = cls.left, (None, ())
        return dict(zip(program.kept, blocks, strict=True)) if owner is program and not program.sums else {}

    @staticmethod
    def forward(ctx, program, x, given, frozen, *trained):
        program.forward[-1].left = LaunchLayers.take_left(program)
        found = program.construct(x, given, frozen, trained)
        ctx.program, ctx.read = program, (x, given, frozen, trained, (None, *found[1:]))  # see `cells.apart`
        return found[0]

    @staticmethod
    def backward(ctx, dout):
        found = ctx.program.bprop(*ctx.read, (dout,))
        LaunchLayers.left = ctx.program, ctx.read[-1][1:]
        return None, found[0] if ctx.program.input_gradient else None, None, None, *found[3]


class NothingToDo(NotTraceable):
    """Layers that give what they were given, as those of another stage do here."""


class FusedLayers(nn.Cell):
    """Layers one after the other as one operator each way.

    Args:
        layers: called with the hidden states, tables of cosines and sines, start, end and key mask.
        weights: ids of the parameters that get a gradient. The others' gradients are never to be asked for: what
            there is in their place is none.
        input_trained: whether what comes in gets one.
        recompute: save nothing for the backward pass.

    Raises:
        NotTraceable: a cell within cannot be followed.
    """

    def __init__(
        self, layers: Sequence[nn.Cell], width: int, weights: frozenset[int], input_trained: bool, recompute: bool
    ):
        super().__init__()
        self.count = len(layers)
        tracer = SequenceTracer(width, layers[0], weights, input_trained)
        result = tracer.hidden
        for layer in layers:
            result = tracer.run(layer, result)
        if not isinstance(result.buffer, Buffer):
            raise NothingToDo("layers that give what they were given")
        if tracer.trained:
            self.program = TrainingProgram(tracer, result, recompute)
        else:
            self.program = ForwardProgram(tracer, result)
        first = len(tracer.parameters) - len(tracer.trained) + input_trained
        # past `Cell.__setattr__`: they are the model's, and keep their names
        object.__setattr__(self, "frozen", ParameterTuple(tracer.parameters[:first]))
        object.__setattr__(self, "trained", ParameterTuple(tracer.parameters[first:]))

    def __call__(self, x, *rest):
        given = self.given(rest, LastKeyMask.of(rest[-3], rest[-1]))
        return LaunchLayers.apply(self.program, x, given, tuple(self.frozen), *map(as_it_is, self.trained))

    def given(self, rest, key_mask):
        """What a layer is called with behind the hidden states → start, end, key mask and tables."""
        return rest[-3], rest[-2], key_mask, *rest[:-3]

    def construct(self, x, *rest):
        """As a layer is called."""
        given = self.given(rest, key_mask_of(rest[-3], rest[-1]))
        return self.program(x, given, tuple(self.frozen), tuple(self.trained))[0]


@functools.cache
def say_once(what: str, reason: str) -> None:
    """For those who look why compiling or an answer takes longer."""
    log.info("%s: %s", what, reason)


BY_OPERATORS = "layers that run operator by operator"


@contextlib.contextmanager
def replace_layers(layers: nn.CellList, cells: Sequence[nn.Cell]) -> Iterator[None]:
    """Within, a list of layers holds these cells instead. Past `CellList`: they are no part of the model."""
    before, now = dict(layers._cells), {str(index): cell for index, cell in enumerate(cells)}

    def put(those: dict[str, nn.Cell]) -> None:
        layers._cells.clear()
        layers._cells.update(those)

    with changed(lambda: put(now), lambda: put(before)):
        yield


class Fused(contextlib.ExitStack):
    """A model's layers as few operators, which take their place within, as often as one likes; kernels compute there
    outside of graphs, too.

    Attributes:
        whole: whether all layers could be followed. Then nothing is left to compile: a graph of what are few operators
            anyway takes a second.
    """

    def __init__(self, layers: nn.CellList, cells: Sequence[nn.Cell], whole: bool):
        super().__init__()
        self.layers, self.cells, self.whole = layers, cells, whole

    def __enter__(self) -> Fused:
        self.enter_context(replace_layers(self.layers, self.cells))
        self.enter_context(Eagerly())
        return self


def fuse_layers(model, weights: Sequence[Parameter] = (), input_trained: bool = False) -> Fused:
    """The layers of a fast model as one operator each way, within what is returned. A layer that is not traceable stays
    as it is, and is best part of a compiled graph.

    Layers that are recomputed in the backward pass are in operators of their own, so that one at a time is there in
    full; so are those of which most is trained, so that not all gradients are there as soon as the first. One that a
    group of processes computes together is in several (`model_zoo.engine.lowering.Pieces`).

    Args:
        weights: those whose gradients the graph is asked for, and no others.
        input_trained: whether what comes into the first layer gets a gradient in any case.
    """
    layers, width = model.layer_list, model.config.dims.hidden
    ids = frozenset(id(weight) for weight in weights)
    held = [list(layer.get_parameters()) for layer in layers]
    inside = [[parameter for parameter in own if id(parameter) in ids] for own in held]
    apart = 2 * sum(p.size for own in inside for p in own) > sum(p.size for own in held for p in own)
    wanted = input_trained or sum(map(len, inside)) < len(ids)  # what is outside may come before the layers
    whole = True
    cells: list[nn.Cell] = []
    group: list[tuple[nn.Cell, nn.Cell, bool]] = []  # layers, each by itself as an operator, and what it begins with

    def join_group() -> None:
        if len(group) > 1:
            with contextlib.suppress(NotTraceable):  # two share a weight
                group[:] = [(None, FusedLayers([one[0] for one in group], width, ids, group[0][2], False), False)]
        cells.extend(alone for _, alone, _ in group)
        group.clear()

    for layer, own in zip(layers, inside, strict=True):
        recompute = getattr(layer, "recomputes", False)
        try:
            alone = FusedLayers([layer], width, ids, wanted, recompute)
        except NotTraceable as error:
            alone, whole = layer, whole and isinstance(error, NothingToDo)
            say_once(BY_OPERATORS, str(error))
        if alone is layer or alone.program.sums or apart or recompute:
            join_group()
            cells.append(alone)
        else:
            group.append((layer, alone, wanted))
        wanted = wanted or bool(own)
    join_group()
    return Fused(layers, cells, whole)


@dataclasses.dataclass(frozen=True)
class MemoryProfile:
    """Numbers per token.

    Attributes:
        saved: of a layer, until its backward pass.
        forward, backward: workspace; most at a time while layers run forward, and backward.
    """

    saved: int
    forward: int
    backward: int


def memory_profile(model, recompute: bool) -> MemoryProfile | None:
    """What the layers of a model take in a training step, from the compiled program; None where they are not
    traceable. Only widths matter, so that two layers are enough, and no values."""
    weights = frozenset(id(parameter) for parameter in model.get_parameters() if parameter.requires_grad)
    layers, width = list(model.layer_list), model.config.dims.hidden
    try:
        one, both = (FusedLayers(some, width, weights, True, recompute).program for some in (layers[1:2], layers[:2]))
    except NotTraceable:
        return None
    if recompute:  # each is an operator of its own
        return MemoryProfile(0, *one.workspace)
    return MemoryProfile(both.saved - one.saved, *both.workspace)
