"""LLaMA-1 and LLaMA-2 (``tokenizer.model``)."""

from __future__ import annotations

import re

from model_zoo.errors import InputError
from model_zoo.tokenizers.files import TokenizerFiles, parse_sentencepiece
from model_zoo.tokenizers.sentencepiece_model import (
    NO_FIRST_SPACE,
    SPACE,
    SentencePieceTokenizer,
    control_pieces,
)
from model_zoo.tokenizers.special import extra_tokens, named_token, stop_ids


class LlamaTokenizer(SentencePieceTokenizer):
    """LLaMA-1 and LLaMA-2, and what uses their format (Mistral and others): ``<s>`` in front, ``</s>`` at the end.

    Gemma's models put no space in front of a text, and have chat tokens among the pieces of texts: a text that spells
    one is cut there, so that it stays a text.

    Args:
        vocab_file: Path of ``tokenizer.model``.
        legacy: In decoding, whether one space more than the algorithm's own is lost at the start of a text, as in
            transformers. In a chat template every text has a space put before it then, else the first one alone. The
            ids of a text by itself are the same. A tokenizer_config.json that lacks it means False, as transformers 5
            has it (transformers 4: True); of a model alone every text is one of its own.
        add_bos_token, add_eos_token: What ``add_special_tokens`` adds.
        prompt_style: Chat format; without a chat template among the files it is ``"plain"``.
        settings: Contents of ``tokenizer_config.json``.
    """

    class_name = "LlamaTokenizer"
    file_name = "tokenizer.model"

    def __init__(
        self,
        vocab_file,
        legacy: bool | None = None,
        add_bos_token: bool | None = None,
        add_eos_token: bool | None = None,
        prompt_style: str | None = None,
        settings: dict | None = None,
        files: TokenizerFiles | None = None,
    ):
        settings = dict(settings or {})
        data, processor = self.opened(vocab_file, "LLaMA")
        own = control_pieces(processor)
        controls = {**own, **(files.added if files else {}), **extra_tokens(settings)}
        ids = {}
        for key, fallback in (("bos_token", processor.bos_id()), ("eos_token", processor.eos_id())):
            ids[key] = controls.get(named_token(settings, key), fallback)
            if ids[key] < 0:
                raise InputError(f"{vocab_file}: the sentencepiece model defines no {key}, expected one of LLaMA")
        # LLaMA has no padding token of its own; padding is never attended to, so the unknown symbol serves.
        pad = controls.get(named_token(settings, "pad_token"), processor.unk_id())
        legacy = settings.get("legacy") if legacy is None else legacy
        add_bos = settings.get("add_bos_token", True) if add_bos_token is None else add_bos_token
        add_eos = settings.get("add_eos_token", False) if add_eos_token is None else add_eos_token
        self.legacy = bool(legacy)
        self.adds_space = processor.encode("a", out_type=str)[0].startswith(SPACE)
        self.leading_spaces = (2 if self.legacy else 1) if self.adds_space else 0
        cuts = [f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})" for name in controls if name not in own]
        self.first_space_only = self.adds_space and not self.legacy and (legacy is False or bool(settings))
        self._further = parse_sentencepiece(data + NO_FIRST_SPACE, vocab_file) if self.first_space_only else processor
        self._cuts = re.compile("|".join(cuts)) if cuts and not self.adds_space else None
        said = {} if legacy is None else {"legacy": self.legacy}
        self._own = {**said, "add_bos_token": bool(add_bos), "add_eos_token": bool(add_eos)}
        super().__init__(
            vocab_file,
            data,
            processor,
            controls,
            files,
            bos=ids["bos_token"],
            eos=ids["eos_token"],
            pad=pad,
            stops=stop_ids(files, controls) if files else (),
            before=[ids["bos_token"]] if add_bos else [],
            after=[ids["eos_token"]] if add_eos else [],
            settings=settings,
            chat_template=files.chat_template() if files else "",
            prompt_style=prompt_style,
        )

    def encode_text(self, text: str) -> list[int]:
        parts = [text] if self._cuts is None else self._cuts.split(text)
        return [number for part in parts for number in self.processor.encode(part)]

    def encode_further(self, text: str) -> list[int]:
        return self._further.encode(text) if self.first_space_only else self.encode_text(text)

    def encode_following(self, text: str) -> list[int]:
        return super().encode_following(text) if self._cuts is None else self.encode_text(text)

    def own_settings(self) -> dict:
        unsaid = "legacy" not in self._own and self.adds_space and not self.first_space_only
        return {**self._own, "legacy": True} if unsaid and self.chat_template else self._own
