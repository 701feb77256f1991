"""ChatGLM2 and ChatGLM3 (``tokenizer.model``, sentencepiece)."""

from __future__ import annotations

from model_zoo.tokenizers.files import Files, TokenizerFiles
from model_zoo.tokenizers.sentencepiece_model import SentencePieceTokenizer, control_pieces
from model_zoo.tokenizers.special import added_tokens, controls


class ChatGLM2Tokenizer(SentencePieceTokenizer):
    """ChatGLM2: control tokens stand after sentencepiece's own; a text begins with ``[gMASK] sop``.

    Padding and the unknown symbol share id 0.

    Args:
        vocab_file: Path of ``tokenizer.model``.
        prompt_style: Chat format, ``"chatglm2"`` unless given.
        settings: Contents of ``tokenizer_config.json``.
    """

    class_name = "ChatGLMTokenizer"
    file_names = (("tokenizer.model",),)
    default_style = "chatglm2"
    by_template = False
    appended: tuple[str, ...] = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop")

    def __init__(self, vocab_file, prompt_style: str | None = None, settings: dict | None = None, files: Files = None):
        files = (files or TokenizerFiles()).given(settings)
        data, processor = self.opened(vocab_file, "ChatGLM2/3")
        ends = {"bos": processor.bos_id(), "eos": processor.eos_id(), "pad": processor.unk_id()}
        own = {**control_pieces(processor), **{f"<{name}>": number for name, number in ends.items()}}
        own |= {name: processor.get_piece_size() + number for number, name in enumerate(self.appended)}
        tokens = [one for one in added_tokens(controls(own), files.settings, vocab_file) if one["special"]]
        before = [own["[gMASK]"], own["sop"]]
        super().__init__(vocab_file, data, processor, tokens, files, prompt_style, before=before, **ends)


class ChatGLM3Tokenizer(ChatGLM2Tokenizer):
    """ChatGLM3: ChatGLM2's with the four role tokens appended, and its own chat format."""

    default_style = "chatglm3"
    appended = (*ChatGLM2Tokenizer.appended, "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
