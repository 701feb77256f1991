"""Tokenizer files: reading them, and telling what they are."""

from __future__ import annotations

import base64
import binascii
import copy
from pathlib import Path
from typing import Any

from model_zoo import atomic
from model_zoo.ends import listed_ends
from model_zoo.errors import InputError, shown
from model_zoo.field_types import TokenId, check_types
from model_zoo.protobuf import fields, varint
from model_zoo.tokenizers.special import FLAGS, LISTED, TOKEN_KEYS, as_saved, is_name, listed_controls, named_tokens

# Small text files that belong to a tokenizer without deciding its ids; they are carried along when one is saved.
COMPANIONS = ("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "tokenization_chatglm.py")

CONFIG = {"model_type": str, "padded_vocab_size": int, "position_encoding_2d": bool}
SETTINGS = {
    **dict.fromkeys(TOKEN_KEYS, str | dict),
    **dict.fromkeys(("add_bos_token", "add_eos_token", "add_prefix_space", "legacy"), bool),
    LISTED: dict,
    "backend": str,
    "chat_template": str | list,
    "num_image_tokens": TokenId,
    "prompt_style": str,
    "tokenizer_class": str,
}
"""What is read of config.json and of tokenizer_config.json."""
TEMPLATES = "additional_chat_templates"
"""The directory of further templates beside chat_template.jinja, one file for each name."""
NO_UTF_8 = "a piece is not UTF-8"


class TokenizerFiles:
    """A model directory as far as a tokenizer is concerned, in the words of transformers 5 whatever wrote it.

    Args:
        path: The directory, or any file in it; None for none, in which there is nothing.

    Attributes:
        config, generation_config, settings: config.json, generation_config.json and tokenizer_config.json. The latter
            is as if it were of the time of ``added_tokens_decoder``: where it has none, special_tokens_map.json is in
            it, and the tokens of added_tokens.json are such a table. Special are those that are named.
        older: Whether it is of the time before.

    Raises:
        InputError: If the directory does not exist, or if one of its JSON files cannot be read.
    """

    def __init__(self, path=None):
        self.directory = None if path is None else Path(path).parent if Path(path).is_file() else Path(path)
        if path is not None and not self.directory.is_dir():
            raise InputError(f"{path}: no such tokenizer directory")
        self.config = self.json("config.json")
        self.generation_config = self.json("generation_config.json")
        self.settings = self.json("tokenizer_config.json")
        self.older = LISTED not in self.settings  # else the other files are of no account
        if self.older:
            named = self.json("special_tokens_map.json").items()  # which counts before tokenizer_config.json
            self.settings |= {key: one for key, one in named if is_name(key) and isinstance(one, (str, dict, list))}
        check_types(f"{path and self.path('config.json')}", self.config, CONFIG)
        check_types(f"{path and self.path('tokenizer_config.json')}", self.settings, SETTINGS)
        if self.older and (added := self._added_tokens()):
            self.settings = {key: as_saved(one) if is_name(key) else one for key, one in self.settings.items()}
            self.settings[LISTED] = added

    def _added_tokens(self) -> dict[str, dict]:
        """The tokens of added_tokens.json, which stand behind a vocabulary, as ``added_tokens_decoder`` has them. Those
        that tokenizer.json has are as it says."""
        found, named = self.json("added_tokens.json"), named_tokens(self.settings)
        for name, number in found.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise InputError(
                    f"{self.path('added_tokens.json')}: {name!r}: an id was expected, found {shown(number)}"
                )
        known = {one.get("content"): one for one in self.added_of_json()} if found else {}
        kept = {name: number for name, number in found.items() if known.get(name, {}).get("id", number) == number}
        usual = {name: {**FLAGS, "normalized": name not in named, "special": name in named} for name in kept}
        listed = {number: {"content": name, **usual[name], **known.get(name, {})} for name, number in kept.items()}
        return {str(number): {key: one[key] for key in one if key != "id"} for number, one in listed.items()}

    def added_of_json(self) -> list[dict]:
        """The added tokens of tokenizer.json, none where there is no such file."""
        found = self.json("tokenizer.json").get("added_tokens") or []
        return [one for one in found if isinstance(one, dict) and isinstance(one.get("id"), int)]

    def json_alone(self, count: int) -> bool:
        """Whether tokenizer.json has more than the older files beside it: what transformers 5 changes in a tokenizer
        (its tokens, what stands around a text) it writes there and nowhere else, and leaves those files as they are.

        Args:
            count: pieces of the older files' vocabulary. Control tokens beyond it that tokenizer_config.json lists, as
                transformers 4 writes them, or before that added_tokens.json, are known without tokenizer.json; others
                are not.
        """
        if not self.has("tokenizer.json") or "backend" in self.settings:
            return self.has("tokenizer.json")
        listed = self.settings.get(LISTED) or {}
        wanted = [one["id"] for one in self.added_of_json()] if self.older else map(int, listed)
        known = [*map(int, listed)] if self.older else listed_controls(self.settings).values()
        return not {number for number in wanted if number >= count} <= {*known}

    def json_for(self, name: str) -> bool:
        """Whether tokenizer.json is there in the place of a file that is only a Git LFS pointer."""
        if not self.has(name, "tokenizer.json"):
            return False
        return atomic.is_pointer(self.path(name)) and not atomic.is_pointer(self.path("tokenizer.json"))

    @property
    def stops(self) -> list[int]:
        """End tokens that generation_config.json, or else config.json, lists."""
        return listed_ends(self.config, self.generation_config)

    def given(self, settings: dict | None, **usual: Any) -> TokenizerFiles:
        """The same with these settings in place of its own, or ``usual`` ones where they say nothing."""
        other = copy.copy(self)
        other.settings = {**usual, **(settings or {})}
        return other

    def has(self, *names: str) -> bool:
        paths = [self.directory / name for name in names if self.directory]
        every = all(path.is_file() or atomic.special_kind(path) for path in paths)  # the latter fails when it is read
        return every and self.directory is not None

    def path(self, name: str) -> Path:
        return self.directory / name

    def json(self, name: str) -> dict:
        """The object in a JSON file, empty where the file does not exist."""
        return read_json(self.directory / name) if self.has(name) else {}

    def text(self, name: str) -> str:
        """The text of a file, empty where it does not exist."""
        return read_bytes(self.directory / name).decode("utf-8", errors="replace") if self.has(name) else ""

    def companions(self) -> dict[str, bytes]:
        """The files that are carried along, by their names."""
        templates = sorted((self.directory / TEMPLATES).glob("*.jinja")) if self.directory else ()
        further = [f"{TEMPLATES}/{path.name}" for path in templates]
        return {name: read_bytes(self.directory / name) for name in (*COMPANIONS, *further) if self.has(name)}

    def chat_template(self) -> str:
        """The chat template, in whichever of its three places it stands; the file of its own comes first.

        Of named templates it is the one for tools where a conversation has any, and otherwise the default one.
        """
        template = self.text("chat_template.jinja") or self.settings.get("chat_template")
        if isinstance(template, str) and self.has(f"{TEMPLATES}/tool_use.jinja"):
            template = {"default": template, "tool_use": self.text(f"{TEMPLATES}/tool_use.jinja")}
        if not template and self.has("chat_template.json"):
            found = self.json("chat_template.json")
            check_types(f"{self.path('chat_template.json')}", found, {"chat_template": str | list | dict})
            template = found.get("chat_template")
        if isinstance(template, str) or not template:
            return template or ""
        named = template
        if isinstance(template, list):
            named = {str(one.get("name")): one.get("template") for one in template if isinstance(one, dict)}
        default, tools = named.get("default"), named.get("tool_use")
        if not isinstance(default, str):
            raise InputError(
                f"{self.directory}: its chat templates have no default one (there is: {shown(list(named))})"
            )
        return f"{{% if tools %}}{tools}{{% else %}}{default}{{% endif %}}" if isinstance(tools, str) else default


Files = TokenizerFiles | None


def read_bytes(path) -> bytes:
    """The bytes of a tokenizer file, with one clear error for what is missing or empty."""
    data = atomic.read_bytes(path, "a tokenizer's file")
    if not data:
        raise InputError(f"{path}: the tokenizer file is empty")
    return data


def parse_json(data: bytes, source) -> dict:
    found = describe(data)
    if found not in ("JSON", "unknown data"):
        raise InputError(f"{source}: found {found}, expected JSON")
    return atomic.parse_json(data, source)


def read_json(path) -> dict:
    return parse_json(read_bytes(path), path)


def describe(data: bytes) -> str:
    """What a file holds, by its first bytes: ``"JSON"``, ``"sentencepiece"``, ``"tiktoken ranks"`` or other data."""
    head = data[:4096]
    if head.lstrip()[:1] in (b"{", b"["):
        return "JSON"
    # A sentencepiece model is a protobuf message whose first field (0x0a) is a piece, itself opening with 0x0a.
    if head[:1] == b"\n" and head[2:3] == b"\n":
        return "sentencepiece"
    parts = head.split(b"\n", 1)[0].split()
    if len(parts) == 2 and parts[1].isdigit() and _base64(parts[0]) is not None:
        return "tiktoken ranks"
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive"
    return "unknown data"


def _base64(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def parse_ranks(data: bytes, source) -> dict[bytes, int]:
    """tiktoken's format: one ``base64(token) rank`` per line; the rank is the id and the merge priority.

    Raises:
        InputError: If the file is something else, is cut off, skips a rank, or lacks one of the 256 bytes.
    """
    found = describe(data)
    if found != "tiktoken ranks":
        raise InputError(f"{source}: found {found}, expected tiktoken ranks (a base64 token and its rank per line)")
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        parts = line.split()
        token = _base64(parts[0]) if len(parts) == 2 and parts[1].isdigit() else None
        if not token or int(parts[1]) != len(ranks) or token in ranks:
            raise InputError(
                f"{source}: line {number} is damaged or cut off; expected a new base64 token and the rank {len(ranks)}"
            )
        ranks[token] = len(ranks)
    missing = sum(bytes([value]) not in ranks for value in range(256))
    if missing:
        raise InputError(f"{source}: {missing} of the 256 single bytes have no rank; the file is cut off")
    return ranks


def parse_sentencepiece(data: bytes, source):
    """A ``SentencePieceProcessor`` over these bytes.

    sentencepiece itself accepts a file that was cut between two pieces, so the outline of the message is checked
    first: it must end with its last field, and hold pieces (1), the trainer's (2) and the normaliser's settings (3).
    """
    found = describe(data)
    if found != "sentencepiece":
        raise InputError(f"{source}: found {found}, expected a sentencepiece model")
    if not {1, 2, 3} <= {field for field, _ in protobuf_fields(data)}:
        raise InputError(f"{source}: the sentencepiece model is truncated or damaged ({len(data)} bytes)")
    from sentencepiece import SentencePieceProcessor

    try:
        processor = SentencePieceProcessor(model_proto=data)
        processor.id_to_piece([*range(processor.get_piece_size())])  # which are not looked at before they are asked for
    except UnicodeDecodeError:
        found = NO_UTF_8
    except RuntimeError as error:  # which Python 3.11.2 leaves without words where they hold such a piece
        found = str(error) or NO_UTF_8
    else:
        return processor
    raise InputError(f"{source}: the sentencepiece model is damaged ({found})")


def protobuf_fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields at the top level of a protobuf message, as numbers or bytes; none if it does not end cleanly."""
    try:
        found = [*fields(data, 0, len(data))]
    except (ValueError, IndexError):
        return []
    return [(field, data[begin:end] if wire else varint(data, begin)[0]) for field, wire, begin, end in found]
