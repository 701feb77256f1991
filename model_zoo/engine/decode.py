"""Decoding over a cache: layers as one operator, for whole prompts or for single tokens."""

from __future__ import annotations

import abc
import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn

from model_zoo.engine.build import library
from model_zoo.engine.call import arguments
from model_zoo.engine.ir import OPERAND, NotTraceable, Value
from model_zoo.engine.run import BY_OPERATORS, ForwardProgram, Fused, key_mask_of, say_once
from model_zoo.engine.trace import SequenceTracer, Tracer, traced_calls


class CachedTracer(Tracer):
    """Over a cache, with weights that the program knows by their addresses: MindSpore's runtime takes time for each
    tensor that an operator is called with, which for single tokens is a good part of all. Whoever runs the program
    sees to it that they stay where they are (`model_zoo.graph.AddressGuard`).

    Args:
        width, layer: see `Tracer`.
        caches: of each attention core, by its id, a `generation.cache.LayerCache`.

    Attributes:
        cache: of the core that is traced.
    """

    def __init__(self, width: int, layer: nn.Cell, caches: Mapping):
        super().__init__(width, layer)
        self.caches, self.bound, self.cache = caches, {}, None

    def take(self, parameter: Tensor) -> Value:
        if id(parameter) not in self.bound:
            self.bound[id(parameter)] = Value(tuple(parameter.shape), OPERAND, bound=parameter, tracer=self)
        return self.bound[id(parameter)]

    def computed(self, cell, give):
        return self.cache.computed(cell, give)

    def call(self, cell: nn.Cell, *arguments, **settings):
        self.cache = self.caches.get(id(cell), self.cache)  # a prefix within the core's call takes the core's
        return super().call(cell, *arguments, **settings)


class TokenTracer(CachedTracer):
    """One token of each row."""

    decoding = True

    def inputs(self) -> None:
        self.end, self.key_mask = self.operand(), self.operand()

    def low_rank(self, y, x, a, b, scale):
        change = self.emit("product_of_rows", self.emit("product_of_rows", x, a), b)
        return self.add(change, y, scale)

    def heads(self, x, head_dim):
        return Value((1, x.rows * x.width // head_dim, 1, head_dim), x.buffer, tracer=self)

    def rotated_heads(self, form, x, head_dim, cosine, sine):
        return self.emit(f"rotary_{form}", self.heads(x, head_dim), cosine, sine)

    def attention(self, query, keys, values, numbers, low=""):
        return self.over_cache("token_attention", query, keys, values)

    def prefixed_attention(self, query, keys, values, numbers, prefix):
        return self.over_cache("token_attention_prefixed", query, keys, values, prefix)

    def over_cache(self, op: str, query: Value, keys: Value, values: Value, *prefix) -> Value:
        """Attention over what is kept, and the token's own keys and values, which are kept then."""
        given = query, keys, values, self.cache.keys, self.cache.values, self.end, self.key_mask
        return self.emit(op, *given, *prefix, **self.cache.numbers)


class WholeTracer(CachedTracer):
    """More than the layers: the model's own methods are followed. The first operand is ids ``(N,)`` unless it has a
    width, and the last the positions ``(N, 1)``, or so many for each token; tables are computed."""

    def __init__(self, model, caches: Mapping, positions: int = 1, width: int = 0):
        super().__init__(width or 1, model.layer_list[0], caches)
        del self.operands[self.operands.index(self.key_mask) + 1 :]
        self.hidden.per_token = (1, width) if width else (1,)
        self.positions = self.operand((1,) if positions == 1 else (1, positions))
        with traced_calls():
            try:
                self.result = self.follow_model(model)
            except NotTraceable:
                raise
            except Exception as error:  # they are the family's own methods, and no cells
                raise NotTraceable(f"{type(model).__name__} computes what the tracer does not know: {error}") from error

    @abc.abstractmethod
    def follow_model(self, model) -> Value:
        """What the program gives."""

    def use_group(self, group_sum):
        self.refuse(type(group_sum))  # one call has no sums in between


class WholeTokenTracer(WholeTracer, TokenTracer):
    """From a token's id to its logits.

    Attributes:
        prepared: the operations on weights whose results, `held`, are the same for every token.
    """

    def __init__(self, *arguments):
        self.prepared, self.held = [], []
        super().__init__(*arguments)

    def once(self, name, *inputs, **numbers):
        own, self.instructions = self.instructions, self.prepared
        (made,) = self.emit_all(name, *inputs, **numbers)
        self.instructions = own
        self.held.append(Parameter(np.zeros(made.per_token, np.float32)))
        self.prepared[-1].outputs = [self.take(self.held[-1])]
        return self.prepared[-1].outputs[0]

    def follow_model(self, model):
        return model.head(model.hidden_states(self.hidden, self.positions, None, self.end, self.key_mask))


class HeadTracer(WholeTracer, TokenTracer):
    """From hidden states to logits."""

    def follow_model(self, model):
        return model.head(self.hidden)


class Call:
    """A program that is called past MindSpore's runtime, which takes as long for a graph as a small model's layers do
    for a token."""

    def __init__(self, tracer: WholeTracer, result: Value | None = None):
        result = result or tracer.result
        self.program = ForwardProgram(tracer, result)
        self.width, self.workspace = result.width, max(self.program.workspace[0], 1)
        self.words = self.program.programs[0].asnumpy()
        self.run = ctypes.CDLL(str(library())).program

    def prepare(self, first: np.ndarray, *given: np.ndarray) -> tuple[np.ndarray, tuple]:
        """Operands, of which the first has a row or number for each token → the result, which `call` fills, and what
        to call it with."""
        made = [np.empty((len(first), width), np.float32) for width in (self.width, 1, self.workspace)]
        arrays = [first, self.words, *given, *made]
        told = [(array.ctypes.data, array.shape, str(array.dtype)) for array in arrays]
        called_with = arguments(*zip(*told, strict=True))
        called_with[1].lasting = arrays  # what is pointed to lives as long
        return made[0], called_with

    def call(self, called_with: tuple) -> None:
        if self.run(*called_with):
            raise RuntimeError("a program of the engine failed")


class WholeProgram:
    """What can be followed from end to end, or not.

    Attributes:
        what: what is said where it cannot.
    """

    what = ""

    @classmethod
    def of(cls, *arguments):
        """The program; None where operators or a graph take its place, which is said once."""
        try:
            return cls(*arguments)
        except NotTraceable as error:
            say_once(cls.what, str(error))
            return None


class TokenProgram(WholeProgram):
    """Everything between a token's id and its logits as one call.

    Args:
        model: in evaluation mode, its cache attached.
        cache: a `generation.cache.Cache`.
        positions: how many a token has.

    Raises:
        NotTraceable: a cell within cannot be followed.
    """

    what = "single tokens of an answer run as a graph"

    def __init__(self, model, cache, batch: int, positions: int):
        tracer = WholeTokenTracer(model, cache_by_core(cache), positions)
        self.token, self.held, self.preparing = Call(tracer), tracer.held, None
        integers = (batch,), (batch, 1), (batch, cache.length), (batch, positions)
        self.given = [np.empty(shape, np.int32) for shape in integers]
        self.logits, self.called_with = self.token.prepare(*self.given)
        if tracer.prepared:
            tracer.instructions = tracer.prepared
            self.preparing = Call(tracer, tracer.place((1, 1)))  # gives nothing but what is held

    def prepare(self) -> None:
        """Computes what depends on weights alone. To be called before an answer's first token."""
        if self.preparing is not None:
            self.preparing.call(self.preparing.prepare(*self.given)[1])

    def __call__(self, ids: np.ndarray, end: np.ndarray, key_mask: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Integers: ids ``(B,)``, where each row's keys end ``(B, 1)``, which are seen ``(B, C)``, positions ``(B, …)``
        → logits ``(B, V)``."""
        for array, values in zip(self.given, (ids, end, key_mask, positions), strict=True):
            array[...] = values
        self.token.call(self.called_with)
        return self.logits.copy()


class PromptTracer(CachedTracer, SequenceTracer):
    """Whole prompts, whose keys and values are kept."""

    def attention(self, query, keys, values, numbers, low=""):
        self.keep(keys, values)
        return super().attention(query, keys, values, numbers, low)

    def prefixed_attention(self, query, keys, values, numbers, prefix):
        self.keep(keys, values)
        return super().prefixed_attention(query, keys, values, numbers, prefix)

    def keep(self, *rows: Value) -> None:
        """Puts keys and values into the cache: the tokens' own, without what stands in front of them."""
        for each, kept in zip(rows, (self.cache.keys, self.cache.values), strict=True):
            self.emit("keep_columns", each, outputs=[self.parameter(kept)], pinned=self.cache.pinned)


class WholePromptTracer(WholeTracer, PromptTracer):
    """From a prompt's ids to its hidden states."""

    def follow_model(self, model):
        return model.hidden_states(self.hidden, self.positions, self.start, self.end, self.key_mask)


class PromptProgram(WholeProgram):
    """Everything between a prompt's ids and the logits behind it as two calls, for any length; see `TokenProgram`."""

    what = "prompts run operator by operator"

    def __init__(self, model, cache, positions: int):
        caches = cache_by_core(cache)
        self.prompt = Call(WholePromptTracer(model, caches, positions))
        self.head = Call(HeadTracer(model, caches, width=self.prompt.width))

    def __call__(self, ids: np.ndarray, end: np.ndarray, key_mask: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Integers: ids, where each token's keys end, and which are seen, ``(B, S)``; positions ``(B, S)``, or ``(B, S,
        …)`` → logits ``(B, V)``."""
        batch, length = ids.shape
        given = [np.ascontiguousarray(array, np.int32) for array in (np.zeros_like(ids), end, key_mask, positions)]
        hidden, called_with = self.prompt.prepare(ids.astype(np.int32).reshape(-1), *given)
        self.prompt.call(called_with)
        last = np.ascontiguousarray(hidden[length - 1 :: length])
        logits, called_with = self.head.prepare(last, *3 * [np.zeros((batch, 1), np.int32)])
        self.head.call(called_with)
        return logits


class CachedLayers(nn.Cell):
    """Layers one after the other over their caches, as one operator.

    MindSpore sees neither the weights nor the caches, nor what is written into these: nothing else in the same graph
    may read them.

    Args:
        layers: called as in `FusedLayers`.
        caches: see `CachedTracer`.
        prompt: whether for whole prompts, or for single tokens.

    Raises:
        NotTraceable: a cell within cannot be followed.
    """

    def __init__(self, layers: Sequence[nn.Cell], caches: Mapping, width: int, prompt: bool):
        super().__init__()
        self.prompt = prompt
        tracer = (PromptTracer if prompt else TokenTracer)(width, layers[0], caches)
        result = tracer.hidden
        for layer in layers:
            result = tracer.run(layer, result)
        self.program = ForwardProgram(tracer, result)

    def __call__(self, x, *rest):
        return self.program.construct(x, self.given(rest), (), ())[0]

    def given(self, rest):
        """What the program takes of what a layer is called with behind the hidden states."""
        if self.prompt:
            return rest[-3], rest[-2], key_mask_of(rest[-3], rest[-1]), *rest[:-3]
        return rest[-2], rest[-1], *rest[:-3]

    def construct(self, x, *rest):
        """As a layer is called."""
        return self.program(x, self.given(rest), (), ())[0]


def cache_by_core(cache) -> dict:
    """The caches of attention cores, by the cores' ids."""
    return {id(core): own for (_, core), own in zip(cache.cores, cache.layers, strict=True)}


def fuse_cached_layers(model, cache, prompt: bool) -> Fused:
    """A model's layers as one operator over a `generation.cache.Cache`, for whole prompts or for single tokens, within
    what is returned. A layer that is not traceable stays as it is."""
    layers, width, caches = model.layer_list, model.config.dims.hidden, cache_by_core(cache)
    groups: list[list[nn.Cell] | nn.Cell] = []
    for layer in layers:
        try:
            CachedLayers([layer], caches, width, prompt)
        except NotTraceable as error:
            say_once(BY_OPERATORS, str(error))
            groups.append(layer)
        else:
            if not (groups and isinstance(groups[-1], list)):
                groups.append([])
            groups[-1].append(layer)
    cells = [CachedLayers(group, caches, width, prompt) if isinstance(group, list) else group for group in groups]
    return Fused(layers, cells, all(isinstance(cell, CachedLayers) for cell in cells))
