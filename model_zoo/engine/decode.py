"""Decoding over a cache: layers as one operator, for whole prompts or for single tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from mindspore import Parameter, nn

from model_zoo.engine.ir import OPERAND, NotTraceable, Value
from model_zoo.engine.run import ForwardProgram, key_mask_of, replace_layers
from model_zoo.engine.trace import SequenceTracer, Tracer


class CachedTracer(Tracer):
    """Over a cache, with weights that the program knows by their addresses: MindSpore's runtime takes time for each
    tensor that an operator is called with, which for single tokens is a good part of all. Whoever runs the program
    sees to it that they stay where they are (`model_zoo.graph.AddressGuard`).

    Attributes:
        cache: of the layer that is traced, a `generation.cache.LayerCache`.
    """

    def __init__(self, width: int, layer: nn.Cell):
        super().__init__(width, layer)
        self.bound: dict[int, Value] = {}

    def take(self, parameter: Parameter) -> Value:
        if id(parameter) not in self.bound:
            self.bound[id(parameter)] = Value(tuple(parameter.shape), OPERAND, bound=parameter, tracer=self)
        return self.bound[id(parameter)]


class TokenTracer(CachedTracer):
    """One token of each row."""

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
        cache = self.cache
        given = query, keys, values, cache.keys, cache.values, self.end, self.key_mask
        return self.emit("token_attention", *given, **numbers, pinned=cache.pinned)


class PromptTracer(CachedTracer, SequenceTracer):
    """Whole prompts, whose keys and values are kept."""

    def attention(self, query, keys, values, numbers, low=""):
        for rows, kept in ((keys, self.cache.keys), (values, self.cache.values)):
            self.emit("keep_columns", rows, outputs=[self.parameter(kept)], pinned=self.cache.pinned)
        return super().attention(query, keys, values, numbers, low)

    def prefixed_attention(self, query, keys, values, numbers, prefix):
        self.refuse(type(self))  # what is kept would begin with the prefix


class CachedLayers(nn.Cell):
    """Layers one after the other over their caches, as one operator.

    MindSpore sees neither the weights nor the caches, nor what is written into these: nothing else in the same graph
    may read them.

    Args:
        layers: called as in `FusedLayers`.
        caches: of each.
        width: of the hidden states.
        prompt: whether for whole prompts, or for single tokens.

    Raises:
        NotTraceable: a cell within cannot be followed.
    """

    def __init__(self, layers: Sequence[nn.Cell], caches: Sequence, width: int, prompt: bool):
        super().__init__()
        self.prompt = prompt
        tracer = (PromptTracer if prompt else TokenTracer)(width, layers[0])
        result = tracer.hidden
        for layer, tracer.cache in zip(layers, caches, strict=True):
            result = tracer.run(layer, result)
        self.program = ForwardProgram(tracer, result)

    def construct(self, x, *rest):
        """As a layer is called."""
        given = (rest[-2], rest[-1], *rest[:-3])
        if self.prompt:
            given = (rest[-3], rest[-2], key_mask_of(rest[-3], rest[-1]), *rest[:-3])
        return self.program(x, given, (), ())[0]


@contextlib.contextmanager
def fuse_cached_layers(model, cache, prompt: bool) -> Iterator[None]:
    """Within, a model's layers are one operator over a `generation.cache.Cache`, for whole prompts or for single
    tokens. A layer that is not traceable stays as it is."""
    layers, width = model.layer_list, model.config.dims.hidden
    kept = {id(core): own for (_, core), own in zip(cache.cores, cache.layers, strict=True)}
    groups: list[tuple[list[nn.Cell], list] | nn.Cell] = []
    for layer in layers:
        own = [kept[id(cell)] for _, cell in layer.cells_and_names() if id(cell) in kept]
        try:
            CachedLayers([layer], own, width, prompt)
        except NotTraceable:
            groups.append(layer)
        else:
            if not (groups and isinstance(groups[-1], tuple)):
                groups.append(([], []))
            groups[-1][0].append(layer)
            groups[-1][1].extend(own)
    cells = [CachedLayers(*group, width, prompt) if isinstance(group, tuple) else group for group in groups]
    with replace_layers(layers, cells):
        yield
