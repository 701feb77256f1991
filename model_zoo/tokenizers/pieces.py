"""Long texts in pieces whose ids, one behind the other, are those of the whole.

What the libraries keep of a text while they tokenise it is fifty times the text. A text is therefore cut between a
letter and a mark, where no token reaches across and nothing that is decided on one side depends on the other:

- Byte-level BPE divides a text into words by a regular expression first. Where each of its alternatives is one of
  `ALTERNATIVES`, a word with a letter in it ends with its last letter at the latest, whatever stands around it.
- BPE over a whole text (LLaMA, ChatGLM2) only ever joins neighbours to a piece of its vocabulary. Where no piece has
  this mark behind a letter, nothing is joined across, and joins on one side do not wait for those on the other.

A unigram model adds up scores from the beginning in float32, so that a choice depends on all that stands before; its
texts are not cut, nor are those that rules of normalisation change (ChatGLM-6B).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from model_zoo.arguments import between_bars
from model_zoo.errors import InputError

AT_ONCE = 1 << 17
"""Characters that a piece has at least."""
LETTERS = "A-Za-zΑ-ΡΣ-Ωα-ωА-Яа-яא-תء-غぁ-ゖァ-ヺ一-龥가-힣"
"""Some of Unicode's letters."""
MARKS = " \n\r\t,.;:!?)，。、；：！？）"
"""What a text is cut in front of. No normal form joins any of them to what stands before it."""
ALTERNATIVES = {
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
    *(r"\p{N}", r"\p{N}{1,3}", r" ?\p{N}+"),
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"),
    *(r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"),
}
"""Of the published expressions for words, those parts that match no letter but an elision's."""
WITH_LETTERS = {r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+"}
"""Those that match letters, at their end."""
SPACE = "▁"
"""What stands for a space in sentencepiece's pieces."""
BYTES = {f"<0x{value:02X}>" for value in range(256)}


class InPieces:
    """The part of a tokenizer that takes texts of any length.

    Attributes:
        marks: what a long text may be cut in front of, behind a letter, without changing an id; empty: nowhere.
    """

    marks = ""

    def encode_following(self, text: str) -> list[int]:
        """Ids of a text behind such a cut, which is not empty."""
        raise NotImplementedError

    def encode_pieces(self, text: str, further: bool = False) -> Iterator[list[int]]:
        """Ids of one text without control tokens, a piece at a time: one behind the other they are those of `encode`.

        Args:
            text: However long; no more than a piece of it is tokenised at once, where `marks` allows it.
            further: The text stands behind a control token.

        Raises:
            InputError: It is no text, or no valid one.
        """
        check_text(text)
        encode = self.encode_further if further else self.encode_text
        for part in parts(text, self.marks if len(text) > AT_ONCE else "") if text else ():
            yield encode(part)
            encode = self.encode_following


def check_text(text) -> None:
    """Raises InputError for what is no text, or holds half a character."""
    if not isinstance(text, str):
        raise InputError(f"a tokenizer encodes text, found {type(text).__name__}: {text!r:.80}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"text holds half of a surrogate pair at character {error.start}: no valid Unicode") from None


def parts(text: str, marks: str) -> Iterator[str]:
    """A text in pieces of about `AT_ONCE` characters, each but the first beginning with one of the marks. A piece goes
    on where none of them stands behind a letter."""
    begin, border = 0, re.compile(f"[{LETTERS}](?=[{re.escape(marks)}])") if marks else None
    while border is not None and (found := border.search(text, begin + AT_ONCE)) is not None:
        yield text[begin : found.end()]
        begin = found.end()
    yield text[begin:]


def marks_apart(pieces: Iterable[str]) -> str:
    """Those of `MARKS` that none of the pieces has behind a letter."""
    text = "\0".join(pieces).replace(SPACE, " ")
    joined = {*re.findall(f"[{LETTERS}]([{re.escape(MARKS)}])", text)}
    return "".join(mark for mark in MARKS if mark not in joined)


def steps(part: Mapping[str, Any] | None, key: str) -> list[dict]:
    """A component of a tokenizer.json, or the components of a Sequence of them."""
    if not part:
        return []
    return part[key] if part.get("type") == "Sequence" else [part]


def marks_of(description: Mapping[str, Any]) -> str:
    """The marks in front of which a text may be cut for the tokenizer that a tokenizer.json describes."""
    model, added = description["model"], description.get("added_tokens") or []
    normalizers = steps(description.get("normalizer"), "normalizers")
    words = steps(description.get("pre_tokenizer"), "pretokenizers")
    if model.get("dropout") or any(token.get("rstrip") or token.get("single_word") for token in added):
        return ""
    if (added or len(words) > 1) and any(map(_begins_all, [*normalizers, *words])):  # added tokens divide a text, too
        return ""
    apart = marks_apart(token["content"] for token in added)  # which are looked for before anything else is done
    if all(step["type"] == "NFC" for step in normalizers) and divides(words):
        return apart
    whole = all(step["type"] == "Metaspace" for step in words) and all(map(_marks_spaces, normalizers))
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    bytewise = model.get("byte_fallback") and model["vocab"].keys() >= BYTES
    if not whole or affixes or model.get("ignore_merges") or not bytewise:
        return ""
    known = marks_apart(model["vocab"])
    return "".join(mark for mark in apart if mark in known)


def _begins_all(step: Mapping[str, Any]) -> bool:
    """Whether a step puts a space in front of every part of a text that earlier steps leave to it."""
    if step["type"] == "Metaspace":
        return step.get("prepend_scheme", "always") == "always"
    return step["type"] == "Prepend" or (step["type"] == "ByteLevel" and step.get("add_prefix_space", True))


def _marks_spaces(step: Mapping[str, Any]) -> bool:
    """Whether a normalizer is one of those that make LLaMA's sign of spaces."""
    if step["type"] == "Replace":
        return step.get("pattern") == {"String": " "} and step.get("content") == SPACE
    return step["type"] == "Prepend"


def divides(words: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the pre-tokenizers divide a text into words that end with their last letter."""
    divided = False
    for step in words:
        if step["type"] == "ByteLevel":
            divided |= step.get("use_regex", True)  # GPT-2's expression
        elif step["type"] == "Split" and "Regex" in step["pattern"]:
            found = {*alternatives(step["pattern"]["Regex"])}
            if step.get("behavior") != "Isolated" or step.get("invert") or not found <= ALTERNATIVES | WITH_LETTERS:
                return False
            divided |= bool(found & WITH_LETTERS)
        elif step["type"] != "Digits":
            return False
    return divided


def alternatives(expression: str) -> list[str]:
    """The parts of a regular expression between the bars that stand in no parentheses."""
    return between_bars(re.findall(r"\\.|\[(?:\\.|[^\]])*\]|.", expression, re.DOTALL), "(", ")")


def continuing(description: dict[str, Any], scheme: str) -> dict[str, Any]:
    """The same tokenizer for what follows: it puts no space in front, or not the one of ``first`` texts alone."""
    changed = dict(description)
    for kind, key in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        found = [dict(step) for step in steps(description.get(kind), key)]
        left = found if scheme == "first" else [step for step in found if step["type"] != "Prepend"]
        for step in left:
            if step["type"] == "Metaspace" and (scheme == "always" or step.get("prepend_scheme") == scheme):
                step["prepend_scheme"] = "never"
            if step["type"] in ("Metaspace", "ByteLevel") and scheme == "always":
                step["add_prefix_space"] = False
        if left != steps(description.get(kind), key):
            changed[kind] = {"type": "Sequence", key: left}
    return changed
