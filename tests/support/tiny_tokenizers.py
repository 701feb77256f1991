"""Tokenizers as files, over the vocabularies of a bundled base and of a fixture."""

import json

from pet.names import bundled_models


def write_byte_level(directory, controls, digits=1, texts=()):
    """Writes a tokenizer.json.

    Args:
        directory: where to.
        controls: texts of the control tokens, which come after the vocabulary.
        digits: most digits in a word: 1 as in Qwen's, 3 as in LLaMA-3's.
        texts: tokens after these that are not special.
    """
    from model_zoo.tokenizers import AutoTokenizer

    description = AutoTokenizer.from_pretrained(bundled_models()["glm4_tiny"]).description()
    first = min(token["id"] for token in description["added_tokens"])
    flags = dict.fromkeys(("normalized", "lstrip", "rstrip", "single_word"), False)
    description["added_tokens"] = [
        {"id": first + place, "content": name, "special": name in controls, **flags}
        for place, name in enumerate([*controls, *texts])
    ]
    description["model"] |= {"type": "BPE", "ignore_merges": digits == 3}
    split = description["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    if digits == 1:
        split["Regex"] = split["Regex"].replace(r"\p{N}{1,3}", r"\p{N}")
    (directory / "tokenizer.json").write_text(json.dumps(description))


def sentencepiece_like_json(fixtures):
    """LLaMA-2's tokenizer.json: byte-fallback BPE whose normaliser writes the space sign."""
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(fixtures / "tok_llama" / "tokenizer.model"))
    vocabulary = {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}
    merges = []
    for piece, number in sorted(vocabulary.items(), key=lambda item: -processor.get_score(item[1])):
        if processor.is_byte(number) or number < 3:
            continue
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        merges += [f"{left} {right}" for left, right in splits if left in vocabulary and right in vocabulary]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    controls = ("<unk>", "<s>", "</s>")
    return {
        "version": "1.0",
        "added_tokens": [{"id": n, "content": name, "special": True, **flags} for n, name in enumerate(controls)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary,
            "merges": merges,
        },
    }
