from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pet.recipe.loading import from_dict
from pet.train import report
from pet.train.evaluate import Answer
from pet.train.objectives import make_objective


def test_comparison_is_aligned_and_names_the_measures():
    text = report.comparison({"loss": 4.0, "perplexity": 54.6, "rouge_l": 0.1}, {"loss": 1.5, "rouge_l": 0.95})
    lines = text.splitlines()
    assert lines[0].split() == ["before", "after"]
    assert lines[2].split() == ["held-out", "loss", "4.0000", "1.5000"]
    assert lines[3].split() == ["perplexity", "54.6000", "–"]
    assert len({report.width(line) for line in lines[1:]}) == 1
    assert report.comparison(None, None) == ""


def test_answers_stand_side_by_side():
    first = [Answer("今天？", "不知道", "晴天", "f:1")]
    last = [Answer("今天？", "晴天", "晴天", "f:1"), Answer("new", "", "", "f:2")]
    lines = report.samples(first, last, 60).splitlines()
    assert "  question: 今天？" in lines and "  expected: 晴天" in lines
    row = next(line for line in lines if line.startswith("不知道"))
    assert row.split("│")[1].strip() == "晴天"
    assert any(line.startswith("–") and "(nothing)" in line for line in lines)


def test_answers_stand_below_one_another_on_a_narrow_terminal():
    first, last = ([Answer("Where is it?", f"{word} " * 12, "", "f:1")] for word in ("here", "there"))
    lines = report.samples(first, last, 40).splitlines()
    assert all(report.width(line) <= 40 for line in lines)
    assert [line.split()[0] for line in lines if ":" in line] == ["question:", "base:", "tuned:"]


def test_a_run_from_a_tuned_adapter_shows_the_base_too():
    base, first, last = ([Answer("?", text, "", "f:1")] for text in ("one", "two", "three"))
    lines = report.samples(first, last, 62, base).splitlines()
    assert [cell.strip() for cell in lines[1].split("│")] == ["base", "before", "after"]
    assert [cell.strip() for cell in lines[3].split("│")] == ["one", "two", "three"]


@given(st.text(max_size=200), st.integers(4, 60))
def test_wrapped_lines_fit_and_lose_nothing_but_spaces(text, columns):
    lines = report.wrapped(text, columns)
    assert all(report.width(line) <= columns for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_chinese_text_is_broken_anywhere_but_before_its_punctuation():
    assert report.wrapped("= 今天是晴天。好", 10) == ["= 今天是晴", "天。好"]
    assert report.wrapped("今天是晴天。好", 10) == ["今天是晴", "天。好"]
    assert report.wrapped("on 晴天 we go out", 9) == ["on 晴天", "we go out"]


def test_durations():
    assert [report.duration(s) for s in (3.21, 75, 3725)] == ["3.2 s", "1 min 15 s", "1 h 2 min"]


@pytest.mark.parametrize(
    ("train", "adapter", "said"),
    [
        ({"objective": "sft"}, {}, ""),
        ({"objective": "dpo"}, {}, "dpo (beta 0.1), reference: the base without adapters"),
        (
            {"objective": "dpo", "beta": 0.3, "sft_weight": 1.0},
            {"load": "/tuned"},
            "dpo (beta 0.3, sft_weight 1), reference: /tuned",
        ),
        (
            {"objective": "ipo", "reference": "adapters_off"},
            {"load": "/tuned"},
            "ipo (beta 0.1), reference: the base without adapters",
        ),
        ({"objective": "kto", "reference": "/other"}, {"load": "/tuned"}, "kto (beta 0.1), reference: /other"),
        (
            {"objective": "kto"},
            {"method": "none"},
            "kto (beta 0.1), reference: the weights before the first step",
        ),
        ({"objective": "simpo", "gamma": 1.0}, {}, "simpo (beta 2, gamma 1)"),
        ({"objective": "reward"}, {}, "reward"),
    ],
)
def test_the_objective_and_its_reference_are_said(train, adapter, said):
    recipe = from_dict(
        {"model": {"path": "llama_tiny"}, "adapter": adapter, "data": {"train": "x"}, "train": train}, check_files=False
    )
    assert report.preferred(recipe, make_objective(recipe.train)) == said
