"""All layers as one operator forward and one backward, for training and evaluation in compiled graphs.

MindSpore's compiler takes time for every operator of every layer, and its runtime for every launch; layers in one piece
take none. What is forgotten between their kernels lies in one block of memory, what the backward pass needs in another.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from model_zoo.engine.calls import KEPT, OPERAND, RESULT, WORK, Call, Memory, Place, memories
from model_zoo.engine.gradients import Gradients
from model_zoo.engine.kernels import operator, outputs
from model_zoo.engine.layout import place_kept, place_work, program, put_in_place
from model_zoo.engine.steps import Steps, Unrecorded, columns_of, layer_list, standing_in, tables_of
from model_zoo.engine.together import bring_together

log = logging.getLogger("pet")


class LayerSteps(Steps):
    """What a layer does with whole sequences.

    Args:
        width: of the stream.
        tables: how many of these the layer takes.
        weights: ids of the parameters that want a gradient.
        stream_trained: whether the stream wants one.

    Attributes:
        trained: the operands that want a gradient.
    """

    def __init__(self, width: int, tables: int, weights: frozenset[int], stream_trained: bool):
        super().__init__(width)
        self.weights, self.stream_trained = weights, stream_trained
        self.start, self.end, self.columns = self.given(), self.given(), self.given()
        self.tables = [self.given() for _ in range(tables)]
        self.trained = [self.stream] if stream_trained else []

    def parameter(self, parameter: Parameter) -> Place:
        if parameter.dtype not in (ms.float32, ms.int32):
            raise Unrecorded(f"{parameter.name} is {parameter.dtype}")
        place = super().parameter(parameter)
        if id(parameter) in self.weights and place not in self.trained:
            self.trained.append(place)
        return place

    def sort_weights(self) -> None:
        """Puts those that want a gradient behind the others. To be called when all is told."""
        first = len(self.operands) - len(self.parameters)
        pairs = sorted(zip(self.parameters, self.operands[first:], strict=True), key=lambda p: p[1] in self.trained)
        self.parameters = [parameter for parameter, _ in pairs]
        self.operands[first:] = [place for _, place in pairs]

    def low_rank(self, y, x, a, b, scale):
        factors = self.parameter(a), self.parameter(b), self.constant(np.float32(scale))
        outs = [self.place(y.rows, y.width), self.place(y.rows, a.shape[0])]
        return self.call("low_rank", y, x, *factors, outputs=outs)

    def heads(self, x, head_dim):
        return self.call("split_heads", x, self.start, outputs=[self.split(x, head_dim)])

    def rotated_heads(self, form, x, head_dim, cosine, sine):
        return self.call(f"split_rotary_{form}", x, cosine, sine, self.start, outputs=[self.split(x, head_dim)])

    def split(self, x: Place, head_dim: int) -> Place:
        """Memory for the heads of x."""
        return self.place(x.rows * x.width // head_dim, head_dim, by_head=True)

    def attention(self, query, keys, values):
        return self.attend("attention", query, keys, values)

    def prefixed_attention(self, query, keys, values, prefix):
        return self.attend("attention_prefixed", query, keys, values, self.parameter(prefix))

    def attend(self, kernel: str, query: Place, keys: Place, values: Place, *others: Place) -> Place:
        """Attention over the keys and values of the rows themselves."""
        joined, statistics = self.place(1, query.rows * query.width), self.place(query.rows, 2, by_head=True)
        given = query, keys, values, self.start, self.end, self.columns
        return self.call(kernel, *given, *others, outputs=[joined, statistics])


def needed(calls: Sequence[Call], by: Sequence[Call]) -> list[Call]:
    """Those of the calls whose results the others read, by themselves or by one another."""
    wanted = set(memories([place for call in by for place in call.inputs]))
    kept = []
    for call in reversed(calls):
        if wanted.intersection(memories(call.outputs)):
            kept.append(call)
            wanted.update(memories(call.inputs))
    return kept[::-1]


def by_products(calls: Sequence[Call]) -> list[Call]:
    """The same with LoRA's sums in two parts, of which the second is a product that can run with others."""
    parts = []
    for call in calls:
        if call.kernel != "low_rank":
            parts.append(call)
            continue
        (y, x, a, b, scale), (out, inner) = call.inputs, call.outputs
        parts.append(Call("low_rank_inner", [x, a, scale], [inner]))
        parts.append(Call("product_of_rows_onto", [inner, b, y], [out]))
    return parts


class FrozenLayers(nn.Cell):
    """The operator of some layers forward.

    Args:
        steps: told to the end.
        result: what the last layer gives.
        read: what a backward pass reads.
        forgets: whether none of that is kept.

    Attributes:
        kept: numbers per token that are kept for the backward pass.
        work: numbers per token that are forgotten, for each operator.
    """

    def __init__(self, steps: LayerSteps, result: Place, read: Sequence[Memory] = (), forgets: bool = False):
        super().__init__()
        if not isinstance(result.memory, Memory):
            raise Unrecorded("layers that give what they were given")
        result.memory.where = RESULT
        calls = bring_together(by_products(steps.calls))
        put_in_place(calls, set(read))
        self.kept = 0 if forgets else place_kept(read)
        self.work = (place_work(calls),)
        outer = [Place(0, 0, OPERAND) for _ in (RESULT, KEPT, WORK)]
        order, first = [*steps.operands, *outer], len(steps.operands)
        self.program = Tensor(program(calls, order, {RESULT: first, KEPT: first + 1, WORK: first + 2}))
        self.forward = operator("steps", forward_shapes(max(self.kept, 1), max(self.work[0], 1)))

    def construct(self, x, given, frozen, trained):
        """The stream ``(N, H)``; start, end, columns and tables; the weights → the stream, what is kept, the work."""
        return self.forward(x, self.program, *given, *frozen, *trained)

    def bprop(self, x, given, frozen, trained, out, dout):
        return x, given, frozen, trained  # nobody asks for them


class TrainedLayers(FrozenLayers):
    """The operator of some layers forward, and one backward.

    Args:
        steps, result: as in `FrozenLayers`.
        forgets: keep nothing for the backward pass, which computes it again from what came in.
    """

    def __init__(self, steps: LayerSteps, result: Place, forgets: bool):
        gradients = Gradients(steps, result)
        back = gradients.calls
        made = set(memories([place for call in steps.calls for place in call.outputs]))
        read = dict.fromkeys(memories([place for call in back for place in call.inputs]))
        read = [memory for memory in read if memory in made]
        again = needed(by_products(steps.calls), back) if forgets else []
        if result.memory in read and not forgets:
            raise Unrecorded("layers whose backward pass reads their result")
        super().__init__(steps, result, read, forgets)
        for memory in memories([place for call in again for place in call.places]):
            memory.where = WORK
        calls = bring_together([*again, *back])
        if steps.stream_trained:
            gradients.of_stream.memory.where = RESULT
        put_in_place(calls, set(read))
        self.work = (*self.work, place_work(calls))
        weights = [index for index, place in enumerate(steps.operands) if place in gradients.of_weights]
        # those of the backward pass that nobody asked for come last
        weights.sort(key=lambda index: steps.operands[index] not in steps.trained)
        order = [*steps.operands, Place(0, 0, OPERAND), gradients.outer]
        where = {KEPT: len(steps.operands), RESULT: len(order)}
        order += [Place(0, 0, OPERAND)] * steps.stream_trained
        order += [gradients.of_weights[steps.operands[index]] for index in weights]
        where[WORK] = len(order)
        self.back_program = Tensor(program(calls, [*order, Place(0, 0, OPERAND)], where))
        self.backward = operator("steps", backward_shapes(steps.stream_trained, tuple(weights), max(self.work[1], 1)))
        self.count = len(steps.trained) - steps.stream_trained

    def bprop(self, x, given, frozen, trained, out, dout):
        found = self.backward(x, self.back_program, *given, *frozen, *trained, out[1], dout[0])
        return found[0], given, frozen, found[1 : 1 + self.count]


class LowestLayers(TrainedLayers):
    """`TrainedLayers` whose stream wants no gradient."""

    def bprop(self, x, given, frozen, trained, out, dout):
        found = self.backward(x, self.back_program, *given, *frozen, *trained, out[1], dout[0])
        return x, given, frozen, found[: self.count]


@functools.cache
def forward_shapes(kept: int, work: int):
    """Stream → stream, what is kept, work."""

    @outputs(3)
    def shapes(x, *others):
        return x, [x[0], kept], [x[0], work]

    return shapes


@functools.cache
def backward_shapes(stream: bool, weights: tuple[int, ...], work: int):
    """→ the gradients of the stream, if there is one, and of some operands, and work."""

    @outputs(stream + len(weights) + 1)
    def shapes(*given):
        first = (given[0],) if stream else ()
        return (*first, *(given[index] for index in weights), [given[0][0], work])

    return shapes


class WholeLayers(nn.Cell):
    """Layers one after the other as one operator each way.

    Args:
        layers: their class has ``record(steps, x, *tables)``, and ``tables``, how many of these there are.
        width: of the stream.
        weights: ids of the parameters that want a gradient. The others' gradients are never to be asked for: what
            there is in their place is none.
        stream_trained: whether what comes in wants one.
        forgets: keep nothing for the backward pass.

    Raises:
        Unrecorded: a cell within does not tell its steps.
    """

    def __init__(
        self, layers: Sequence[nn.Cell], width: int, weights: frozenset[int], stream_trained: bool, forgets: bool
    ):
        super().__init__()
        self.count = len(layers)
        steps = LayerSteps(width, getattr(layers[0], "tables", 0), weights, stream_trained)
        result = steps.stream
        for layer in layers:
            result = steps.run(layer, result, *steps.tables)
        steps.sort_weights()
        if not steps.trained:
            self.operator = FrozenLayers(steps, result)
        else:
            self.operator = (TrainedLayers if stream_trained else LowestLayers)(steps, result, forgets)
        count = len(steps.trained) - stream_trained
        # past `Cell.__setattr__`: they are the model's, and keep their names
        object.__setattr__(self, "frozen", ParameterTuple(steps.parameters[: len(steps.parameters) - count]))
        object.__setattr__(self, "trained", ParameterTuple(steps.parameters[len(steps.parameters) - count :]))

    def construct(self, x, *rest):
        """The stream ``(N, H)``, tables, start, end and keep, as a layer is called."""
        start = rest[-3]
        given = (start, rest[-2], columns_of(start, rest[-1]), *tables_of(rest))
        return self.operator(x, given, tuple(self.frozen), tuple(self.trained))[0]


@functools.cache
def say_once(reason: str) -> None:
    """For those who look why compiling takes longer."""
    log.info("layers that run operator by operator: %s", reason)


@contextlib.contextmanager
def whole_layers(model, weights: Sequence[Parameter] = (), stream_trained: bool = False) -> Iterator[None]:
    """Within, a model's layers are one operator each way, for graphs that are compiled there. A layer that does not
    tell its steps stays as it is.

    Layers that are computed again in the backward pass are in operators of their own, so that one at a time is there in
    full; so are those of which most is trained, so that not all gradients are there as soon as the first.

    Args:
        weights: those whose gradients the graph is asked for, and no others.
        stream_trained: whether what comes into the first layer wants a gradient in any case.
    """
    layers, width = layer_list(model), model.config.dims.hidden
    ids = frozenset(id(weight) for weight in weights)
    held = [list(layer.get_parameters()) for layer in layers]
    inside = [[parameter for parameter in own if id(parameter) in ids] for own in held]
    apart = 2 * sum(p.size for own in inside for p in own) > sum(p.size for own in held for p in own)
    wanted = stream_trained or sum(map(len, inside)) < len(ids)  # what is outside may come before the layers
    cells: list[nn.Cell] = []
    group: list[tuple[nn.Cell, nn.Cell, bool]] = []  # layers, each by itself as an operator, and what it begins with

    def join_group() -> None:
        if len(group) > 1:
            with contextlib.suppress(Unrecorded):  # two share a weight
                group[:] = [(None, WholeLayers([one[0] for one in group], width, ids, group[0][2], False), False)]
        cells.extend(alone for _, alone, _ in group)
        group.clear()

    for layer, own in zip(layers, inside, strict=True):
        forgets = getattr(layer, "recomputes", False)
        try:
            alone = WholeLayers([layer], width, ids, wanted, forgets)
        except Unrecorded as error:
            alone = layer
            say_once(str(error))
        if alone is layer or apart or forgets:
            join_group()
            cells.append(alone)
        else:
            group.append((layer, alone, wanted))
        wanted = wanted or bool(own)
    join_group()
    with standing_in(layers, cells):
        yield
