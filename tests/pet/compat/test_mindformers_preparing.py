"""What MindFormers' scripts that prepare data and checkpoints import."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_zoo.errors import InputError
from pet.compat.mindformers.preparing import get_default_conv_template, get_strategy, wikitext_clean

CLEAN = {
    "a @-@ b 1 @,@ 2 @.@ 3": "a-b 1,2.3",
    "one , two ; three : four ! five ? six .": "one, two; three: four! five? six .",
    "( a ) [ b ] { c } \" d \" ' e '": "(a) [b] {c} \"d\" 'e'",
    "= = = a = = b = = =": "=== a == b ===",
    "20 \N{DEGREE SIGN} C \n the dogs ' tails": "20\N{DEGREE SIGN}C\nthe dogs' tails",
    "it 's": "it's",
    "x N y": "x 1 y",
}


@pytest.mark.parametrize("text", CLEAN)
def test_wikitext_without_its_spaces(text):
    assert wikitext_clean(text) == CLEAN[text]


def test_vicunas_prompt_as_scripts_fill_it():
    template = get_default_conv_template("Vicuna")
    talk = template.copy()
    asks, answers = talk.roles
    for role, text in ((asks, "Who?"), (answers, "Me."), (asks, "Why?"), (answers, None)):
        talk.append_message(role, text)
    assert talk.get_prompt().endswith(" user's questions. USER: Who? ASSISTANT: Me.</s>USER: Why? ASSISTANT:")
    assert len(talk.copy().messages) == 4 and not template.messages
    assert (talk.sep, talk.sep2) == (" ", "</s>")
    with pytest.raises(InputError, match="'llama3'; only vicuna's prompt is here"):
        get_default_conv_template("llama3")


def test_a_strategy_is_a_file_or_nothing(tmp_path):
    file = tmp_path / "strategy.ckpt"
    file.write_bytes(b"")
    assert get_strategy(str(file)) == str(file)
    assert get_strategy("None") is get_strategy("") is None
    with pytest.raises(InputError, match=r"absent: no such strategy file or directory"):
        get_strategy(tmp_path / "absent")


def test_strategies_of_a_directory_become_one(tmp_path, monkeypatch):
    import mindspore as ms

    monkeypatch.setattr(ms, "merge_pipeline_strategys", lambda source, target: Path(target).write_text(source))
    (tmp_path / "merged_ckpt_strategy.ckpt").write_text("old")
    merged = get_strategy(str(tmp_path))
    assert (tmp_path / "merged_ckpt_strategy.ckpt").read_text() == str(tmp_path) and merged.endswith("strategy.ckpt")
    assert get_strategy(tmp_path, 3) == str(tmp_path / "merged_ckpt_strategy_3.ckpt")
