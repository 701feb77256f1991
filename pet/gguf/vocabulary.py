"""A tokenizer as the vocabulary inside a GGUF file."""

from __future__ import annotations

import json
import logging
from contextlib import suppress

from model_zoo.errors import InputError
from model_zoo.tokenizers.base import Tokenizer
from model_zoo.tokenizers.fast import BYTE_PIECE, SPACE, FastTokenizer, steps
from model_zoo.tokenizers.glm4 import WORDS, GLM4Tokenizer
from model_zoo.tokenizers.llama import LlamaTokenizer
from model_zoo.tokenizers.sentencepiece_model import kinds_of, unlike_llama

log = logging.getLogger("pet")

# how a text is cut into words before merging → llama.cpp's name for it
CUTS = {
    WORDS: "llama-bpe",
    WORDS.replace(r"\p{N}{1,3}", r"\p{N}"): "qwen2",
}
CONTROL_SCORE = -1000.0  # never the best piece of a text


def add_vocabulary(writer, tokenizer: Tokenizer, size: int) -> None:
    """Puts a tokenizer into a GGUF file.

    Args:
        writer: a `gguf.GGUFWriter`.
        size: rows of the model's embedding; ids beyond the tokenizer's are unused.

    Raises:
        InputError: llama.cpp has no such algorithm.
    """
    from gguf import TokenType

    scored = isinstance(tokenizer, LlamaTokenizer)
    if scored:
        tokens = _sentencepiece(writer, tokenizer, TokenType)
    elif isinstance(tokenizer, FastTokenizer):
        scored = bool(tokenizer.description()["model"].get("byte_fallback"))
        tokens = (_byte_fallback if scored else _byte_level)(writer, tokenizer, TokenType)
    else:
        raise InputError(f"{tokenizer.source}: llama.cpp has no tokenizer of this kind ({type(tokenizer).__name__})")
    for number in range(size):
        tokens.setdefault(number, (f"[PAD{number}]", CONTROL_SCORE, TokenType.UNUSED))
    _say_what_differs(tokenizer, tokens, TokenType.USER_DEFINED, scored)
    texts, scores, kinds = zip(*(tokens[number] for number in range(size)), strict=True)
    writer.add_token_list(texts)
    if scored:
        writer.add_token_scores(scores)
    writer.add_token_types(kinds)

    ends = tokenizer.eos_token_ids
    for add, number in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_eot_token_id, next((end for end in ends if end != tokenizer.eos_token_id), None)),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if number is not None:
            add(number)
    before, after = tokenizer.around
    writer.add_add_bos_token(tokenizer.bos_token_id in before)
    writer.add_add_eos_token(tokenizer.eos_token_id in after)


def _say_what_differs(
    tokenizer: Tokenizer, tokens: dict[int, tuple[str, float, int]], whole: int, scored: bool
) -> None:
    """Names tokens beside which llama.cpp cuts otherwise: to it what is behind one is a text by itself, with a space in
    front where the algorithm adds one, and it leaves the spaces on both sides.

    Args:
        whole: the kind of tokens that are never made of others.
        scored: whether the algorithm is sentencepiece's.
    """
    ids, found = tokenizer.encode_text, []
    for number, (text, _, kind) in tokens.items():
        sides = (("a", "a"), ("a ", " a")) if kind == whole else ()
        if any(ids(left + text + right) != [*ids(left), number, *ids(right)] for left, right in sides):
            found.append(text)
    bos = chat = tokenizer.bos_token_id
    with suppress(InputError):  # of a template that takes other messages alone
        chat = tokenizer.prompt([{"role": "user", "content": "a"}])[0]
    behind = "puts a space behind" if scored else "minds neither spaces nor words beside"
    for differs, words in (
        (found, f"in texts llama.cpp {behind} {', '.join(found)}"),
        (tokenizer.encode_further("a") != ids("a"), "in prompts llama.cpp puts a space behind control tokens"),
        (
            bos in tokenizer.around[0] and chat != bos,
            "llama.cpp puts the token that begins texts in front of chats, too",
        ),
    ):
        if differs:
            log.warning("%s: %s", tokenizer.source, words)


def _sentencepiece(writer, tokenizer: LlamaTokenizer, kinds) -> dict[int, tuple[str, float, int]]:
    processor = tokenizer.processor
    if why := unlike_llama(processor):
        raise no_sentencepiece(tokenizer, why)
    _add_kind(writer, tokenizer, processor.piece_to_id("a"))
    found = {}
    for number, kind in enumerate(kinds_of(processor)):
        text = processor.id_to_piece(number)
        text = tokenizer.written(text) if kind == kinds.USER_DEFINED else text
        found[number] = (text, processor.get_score(number), kinds(kind))
    for text, number in tokenizer.special_tokens.items():
        kind = kinds.UNKNOWN if number == tokenizer.unk_token_id else kinds.CONTROL
        found[number] = (text, found[number][1] if number in found else CONTROL_SCORE, kind)
    found.update((number, (text, CONTROL_SCORE, kinds.USER_DEFINED)) for text, number in tokenizer.plain.items())
    return found


def _add_kind(writer, tokenizer: Tokenizer, letter: int | None) -> None:
    """llama.cpp's names for sentencepiece; ``letter`` is the id of "a" without a space in front."""
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_add_space_prefix(tokenizer.encode_text("a") != [letter])


def _byte_fallback(writer, tokenizer: FastTokenizer, kinds) -> dict[int, tuple[str, float, int]]:
    """A sentencepiece model that exists as a tokenizer.json only. Its merges stand in the order of the pieces' scores,
    so that a piece's score is its place among them: llama.cpp makes the piece of the highest score first."""
    description = tokenizer.description()
    model, added = description["model"], description.get("added_tokens") or []
    merges = [tuple(one.split(" ")) if isinstance(one, str) else tuple(one) for one in model.get("merges") or []]
    whole = {token["content"] for token in added}.union(tokenizer.special_tokens)
    _check_merges(tokenizer, description, merges, whole)
    scores, found = _scores(tokenizer, merges), {}
    for text, number in model["vocab"].items():
        byte = BYTE_PIECE.fullmatch(text)
        score = 0.0 if byte else scores.get(text, -float(len(scores)))
        found[number] = (text, score, kinds.BYTE if byte else kinds.NORMAL)
    found.update((token["id"], (token["content"], CONTROL_SCORE, kinds.USER_DEFINED)) for token in added)
    for text, number in tokenizer.special_tokens.items():
        kind = kinds.UNKNOWN if text == (model.get("unk_token") or "<unk>") else kinds.CONTROL
        found[number] = (text, CONTROL_SCORE, kind)
    _add_kind(writer, tokenizer, model["vocab"].get("a"))
    return found


def _check_merges(tokenizer: FastTokenizer, description: dict, merges: list[tuple[str, ...]], whole: set[str]) -> None:
    """Raises InputError where a tokenizer.json joins others than llama.cpp, which joins any two that make a third.

    Args:
        whole: tokens that are never made of others.
    """
    pieces = {one for one in description["model"]["vocab"] if one not in whole and not BYTE_PIECE.fullmatch(one)}
    steps_taken = [
        *steps(description.get("normalizer"), "normalizers"),
        *steps(description.get("pre_tokenizer"), "pretokenizers"),
    ]
    problem = next((f"its step {step['type']}" for step in steps_taken if not _marks_spaces(step, pieces)), "")
    splits = {(piece[:at], piece[at:]) for piece in pieces for at in range(1, len(piece))}
    if missing := {pair for pair in splits.difference(merges) if pieces.issuperset(pair)}:
        problem = f"{' + '.join(min(missing))} makes a piece, but is no merge"
    if problem:
        raise no_sentencepiece(tokenizer, problem)
    if any(step.get("prepend_scheme", "never") != "never" for step in steps_taken):
        log.warning("%s: llama.cpp puts a space in front of texts that begin with one, too", tokenizer.source)


def _scores(tokenizer: FastTokenizer, merges: list[tuple[str, ...]]) -> dict[str, float]:
    """{piece: score}, by the order of merges. Pieces whose merges are mixed have one score, as sentencepiece's runs of
    spaces have; with others it could not be had."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        first.setdefault("".join(pair), rank)
        last["".join(pair)] = rank
    scores: dict[str, float] = {}
    end, score, letters = -1, 0.0, set()
    for piece, rank in first.items():
        if rank > end:
            score, letters = score - 1.0, set()
        letters |= set(piece)
        if rank <= end and len(letters) > 1:
            raise no_sentencepiece(tokenizer, f"the merges that make {piece} are mixed with others")
        scores[piece], end = score, max(end, last[piece])
    return scores


def no_sentencepiece(tokenizer: Tokenizer, why: str) -> InputError:
    """For a tokenizer that is refused."""
    what = "is no sentencepiece model of LLaMA's kind"
    return InputError(f"{tokenizer.source}: {what}; llama.cpp would cut texts otherwise: {why}")


def _marks_spaces(step: dict, pieces: set[str]) -> bool:
    """Whether a step does no more than what llama.cpp does: spaces become marks, with one in front."""
    if step["type"] == "Metaspace":  # cuts in front of each, where pieces may not go on
        return not step.get("split", True) or not any(SPACE in piece[1:] for piece in pieces)
    marks = step.get("pattern") == {"String": " "} and step.get("content") == SPACE
    return marks or step.get("prepend") == SPACE


def _byte_level(writer, tokenizer: FastTokenizer, kinds) -> dict[int, tuple[str, float, int]]:
    description = tokenizer.description()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_cut(tokenizer, description))
    found = {number: (text, 0.0, kinds.NORMAL) for text, number in description["model"]["vocab"].items()}
    for token in description.get("added_tokens") or []:
        kind = kinds.CONTROL if token.get("special") else kinds.USER_DEFINED
        found[token["id"]] = (token["content"], 0.0, kind)
    for text, number in tokenizer.special_tokens.items():
        found[number] = (text, 0.0, kinds.CONTROL)
    merges = description["model"].get("merges") or []
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    return found


def _cut(tokenizer: FastTokenizer, description: dict) -> str:
    """llama.cpp's name of how this tokenizer cuts a text into words."""
    if isinstance(tokenizer, GLM4Tokenizer):
        return "chatglm-bpe"
    text = json.dumps(description.get("pre_tokenizer"))
    found = [name for pattern, name in CUTS.items() if json.dumps(pattern) in text]
    if not found:
        raise InputError(
            f"{tokenizer.source}: how this tokenizer cuts a text into words is not known to llama.cpp by a name that "
            "this export knows (llama-bpe, qwen2, chatglm-bpe)"
        )
    return found[0]
