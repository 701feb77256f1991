"""ChatGLM2 and ChatGLM3 (``tokenizer.model``, sentencepiece)."""

from __future__ import annotations

from model_zoo.errors import InputError
from model_zoo.tokenizers.files import TokenizerFiles
from model_zoo.tokenizers.sentencepiece_model import SentencePieceTokenizer, control_pieces
from model_zoo.tokenizers.special import extra_tokens


class ChatGLM2Tokenizer(SentencePieceTokenizer):
    """ChatGLM2: control tokens stand after sentencepiece's own; a text begins with ``[gMASK] sop``.

    Padding and the unknown symbol share id 0.

    Args:
        vocab_file: Path of ``tokenizer.model``.
        prompt_style: Chat format, ``"chatglm2"`` unless given.
        settings: Contents of ``tokenizer_config.json``.
    """

    class_name = "ChatGLMTokenizer"
    file_name = "tokenizer.model"
    default_style = "chatglm2"
    appended: tuple[str, ...] = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop")

    def __init__(
        self,
        vocab_file,
        prompt_style: str | None = None,
        settings: dict | None = None,
        files: TokenizerFiles | None = None,
    ):
        settings = dict(settings or {})
        data, processor = self.opened(vocab_file, "ChatGLM2/3")
        size = processor.get_piece_size()
        controls = control_pieces(processor)
        controls.update({"<bos>": processor.bos_id(), "<eos>": processor.eos_id(), "<pad>": processor.unk_id()})
        controls.update({name: size + number for number, name in enumerate(self.appended)})
        for name, number in extra_tokens(settings).items():
            if controls.setdefault(name, number) != number:
                raise InputError(
                    f"{vocab_file}: {name!r} would be id {controls[name]}, but tokenizer_config.json says {number}; "
                    "the two files are of different models"
                )
        super().__init__(
            vocab_file,
            data,
            processor,
            controls,
            files,
            bos=processor.bos_id(),
            eos=processor.eos_id(),
            pad=processor.unk_id(),
            before=[controls["[gMASK]"], controls["sop"]],
            settings=settings,
            prompt_style=prompt_style,
        )


class ChatGLM3Tokenizer(ChatGLM2Tokenizer):
    """ChatGLM3: ChatGLM2's with the four role tokens appended, and its own chat format."""

    default_style = "chatglm3"
    appended = (*ChatGLM2Tokenizer.appended, "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
