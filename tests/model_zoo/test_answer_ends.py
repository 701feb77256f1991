"""Where the end of an answer stands in no text: the token that opens the next turn stands for it."""

import json
from itertools import groupby

import pytest
from tiny_tokenizers import write_byte_level

from model_zoo.tokenizers.auto import AutoTokenizer

CONTROLS = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"]
TEMPLATE = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize("style", [None, "glm4"])
@pytest.mark.parametrize(
    ("train_on", "weights", "expected"),
    [
        ("answers", (1, 1), ["\nIt is here.<|user|>", "\nThere.<|user|>"]),
        ("last", (1, 1), ["\nThere.<|user|>"]),
        ("answers", (1, 0), ["\nIt is here.<|user|>"]),
        ("answers", (0, 1), ["\nThere.<|user|>"]),
    ],
)
def test_the_end_behind_the_last_answer_is_learnt_with_it(tmp_path, style, train_on, weights, expected):
    write_byte_level(tmp_path, CONTROLS)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    tokenizer, talk = AutoTokenizer.from_pretrained(tmp_path, prompt_style=style), []
    for question, answer, weight in zip(("Where?", "And now?"), ("It is here.", "There."), weights, strict=True):
        talk += [{"role": "user", "content": question}, {"role": "assistant", "content": answer, "weight": weight}]
    ids, trained = tokenizer.example(talk, train_on=train_on)
    runs = [
        [number for number, _ in run]
        for label, run in groupby(zip(ids, trained, strict=True), key=lambda pair: pair[1])
        if label
    ]
    assert [tokenizer.decode(run, skip_special_tokens=False) for run in runs] == expected
