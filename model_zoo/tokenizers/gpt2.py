"""GPT-2: byte-level BPE from ``vocab.json`` and ``merges.txt``, or from ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from model_zoo.errors import InputError, first_of
from model_zoo.tokenizers.base import Tokenizer
from model_zoo.tokenizers.bytelevel import BYTE_TO_CHARACTER
from model_zoo.tokenizers.fast import FastTokenizer
from model_zoo.tokenizers.files import Files, TokenizerFiles, parse_json
from model_zoo.tokenizers.special import added_tokens, controls, listed_controls, named_token, named_tokens, special_ids

END = "<|endoftext|>"
PAIR = "vocab.json", "merges.txt"


class GPT2Tokenizer(FastTokenizer):
    """GPT-2. ``<|endoftext|>`` begins, ends and pads.

    ``encode`` adds no control token, as in Transformers. Calling the tokenizer puts ``<|endoftext|>`` on both sides
    and returns ``token_type_ids``, as in MindFormers up to 0.6, unless ``add_bos_token`` and ``add_eos_token`` of the
    settings are false.

    Args:
        vocab_file: Path of ``vocab.json``, or of ``tokenizer.json`` if no ``merges_file`` is given.
        merges_file: Path of ``merges.txt``.
        prompt_style: Chat format, ``"plain"`` unless given: question, answer and ``<|endoftext|>``, nothing between.
    """

    class_name = "GPT2Tokenizer"
    file_names = (PAIR, ("tokenizer.json",))
    has_token_types = True
    usual: ClassVar = {"bos_token": END, "eos_token": END}

    def __init__(
        self,
        vocab_file,
        merges_file=None,
        prompt_style: str | None = None,
        settings: dict | None = None,
        files: Files = None,
    ):
        pair = {"vocab.json": vocab_file, "merges.txt": merges_file}
        self._open({"tokenizer.json": vocab_file} if merges_file is None else pair, prompt_style, settings, files)
        if merges_file is not None and self._settings.get("add_bos_token"):  # a tokenizer.json says it itself
            self._before = self.call_tokens()[0]

    def _read(self, data: Mapping[str, bytes], settings: dict) -> dict:
        source = next(iter(self._paths.values()))
        if "merges.txt" not in data and "model" not in parse_json(data["tokenizer.json"], source):
            raise InputError(f"{source}: found a plain vocabulary, expected merges.txt with it")
        found = describe_pair(data, self._paths, settings) if "merges.txt" in data else super()._read(data, settings)
        pieces = found["model"]["vocab"].get
        names = special_ids(added_tokens(found.get("added_tokens") or (), settings, source, pieces))
        if END not in names and named_token(settings, "eos_token") not in names:
            raise InputError(f"{source}: there is no {END!r} in it, expected the vocabulary of GPT-2")
        return found

    @classmethod
    def from_files(cls, files: TokenizerFiles, prompt_style: str | None = None) -> Tokenizer:
        alone = any(map(files.json_for, PAIR))
        if alone or (files.has("vocab.json") and files.json_alone(len(files.json("vocab.json")))):
            return cls(files.path("tokenizer.json"), None, prompt_style, files.settings, files)
        return super().from_files(files, prompt_style)

    @property
    def unk_token_id(self) -> int | None:
        named = super().unk_token_id
        return self.eos_token_id if named is None else named

    def call_tokens(self) -> tuple[list[int], list[int]]:
        ends = {"add_bos_token": self.bos_token_id, "add_eos_token": self.eos_token_id}
        known = {name: number for name, number in ends.items() if number is not None}  # by the vocabulary
        before, after = ([known[one]] if one in known and self._settings.get(one) is not False else [] for one in ends)
        return before, after


def describe_pair(data: Mapping[str, bytes], paths: Mapping[str, Any], settings: dict) -> dict:
    """The two files of `PAIR` as the description that a tokenizer.json holds."""
    vocab_file, merges_file = (paths[name] for name in PAIR)
    vocabulary = parse_json(data["vocab.json"], vocab_file)
    if not all(isinstance(number, int) for number in vocabulary.values()):
        raise InputError(f"{vocab_file}: expected an object of pieces and their ids")
    if missing := len({*BYTE_TO_CHARACTER.values()} - vocabulary.keys()):
        raise InputError(f"{vocab_file}: {missing} of the 256 byte pieces are missing, expected byte-level BPE")
    pairs = []
    for number, read in enumerate(data["merges.txt"].splitlines(), start=1):  # of bytes: U+2028 ends no line
        line = read.decode("utf-8", errors="replace")
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or "".join(pair) not in vocabulary or not all(part in vocabulary for part in pair):
            raise InputError(
                f"{merges_file}: line {number} is no merge of pieces of {vocab_file}; the file is cut off or of "
                "another model"
            )
        pairs.append(pair)
    made = {"".join(pair) for pair in pairs}
    declared = {*listed_controls(settings), *named_tokens(settings), END}
    # Control tokens are the only pieces that no merge makes; nothing declares them in a bare directory.
    unmade = [piece for piece in vocabulary if len(piece) > 1 and piece not in made and piece not in declared]
    if lost := [piece for piece in unmade if not (piece[0] in "<[" and piece[-1] in ">]")]:
        raise InputError(f"{merges_file}: no merge makes the piece {first_of([*map(repr, lost)])}; the file is cut off")
    bytewise = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    bytewise["add_prefix_space"] = bool(settings.get("add_prefix_space"))
    return {
        "version": "1.0",
        "added_tokens": controls({END: vocabulary[END]} if END in vocabulary else {}),
        "pre_tokenizer": bytewise,
        "decoder": bytewise,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [" ".join(pair) for pair in pairs]},
    }
