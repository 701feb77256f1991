"""What lies beside the weights of a merged model: tokenizer, chat template, generation settings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_json, write_json, write_text
from model_zoo.checkpoint.saving import TOKENIZER, copy_companions
from model_zoo.errors import InputError
from model_zoo.generation_settings import DRAWN, settings_beside
from model_zoo.tokenizers import AutoTokenizer
from model_zoo.tokenizers.base import Tokenizer
from model_zoo.tokenizers.files import TokenizerFiles
from pet.data.template import chat_template
from pet.names import own_tokenizer

log = logging.getLogger("pet")


def copy_tokenizer(
    adapters: Sequence[Path], grown_by: Path | None, template: str | None, base: Path, stage: Path, output: Path
) -> None:
    """Puts the base's tokenizer beside a merged model, with the chat template that adapters were trained with; where
    one of them has more tokens than the base, that one's. Where there is then no chat template, the one of a job file
    (``template``) is it, and the ids that end its answers are in the generation settings."""
    source = own_tokenizer(grown_by)
    if grown_by is not None and source is None:
        log.warning("%s: has the base's tokenizer, which lacks the adapter's new tokens; copy its own", output)
    source = source or base
    templates = {TokenizerFiles(place).chat_template() for place in adapters if own_tokenizer(place)}
    templates -= {"", TokenizerFiles(base).chat_template()}
    if len(templates) > 1:
        log.warning("%s: the adapters have %d chat templates; it has that of %s", output, len(templates), source)
    copy_companions(source, stage, output, TOKENIZER)
    if len(templates) == 1 and source == base:
        put_template(stage, templates.pop())
    if (jinja := chat_template(template)) is None or TokenizerFiles(stage).chat_template():
        return
    try:
        tokenizer = AutoTokenizer.from_pretrained(stage).with_chat_template(*jinja)
    except InputError as error:  # it lacks a token
        log.warning("%s: has no chat template: %s", output, error)
        return
    put_template(stage, jinja[0])
    write_json(stage / "generation_config.json", generation_settings(base, tokenizer))


def put_template(stage: Path, template: str) -> None:
    """Writes a chat template beside a tokenizer, in both places: versions of transformers before 4.51 may read
    tokenizer_config.json alone, where another one may stand."""
    write_text(stage / "chat_template.jinja", template)
    if (settings := stage / "tokenizer_config.json").exists():
        write_json(settings, {**read_json(settings), "chat_template": template})


def generation_settings(base: Path, tokenizer: Tokenizer, recipe: Any = None) -> dict[str, Any]:
    """What the base says of its answers, with the run's settings and every id that ends an answer."""
    values = settings_beside(base)
    values["eos_token_id"] = list(tokenizer.eos_token_ids) or None  # transformers cannot generate with an empty list
    for key, number in (("bos_token_id", tokenizer.bos_token_id), ("pad_token_id", tokenizer.pad_token_id)):
        if number is not None:
            values.setdefault(key, number)
    if recipe is not None:
        chosen = recipe.generation
        asked = {"max_new_tokens": chosen.max_new_tokens, **chosen.choosing()}
        values |= {key: value for key, value in asked.items() if value is not None}
        values = values if chosen.do_sample else {key: value for key, value in values.items() if key not in DRAWN}
    return values
