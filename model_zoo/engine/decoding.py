"""What prompts and single tokens go through over a cache: whole layers, and a token's attention, as one operator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from mindspore import ParameterTuple, nn

from model_zoo.engine.calls import Place
from model_zoo.engine.kernels import operator
from model_zoo.engine.steps import Steps, Unrecorded, columns_of, layer_list, standing_in, tables_of
from model_zoo.engine.training import FrozenLayers, LayerSteps


def token_shape(query, *others):
    return [query[0], query[1] * query[3]]


class TokenAttention(nn.Cell):
    """Attention of one token per row over the keys and values that are kept, and its own.

    It writes the token's key and value into the kept ones, which MindSpore does not see: nothing else in the same graph
    may read these.

    Returns:
        Joined heads ``(B, heads·d)``.
    """

    def __init__(self):
        super().__init__()
        self.attend = operator("token_attention", token_shape)

    def construct(self, query, keys, values, kept_keys, kept_values, end, columns):
        """Query ``(B, heads, 1, d)``; keys and values ``(B, kv_heads, T + 1, d)``, T of them in front of all tokens;
        the kept ones ``(B·kv_heads·L, d)``; end ``(B, 1)``, columns ``(B, T + L)``."""
        return self.attend(query, keys, values, kept_keys, kept_values, end, columns)


class TokenSteps(Steps):
    """What a layer does with one token of each row.

    Args:
        width: of the stream.
        tables: how many of these the layers take.

    Attributes:
        cache: of the layer that tells its steps, a `generation.cache.LayerCache`.
    """

    def __init__(self, width: int, tables: int):
        super().__init__(width)
        self.end, self.columns = self.given(), self.given()
        self.tables = [self.given() for _ in range(tables)]

    def low_rank(self, y, x, a, b, scale):
        inner = self.linear("product_of_rows", x, a, None, a.shape[0])
        return self.add(self.linear("product_of_rows", inner, b, None, y.width), y, scale)

    def heads(self, x, head_dim):
        return Place(x.rows * x.width // head_dim, head_dim, x.memory, by_head=True)

    def rotated_heads(self, form, x, head_dim, cosine, sine):
        return self.like(f"rotary_{form}", self.heads(x, head_dim), cosine, sine)

    def attention(self, query, keys, values):
        kept = self.parameter(self.cache.keys), self.parameter(self.cache.values)
        given = query, keys, values, *kept, self.end, self.columns
        return self.call("token_attention", *given, outputs=[self.place(1, query.rows * query.width)])


class PromptSteps(LayerSteps):
    """What a layer does with whole prompts, whose keys and values are kept.

    Args:
        width, tables: as in `LayerSteps`.
    """

    def __init__(self, width: int, tables: int):
        super().__init__(width, tables, frozenset(), False)

    def attention(self, query, keys, values):
        for rows, kept in ((keys, self.cache.keys), (values, self.cache.values)):
            self.call("keep_columns", rows, outputs=[self.parameter(kept)])
        return super().attention(query, keys, values)

    def prefixed_attention(self, query, keys, values, prefix):
        self.refuse(type(self))  # what is kept would begin with the prefix


class CachedLayers(nn.Cell):
    """Layers one after the other over their caches, as one operator.

    MindSpore does not see what is written into the caches: nothing else in the same graph may read these.

    Args:
        layers: their class has ``record(steps, x, *tables)``, and ``tables``, how many of these there are.
        caches: of each.
        width: of the stream.
        prompt: whether for whole prompts, or for single tokens.

    Raises:
        Unrecorded: a cell within does not tell its steps.
    """

    def __init__(self, layers: Sequence[nn.Cell], caches: Sequence, width: int, prompt: bool):
        super().__init__()
        self.prompt = prompt
        steps = (PromptSteps if prompt else TokenSteps)(width, getattr(layers[0], "tables", 0))
        result = steps.stream
        for layer, steps.cache in zip(layers, caches, strict=True):
            result = steps.run(layer, result, *steps.tables)
        self.operator = FrozenLayers(steps, result)
        # past `Cell.__setattr__`: they are the model's and the cache's, and keep their names
        object.__setattr__(self, "parameters", ParameterTuple(steps.parameters))

    def construct(self, x, *rest):
        """The stream ``(N, H)``, tables, start, end and keep, as a layer is called."""
        given = (rest[-2], rest[-1], *tables_of(rest))
        if self.prompt:
            given = (rest[-3], rest[-2], columns_of(rest[-3], rest[-1]), *tables_of(rest))
        return self.operator(x, given, tuple(self.parameters), ())[0]


@contextlib.contextmanager
def cached_layers(model, cache, prompt: bool) -> Iterator[None]:
    """Within, a model's layers are one operator over a `generation.cache.Cache`, for whole prompts or for single
    tokens. A layer that has something on it stays as it is."""
    layers, width = layer_list(model), model.config.dims.hidden
    kept = {id(core): own for (_, core), own in zip(cache.cores, cache.layers, strict=True)}
    groups: list[tuple[list[nn.Cell], list] | nn.Cell] = []
    for layer in layers:
        own = [kept[id(cell)] for _, cell in layer.cells_and_names() if id(cell) in kept]
        try:
            CachedLayers([layer], own, width, prompt)
        except Unrecorded:
            groups.append(layer)
        else:
            if not (groups and isinstance(groups[-1], tuple)):
                groups.append(([], []))
            groups[-1][0].append(layer)
            groups[-1][1].extend(own)
    cells = [CachedLayers(*group, width, prompt) if isinstance(group, tuple) else group for group in groups]
    with standing_in(layers, cells):
        yield
