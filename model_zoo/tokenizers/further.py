"""Further tokens in a tokenizer's files, where transformers has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from model_zoo.atomic import read_json, write_json
from model_zoo.errors import InputError
from model_zoo.tokenizers.auto import AutoTokenizer
from model_zoo.tokenizers.base import Tokenizer
from model_zoo.tokenizers.files import TokenizerFiles
from model_zoo.tokenizers.special import FLAGS, LISTED

MAP = "special_tokens_map.json"


def entries_of(tokenizer: Tokenizer, texts: Mapping[str, bool]) -> list[dict]:
    """The entries of the tokens that a tokenizer does not have yet, as tokenizer.json has them; their ids follow its
    last one.

    Args:
        texts: {text: whether it is a control token}. Others are text: found in what messages say, and kept where
            control tokens are left out.
    """
    known = {**tokenizer.special_tokens, **tokenizer.plain}
    new = enumerate((text for text in texts if text not in known), len(tokenizer))
    return [{"id": number, "content": text, **FLAGS, "special": texts[text]} for number, text in new]


def add_to_files(directory: Path, entries: Sequence[Mapping], roles: Mapping[str, str]) -> None:
    """Writes tokens, and which of all tokens have a role, into the files of a directory.

    tokenizer.json has all added tokens. Without it tokenizer_config.json has (``added_tokens_decoder``), which also
    transformers 4 writes beside it; so have special_tokens_map.json and added_tokens.json of older directories, whose
    tokens come into tokenizer_config.json first, since they are of no account beside such a list.

    Args:
        roles: {``eos_token``, …: text}.

    Raises:
        InputError: files whose tokenizer takes no further tokens.
    """
    files, before = TokenizerFiles(directory), AutoTokenizer.from_pretrained(directory)
    with_json, settings = files.has("tokenizer.json"), files.settings
    if with_json:
        description = read_json(directory / "tokenizer.json")
        description["added_tokens"] = [*(description.get("added_tokens") or []), *entries]
        write_json(directory / "tokenizer.json", description, sort_keys=False)
    if LISTED in settings or not with_json:
        listed = {str(one["id"]): {key: one[key] for key in one if key != "id"} for one in entries}
        settings[LISTED] = {**settings.get(LISTED, {}), **listed}
    write_json(directory / "tokenizer_config.json", {**settings, **roles})
    for name, more in (("added_tokens.json", {one["content"]: one["id"] for one in entries}), (MAP, roles)):
        if files.has(name):
            write_json(directory / name, {**files.json(name), **more})
    _check(directory, entries, roles, before)


def _check(directory: Path, entries: Sequence[Mapping], roles: Mapping[str, str], before: Tokenizer) -> None:
    """Raises InputError unless the directory's tokenizer has the tokens, as one id each, and puts those with a role
    around a text where it put others ``before``."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    known = {**tokenizer.special_tokens, **tokenizer.plain}
    lost = [one["content"] for one in entries if known.get(one["content"]) != one["id"]]
    lost += [text for role, text in roles.items() if getattr(tokenizer, role) != text]
    if lost:
        raise InputError(f"{type(tokenizer).__name__} takes no further tokens from its files: {', '.join(lost)}")
    moved = {getattr(before, f"{role}_id"): getattr(tokenizer, f"{role}_id") for role in roles if role != "pad_token"}
    if tokenizer.around != tuple([moved.get(number, number) for number in part] for part in before.around):
        raise InputError(
            f"{', '.join(roles)}: the post_processor of its tokenizer.json says which tokens are put around a text"
        )
