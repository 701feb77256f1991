"""GPT-2: byte-level BPE from ``vocab.json`` and ``merges.txt``, or from ``tokenizer.json``."""

from __future__ import annotations

from model_zoo.errors import InputError
from model_zoo.tokenizers.bytelevel import BYTE_TO_CHARACTER
from model_zoo.tokenizers.fast import FastTokenizer, parse_description
from model_zoo.tokenizers.files import TokenizerFiles, parse_json, read_bytes
from model_zoo.tokenizers.special import extra_tokens, json_alone, named_token

END = "<|endoftext|>"


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
    has_token_types = True

    def __init__(
        self,
        vocab_file,
        merges_file=None,
        prompt_style: str | None = None,
        settings: dict | None = None,
        files: TokenizerFiles | None = None,
    ):
        settings = {"bos_token": END, "eos_token": END, **(settings or {})}
        data = read_bytes(vocab_file)
        description = parse_json(data, vocab_file)
        if merges_file is None:
            if "model" not in description:
                raise InputError(f"{vocab_file}: found a plain vocabulary, expected merges.txt with it")
            description, sources = parse_description(data, vocab_file), {"tokenizer.json": data}
        else:
            merges = read_bytes(merges_file)
            sources = {"vocab.json": data, "merges.txt": merges}
            vocabulary, description = description, describe_pair(description, merges, vocab_file, merges_file, settings)
            description["added_tokens"] += [
                {"id": number, "content": name, "special": True}
                for name, number in (files.added if files else {}).items()
                if name not in vocabulary
            ]
        names = [token["content"] for token in description.get("added_tokens") or [] if token.get("special")]
        if END not in names and named_token(settings, "eos_token") not in names:
            raise InputError(f"{vocab_file}: there is no {END!r} in it, expected the vocabulary of GPT-2")
        self._setup(description, str(vocab_file), sources, prompt_style, settings, files)
        self._before = self._known(self.bos_token_id) if settings.get("add_bos_token") else []

    @classmethod
    def from_files(cls, files: TokenizerFiles, prompt_style: str | None = None) -> GPT2Tokenizer:
        whole = files.has("vocab.json") and not json_alone(files, len(files.json("vocab.json")))
        if whole or not files.has("tokenizer.json"):
            names = (files.path("vocab.json"), files.path("merges.txt"))
        else:
            names = (files.path("tokenizer.json"), None)
        return cls(*names, prompt_style=prompt_style, settings=files.settings, files=files)

    @property
    def unk_token_id(self) -> int | None:
        named = super().unk_token_id
        return self.eos_token_id if named is None else named

    def call_tokens(self) -> tuple[list[int], list[int]]:
        ends = {"add_bos_token": self.bos_token_id, "add_eos_token": self.eos_token_id}
        before, after = (
            [] if self._settings.get(name) is False else self._known(number) for name, number in ends.items()
        )
        return before, after

    @staticmethod
    def _known(number: int | None) -> list[int]:
        """A control token's id, none where the vocabulary lacks the token that tokenizer_config.json names."""
        return [] if number is None else [number]


def describe_pair(vocabulary: dict, merges: bytes, vocab_file, merges_file, settings: dict) -> dict:
    """The two files as the description that a tokenizer.json holds."""
    if not all(isinstance(number, int) for number in vocabulary.values()):
        raise InputError(f"{vocab_file}: expected an object of pieces and their ids")
    missing = [byte for byte, character in BYTE_TO_CHARACTER.items() if character not in vocabulary]
    if missing:
        raise InputError(f"{vocab_file}: {len(missing)} of the 256 byte pieces are missing, expected byte-level BPE")
    pairs = []
    for number, read in enumerate(merges.splitlines(), start=1):  # of bytes: U+2028 ends no line
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
    declared = {named_token(settings, key) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    declared |= {*extra_tokens(settings), END}
    unmade = [piece for piece in vocabulary if len(piece) > 1 and piece not in made and piece not in declared]
    # Control tokens are the only pieces that no merge makes; nothing declares them in a bare directory.
    lost = [piece for piece in unmade if not (piece[0] in "<[" and piece[-1] in ">]")]
    if lost:
        raise InputError(
            f"{merges_file}: no merge makes {lost[0]!r} and {len(lost) - 1} more pieces; the file is cut off"
        )
    controls = [piece for piece in vocabulary if piece in declared]
    return {
        "version": "1.0",
        "added_tokens": [{"id": vocabulary[piece], "content": piece, "special": True} for piece in controls],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [" ".join(pair) for pair in pairs]},
    }
