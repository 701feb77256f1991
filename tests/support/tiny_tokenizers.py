"""Byte-level tokenizers with control tokens of one's own, over the vocabulary of a bundled base."""

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
