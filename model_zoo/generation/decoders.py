"""From a prompt to the logits of the next token, step by step: by the compiled cache, or plainly from the start."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from model_zoo.engine import PromptProgram, TokenProgram, available, fuse_cached_layers
from model_zoo.errors import InputError, warn_once
from model_zoo.generation.cache import Cache
from model_zoo.graph import AddressGuard, Graph, holds
from model_zoo.turns import changed

SMALLEST_BUCKET = 32
FIRST_COLUMNS = 256
"""New tokens that a cache has room for at first; a full one is replaced with one of twice the length."""
KEPT_DECODERS = 6
"""How many compiled decoders a model keeps; each holds its cache's memory."""


def bucket(length: int) -> int:
    """The compiled length that serves this one: a power of two, or half-way between two, so that few are compiled and
    at most a third is padding."""
    size = SMALLEST_BUCKET
    while size < length:
        if size * 3 // 2 >= length:
            return size * 3 // 2
        size *= 2
    return size


def eager_columns(length: int) -> int:
    """The columns that serve a prompt of this length where nothing is compiled for it: a multiple of four, with at most
    an eighth of padding beyond 32. MindSpore keeps memory for every shape of an operator, hence not every length."""
    step = max(4, 2 ** max(length - 1, 1).bit_length() // 16)
    return -(-length // step) * step


class PlainDecoder:
    """Runs the whole sequence again for every token: the reference for the cached one."""

    def __init__(self, model):
        self.model = model

    def start(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The prompt ``(B, S)`` and its mask → logits ``(B, V)`` of the token after it."""
        self.ids, self.mask = ids, mask
        return self.logits()

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """One more token per row ``(B,)`` → logits of the one after."""
        self.ids = np.concatenate([self.ids, tokens[:, None]], 1)
        self.mask = np.concatenate([self.mask, np.ones_like(tokens[:, None])], 1)
        return self.logits()

    def check(self) -> None:
        """Every token is of the model as it is then."""

    def logits(self) -> np.ndarray:
        ids, mask = (Tensor(array.astype(np.int32)) for array in (self.ids, self.mask))
        # past the model's own checks: `generate` has made them, and beams are more rows than it was given
        return self.model.all_logits(ids, None if self.mask.all() else mask)[:, -1].asnumpy()

    def reorder(self, rows: np.ndarray) -> None:
        """Makes row i what row ``rows[i]`` was."""
        self.ids, self.mask = self.ids[rows], self.mask[rows]


def state_of(model) -> tuple:
    """What programs of a model are made for: its adapters and its precision."""
    return model.adapter_state, model.position_offset, model.virtual_tokens, model.product_precision


def layout_on_host(model, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`CausalLM.layout` of rows that are padded on the left alone, if at all, and have nothing in front of them:
    positions ``(B, S)`` or ``(B, 2, S)``, where each token's keys end ``(B, S)``."""
    positions, ends = [], []
    for row, extra in zip(ids, ids.shape[1] - mask.sum(1), strict=True):
        own, end = model.family.document_layout(model.config, row[extra:])
        positions.append(np.pad(own, [(0, 0)] * (own.ndim - 1) + [(extra, 0)]))
        ends.append(np.concatenate([np.arange(extra) + 1, end + extra]))
    return np.stack(positions), np.stack(ends)


class CachedDecoder:
    """Prompts and single tokens as programs over a cache of fixed length. Where one cannot be followed from end to end,
    a prompt is one operator of all layers among others; where a layer cannot, compiled graphs take the place of both.

    Args:
        model: in evaluation mode, its adapters as they are to be used.
        batch: rows.
        prompt: columns of the prompt; shorter ones are padded on the left.
        length: columns of the cache.
    """

    def __init__(self, model, batch: int, prompt: int, length: int):
        self.model, self.batch, self.prompt, self.length = model, batch, prompt, length
        self.fast = available() and model.dtype == ms.float32
        self.cache = Cache(model, batch, length, self.fast)
        cursor, cut = self.cache.cursor, ops.Slice()

        def prefill(ids, mask, rewind):
            ops.assign(cursor, rewind)
            position_ids, start, end, keep = model.layout(ids, mask, None)
            hidden = model.hidden_states(ids, position_ids, start, end, keep)
            rows, columns = ids.shape
            last = cut(hidden.reshape(rows, columns, -1), (0, columns - 1, 0), (rows, 1, hidden.shape[1]))
            return model.head(last.reshape(rows, -1)), position_ids

        def advance(ids, position_ids, keep, column):
            ops.assign(cursor, column)
            start = ops.zeros_like(ids)
            hidden = model.hidden_states(ids, position_ids, start, start + column + 1, keep)
            return model.head(hidden)

        self.prefill, self.advance = Graph(prefill), Graph(advance)
        self.layers: dict = {}  # see `layers_of`
        self.refused: set[Graph] = set()  # which cannot be compiled
        self.guard, self.state = AddressGuard(model.get_parameters()), state_of(model)
        self.guard.note()

    @property
    def outdated(self) -> bool:
        """Whether weights are elsewhere than its programs know, or others than these."""
        return self.guard.changed or not holds(self.model, self.guard.parameters)

    @contextlib.contextmanager
    def attached(self, prefilling: bool, fresh: bool) -> Iterator[None]:
        """Within, the model is over the cache and, for what is compiled of it there, has the fast kernels or not."""
        model, before = self.model, self.model.runs_fast
        swapped = fresh and before != self.fast

        def attach() -> None:
            if swapped:
                model.set_fast(self.fast)
            self.cache.attach(prefilling)
            model.decoding = not prefilling

        def detach() -> None:
            model.decoding = False
            self.cache.detach()
            if swapped:
                model.set_fast(before)

        with changed(attach, detach):
            yield

    def layers_of(self, graph: Graph):
        """A model's layers for one of the two, as operators where these can be followed; None once it is compiled."""
        if graph not in self.layers:
            self.layers[graph] = contextlib.nullcontext()
            if self.fast:
                prefilling = graph is self.prefill
                with self.attached(prefilling, fresh=True):
                    self.layers[graph] = fuse_cached_layers(self.model, self.cache, prefilling)
        return self.layers[graph]

    def eager(self, graph: Graph) -> bool:
        """Whether nothing is compiled: for prompts of which all layers are one operator. For a token MindSpore takes
        longer operator by operator."""
        return graph is self.prefill and getattr(self.layers_of(graph), "whole", False)

    def run(self, graph: Graph, *arguments):
        """What a graph gives."""
        prefilling, layers, eager = graph is self.prefill, self.layers_of(graph), self.eager(graph)
        if layers is None:
            with self.attached(prefilling, fresh=False):
                return (graph.uncompiled if graph in self.refused else graph)(*arguments)
        with layers, self.attached(prefilling, fresh=True):  # without the layers' own cells there are few to choose in
            results = graph.uncompiled(*arguments) if eager else self.compiled(graph, *arguments)
        if not eager:
            self.layers[graph] = None
        return results

    def compiled(self, graph: Graph, *arguments):
        """What a graph gives the first time, or what it is made of, operator by operator: MindSpore moves a tied weight
        in bfloat16 within graphs, for which it has no operator on a CPU."""
        try:
            return graph(*arguments)
        except TypeError as error:
            if "Select CPU operator" not in str(error):
                raise
            warn_once("generate: cannot be compiled and runs operator by operator, several times slower")
            self.refused.add(graph)
            return graph.uncompiled(*arguments)

    @functools.cached_property
    def whole_prompt(self) -> PromptProgram | None:
        """The program of prompts; None where operators or a graph take its place."""
        model = self.model
        if not self.fast or not isinstance(model.position_offset, int) or model.position_offset or model.virtual_tokens:
            return None
        one = model.family.document_layout(model.config, np.zeros(1, np.int32))[0]
        with self.attached(prefilling=True, fresh=True):
            return PromptProgram.of(model, self.cache, one.size)

    @functools.cached_property
    def token(self) -> TokenProgram | None:
        """The program of single tokens; None where a graph takes its place."""
        if not self.fast:
            return None
        with self.attached(prefilling=False, fresh=True):
            return TokenProgram.of(self.model, self.cache, self.batch, self.position.size // self.batch)

    def start_by_program(self, ids: np.ndarray, mask: np.ndarray) -> tuple | None:
        """What `start_by_operators` gives; None where these are needed."""
        if self.whole_prompt is None or (np.diff(mask, axis=1) < 0).any():
            return None
        position, end = layout_on_host(self.model, ids, mask)
        each = position if position.ndim == 2 else np.moveaxis(position, 1, 2)
        return self.whole_prompt(ids, end, mask, each), position, mask

    def start_by_operators(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Logits ``(B, V)`` behind a prompt, its position ids, and its mask, padded as it was computed."""
        eager = self.eager(self.prefill)
        columns = eager_columns(ids.shape[1]) if eager else self.prompt
        extra = columns - ids.shape[1]
        fill = ids[:, :1]  # any valid id: it is hidden
        ids = np.concatenate([np.repeat(fill, extra, 1), ids], 1)
        mask = np.concatenate([np.zeros((len(mask), extra), mask.dtype), mask], 1)
        seen = None if eager and mask.all() else Tensor(mask.astype(np.int32))
        logits, position = self.run(self.prefill, Tensor(ids.astype(np.int32)), seen, Tensor([0], ms.int32))
        return logits.asnumpy(), position.asnumpy(), mask

    def start(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The prompt ``(B, S)`` and its mask → logits ``(B, V)`` of the token after it."""
        self.prepared = False
        self.cache.compute()
        logits, position, mask = self.start_by_program(ids, mask) or self.start_by_operators(ids, mask)
        self.position = position[..., -1]
        virtual = self.model.virtual_tokens
        self.column = virtual + mask.shape[1]
        self.keep = np.ones((self.batch, self.length), np.int32)
        own = self.model.virtual_keep  # which of the columns in front each row sees, while a batch mixes adapters
        # below zero: seen from beyond a window, too
        self.keep[:, :virtual] = -1 if own is None else -np.repeat(own, self.batch // len(own), 0)
        self.keep[:, virtual : self.column] = mask
        return logits

    def go_on(self, shorter: CachedDecoder) -> None:
        """Takes the place of a decoder whose cache is full."""
        self.prepared = False
        self.cache.compute()
        self.cache.copy(shorter.cache)
        self.position, self.column = shorter.position, shorter.column
        self.keep = np.ones((self.batch, self.length), np.int32)
        self.keep[:, : self.column] = shorter.keep

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """One more token per row ``(B,)`` → logits of the one after."""
        self.position = self.model.family.advance(self.position)
        column = self.column
        self.column += 1
        if self.token is not None:
            if not self.prepared:  # weights may have been trained since the last answer
                self.token.prepare()
                self.prepared = True
            end = np.full((self.batch, 1), self.column, np.int32)
            return self.token(tokens, end, self.keep, self.position.reshape(self.batch, -1))
        ids, positions = (Tensor(array[..., None].astype(np.int32)) for array in (tokens, self.position))
        return self.run(self.advance, ids, positions, Tensor(self.keep), Tensor([column], ms.int32)).asnumpy()

    def reorder(self, rows: np.ndarray) -> None:
        """Makes row i what row ``rows[i]`` was."""
        self.cache.reorder(Tensor(rows.astype(np.int32)))
        self.keep, self.position = self.keep[rows], self.position[rows]


class GrowingDecoder:
    """Decodes over a cache that grows with the answer, so that an answer up to the end of a long context takes the
    memory of what is written and not of the context.

    Args:
        model, batch, prompt: see `CachedDecoder`.
        new_tokens: how many tokens are written at most.
    """

    def __init__(self, model, batch: int, prompt: int, new_tokens: int):
        self.model, self.batch, self.prompt, self.within = model, batch, bucket(prompt), model.answering
        taken = self.prompt + model.virtual_tokens
        self.longest = bucket(taken + new_tokens)
        self.now = self.cached(bucket(taken + min(new_tokens, FIRST_COLUMNS)))

    def cached(self, length: int) -> CachedDecoder:
        return cached_decoder(self.model, self.batch, self.prompt, length, self.within)

    def start(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """See `CachedDecoder.start`."""
        return self.now.start(ids, mask)

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """See `CachedDecoder.step`."""
        if self.now.column == self.now.length:
            longer = self.cached(min(self.longest, bucket(2 * self.now.length)))
            longer.go_on(self.now)
            self.now = longer
        return self.now.step(tokens)

    def check(self) -> None:
        """Raises InputError where programs would not see what was done to the model since they were made."""
        if self.now.guard.changed or self.now.state != state_of(self.model):
            raise InputError("the streamer gave the model other weights or adapters while an answer is written")

    def reorder(self, rows: np.ndarray) -> None:
        """See `CachedDecoder.reorder`."""
        self.now.reorder(rows)


def decoder_for(model, batch: int, prompt: int, new_tokens: int, use_cache: bool):
    """A decoder of up to `new_tokens` tokens after a prompt of so many columns."""
    cached = use_cache and model.compiles
    return GrowingDecoder(model, batch, prompt, new_tokens) if cached else PlainDecoder(model)


def cached_decoder(model, batch: int, columns: int, length: int, within: int = 0) -> CachedDecoder:
    """A compiled decoder; they are kept on the model by batch, lengths, the state of its adapters, its precision, and
    within how many other answers this one is written, as streamers may have it: their caches are in use."""
    key = (batch, columns, length, within, *state_of(model))
    kept = model.__dict__.setdefault("_decoders", {})
    found = kept.pop(key, None)
    if found is None or found.outdated:
        found = None  # and its cache, before there is another
        while len(kept) >= KEPT_DECODERS:
            kept.pop(next(iter(kept)))
        found = CachedDecoder(model, batch, columns, length)
    kept[key] = found
    return found
