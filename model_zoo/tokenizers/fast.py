"""``tokenizer.json`` by the ``tokenizers`` library: LLaMA-3, Qwen2, and every directory that holds nothing else."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from model_zoo.errors import InputError
from model_zoo.tokenizers.base import Tokenizer
from model_zoo.tokenizers.bytelevel import to_bytes
from model_zoo.tokenizers.files import Files, TokenizerFiles, parse_json, read_bytes
from model_zoo.tokenizers.pieces import continuing, marks_of, steps
from model_zoo.tokenizers.sentencepiece_model import SPACE, UNDECODABLE
from model_zoo.tokenizers.special import added_tokens, named_token, special_ids

PREPENDED = {"type": "Prepend", "prepend": SPACE}  # to every text, also to one that begins with a space
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
TRIAL = "a \U0010fffd"
"""Has a character that no vocabulary has."""
COMPONENTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
"""Where in a tokenizer.json there are steps -> where these stand in a Sequence of them."""
# Where neither tokenizer_config.json nor config.json is there to name them.
_USUAL_BOS = ("<|begin_of_text|>", "<s>")
_USUAL_EOS = ("<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "</s>")
_USUAL_PAD = ("<|finetune_right_pad_id|>", "<|pad|>", "<pad>", "<|endoftext|>")
CLASSES = {"gpt2": "GPT2Tokenizer", "qwen": "Qwen2Tokenizer", "glm": "PreTrainedTokenizerFast"}
"""How a model_type begins -> the class of its tokenizers in transformers, where it is not LLaMA's."""
FLAGGED = "Llama", "CodeLlama", "Gemma", "Cohere"
"""How the classes of transformers 4 begin that heed add_bos_token and add_eos_token. The others, and all of
transformers 5, go by tokenizer.json."""
AROUND = {"add_bos_token": True, "add_eos_token": False}
"""What they take where nothing is said, whatever tokenizer.json has."""


class FastTokenizer(Tokenizer):
    """A tokenizer over one ``tokenizers.Tokenizer``.

    Control tokens are taken out of the description before ``tokenizers`` sees it: the library looks for them in every
    text and has no way to be told not to. Added tokens that the file does not call special (``<tool_call>`` of Qwen2)
    are text and stay. A normaliser in the file (NFC in Qwen2) changes a text for good; byte-level BPE without one
    gives every text back.

    Args:
        tokenizer_file: Path of ``tokenizer.json``.
        prompt_style: Chat format; otherwise recognised by the control tokens or the chat template.
        settings: Contents of ``tokenizer_config.json``.
    """

    file_names = (("tokenizer.json",),)
    usual: ClassVar[dict[str, Any]] = {}  #: settings where tokenizer_config.json does not say them

    def __init__(
        self, tokenizer_file, prompt_style: str | None = None, settings: dict | None = None, files: Files = None
    ):
        self._open({"tokenizer.json": tokenizer_file}, prompt_style, settings, files)

    def _read(self, data: Mapping[str, bytes], settings: dict) -> dict:
        """What a tokenizer.json says, or would say, of the files in ``_paths``."""
        return parse_description(data["tokenizer.json"], self._paths["tokenizer.json"])

    def _open(self, paths: dict[str, Any], prompt_style, settings, files: Files) -> None:
        """``paths``: {name of a file: where it is}."""
        files = (files or TokenizerFiles()).given(settings, **self.usual)
        self._paths, source, settings = paths, next(iter(paths.values())), files.settings
        sources = {name: read_bytes(path) for name, path in paths.items()}
        description = _as_its_class(self._read(sources, settings), files)
        pieces = description["model"]["vocab"].get
        tokens = added_tokens(description.get("added_tokens") or [], settings, source, pieces)
        description = {**description, "added_tokens": tokens}
        controls, self._texts = special_ids(tokens), {one["id"]: one["content"] for one in tokens}
        self._byte_level, self.leading_spaces = _decoding(description, source)
        self.adds_space = self.leading_spaces > 0
        self.every_space = PREPENDED in steps(description.get("normalizer"), "normalizers")
        self.undecodable = "replace" if self._byte_level else "model_zoo.one_mark_per_byte"
        self._engine = _engine(description, controls, source)
        following = continuing(description, "first")
        self.first_space_only = following.get("pre_tokenizer") != description.get("pre_tokenizer")
        self._further = _engine(following, controls, source) if self.first_space_only else self._engine
        before, after = _around(description, source)

        def first(names, key):
            wanted = [named_token(settings, key), *names]
            return next((controls[name] for name in wanted if name in controls), None)

        stops = [number for number in files.stops if number in controls.values()]
        bos = first([], "bos_token")
        if bos is None and "bos_token" not in settings:  # an explicit null (Qwen2) says that there is none
            bos = before[0] if before else first(_USUAL_BOS, "bos_token")
        eos = first([], "eos_token")
        if eos is None:
            eos = stops[0] if stops else first(_USUAL_EOS, "eos_token")
        pad = first(_USUAL_PAD, "pad_token")
        by_file = before, after
        if class_of(files).startswith(FLAGGED):
            before = _by_flag(before, bos, settings.get("add_bos_token"))
            after = _by_flag(after, eos, settings.get("add_eos_token"))
        as_in_file = by_file == (before, after)
        self.around_pair = _around(description, source, 2) if as_in_file and any(by_file) else None
        self._by_file = self.every_space and as_in_file  # so that LLaMA's class would read it otherwise
        size = max(self._engine.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        ends = {"bos": bos, "eos": eos, "pad": eos if pad is None else pad}
        super().__init__(source, sources, tokens, files, prompt_style, size=size, before=before, after=after, **ends)

    def own_settings(self) -> dict:
        if self._by_file:
            return {"tokenizer_class": self.class_name}
        if not str(self._settings.get("tokenizer_class")).startswith(FLAGGED):
            return {}
        return {name: said for name, usual in AROUND.items() if (said := getattr(self, name, usual)) != usual}

    def description(self) -> dict:
        """What a tokenizer.json says of it."""
        data = {name: self._files[name] for name in self._paths}
        return {**self._read(data, self._settings), "added_tokens": self.added}

    def encode_text(self, text: str) -> list[int]:
        return self._engine.encode(text, add_special_tokens=False).ids

    def encode_further(self, text: str) -> list[int]:
        return self._further.encode(text, add_special_tokens=False).ids

    @functools.cached_property
    def marks(self) -> str:
        return marks_of(json.loads(self._engine.to_str()))

    @functools.cached_property
    def _following(self):
        """The same engine without a space of its own in front."""
        description = json.loads(self._engine.to_str())
        other = continuing(description, "always")
        return self._engine if other == description else _build(other, self.source)

    def encode_following(self, text: str) -> list[int]:
        return self._following.encode(text, add_special_tokens=False).ids

    @property
    def unk_token_id(self) -> int | None:
        """The id of what stands for pieces that the vocabulary has not; None where it has all."""
        return self.special_tokens.get(named_token(self._settings, "unk_token"))

    def piece(self, token_id: int) -> str | None:
        """A token as the vocabulary writes it; None where there is none."""
        own = self._engine.id_to_token(token_id) if token_id >= 0 else None
        return own or self.control_text(token_id)

    def token_bytes(self, token_id: int) -> tuple[bytes, int]:
        piece = self._engine.id_to_token(token_id) if token_id >= 0 else None
        if piece is None:
            return UNDECODABLE, 0  # padding of the model's vocabulary: an untrained model can sample it
        if self._byte_level:
            return piece.encode("utf-8") if token_id in self._texts else to_bytes(piece), 0
        byte = BYTE_PIECE.fullmatch(piece)
        if byte:
            return bytes([int(byte.group(1), 16)]), 0
        text = piece.replace(SPACE, " ")
        return text.encode("utf-8"), len(text) - len(text.lstrip(" "))


def _by_flag(around: list[int], token: int | None, wanted: bool | None) -> list[int]:
    """The tokens on one side of a text: this one or none, as ``add_bos_token`` says; None leaves them as they are."""
    return around if wanted is None or token is None else [token] * wanted


def is_bpe(description: dict) -> bool:
    """Whether a tokenizer.json has the one kind of model that is read."""
    model = description.get("model")
    return isinstance(model, dict) and isinstance(model.get("vocab"), dict) and model.get("type", "BPE") == "BPE"


def parse_description(data: bytes, source) -> dict:
    """The content of a tokenizer.json. The library, which knows what may stand there, looks at it first."""
    description = parse_json(data, source)
    if not is_bpe(description):
        model = description.get("model")
        found = f"a {model.get('type', 'BPE')} model" if isinstance(model, dict) and model else "no tokenizer model"
        if isinstance(model, dict) and model and model.get("vocab") is None:
            found += " without a vocabulary"
        raise InputError(f"{source}: found {found} in the JSON, expected a tokenizer.json with a BPE model")
    _build(description, source, TRIAL)
    for part, key in COMPONENTS.items():
        if any("type" not in step for step in steps(description.get(part), key)):
            raise InputError(f"{source}: {part} has a step without a type")
    return description


def _build(description: dict, source, trial: str | None = None):
    """The library's tokenizer; a text is encoded on trial, since some of what is wrong is found by nothing else."""
    from tokenizers import Tokenizer as Engine

    try:
        engine = Engine.from_str(json.dumps(description, ensure_ascii=False))
        if trial is not None:
            engine.encode(trial, trial)
            engine.encode(trial)
        return engine
    except BaseException as error:  # the library raises bare Exception for everything, and what is none where it panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{source}: not a tokenizer.json that the tokenizers library can use ({error})") from None


def _engine(description: dict, controls: dict[str, int], source: str):
    """The library's tokenizer without control tokens, templates, truncation and padding."""
    plain = dict(description)
    plain.update(post_processor=None, truncation=None, padding=None)
    kept = [token for token in description.get("added_tokens") or [] if token["content"] not in controls]
    model = dict(plain["model"])
    if model.get("ignore_merges"):
        # With ignore_merges a whole word is looked up first, so a control token in the vocabulary could be a word. One
        # of a single character (a pad_token "!") is what texts are made of.
        words = {name for name in controls if len(name) > 1}
        model["vocab"] = {piece: number for piece, number in model["vocab"].items() if piece not in words}
    if isinstance(model.get("merges"), list):
        # Nor may merging the letters of a text end in a control token.
        model["merges"] = [merge for merge in model["merges"] if _joined(merge) not in controls]
    # The library numbers added tokens itself, from the ones it sees; only those in the vocabulary keep their ids.
    model["vocab"] = {**model["vocab"], **{token["content"]: token["id"] for token in kept}}
    plain.update(added_tokens=kept, model=model)
    return _build(plain, source)


def class_of(files: TokenizerFiles) -> str:
    """The class that transformers reads a tokenizer.json by: the one that is named, or else the model's."""
    model_type = str(files.config.get("model_type"))
    usual = next((name for start, name in CLASSES.items() if model_type.startswith(start)), "LlamaTokenizer")
    return str(files.settings.get("tokenizer_class") or usual)


def goes_by_class(files: TokenizerFiles) -> bool:
    """Whether transformers 5 reads a vocabulary as its LLaMA class does, whatever spaces tokenizer.json puts."""
    named = str(files.settings.get("tokenizer_class")).removesuffix("Fast").endswith("LlamaTokenizer")
    return named and files.config.get("model_type") in (None, "llama")


def _as_its_class(description: dict, files: TokenizerFiles) -> dict:
    """LLaMA's tokenizer.json of transformers 4 puts a space before every text, and so may one of transformers 5. The
    class of transformers 5 does so before the first one alone, as sentencepiece's does here, but for ``legacy`` files,
    or by ``add_prefix_space`` nowhere. GPT-2's class goes by ``add_prefix_space`` alone, in transformers 4 too, where
    words are made by nothing else."""
    settings, bytewise = files.settings, description.get("pre_tokenizer") or {}
    if bytewise.get("type") == "ByteLevel" and class_of(files).startswith("GPT2"):
        spaced = bool(settings.get("add_prefix_space"))
        return {**description, "pre_tokenizer": {**bytewise, "add_prefix_space": spaced}}
    kinds = [step["type"] for step in steps(description.get("pre_tokenizer"), "pretokenizers")]
    spaced = "Metaspace" in kinds or PREPENDED in steps(description.get("normalizer"), "normalizers")
    if not goes_by_class(files) or not spaced:
        return description
    if settings.get("add_prefix_space") is False:
        kept = [step for step in steps(description.get("decoder"), "decoders") if step["type"] != "Strip"]
        return {**continuing(description, "always"), "decoder": {"type": "Sequence", "decoders": kept}}
    words = {"type": "Metaspace", "replacement": SPACE, "split": False}
    words["prepend_scheme"] = "always" if settings.get("legacy") else "first"
    return {**description, "normalizer": None, "pre_tokenizer": words}


def _joined(merge) -> str:
    """What a merge makes; older files write the pair as one text with a space between."""
    return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)


def _decoding(description: dict, source: str) -> tuple[bool, int]:
    """(byte-level?, spaces at the start that are the algorithm's own), from the ``decoder`` of a tokenizer.json."""
    found = {step["type"]: step for step in steps(description.get("decoder"), "decoders")}
    if "ByteLevel" in found:
        return True, 0
    if "Metaspace" in found:
        return False, 0 if found["Metaspace"].get("prepend_scheme") == "never" else 1
    if "ByteFallback" in found or "Fuse" in found:
        return False, found.get("Strip", {}).get("start", 0)
    names = ", ".join(found) or "none"
    raise InputError(f"{source}: found the decoder {names}, expected byte-level or sentencepiece-like BPE")


def _around(description: dict, source: str, texts: int = 1) -> list[list[int]]:
    """Control tokens before, between and behind so many texts, one or two, whatever post-processor puts them there."""
    one_word = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    processor = {"version": "1.0", "post_processor": description.get("post_processor"), "model": one_word}
    encoded, sides = _build(processor, source).encode(*["a"] * texts), [[]]
    for number, is_control in zip(encoded.ids, encoded.special_tokens_mask, strict=True):
        if is_control:
            sides[-1].append(number)
        else:
            sides.append([])
    return sides
