"""Prompt tuning (Lester et al. 2021) and p-tuning (Liu et al. 2021): trained embeddings in front of the input's.

    ids     −1 −2 … −T │ i₀ i₁ …          columns in front, marked by negative ids
    embed    p₀ p₁ …    │ E[i₀] E[i₁] …    the embedding cell puts the prompt where the marks are
    layers, final norm                      the prompt's positions are 0 … T−1, real tokens follow
    hidden              │ h₀ h₁ …          the columns are cut off again

Real tokens start at position T also under left padding. A token sees the prompt and what it saw before, also where
several documents are packed in a row; the prompt sees itself alone, and causally, whatever the family.

p-tuning trains the embeddings through a network of three layers, folded away on saving. Files are PEFT's: one tensor
``prompt_embeddings`` ``(T, hidden)``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from adapters.cells import weight_of
from adapters.factors import generator_for, kaiming_uniform
from adapters.matching import sites
from adapters.method import AdapterModule, MethodConfig
from adapters.prefix import PEFT_NAME, PROMPT_KEYS, InFront, check_only, fitted, model_dims, prompt_fields
from adapters.settings import Prompt, PTuning
from model_zoo.engine import stored_rows
from model_zoo.layers import int_range

# TEXT would make PEFT look for a tokenizer; the embeddings are in the file
PROMPT_FIELDS = {
    "prompt_tuning_init": "RANDOM",
    "prompt_tuning_init_text": None,
    "tokenizer_name_or_path": None,
}
ENCODER_FIELDS = {"encoder_dropout": 0.0, "encoder_num_layers": 2, "encoder_reparameterization_type": "MLP"}
"""Of the network as it is here, in adapter_config.json."""


class PromptConfig(Prompt, InFront):
    """Prompt tuning. Without a text the embeddings start as those of tokens drawn from the vocabulary, which Lester et
    al. found better than random vectors."""

    stackable = False
    peft_keys = (*PROMPT_KEYS, *PROMPT_FIELDS, "tokenizer_kwargs")

    def fixed_sites(self, model) -> list:
        """The token embedding and the model as a whole."""
        model_dims(model, self.method)
        embedding = model.family.embedding
        return [site for site in sites(model) if site.kind == "model" or site.path == embedding]

    def build_all(self, model, chosen) -> dict[str, AdapterModule]:
        embedding, whole = sorted(chosen, key=lambda site: site.kind)
        columns = PromptColumns(self.source(model, embedding), self.length)
        return {whole.path: columns, embedding.path: PromptEmbedding(columns.source, self.length)}

    def source(self, model, embedding) -> nn.Cell:
        """The cell that the embeddings ``(T, hidden)`` come from."""
        weight = weight_of(embedding.cell)
        vocabulary = weight.shape[0]
        ids = self.init_ids
        if ids is None:
            ids = generator_for(self.seed, self.method).integers(vocabulary, size=self.length).tolist()
        ids = fitted(ids, self.length, model, self.method)
        rows = stored_rows()(weight, Tensor(np.array(ids, np.int32))).asnumpy()
        return PromptTable(rows * np.float32(embedding.output_scale))

    def parameters_at(self, site) -> int:
        return self.length * site.out_features if site.kind == "embedding" else 0

    def check_tensors(self, model, tensors, where) -> None:
        check_only(tensors, {PEFT_NAME: (self.length, model_dims(model, self.method).hidden)}, where)

    def to_peft(self, model, adapter) -> dict[str, Any]:
        dims = model.config.dims
        return {**prompt_fields(self, dims, dims.heads, dims.hidden), **PROMPT_FIELDS}


class PTuningConfig(PTuning, PromptConfig):
    """p-tuning: prompt tuning through a network, with PEFT's MLP (two hidden layers with ReLU)."""

    peft_keys = (*PROMPT_KEYS, *ENCODER_FIELDS, "encoder_hidden_size")

    def resolved(self, model) -> MethodConfig:
        if self.projection_hidden is not None:
            return self
        return dataclasses.replace(self, projection_hidden=model_dims(model, self.method).hidden)

    def source(self, model, embedding) -> nn.Cell:
        if self.folded:
            return super().source(model, embedding)
        return PromptEncoder(self.length, embedding.out_features, self.projection_hidden, self.seed)

    def parameters_at(self, site) -> int:
        if self.folded or site.kind != "embedding":
            return super().parameters_at(site)
        width, hidden = site.out_features, self.projection_hidden
        return self.length * width + hidden * (width + 1) + hidden * (hidden + 1) + width * (hidden + 1)

    def pack(self, arrays: dict[str, np.ndarray], adapter) -> dict[str, np.ndarray]:
        if self.folded:
            return arrays
        x = arrays["prompt_encoder.embedding"].astype(np.float64)
        for layer in range(3):
            x = x @ arrays[f"prompt_encoder.{layer}.weight"].T + arrays[f"prompt_encoder.{layer}.bias"]
            if layer < 2:
                x = np.maximum(x, 0)
        return {PEFT_NAME: np.ascontiguousarray(x.astype(np.float32))}

    def to_peft(self, model, adapter) -> dict[str, Any]:
        dims = model.config.dims
        common = prompt_fields(self, dims, dims.heads, dims.hidden)
        return {**common, **ENCODER_FIELDS, "encoder_hidden_size": self.projection_hidden}

    @classmethod
    def from_peft(cls, values: dict[str, Any]):
        """The file holds the network's output (also an LSTM's), so no network is built."""
        hidden = values.get("encoder_hidden_size")
        return dataclasses.replace(super().from_peft(values), projection_hidden=hidden, folded=True)


# Where the embeddings come from --------------------------------------------------------------------------------------


class PromptTable(nn.Cell):
    """Embeddings that are trained as they are."""

    def __init__(self, values: np.ndarray):
        super().__init__()
        self.prompt = Parameter(Tensor(np.ascontiguousarray(values)), name=PEFT_NAME)

    def tensors(self) -> dict[str, Parameter]:
        return {PEFT_NAME: self.prompt}

    def construct(self):
        return self.prompt


class PromptEncoder(nn.Cell):
    """Embeddings out of a network: ``W₂·relu(W₁·relu(W₀·e + b₀) + b₁) + b₂``."""

    def __init__(self, length: int, width: int, hidden: int, seed: int):
        super().__init__()
        generator = generator_for(seed, "p_tuning")
        start = generator.standard_normal((length, width), np.float32)
        self.embedding = Parameter(Tensor(start), name="embedding")
        shapes = ((hidden, width), (hidden, hidden), (width, hidden))
        weights = [Parameter(Tensor(kaiming_uniform(generator, *shape)), name="weight") for shape in shapes]
        biases = [Parameter(Tensor(np.zeros(rows, np.float32)), name="bias") for rows, _ in shapes]
        self.weight_0, self.weight_1, self.weight_2 = weights
        self.bias_0, self.bias_1, self.bias_2 = biases
        self.product = ops.MatMul(transpose_b=True)

    def tensors(self) -> dict[str, Parameter]:
        found = {"prompt_encoder.embedding": self.embedding}
        for layer in range(3):
            found[f"prompt_encoder.{layer}.weight"] = getattr(self, f"weight_{layer}")
            found[f"prompt_encoder.{layer}.bias"] = getattr(self, f"bias_{layer}")
        return found

    def construct(self):
        x = ops.relu(self.product(self.embedding, self.weight_0) + self.bias_0)
        x = ops.relu(self.product(x, self.weight_1) + self.bias_1)
        return self.product(x, self.weight_2) + self.bias_2  # (T, hidden)


# Modules -------------------------------------------------------------------------------------------------------------


class PromptColumns(AdapterModule):
    """Makes room for the prompt in front of a model's input, and cuts its hidden states off again."""

    def __init__(self, source: nn.Cell, length: int):
        super().__init__()
        self.source, self.length = source, length
        self.starts_from_base = isinstance(source, PromptTable)

    def tensors(self) -> dict[str, Parameter]:
        return self.source.tensors()

    def widen(self, ids, position_ids, start, end, keep):
        """The model's input with T columns more in front; the arguments and results are those of ``layout``."""
        batch = ids.shape[0]
        index = ops.zeros_like(ids[:, :1]) + int_range(self.length)  # (B, T)
        own = ops.ones_like(index)
        if self.rows is not None:
            rows = self.rows.astype(ms.int32).reshape(-1, 1)
            wide = (rows.shape[0], batch // rows.shape[0] * self.length)
            own = ops.broadcast_to(rows, wide).reshape(batch, self.length)
        ids = ops.concat(((-1 - index) * own, ids), 1)
        places = index
        if len(position_ids.shape) == 3:  # the second row counts within the answer, where the prompt is not
            places = ops.stack((index, ops.zeros_like(index)), 1)
        position_ids = ops.concat((places, position_ids), -1)
        keep = ops.ones_like(start) if keep is None else keep.astype(ms.int32)
        keep = ops.concat((-own, keep), 1)  # below zero: seen by everything behind it
        start = ops.concat((ops.zeros_like(index), start + self.length), 1)
        end = ops.concat((index + 1, end + self.length), 1)
        return ids, position_ids, start, end, keep

    def narrow(self, hidden, input_ids):
        """``(B·(T + S), H)`` → ``(B·S, H)``."""
        batch, length = input_ids.shape
        wide = hidden.reshape(batch, hidden.shape[0] // batch, hidden.shape[1])
        return wide[:, wide.shape[1] - length :].reshape(batch * length, -1)


class PromptEmbedding(AdapterModule):
    """Puts the prompt where the ids are negative."""

    saved = ()
    changes_input = True
    comes_last = True  # others take a mark for an id, and change its row

    def __init__(self, source: nn.Cell, length: int):
        super().__init__()
        object.__setattr__(self, "source", source)  # a child of the module on the model
        self.length = length
        self.gather = ops.Gather()

    def before(self, ids):
        """Ids that the embedding has a row for."""
        return ops.maximum(ids, 0)

    def trace_before(self, tracer, ids):
        if not tracer.decoding:
            tracer.refuse(type(self))
        return ids  # behind the prompt none is negative

    def trace(self, tracer, ids, y):
        return y

    def construct(self, ids, y):
        place = ops.minimum(ops.maximum(-1 - ids, 0), self.length - 1)
        prompt = self.gather(self.source(), place, 0).astype(y.dtype)  # (B, T + S, hidden)
        marked = ops.broadcast_to((ids < 0).expand_dims(-1), y.shape)
        return ops.select(marked, prompt, y)
