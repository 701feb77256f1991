"""What is compared: models, lengths, targets. Both sides read the same case."""

from __future__ import annotations

import dataclasses

import numpy as np

LLAMA_ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        kind: ``train``, ``packed`` (a data set of uneven lengths) or ``decode``.
        model: key of `MODELS`.
        batch, length: of the token matrix; in ``packed`` the row that documents are packed into, and a step of the
            padded peer has ``batch`` documents, one here as many rows as hold about as many; in ``decode`` the prompt.
        targets: Dense that LoRA (rank 8, alpha 16) goes to; empty trains all weights.
        about: one line for the table.
        answers: whether the last part of each document alone has labels, in ``packed``.
        dora: whether LoRA has magnitudes.
        nf4: whether the frozen projections are stored in nf4, by bitsandbytes on the peer's side.
    """

    kind: str
    model: str
    batch: int
    length: int
    targets: tuple[str, ...]
    about: str
    answers: bool = False
    dora: bool = False
    nf4: bool = False


MODELS = {
    "small": {
        "model_type": "llama",
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 1376,
        "vocab_size": 8000,
    },
    "big": {
        "model_type": "llama",
        "hidden_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 2752,
        "vocab_size": 8000,
    },
    "deep": {
        "model_type": "llama",
        "hidden_size": 512,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 1376,
        "vocab_size": 8000,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "vocab_size": 50257,
        "n_positions": 1024,
    },
    "glm4": {
        "model_type": "glm4",
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 1376,
        "vocab_size": 8000,
        "attention_bias": True,
    },
}

CASES = {
    "small": Case("train", "small", 4, 256, ("q_proj", "v_proj"), "LLaMA-style 512 × 8, LoRA on q, v"),
    "small-all": Case("train", "small", 4, 256, LLAMA_ALL, "the same, LoRA on all linear layers"),
    "small-dora": Case("train", "small", 4, 256, LLAMA_ALL, "the same, DoRA on all linear layers", dora=True),
    "small-full": Case("train", "small", 4, 256, (), "the same, all weights trained"),
    "small-1024": Case("train", "small", 1, 1024, ("q_proj", "v_proj"), "the same, one row of 1024 tokens"),
    "big": Case("train", "big", 2, 512, ("q_proj", "v_proj"), "LLaMA-style 1024 × 12, LoRA on q, v"),
    "big-nf4": Case("train", "big", 2, 512, ("q_proj", "v_proj"), "the same, its projections in nf4", nf4=True),
    "deep": Case("train", "deep", 4, 256, ("q_proj", "v_proj"), "LLaMA-style 512 × 24, LoRA on q, v"),
    "gpt2": Case("train", "gpt2", 4, 256, ("c_attn",), "GPT-2 small (124 M), LoRA on c_attn"),
    "glm4": Case("train", "glm4", 4, 256, ("q_proj", "v_proj"), "GLM-4-style, 8 query and 2 key heads"),
    "alpaca": Case("packed", "small", 8, 1024, ("q_proj", "v_proj"), "uneven lengths: padded peer, packed here"),
    "alpaca-answers": Case(
        "packed", "small", 8, 1024, ("q_proj", "v_proj"), "the same, labels at the answers alone", answers=True
    ),
    "decode-1": Case("decode", "small", 1, 32, (), "128 tokens, greedy, one sequence"),
    "decode-4": Case("decode", "small", 4, 32, (), "128 tokens, greedy, four sequences"),
}

COMPILED = ("small", "big", "gpt2", "glm4")
"""Where `torch.compile` is tried: it takes a minute to begin, and the others are like one of these."""

QUICK = ("small", "glm4", "alpaca", "decode-4")
"""What ``--quick`` measures."""

NEW_TOKENS = 128
LEARNING_RATE = 1e-3
LENGTHS_SEED = 5


def token_batch(case: Case) -> np.ndarray:
    """The one batch of a training case or the prompts of a decoding case, ``(batch, length)``."""
    vocabulary = MODELS[case.model]["vocab_size"]
    return np.random.default_rng(0).integers(3, vocabulary, (case.batch, case.length)).astype(np.int32)


def documents(case: Case, count: int = 32) -> list[tuple[np.ndarray, np.ndarray]]:
    """Documents with the lengths of an Alpaca-style set: log-normal, mean about 248 tokens, at most one row.

    Returns:
        Ids, and which of them are labels: all, or an answer of a fifth to three fifths of the document.
    """
    generator = np.random.default_rng(LENGTHS_SEED)
    lengths = np.clip(generator.lognormal(5.35, 0.6, count), 24, case.length).astype(int)
    vocabulary = MODELS[case.model]["vocab_size"]
    found = [generator.integers(3, vocabulary, length).astype(np.int32) for length in lengths]
    asked = generator.uniform(0.4, 0.8, count) if case.answers else np.zeros(count)
    return [(ids, np.arange(len(ids)) >= share * len(ids)) for ids, share in zip(found, asked, strict=True)]


def bins(lengths: list[int], room: int) -> list[list[int]]:
    """Which documents share a row, first-fit-decreasing, as TRL and this library pack."""
    rows: list[tuple[int, list[int]]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        for place, (used, members) in enumerate(rows):
            if used + lengths[index] <= room:
                rows[place] = (used + lengths[index], [*members, index])
                break
        else:
            rows.append((lengths[index], [index]))
    return [members for _, members in rows]
