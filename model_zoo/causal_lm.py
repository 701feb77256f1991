"""What every family's model has in common: inputs, layout, head, and the table that says how the family differs."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model_zoo.arguments import asked_as_elsewhere
from model_zoo.configs import Config, Family
from model_zoo.elsewhere import METHODS
from model_zoo.ends import listed_ends
from model_zoo.engine import set_kernels
from model_zoo.errors import InputError
from model_zoo.factory import CellFactory
from model_zoo.initialise import draw
from model_zoo.inputs import as_int_tensor, as_mask, check_runs
from model_zoo.labels import SCORE, Labels
from model_zoo.layers import Linear, int_range, name_parameters
from model_zoo.norms import LayerNorm, RMSNorm
from model_zoo.turns import in_turn, telling

if TYPE_CHECKING:
    from model_zoo.generation.generate import generate

_cumulated = ops.CumSum()


def count_ones(mask):
    """``(B, S)`` integers → how many 1 there are up to each column, as float32: its kernel knows no other type."""
    return _cumulated(mask.astype(ms.float32), 1)


class CausalLM(nn.Cell):
    """A decoder with a language model's head, or a classifier's.

    Sub-classes build the cells, end their constructor with ``self.finish()``, and give ``transformer`` or
    ``hidden_states``.
    `position_offset` is the number of positions taken up in front of the first token (a prefix's), `virtual_tokens` the
    number of columns there (a trained prompt's); `mixed_rows` how many rows a batch must have while each goes through
    an adapter of its own, else None; `decoding` is set while single tokens go through over a cache; `answering` is how
    many answers are being written, one within another; `runs_fast` is what `set_fast` was last told; `adapter_state`
    changes with the adapters that take part; `product_precision` names what matrix products compute in, where training
    changed it (`pet.train.precision`); `labels` says what the numbers of the head `score` mean where it is used (a
    classifier's, or such an adapter's), and `scoring` that it is; `compiles` is False where cells talk to other
    processes in an order that no compiled graph keeps, so that everything runs operator by operator;
    `generation_config` holds the generation_config.json beside the weights.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.position_offset = 0
        self.virtual_tokens = 0
        self.virtual_keep = None
        self.mixed_rows = None
        self.decoding = False
        self.answering = 0
        self.runs_fast = False
        self.adapter_state = ()
        self.product_precision = "fp32"
        self.labels = config.labels
        self.scoring = self.labels is not None
        self.score = None
        self.compiles = True
        self.generation_config: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        """The cell's own; of what is a method elsewhere (`model_zoo.elsewhere`) the error says what it is here."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in METHODS:
                raise
            raise AttributeError(f"a model has no {name}: it {METHODS[name]}") from None

    @property
    def family(self) -> Family:
        """What is special about its family."""
        return self.config.family

    @property
    def dtype(self):
        """The type that it computes in: that of its norms. Other weights may be stored in fewer bits."""
        return next(cell.weight.dtype for _, cell in self.cells_and_names() if isinstance(cell, (LayerNorm, RMSNorm)))

    @property
    def room(self) -> int:
        """How many tokens one sequence may have: the context without what adapters put in front."""
        offset = self.position_offset
        if isinstance(offset, Tensor):  # one per row
            offset = int(offset.asnumpy().max())
        return self.config.dims.context - max(offset, self.virtual_tokens)

    @property
    def layer_list(self) -> nn.CellList:
        """The decoder layers."""
        return attrgetter(self.family.layers)(self)

    @property
    def eos_token_ids(self) -> list[int]:
        """The ids that end this model's answers, by generation_config.json or else config.json. Ids beyond the
        vocabulary, which small models with a published configuration have, are left out: they cannot occur."""
        ids = listed_ends(self.config.to_dict(), self.generation_config)
        return [token for token in ids if 0 <= token < self.config.dims.vocab]

    if TYPE_CHECKING:  # with its arguments, which stand there alone
        generate = generate
    else:

        @telling
        @in_turn
        def generate(self, *arguments, **settings) -> np.ndarray:
            """Continues every row of a batch; see `model_zoo.generation.generate` for the arguments."""
            from model_zoo.generation import generate

            return generate(self, *arguments, **settings)

    def save_pretrained(self, directory, **settings) -> None:
        """Writes the plain model as a Hugging Face checkpoint; see `model_zoo.checkpoint.saving.save_pretrained`."""
        from model_zoo.checkpoint.saving import save_pretrained

        save_pretrained(self, directory, **settings)

    def add_head(self, make: CellFactory, embedding) -> None:
        """``lm_head``: a cell with a weight of its own, or one that uses the embedding's; in a classifier ``score``
        instead."""
        if self.scoring:
            self.score = make(SCORE)
        self.lm_head = make("lm_head", needed=False)
        if self.lm_head is None and not self.scoring:
            self.lm_head = Linear(self.config.dims.hidden, 1, False, embedding.weight.dtype)
            self.lm_head.weight, self.lm_head.out_features = embedding.weight, embedding.weight.shape[0]

    def finish(self) -> None:
        """Names the parameters by their place, once all cells are there."""
        name_parameters(self)

    def __reduce_ex__(self, protocol):
        raise InputError(
            "a model cannot be copied or pickled, since compiled programs know its weights by their addresses; open it "
            "again by pet.AutoModel.from_pretrained, and its adapters by pet.load_adapter"
        )

    @asked_as_elsewhere
    @in_turn
    def __call__(self, input_ids, attention_mask=None, position_ids=None):
        """Logits ``(B, S, V)``, float32; of a classifier ``(B, S, labels)``, as a text has them that ends there.

        Args:
            input_ids: ``(B, S)`` integers, a list, an array or a Tensor.
            attention_mask: ``(B, S)``, 1 for real tokens and 0 for padding; default all real.
            position_ids: ``(B, S)``, for ChatGLM-6B ``(B, 2, S)``; default counted over the real tokens.

        Raises:
            InputError: an id outside the vocabulary, a sequence beyond the context, shapes that do not fit, a position
                that the model has not.
        """
        return super().__call__(*self.prepared(input_ids, attention_mask, position_ids))

    def prepared(self, input_ids, attention_mask=None, position_ids=None) -> tuple[Tensor | None, ...]:
        """What `construct` takes, of what a call is given; the errors are those of the call."""
        ids = as_int_tensor("input_ids", input_ids, 2)
        self.check_ids(ids)
        if attention_mask is not None:
            attention_mask = Tensor(as_mask(attention_mask, tuple(ids.shape)))
        if position_ids is not None:
            position_ids = as_int_tensor("position_ids", position_ids, None)
            shape = tuple(position_ids.shape)
            if len(shape) < 2 or (shape[0], shape[-1]) != tuple(ids.shape):
                raise InputError(f"position_ids has shape {shape}, input_ids {tuple(ids.shape)}")
            context, found = self.config.dims.context, position_ids.asnumpy()
            beyond = found[(found < 0) | (found >= context)] if self.config.bounded_positions else []
            if len(beyond):
                raise InputError(f"position_ids holds {beyond[0]}, but the model has positions 0 … {context - 1}")
        return ids, attention_mask, position_ids

    def check_ids(self, ids: Tensor, predicted: int = 0) -> None:
        """Raises InputError for ids or lengths that the model has no row for, or where nothing can be computed.

        Args:
            ids: ``(B, S)``, of which the last `predicted` columns do not go through the model.
        """
        check_runs(self.dtype)
        values, dims = ids.asnumpy(), self.config.dims
        if values.size == 0:
            raise InputError(f"input_ids is empty: shape {values.shape}")
        if self.mixed_rows not in (None, len(values)):
            raise InputError(f"adapter_names: {self.mixed_rows} adapter names, {len(values)} rows in the batch")
        if values.min() < 0 or values.max() >= dims.vocab:
            bad = values.min() if values.min() < 0 else values.max()
            raise InputError(f"input_ids holds {bad}, but the vocabulary has ids 0 … {dims.vocab - 1}")
        if (length := values.shape[1] - predicted) > self.room:
            taken = f", {dims.context - self.room} of them taken by the adapter" if self.room < dims.context else ""
            raise InputError(f"input_ids has {length} tokens, but the context holds {dims.context}{taken}")

    def construct(self, input_ids, attention_mask=None, position_ids=None):
        return self.all_logits(input_ids, attention_mask, position_ids)

    def all_logits(self, input_ids, attention_mask=None, position_ids=None):
        """What `construct` gives, also of a model whose own gives something else (`pet.compat.mindformers.cells`)."""
        batch, length = input_ids.shape
        position_ids, start, end, keep = self.layout(input_ids, attention_mask, position_ids)
        hidden = self.hidden_states(input_ids, position_ids, start, end, keep)  # (B·S, H)
        return self.head(hidden).reshape(batch, length, -1)

    def hidden_states(self, input_ids, position_ids, start, end, keep=None):
        """Ids and their `layout` → ``(B·S, H)``."""
        return self.transformer(input_ids, position_ids, start, end, keep)

    def layout(self, input_ids, attention_mask=None, position_ids=None):
        """Positions, and the interval of keys that each token sees.

        Returns:
            ``(position_ids, start, end, keep)``: integer tensors, all ``(B, S)``; keep is None without padding.
        """
        return self.causal_layout(input_ids, attention_mask, position_ids)

    def causal_layout(self, input_ids, attention_mask=None, position_ids=None):
        """The layout of most families; `layout` with a name that families may call from theirs (the graph parser takes
        ``super()`` as of the object's own class, which adapters have swapped)."""
        index = ops.zeros_like(input_ids) + int_range(input_ids.shape[1])
        if position_ids is None:
            position_ids = index
            if attention_mask is not None:
                position_ids = ops.maximum(count_ones(attention_mask).astype(ms.int32) - 1, 0)
            position_ids = position_ids + self.position_offset
        return position_ids, ops.zeros_like(index), index + 1, attention_mask

    def head(self, hidden):
        """``(N, H)`` → logits ``(N, V)``, or a classifier's ``(N, labels)``, in float32."""
        if self.scoring:
            return self.score(hidden).astype(ms.float32)
        return self.logits(hidden)

    def logits(self, hidden):
        """The language model's."""
        return self.lm_head(hidden).astype(ms.float32)

    def add_score(self, labels: Labels, seed: int | None = None) -> None:
        """Puts the head's cell on a model that has none; a language model stays one, but for adapters that use it.

        Args:
            labels: of which it has a number each.
            seed: of its weights; None: they are zero.
        """
        if self.score is not None:
            return
        cell = Linear(self.config.dims.hidden, len(labels.names), bias=False, dtype=self.dtype)
        cell.weight.name, cell.weight.requires_grad = f"{SCORE}.weight", False
        if seed is not None:
            draw(cell.weight, self.config, seed)
        self.score = cell

    def become_classifier(self, labels: Labels) -> None:
        """Leaves the head `score`, which must be there, in the place of the language model's, for good.

        Raises:
            InputError: transformers has no such model.
        """
        self.config, self.labels, self.scoring = self.config.as_classifier(labels), labels, True
        self.lm_head = None
        self.score.weight.requires_grad = True

    def set_fast(self, fast: bool = True) -> CausalLM:
        """Chooses the compiled fast kernels (True) or plain operators (False) in every cell that has both."""
        self.runs_fast = fast
        set_kernels(self, fast)
        return self
