"""GGUF files: what is written into them. What is refused: test_gguf_refusals.py; what is read: test_gguf_live.py."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from gguf_models import LLAMA3_ROPE, PROMPT, adapters_in, llama_cpp

from model_zoo.checkpoint.reading import Checkpoint
from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.errors import InputError
from pet.names import bundled_models

gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def adapters(bases, tmp_path_factory):
    return adapters_in(tmp_path_factory.mktemp("adapters"), bases)


@pytest.mark.parametrize(("dtype", "kind", "most"), [("f16", "F16", 1e-3), ("q8_0", "Q8_0", 2e-2)])
def test_matrices_are_rounded_once_and_vectors_are_not(bases, tmp_path, caplog, dtype, kind, most):
    from pet.gguf.model import write_model

    write_model(bases("qwen3"), tmp_path / "base.gguf", dtype)
    reader = gguf.GGUFReader(tmp_path / "base.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    with Checkpoint(bases("qwen3")) as checkpoint:
        for ours, theirs in (
            ("self_attn.v_proj", "attn_v"),
            ("mlp.up_proj", "ffn_up"),
            ("self_attn.q_norm", "attn_q_norm"),
        ):
            tensor = tensors[f"blk.1.{theirs}.weight"]
            exact = checkpoint.read(f"model.layers.1.{ours}.weight", dtype="float32")
            found = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(exact.shape)
            assert tensor.tensor_type.name == ("F32" if exact.ndim == 1 else kind)
            assert np.abs(found - exact).max() <= (0 if exact.ndim == 1 else most * np.abs(exact).max())
    assert tensors["token_embd.weight"].tensor_type.name == kind
    assert "output.weight" not in tensors, "a tied head is written once"


def test_rows_that_q8_0_cannot_hold_stay_in_float16(tmp_path, caplog):
    from pet.gguf.model import write_model

    write_model(bundled_models()["llama_tiny"], tmp_path / "base.gguf", "q8_0")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "base.gguf").tensors}
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")
    assert "4 matrices stay in float16" in caplog.text


@pytest.mark.parametrize(
    ("name", "cut", "base"),
    [("llama3", "llama-bpe", 10000.0), ("glm4", "chatglm-bpe", 10000.0), ("chatglm", "chatglm-bpe", 500000.0)],
)
def test_words_and_rotations_are_named_as_llama_cpp_has_them(bases, tmp_path, name, cut, base):
    from pet.gguf.model import write_model

    write_model(bases(name), tmp_path / "base.gguf")
    reader = gguf.GGUFReader(tmp_path / "base.gguf")
    fields = {key.partition(".")[2]: field.contents() for key, field in reader.fields.items()}
    assert (fields["ggml.pre"], fields["rope.freq_base"]) == (cut, base)
    factors = [tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
    if name != "llama3":
        assert not factors
        return
    waves = 2 * np.pi * 10000.0 ** (np.arange(8) / 8)  # in positions, of a head of 16
    short, long, asked = 64 / 4.0, 64 / 1.0, LLAMA3_ROPE["factor"]
    smooth = (64 / waves - 1.0) / (4.0 - 1.0)
    between = 1 / ((1 - smooth) / asked + smooth)
    expected = np.where(waves < short, 1.0, np.where(waves > long, asked, between))
    np.testing.assert_allclose(factors[0], expected, rtol=1e-6)


def test_an_adapter_of_the_embedding_is_looked_up_by_ids(bases, tmp_path):
    from adapters.merge import merge
    from adapters.saving import save_adapter
    from model_zoo.auto import AutoModel
    from pet import apply_lora
    from pet.gguf.adapter import write_adapter

    model = apply_lora(AutoModel.from_pretrained(bases("glm")), rank=4, alpha=8, targets=["embed_tokens"])
    for number, parameter in enumerate(model.trainable_params(), 1):
        parameter.set_data(parameter + number)
    save_adapter(model, tmp_path / "adapter")
    write_adapter(tmp_path / "adapter", bases("glm"), tmp_path / "lora.gguf")
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "lora.gguf").tensors}
    a, b = (found[f"token_embd.weight.lora_{part}"] for part in "ab")
    assert (a.shape, b.shape) == ((1216, 4), (64, 4))
    weight = model.model.embed_tokens.weight
    plain = weight.asnumpy().copy()
    merge(model)
    np.testing.assert_allclose(plain + 2 * a @ b.T, weight.asnumpy(), rtol=1e-5)


def test_buffers_of_published_files_are_left_out(tmp_path):
    """Llama 2's and ChatGLM's have the frequencies of their rotations."""
    from pet.gguf.model import write_model

    base = tmp_path / "base"
    shutil.copytree(bundled_models()["llama_tiny"], base)
    write_model(base, tmp_path / "plain.gguf")
    tensors = read_file(base / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    write_file(base / "model.safetensors", tensors)
    write_model(base, tmp_path / "base.gguf")
    assert (tmp_path / "base.gguf").read_bytes() == (tmp_path / "plain.gguf").read_bytes()
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    write_file(base / "model.safetensors", tensors)
    with pytest.raises(InputError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        write_model(base, tmp_path / "tied.gguf")


def test_the_file_carries_the_chat_template_and_the_ends(tmp_path):
    from pet.gguf.model import write_model

    base = bundled_models()["llama_tiny"]
    write_model(base, tmp_path / "base.gguf", name="tiny")
    fields = gguf.GGUFReader(tmp_path / "base.gguf").fields
    template = json.loads((base / "tokenizer_config.json").read_text())["chat_template"]
    assert fields["tokenizer.chat_template"].contents() == template
    assert (fields["tokenizer.ggml.bos_token_id"].contents(), fields["tokenizer.ggml.eos_token_id"].contents()) == (
        1,
        2,
    )
    assert fields["general.name"].contents() == "tiny"


def test_settings_of_generation_that_a_file_has_no_place_for_are_named(bases, tmp_path, caplog):
    """A greedy run's generation_config.json has none."""
    from pet.gguf.model import write_model

    base = tmp_path / "base"
    shutil.copytree(bases("llama"), base)
    greedy = {"do_sample": False, "eos_token_id": [2], "max_new_tokens": 96, "top_p": 1.0}
    for more, named in (({}, None), ({"temperature": 0.6, "stop_strings": ["Q:"]}, "temperature, stop_strings;")):
        (base / "generation_config.json").write_text(json.dumps({**greedy, **more}))
        write_model(base, tmp_path / "base.gguf")
        assert named in caplog.text if named else "no place" not in caplog.text


def test_the_context_ends_where_a_window_begins_to_matter(tmp_path):
    """llama.cpp's attention is full in this architecture."""
    from pet.gguf.model import write_model

    base = tmp_path / "base"
    shutil.copytree(bundled_models()["llama_tiny"], base)
    config = json.loads((base / "config.json").read_text())
    values = {"model_type": "mistral", "sliding_window": 48, "architectures": ["MistralForCausalLM"]}
    (base / "config.json").write_text(json.dumps({**config, **values}))
    write_model(base, tmp_path / "base.gguf")
    fields = gguf.GGUFReader(tmp_path / "base.gguf").fields
    assert config["max_position_embeddings"] > 48
    assert fields["llama.context_length"].contents() == 48


def vocabulary_in(file):
    fields = gguf.GGUFReader(file).fields
    return {key: fields[f"tokenizer.ggml.{key}"].contents() for key in ("model", "tokens", "scores", "token_type")}


def test_a_sentencepiece_model_in_json_is_that_model(bases, tmp_path, caplog):
    """The same texts and types; and scores in the same order, which is all that counts of them."""
    from pet.gguf.model import write_model

    found = []
    for name in ("llama", "llama_json"):
        write_model(bases(name), tmp_path / name)
        found.append(vocabulary_in(tmp_path / name))
        # the step that transformers 5 writes leaves such texts as they are
        assert ("in front of texts that begin with one, too" in caplog.text) == (name == "llama_json")
    exact, mine = found
    assert [mine[key] for key in ("model", "tokens", "token_type")] == [
        exact[key] for key in ("model", "tokens", "token_type")
    ]
    made = [n for n, (text, kind) in enumerate(zip(exact["tokens"], exact["token_type"], strict=True)) if kind == 1]
    made = [n for n in made if len(exact["tokens"][n]) > 1]
    assert len(made) > 100
    orders = [sorted(made, key=lambda n, scores=one["scores"]: -scores[n]) for one in found]
    assert orders[0] == orders[1]


def edited(description, kind):
    """A tokenizer.json that joins pieces otherwise than sentencepiece."""
    if kind == "normalizer":
        description["normalizer"] = {"type": "NFKC"}
    merges = description["model"]["merges"]
    made = ["".join(merge) for merge in merges]
    if kind == "missing":
        merges.remove(merges[-1])
    if kind == "apart":
        twice = next(n for n, piece in enumerate(made) if made.count(piece) > 1)
        merges.append(merges.pop(twice))
    return description


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("normalizer", "its step NFKC"),
        ("missing", r"\+ \S+ makes a piece, but is no merge"),
        ("apart", r"the merges that make \S+ are mixed with others"),
    ],
)
def test_a_json_that_is_no_sentencepiece_model_is_refused(bases, tmp_path, kind, words):
    from pet.gguf.model import write_model

    shutil.copytree(bases("llama_json"), tmp_path / "base")
    file = tmp_path / "base/tokenizer.json"
    file.write_text(json.dumps(edited(json.loads(file.read_text()), kind)))
    with pytest.raises(InputError, match=f"is no sentencepiece model.*{words}"):
        write_model(tmp_path / "base", tmp_path / "base.gguf")


@pytest.fixture(scope="module")
def trained(bases, tmp_path_factory):
    """``(name, settings of sentencepiece's trainer)`` → a base with a tokenizer.model of its own."""
    import sentencepiece

    place = tmp_path_factory.mktemp("trained")
    rows = json.loads((bundled_models()["llama_tiny"].parents[1] / "data/alpaca/train.json").read_text())
    (place / "texts").write_text("\n".join(row["instruction"] for row in rows))
    llama = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}

    def make(name, **settings):
        shutil.copytree(bases("llama"), place / name)
        given = {**llama, "model_type": "bpe", "vocab_size": 600, "hard_vocab_limit": False, **settings}
        sentencepiece.SentencePieceTrainer.train(
            input=str(place / "texts"), model_prefix=str(place / name / "tokenizer"), minloglevel=2, **given
        )
        return place / name

    return make


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": "unigram"}, "it is no BPE model"),
        ({"normalization_rule_name": "nmt_nfkc"}, "it normalizes texts"),
        ({"remove_extra_whitespaces": True}, "it normalizes texts"),
        ({"byte_fallback": False}, "it has no piece for each byte"),
        ({"treat_whitespace_as_suffix": True}, "it puts spaces at the end of words"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_sentencepiece_model_of_another_kind_is_refused(trained, tmp_path, settings, words):
    """llama.cpp 0.3.36's sources read none of these, and cut texts otherwise, or end with an error."""
    from pet.gguf.model import write_model

    with pytest.raises(InputError, match=f"is no sentencepiece model of LLaMA's kind.*: {words}"):
        write_model(trained(next(iter(settings)), **settings), tmp_path / "base.gguf")
    assert not (tmp_path / "base.gguf").exists()


def test_pieces_that_are_whole_and_control_tokens_among_them(trained, tmp_path, caplog):
    """As in Yi's tokenizer.model: what tokenizer_config.json calls special is a piece of texts to sentencepiece."""
    from pet.gguf.model import write_model

    base = trained("whole", user_defined_symbols=["<|turn|>", "<sep>", "\u2581\u2581"])
    entry = {"content": "<|turn|>", "special": True}
    (base / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": {"3": entry}})
    )
    write_model(base, tmp_path / "base.gguf")
    found = vocabulary_in(tmp_path / "base.gguf")
    assert found["tokens"][:6] == ["<unk>", "<s>", "</s>", "<|turn|>", "<sep>", "  "]
    kinds = gguf.TokenType
    assert found["token_type"][:6] == [
        kinds.UNKNOWN,
        *[kinds.CONTROL] * 3,
        *[kinds.USER_DEFINED] * 2,
    ]
    assert "llama.cpp puts a space behind <sep>" in caplog.text


CHATS = "{% for message in messages %}<|turn|>{{ message.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("qwen2", {}, []),
        ("qwen2", {"lstrip": True}, ["in texts llama.cpp minds neither spaces nor words beside <tool>"]),
        ("llama", {"legacy": True}, ["in texts llama.cpp puts a space behind <tool>"]),
        (
            "llama",
            {"legacy": False},
            ["a space behind <tool>", "in prompts llama.cpp puts a space behind control tokens"],
        ),
        ("llama", {"legacy": True, "chat_template": CHATS}, ["behind <tool>", "in front of chats, too"]),
    ],
    ids=str,
)
def test_where_llama_cpp_cuts_otherwise_is_said(bases, tmp_path, caplog, name, settings, words):
    from pet.cli.main import main
    from pet.gguf.model import write_model

    for word, plain in (("<|turn|>", []), ("<tool>", ["--plain"])):
        source = tmp_path / "<|turn|>" if plain else bases(name)
        assert main(["add-tokens", str(source), *plain, word, "--output", str(tmp_path / word)]) == 0
    file = tmp_path / "<tool>" / ("tokenizer.json" if name == "qwen2" else "tokenizer_config.json")
    values = json.loads(file.read_text())
    changed = values["added_tokens"][-1] if name == "qwen2" else values
    changed.update(settings)
    file.write_text(json.dumps(values))
    caplog.clear()
    write_model(tmp_path / "<tool>", tmp_path / "base.gguf")
    said = [record.getMessage() for record in caplog.records if "llama.cpp" in record.getMessage()]
    assert len(said) == len(words) and all(word in one for word, one in zip(words, said, strict=True))


def test_the_missing_package_is_named(tmp_path, monkeypatch):
    import sys

    from pet.gguf.model import write_model

    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"needs the package gguf: pip install 'mindspore-pet\[gguf\]'"):
        write_model(bundled_models()["llama_tiny"], tmp_path / "base.gguf")


def test_the_command(adapters, bases, tmp_path, capsys):
    from pet.cli.main import main

    base, adapter = str(bases("llama")), str(adapters("llama")[1])
    merged, lora = tmp_path / "merged.gguf", tmp_path / "lora.gguf"
    options = ["--base", base, "--format"]
    assert main(["export", adapter, *options, "gguf", "--dtype", "float32", "--output", str(merged)]) == 0
    assert main(["export", adapter, *options, "gguf-lora", "--output", str(lora)]) == 0
    assert "LoRA on 14 matrices of llama" in capsys.readouterr().out
    from model_zoo.tokenizers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(base).encode(PROMPT)
    assert llama_cpp(merged, ids) == adapters("llama")[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lora.gguf", "merged.gguf"]
    for wrong, words in (
        (["export", base, "--format", "gguf", "--output", str(lora)], "is there already"),
        (["export", base, "--format", "gguf-lora", "--output", str(tmp_path / "x")], "there is no adapter to"),
        (["export", base, "--format", "ggfu", "--output", str(tmp_path / "x")], "did you mean 'gguf'"),
        (["export", base, "--format", "gguf", "--merged", "--output", str(tmp_path / "x")], "give one of them"),
        (["export", base, "--format", "gguf", "--dtype", "q4_k", "--output", str(tmp_path / "x")], "no type of a GGUF"),
    ):
        assert main(wrong) == 2
        assert words in capsys.readouterr().err


def test_runs_of_spaces_whose_merges_are_mixed_share_a_score():
    """As sentencepiece gives them one, published files have their merges by the length of the first part."""
    from pet.gguf.vocabulary import _scores

    merges = [("▁", "t"), ("▁▁▁", "▁"), ("▁▁", "▁▁"), ("▁▁", "▁"), ("▁", "▁▁▁"), ("▁", "▁▁"), ("▁", "▁")]
    scores = _scores(None, merges)
    assert scores["▁t"] > scores["▁▁▁▁"] == scores["▁▁▁"] > scores["▁▁"]
