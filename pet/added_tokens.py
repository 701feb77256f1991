"""Further tokens for a base, from disk to disk: its tokenizer's files, and rows of its embedding and its head."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model_zoo.arguments import checked
from model_zoo.atomic import read_json, staged, write_json
from model_zoo.checkpoint.grown import grown, vocabulary_of, with_vocabulary
from model_zoo.checkpoint.reading import Checkpoint, assignment, read_config
from model_zoo.checkpoint.safetensors_io import nbytes
from model_zoo.checkpoint.saving import MAX_SHARD_SIZE, WEIGHTS, copy_companions, parse_size, write_weights
from model_zoo.counting import config_of
from model_zoo.ends import listed_ends
from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from model_zoo.tokenizers.further import add_to_files, entries_of
from pet.export import check_room

ROWS = 4096
"""Rows of a matrix that are read at once."""


@dataclasses.dataclass(frozen=True)
class AddedTokens:
    """What was written; prints as one line.

    Attributes:
        ids: {text: id} of the new tokens.
        rows, before: of the embedding, and of the base's.
    """

    directory: Path
    ids: dict[str, int]
    rows: int
    before: int

    def __str__(self) -> str:
        tokens = ", ".join(f"{text} is {number}" for text, number in self.ids.items()) or "no token is new"
        more = f"{self.before:,} rows of the embedding became {self.rows:,}"
        return f"{self.directory}: {tokens}; {more if self.rows > self.before else 'the embedding has rows for them'}"


@checked
def add_tokens(
    base: str | Path,
    tokens: Sequence[str],
    output: str | Path,
    plain: bool = False,
    bos_token: str | None = None,
    eos_token: str | None = None,
    pad_token: str | None = None,
    max_shard_size: int | str = MAX_SHARD_SIZE,
) -> AddedTokens:
    """Writes a checkpoint whose tokenizer has further tokens. Everything else stays as it is stored.

    Their ids follow the tokenizer's last one. Where the embedding has no rows for them, it and the head get as many,
    each the mean of all others, which is what transformers' ``resize_token_embeddings`` draws them around. They learn
    where training reaches them: ``modules_to_save`` with the embedding and the head, or ``trainable_tokens``.

    Args:
        base: Hugging Face checkpoint directory that is not packed.
        tokens: texts; those that the tokenizer has already are passed over.
        output: directory to write. Its files appear together at the end, or not at all.
        plain: whether they are text, and no control tokens.
        bos_token, eos_token, pad_token: the tokens with these roles from now on, new or not; ``eos_token`` also ends
            what is generated.
        max_shard_size: bytes per weight file, as a number or as ``"5GB"``.

    Raises:
        InputError: a packed base, a tokenizer that takes no further tokens, an empty text, no room on the disk.
    """
    limit, values = parse_size(max_shard_size), read_config(base)
    if Path(base).resolve() == Path(output).resolve():
        raise InputError(f"{output}: is the base itself; give another directory for the result")
    given = {"bos_token": bos_token, "eos_token": eos_token, "pad_token": pad_token}
    roles = {role: text for role, text in given.items() if text is not None}
    if "" in (*tokens, *roles.values()):
        raise InputError("a token's text is empty")
    config, tokenizer = config_of(values), AutoTokenizer.from_pretrained(base)
    if config.left_out:
        raise InputError(f"{base}: {config.left_out}; save that by itself first (AutoModel, then save_pretrained)")
    entries = entries_of(tokenizer, {**dict.fromkeys(tokens, not plain), **dict.fromkeys(roles.values(), True)})
    known = {**tokenizer.special_tokens, **tokenizer.plain, **{one["content"]: one["id"] for one in entries}}
    before = config.dims.vocab
    rows = max([before, *(one["id"] + 1 for one in entries)])
    with Checkpoint(base) as opened:
        if opened.packed:
            raise InputError(f"{base}: is in 8 or 4 bits; give the unquantised base")
        sources, _ = assignment(opened, config.shapes(), config.family.tied, config.family.ignored_tensors)
        names = [name for name in vocabulary_of(config) if name in sources]
        means = {name: np.tile(_mean(opened, sources[name]), (rows - before, 1)) for name in names}
        checkpoint = grown(opened, config, means) if rows > before else opened
        tensors = {name: checkpoint.info(stored)[:2] for name, stored in sources.items()}
        size = sum(nbytes(dtype, shape) for dtype, shape in tensors.values())
        check_room(Path(output), size)
        with staged(output, WEIGHTS, size) as stage:
            write_weights(stage, tensors, lambda name: checkpoint.blocks(sources[name]), limit)
            ids = {f"{role}_id": known[text] for role, text in roles.items()}
            write_json(stage / "config.json", config.for_file({**with_vocabulary(values, rows), **ids}))
            copy_companions(checkpoint.directory, stage, output)
            if ids and (settings := stage / "generation_config.json").exists():
                said = read_json(settings)
                if eos_token and (ends := listed_ends({}, said)):  # answers may still end as they did
                    ids["eos_token_id"] = list(dict.fromkeys([known[eos_token], *ends]))
                write_json(settings, {**said, **ids})
            add_to_files(stage, entries, roles)
    return AddedTokens(Path(output), {one["content"]: one["id"] for one in entries}, rows, before)


def _mean(checkpoint: Checkpoint, name: str) -> np.ndarray:
    """The mean row of a matrix, ``(1, width)``, summed in float64 a few rows at a time."""
    count, width = checkpoint.shape(name)
    total = np.zeros((1, width))
    for start in range(0, count, ROWS):
        block = checkpoint.source(name).read(name, (slice(start, start + ROWS),), "float64")
        total += block.sum(0, keepdims=True)
    return total / count
