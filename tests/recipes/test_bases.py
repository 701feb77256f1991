"""The bundled tiny bases: their size, their tokenizers, and that one fits the other."""

import json
import sys
from pathlib import Path

import pytest

from model_zoo.tokenizers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
BASES = ROOT / "recipes" / "bases"
NAMES = ("glm_tiny", "glm4_tiny", "llama_tiny", "gpt_tiny")
STYLES = {"glm_tiny": "chatglm", "glm4_tiny": "glm4", "llama_tiny": "llama2", "gpt_tiny": "plain"}


def tuning_rows() -> list[dict[str, str]]:
    lines = (ROOT / "recipes" / "data" / "adgen" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", NAMES)
def test_a_base_takes_at_most_4_mb(name):
    files = [path for path in (BASES / name).iterdir() if path.is_file()]
    assert {"config.json", "model.safetensors", "tokenizer_config.json"} <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) <= 4_000_000


@pytest.mark.parametrize("name", NAMES)
def test_configuration_and_tokenizer_agree(name):
    config = json.loads((BASES / name / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(BASES / name)
    assert tokenizer.vocab_size == config["vocab_size"]
    assert tokenizer.prompt_style == STYLES[name]
    end = config["eos_token_id"]
    assert tokenizer.eos_token_ids == (end if isinstance(end, list) else [end])
    for key, token in (("mask_token_id", "[MASK]"), ("gmask_token_id", "[gMASK]"), ("bos_token_id", "<sop>")):
        if name == "glm_tiny":
            assert config[key] == tokenizer.special_tokens[token]


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_the_data_come_back_and_are_short(name):
    tokenizer = AutoTokenizer.from_pretrained(BASES / name)
    for row in tuning_rows()[:100]:
        for text in (row["content"], row["summary"]):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == text
        messages = [{"role": "user", "content": row["content"]}, {"role": "assistant", "content": row["summary"]}]
        assert len(tokenizer.example(messages)[0]) <= 128


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["naïve 😀 ก็ 𝔘", "tab\there\n\nnew  line", "ＡＢＣ，（全角）"])
def test_texts_of_another_world_come_back_too(name, text):
    tokenizer = AutoTokenizer.from_pretrained(BASES / name)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("name", NAMES)
def test_a_base_knows_its_world(name):
    """The weights belong to this tokenizer and this corpus: they answer questions whose answer is certain."""
    import pet

    sys.path.insert(0, str(ROOT / "recipes" / "corpus"))
    try:
        import questions
        import world
    finally:
        sys.path.pop(0)
    shop = world.SHOPS[0]
    asked, expected = [], []
    for relation in world.RELATIONS:
        value = world.shop_facts()[shop.zh, relation.name]
        for language in ("zh", "en"):
            asked.append(questions.shop_question(shop, relation, language, 0))
            expected.append(questions.shop_statement(shop, relation, value, language))
    answers = pet.pipeline(model=name, chat=True, max_new_tokens=24)(asked)
    written = [answer["text_generation_text"][0].strip().rstrip(".。").lower() for answer in answers]
    right = sum(one == other.lower() for one, other in zip(written, expected, strict=True))
    assert right >= 14, list(zip(written, expected, strict=True))  # of 16
