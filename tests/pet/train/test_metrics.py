from __future__ import annotations

import sys

import pytest

from model_zoo.errors import InputError
from pet.train import metrics


def test_tokens_are_words_and_single_chinese_characters():
    assert metrics.tokens("Die 天气 is好, WELL-done 3kg！") == ["die", "天", "气", "is", "好", "well", "done", "3kg"]
    assert metrics.tokens("ＡＢＣ 한국 です") == ["abc", "한", "국", "で", "す"]
    assert metrics.tokens("，。！? _") == []
    assert metrics.tokens("naïve Übung") == ["naïve", "übung"]


def test_marks_belong_to_their_letters():
    """Hindi writes vowels as marks, Thai tones; Thai has no spaces between words."""
    assert metrics.tokens("की का नमस्ते।") == ["की", "का", "नमस्ते"]
    assert metrics.tokens("ภาษา ที่") == ["ภ", "า", "ษ", "า", "ที่"]
    assert metrics.spaced("नमस्ते, q̇!") == "नमस्ते , q̇ !"
    assert metrics.rouge(["की"], ["का"])["rouge_1"] == 0.0


def f_measure(hits, answer, reference):
    return 2 * hits / (answer + reference)


def test_rouge_by_hand():
    # one of four characters differs: 3 of 4 unigrams, 2 of 3 bigrams, a common subsequence of 3
    found = metrics.rouge(["今天很热"], ["今天不热"])
    assert found["rouge_1"] == pytest.approx(f_measure(3, 4, 4))
    assert found["rouge_2"] == pytest.approx(f_measure(1, 3, 3))
    assert found["rouge_l"] == pytest.approx(f_measure(3, 4, 4))
    mean = metrics.rouge(["今天很热", "a b"], ["今天不热", "c d"])
    assert mean["rouge_1"] == pytest.approx(f_measure(3, 4, 4) / 2)
    assert metrics.rouge(["the cat"], ["the cat sat"])["rouge_l"] == pytest.approx(0.8)
    assert metrics.rouge([""], [""]) == {"rouge_1": 0.0, "rouge_2": 0.0, "rouge_l": 0.0}


def test_bleu_knows_chinese():
    same = "今天天气很好，我们去公园。"
    assert metrics.bleu([same], [same]) == pytest.approx(1.0)
    part = metrics.bleu(["今天天气很好，我们去学校。"], [same])
    assert 0.5 < part < 1.0
    assert metrics.bleu(["完全不同"], [same]) < 0.1
    assert metrics.bleu([], []) == 0.0
    english = metrics.bleu(["the cat sat on the mat ."], ["the cat sat on a mat ."])
    # precisions 6/7, 4/6, 2/5, 1/4, no brevity penalty
    assert english == pytest.approx((6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25, abs=1e-6)


def test_a_text_that_is_cut_here_is_not_warned_of(caplog):
    """sacrebleu takes full stops that stand alone for those of another tokenizer."""
    same = ["It is done."] * 100
    assert metrics.bleu(same, same) == 1.0 and not caplog.records


def test_exact_match_forgives_only_spaces_around():
    assert metrics.exact_match(["a ", "b", "C"], ["a", "b", "c"]) == pytest.approx(2 / 3)


def test_score_gives_what_was_asked_for_in_that_order():
    found = metrics.score(["exact_match", "rouge_l"], ["a"], ["a"])
    assert list(found.items()) == [("exact_match", 1.0), ("rouge_l", 1.0)]


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(InputError, match=r"rouge_l needs the package rouge_score: pip install 'm\S+pet\[report\]'"):
        metrics.check_available(["loss", "rouge_l"])
    metrics.check_available(["loss", "exact_match"])
