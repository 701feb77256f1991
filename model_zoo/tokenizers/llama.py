"""LLaMA-1 and LLaMA-2 (``tokenizer.model``)."""

from __future__ import annotations

import re
from collections.abc import Callable

from model_zoo.errors import InputError
from model_zoo.tokenizers.files import Files, TokenizerFiles, parse_sentencepiece
from model_zoo.tokenizers.sentencepiece_model import NO_FIRST_SPACE, SPACE, SentencePieceTokenizer, control_pieces
from model_zoo.tokenizers.special import Places, added_tokens, controls, named_token, special_ids


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
    file_names = (("tokenizer.model",),)

    def __init__(
        self,
        vocab_file,
        legacy: bool | None = None,
        add_bos_token: bool | None = None,
        add_eos_token: bool | None = None,
        prompt_style: str | None = None,
        settings: dict | None = None,
        files: Files = None,
    ):
        said, settings = bool(settings), dict(settings or {})
        asked = {"legacy": legacy, "add_bos_token": add_bos_token, "add_eos_token": add_eos_token}
        for (key, one), usual in zip(asked.items(), (None, True, False), strict=True):
            settings[key] = settings.get(key, usual) if one is None else one
        legacy = settings.pop("legacy") if settings["legacy"] is None else settings["legacy"]
        files, (data, processor) = (files or TokenizerFiles()).given(settings), self.opened(vocab_file, "LLaMA")
        if settings.get("add_prefix_space") is False:
            processor = parse_sentencepiece(data + NO_FIRST_SPACE, vocab_file)
        own = control_pieces(processor)

        def known(name: str) -> int | None:
            number = processor.piece_to_id(name)
            return None if number == processor.unk_id() else number

        def is_added(one: dict) -> bool:  # what is a piece by that text is sentencepiece's own
            return one["special"] or known(one["content"]) != one["id"]

        tokens = [*filter(is_added, added_tokens(controls(own), settings, vocab_file, known))]
        special = special_ids(tokens)
        # LLaMA, unlike Gemma, has no padding token; padding is never attended to, so the unknown symbol serves.
        pad = processor.unk_id() if processor.pad_id() < 0 else processor.pad_id()
        own_ends = {"bos": processor.bos_id(), "eos": processor.eos_id(), "pad": pad}
        ends = {key: special.get(named_token(settings, f"{key}_token"), one) for key, one in own_ends.items()}
        for key in ("bos", "eos"):
            if ends[key] < 0:
                raise InputError(f"{vocab_file}: the sentencepiece model defines no {key}_token, expected one of LLaMA")
        before, after = ([ends[key]] if settings[f"add_{key}_token"] else [] for key in ("bos", "eos"))
        self.legacy = bool(legacy)
        self.adds_space = processor.encode("a", out_type=str)[0].startswith(SPACE)
        self.leading_spaces = (2 if self.legacy else 1) if self.adds_space else 0
        cuts = [f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})" for name in special if name not in own]
        self.first_space_only = self.adds_space and not self.legacy and (legacy is False or said)
        self._cuts = re.compile("|".join(cuts)) if cuts and not self.adds_space else None
        self._plain = Places(one for one in tokens if not one["special"])
        super().__init__(vocab_file, data, processor, tokens, files, prompt_style, before=before, after=after, **ends)

    def encode_text(self, text: str) -> list[int]:
        return self._around_plain(text, self._whole)

    def encode_further(self, text: str) -> list[int]:
        return self._around_plain(text, self._behind)

    def encode_following(self, text: str) -> list[int]:
        return self._around_plain(text, self._going_on)

    def _whole(self, text: str) -> list[int]:
        parts = [text] if self._cuts is None else self._cuts.split(text)
        return [number for part in parts for number in self.processor.encode(part)]

    def _behind(self, text: str) -> list[int]:
        return (self._going_on if self.first_space_only else self._whole)(text)

    def _going_on(self, text: str) -> list[int]:
        return super().encode_following(text) if self._cuts is None else self._whole(text)

    def _around_plain(self, text: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Ids of a text in which added tokens that are text have their own; what is behind one is a further text."""
        ids: list[int] = []
        for start, stop, found in self._plain.split(text):
            if start < stop:
                goes_on = start > 0 and self.adds_space and text[start] == " "
                ids += (self._going_on if goes_on else encode)(text[start:stop])
            if found is not None:
                ids.append(self.plain[found[0]])
                encode = self._behind
        return ids

    def own_settings(self) -> dict:
        unsaid = "legacy" not in self._settings and self.adds_space and not self.first_space_only
        return {"legacy": True} if unsaid and self.chat_template else {}
