"""What MindFormers' scripts that prepare data and checkpoints import."""

from __future__ import annotations

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.errors import InputError
from pet.compat.ckpt.doors import to_file
from pet.compat.ckpt.names import Form
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


def test_tensors_of_torch_and_of_mindspore():
    """What models' own scripts that convert import."""
    torch = pytest.importorskip("torch")
    from pet.compat.mindformers.utils.convert_utils import is_lora_param, ms2pt, pt2ms

    given = torch.tensor([[1.5, -2.0], [0.25, 3.0]], requires_grad=True)
    for theirs, ours in ((torch.float32, ms.float32), (torch.float16, ms.float16), (torch.bfloat16, ms.bfloat16)):
        made = pt2ms(given.to(theirs))
        assert made.dtype == ours and np.array_equal(made.astype(ms.float32).asnumpy(), given.detach().numpy())
        back = ms2pt(made)
        assert back.dtype == theirs and torch.equal(back.float(), given.detach())
        assert pt2ms(given.to(theirs), ms.float16).dtype == ms.float16
        assert ms2pt(made, torch.float64).dtype == torch.float64
    assert pt2ms(torch.arange(3)).dtype == ms.int64
    assert is_lora_param("layers.0.wq.mindpet_delta_lora_a") and not is_lora_param("layers.0.wq.weight")


@pytest.mark.parametrize("many", [pytest.param(1, id="bias"), pytest.param(3, id="matrix")])
def test_joined_parts_take_turns(many):
    from pet.compat.mindformers.utils.convert_utils import ffn_concat_hf2mg, qkv_concat_hf2mg

    rows = np.repeat(np.arange(16)[:, None], many, axis=1)
    found = qkv_concat_hf2mg(rows if many > 1 else rows[:, 0], num_heads=4, n_kv_heads=2, hidden_size=8)
    assert found.reshape(16, many)[:, 0].tolist() == [0, 1, 2, 3, 8, 9, 12, 13, 4, 5, 6, 7, 10, 11, 14, 15]
    for wrong in (rows[:15], rows[:, :, None]):
        with pytest.raises(InputError, match=r"qkv_weights shape is not supported.*; 8 \+ 2 · 4 rows were expected"):
            qkv_concat_hf2mg(wrong, num_heads=4, n_kv_heads=2, hidden_size=8)
    assert ffn_concat_hf2mg(rows, 8)[:, 0].tolist() == [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]


def test_joined_parts_are_those_of_written_files(fixtures, tmp_path):
    from pet.compat.mindformers.utils.convert_utils import ffn_concat_hf2mg, qkv_concat_hf2mg

    from pet.names import bundled_models

    base = bundled_models()["llama_tiny"]
    to_file(base, tmp_path / "joined.ckpt", Form(qkv_concat=True))
    found = ms.load_checkpoint(str(tmp_path / "joined.ckpt"))
    tensors = read_file(base / "model.safetensors")
    config = json.loads((base / "config.json").read_text())
    heads, groups, width = (config[f"{name}"] for name in ("num_attention_heads", "num_key_value_heads", "hidden_size"))
    assert groups < heads

    def joined(block: str, parts: str) -> np.ndarray:
        return np.concatenate([tensors[f"model.layers.0.{block}.{part}_proj.weight"] for part in parts.split()])

    qkv = qkv_concat_hf2mg(joined("self_attn", "q k v"), heads, groups, width)
    ffn = ffn_concat_hf2mg(joined("mlp", "gate up"), config["intermediate_size"])
    assert np.array_equal(found["model.layers.0.attention.w_qkv.weight"].asnumpy(), qkv)
    assert np.array_equal(found["model.layers.0.feed_forward.w_gate_hidden.weight"].asnumpy(), ffn)


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
