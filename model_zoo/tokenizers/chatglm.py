"""ChatGLM-6B: sentencepiece over a text whose newlines, tabs and runs of spaces were replaced first."""

from __future__ import annotations

import re

from model_zoo.errors import InputError
from model_zoo.families.chatglm import IMAGE_TOKENS
from model_zoo.tokenizers.files import Files, TokenizerFiles, parse_sentencepiece, read_bytes
from model_zoo.tokenizers.sentencepiece_model import SentencePieceTokenizer, control_pieces
from model_zoo.tokenizers.special import controls

_LONGEST_BLANK = 80
_CONTROLS = "[MASK]", "[gMASK]", "[sMASK]", "<unused_0>", "<sop>", "<eop>", "<ENC>", "<dBLOCK>"
_BLANKS_OF_TEXT = "<|tab|>", *(f"<|blank_{length}|>" for length in range(2, _LONGEST_BLANK + 1))
_BLANKS = re.compile(f" {{2,{_LONGEST_BLANK}}}")
_BLANK_PIECE = re.compile(r"<\|blank_(\d+)\|>")


class ChatGLMTokenizer(SentencePieceTokenizer):
    """ChatGLM-6B (``ice_text.model``): a text is followed by ``[gMASK]<sop>``, an answer ends with ``<eop>``.

    A newline becomes the piece ``<n>``, a tab ``<|tab|>``, 2 to 80 spaces ``<|blank_k|>``. These are text, not control
    tokens, and as in the published tokenizer a text that literally holds ``<n>`` comes back with a newline. The
    model's NFKC normalisation also changes a text for good: full-width letters, ligatures and ``\\r`` for example.

    Args:
        vocab_file: Path of ``ice_text.model``. That of the first releases has ordinary pieces alone, behind which their
            code put the others.
        num_image_tokens: Ids reserved for images before the text's: 20000 in the first release, 0 since.
        prompt_style: Chat format, ``"chatglm"`` unless given.
        settings: Contents of ``tokenizer_config.json``.
    """

    class_name = "ChatGLMTokenizer"
    file_names = (("ice_text.model",),)
    default_style = "chatglm"
    by_template = False  # the published code builds prompts without one
    marks = ""  # normalisation rules reach across them

    def __init__(
        self,
        vocab_file,
        num_image_tokens: int | None = None,
        prompt_style: str | None = None,
        settings: dict | None = None,
        files: Files = None,
    ):
        files = (files or TokenizerFiles()).given(settings)
        data = read_bytes(vocab_file)
        processor = parse_sentencepiece(data, vocab_file)

        def lacking(*names: str) -> list[str]:
            return [name for name in names if processor.piece_to_id(name) == processor.unk_id()]

        behind = [*_CONTROLS, *_BLANKS_OF_TEXT]
        if not lacking("<pad>", "<n>") and lacking(*behind) == behind:
            processor = parse_sentencepiece(data + _added(), vocab_file)
        own = control_pieces(processor)
        missing = [name for name in ("[MASK]", "[gMASK]", "<sop>", "<eop>", "<pad>") if name not in own]
        if missing := missing + lacking("<n>", "<|tab|>", "<|blank_2|>"):
            raise InputError(
                f"{vocab_file}: found a sentencepiece model without {', '.join(missing)}, expected ChatGLM-6B's"
            )
        if num_image_tokens is None:
            num_image_tokens = files.settings.get("num_image_tokens")
        if num_image_tokens is None:
            num_image_tokens = _offset_of_config(files.config, processor)
        offset = self.num_image_tokens = int(num_image_tokens or 0)
        found = control_pieces(processor, offset)
        ends = {"bos": found["<sop>"], "eos": found["<eop>"], "pad": found["<pad>"]}
        after = [found["[gMASK]"], found["<sop>"]]
        super().__init__(
            vocab_file, data, processor, controls(found), files, prompt_style, offset=offset, after=after, **ends
        )

    def own_settings(self) -> dict:
        return {"num_image_tokens": self.num_image_tokens}

    def encode_text(self, text: str) -> list[int]:
        text = text.replace("\n", "<n>").replace("\t", "<|tab|>")
        return super().encode_text(_BLANKS.sub(lambda run: f"<|blank_{len(run.group())}|>", text))

    def control_text(self, token_id: int) -> str | None:
        return f"<image_{token_id}>" if 0 <= token_id < self.offset else super().control_text(token_id)

    def written(self, piece: str) -> str:
        if piece == "<n>":
            return "\n"
        if piece == "<|tab|>":
            return "\t"
        blank = _BLANK_PIECE.fullmatch(piece)
        return " " * int(blank.group(1)) if blank else super().written(piece)


def _added() -> bytes:
    """The pieces that the published code put behind those of the file, as fields of a sentencepiece model."""
    control, of_user, byte = 3, 4, 6
    kinds = {**dict.fromkeys(_CONTROLS, control), **dict.fromkeys(_BLANKS_OF_TEXT, of_user)}
    kinds |= {f"<0x{value:02X}>": byte for value in range(256)}
    pieces = (b"\x0a%c%b\x18%c" % (len(name), name.encode(), kind) for name, kind in kinds.items())
    byte_fallback = b"\x12\x03\x98\x02\x01"
    return b"".join(b"\x0a%c%b" % (len(piece), piece) for piece in pieces) + byte_fallback


def _offset_of_config(config: dict, processor) -> int:
    """The number of image tokens that a config.json implies: where it says ``<sop>`` is, less where the file has it."""
    offset = config.get("bos_token_id", -1) - processor.piece_to_id("<sop>")
    return offset if offset == IMAGE_TOKENS else 0
