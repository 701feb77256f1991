"""Trains the four bases' tokenizers on the corpus, each in its family's own files.

What a tokenizer_config.json says is written by hand, beside each base; its special tokens and template are taken as
they stand there.

    python recipes/corpus/train_tokenizers.py               # into recipes/bases/<name>
    python recipes/corpus/train_tokenizers.py --output /tmp/bases

Vocabularies are small, so that a base of a million weights does not spend most of them on its embedding.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import re
from collections import Counter
from pathlib import Path

import corpus
import questions
import sentencepiece
from generate import SEED
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SAMPLE_ROWS = 6000
CUT = "\t"
CHINESE = sorted({word.zh for word in questions.LEXICON if len(word.zh) == 2} | {"小铺"})
UNIT = re.compile("|".join(CHINESE) + "|[\u4e00-\u9fff]| ?[A-Za-z]+| ?[^A-Za-z\u4e00-\u9fff ]| +")

GLM_SPECIALS = ("[MASK]", "[gMASK]", "[sMASK]", "<unused_0>", "<sop>", "<eop>", "<ENC>", "<dBLOCK>")
GLM4_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def units(seed: int) -> list[str]:
    """What the tokenizers learn from: the corpus cut into words, each as often as the root of its count.

    A token never crosses a unit: an English word with the space before it, a Chinese word of the lexicon or else one
    character, a mark. The root gives rare words a token of their own before frequent ones are joined otherwise.
    """
    counts: Counter[str] = Counter()
    for conversation in corpus.pretraining(seed, SAMPLE_ROWS):
        for message in conversation:
            counts.update(UNIT.findall(message["content"]))
    for row in corpus.tuning(seed)["train"]:
        counts.update(UNIT.findall(row["content"] + row["summary"]))
    counts.update(UNIT.findall("[Round 0]") * 2000 + UNIT.findall("问：答：0123456789") * 500)
    return [unit for unit, count in counts.items() for _ in range(round(count**0.5))]


def sentencepiece_model(lines: list[str], **options) -> sentencepiece_model_pb2.ModelProto:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        pretokenization_delimiter=CUT,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        byte_fallback=True,
        character_coverage=1.0,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto


def glm_tokenizer(lines: list[str], directory: Path, size: int) -> None:
    """ChatGLM-6B's ``ice_text.model``: ``<n>`` after the padding, the control pieces last."""
    blanks = [f"<|blank_{count}|>" for count in range(80, 1, -1)]
    proto = sentencepiece_model(
        lines,
        model_type="bpe",
        vocab_size=size,
        pad_id=3,
        control_symbols=list(GLM_SPECIALS),
        user_defined_symbols=["<n>", "<|tab|>", *blanks],
        max_sentencepiece_length=12,
    )
    names = {piece.piece: piece for piece in proto.pieces}
    first = ["<unk>", "<s>", "</s>", "<pad>", "<n>"]
    last = ["<|tab|>", *blanks, *GLM_SPECIALS]
    fixed = {*first, *last}
    order = [*first, *(piece.piece for piece in proto.pieces if piece.piece not in fixed), *last]
    pieces = [
        sentencepiece_model_pb2.ModelProto.SentencePiece.FromString(names[name].SerializeToString()) for name in order
    ]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    (directory / "ice_text.model").write_bytes(proto.SerializeToString(deterministic=True))


def llama_tokenizer(lines: list[str], directory: Path, size: int) -> None:
    """LLaMA's ``tokenizer.model``: sentencepiece BPE with digits apart. LLaMA-2's chat marks are pieces like others."""
    lines = lines + ["[INST]", "[/INST]"] * 100
    proto = sentencepiece_model(lines, model_type="bpe", vocab_size=size, pad_id=-1, split_digits=True)
    (directory / "tokenizer.model").write_bytes(proto.SerializeToString(deterministic=True))


def byte_level(pieces: list[str], pattern: str, size: int, specials: list[str]) -> dict:
    """Byte-level BPE as in tokenizer.json: ``vocab`` and ``merges``. The first 256 tokens are GPT-2's bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=sorted(alphabet), special_tokens=specials, show_progress=False
    )
    tokenizer.train_from_iterator(pieces, trainer)
    return json.loads(tokenizer.to_str())["model"]


def gpt_tokenizer(pieces: list[str], directory: Path, size: int) -> None:
    """GPT-2's ``vocab.json`` and ``merges.txt``, with ``<|endoftext|>`` last as there."""
    model = byte_level(pieces, GPT2_PATTERN, size - 1, [])
    vocab = {**model["vocab"], "<|endoftext|>": len(model["vocab"])}
    (directory / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8", newline="\n")
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (directory / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8", newline="\n")


def byte_of_character() -> dict[str, int]:
    """The byte that each character of GPT-2's alphabet stands for."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


def glm4_tokenizer(pieces: list[str], directory: Path, size: int) -> None:
    """GLM-4's ``tokenizer.model``: a line per token, base64 and rank; special tokens follow its vocabulary."""
    specials = json.loads((directory / CONFIG).read_text("utf-8"))["additional_special_tokens"]
    model = byte_level(pieces, GLM4_PATTERN, size - len(specials), [])
    byte = byte_of_character()
    ordered = sorted(model["vocab"], key=model["vocab"].get)
    lines = [
        f"{base64.b64encode(bytes(byte[character] for character in token)).decode()} {rank}\n"
        for rank, token in enumerate(ordered)
    ]
    (directory / "tokenizer.model").write_text("".join(lines), encoding="ascii", newline="\n")


def digest(pieces: list[str]) -> str:
    """SHA-256 of what the tokenizers learn from."""
    return hashlib.sha256("\0".join(pieces).encode("utf-8")).hexdigest()


def record(output: Path, seed: int, pieces: list[str]) -> dict:
    """What the tokenizers were made from and what came out, so that a test can tell when one of them has drifted."""
    names = [path for name in SIZES for path in sorted((output / name).iterdir()) if path.name in FILES]
    files = {path.relative_to(output).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in names}
    return {"seed": seed, "sample_rows": SAMPLE_ROWS, "input": digest(pieces), "files": files}


BASES = Path(__file__).resolve().parent.parent / "bases"
CONFIG = "tokenizer_config.json"
FILES = ("ice_text.model", "tokenizer.model", CONFIG, "vocab.json", "merges.txt")
RECORD = "tokenizers.json"
SIZES = {"glm_tiny": 1344, "glm4_tiny": 1216, "llama_tiny": 1216, "gpt_tiny": 1216}


def train(output: Path, seed: int = SEED) -> None:
    pieces = units(seed)
    # Sentencepiece puts a space before each line: keep it for words that have one, cut it off from the others.
    lines = [piece[1:] if piece.startswith(" ") else CUT + piece for piece in pieces]
    makers = {
        "glm_tiny": (glm_tokenizer, lines),
        "llama_tiny": (llama_tokenizer, lines),
        "glm4_tiny": (glm4_tokenizer, pieces),
        "gpt_tiny": (gpt_tokenizer, pieces),
    }
    for name, (maker, source) in makers.items():
        directory = output / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / CONFIG).write_bytes((BASES / name / CONFIG).read_bytes())
        maker(source, directory, SIZES[name])
        print(f"{directory}: {SIZES[name]} tokens")
    text = json.dumps(record(output, seed, pieces), ensure_ascii=False, indent=2) + "\n"
    (output / RECORD).write_text(text, encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=BASES, help="directory to write to (default: recipes/bases)")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    train(arguments.output, arguments.seed)


if __name__ == "__main__":
    main()
