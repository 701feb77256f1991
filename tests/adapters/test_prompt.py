"""Prompt tuning and p-tuning: where the prompt stands, who sees it, and PEFT's own result."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from mindspore import Tensor, ops

import pet
from adapters.cells import weight_of
from adapters.prompt import PromptConfig
from adapters.registry import registry
from model_zoo import errors
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, write_file
from model_zoo.engine import available
from model_zoo.errors import InputError
from model_zoo.generation.decoders import CachedDecoder, bucket
from pet.train.step import in_whole

os.environ.setdefault("HF_HUB_OFFLINE", "1")
LIMIT = 1e-4


@pytest.fixture(scope="module")
def models(fixtures):
    """Each base once; tests take their adapters off again."""
    loaded = {}

    def get(name):
        if name not in loaded:
            loaded[name] = pet.AutoModel.from_pretrained(str(fixtures / name))
            loaded[name].set_train(False)
        return loaded[name]

    return get


@pytest.fixture
def prompted():
    """Applies prompts, and takes everything off again."""
    used = []

    def on(model, **settings):
        used.append(model)
        return pet.apply_prompt(model, **settings)

    yield on
    for model in used:
        for name in pet.list_adapters(model):
            pet.delete_adapter(model, name)


@pytest.mark.parametrize("family", ("gpt2", "llama_gqa", "glm4_0414", "chatglm2"))
def test_a_prompt_of_a_text_is_the_text(models, prompted, fixtures, family):
    model, text = models(family), [5, 9, 33]
    ids = np.load(fixtures / family / "ref.npz")["input_ids"]
    whole = model(np.concatenate([np.tile(text, (len(ids), 1)), ids], 1)).asnumpy()[:, 3:]
    prompted(model, length=3, init_ids=text)
    assert np.abs(model(ids).asnumpy() - whole).max() < LIMIT


@pytest.mark.parametrize("family", ("llama_gqa", "chatglm1"))
def test_padding_and_packing_do_not_change_what_a_document_sees(models, prompted, fixtures, family):
    model = models(family)
    reference = np.load(fixtures / family / "ref.npz")
    first, second = (row[:length] for row, length in zip(reference["input_ids"], (9, 9), strict=True))
    prompted(model, length=4)
    noise = np.random.default_rng(0).standard_normal((4, model.config.dims.hidden)).astype(np.float32)
    pet.trainable_parameters(model)[0].set_data(Tensor(noise))
    alone = [model(row[None]).asnumpy()[0] for row in (first, second)]
    # left padding
    ids = np.concatenate([np.zeros(3, np.int64), first])[None]
    mask = np.concatenate([np.zeros(3, np.int64), np.ones(9, np.int64)])[None]
    assert np.abs(model(ids, mask).asnumpy()[0, 3:] - alone[0]).max() < LIMIT
    # two documents in a row, as the trainer packs them: positions already behind the prompt
    from pet.train.feed import layout_of

    places = [layout_of(model)(row) for row in (first, second)]
    position_ids = np.concatenate([place for place, _ in places], -1)[None]
    start = np.repeat([0, 9], 9)[None]
    end = np.concatenate([end + offset for (_, end), offset in zip(places, (0, 9), strict=True)])[None]
    arguments = [np.concatenate([first, second])[None], position_ids, start, end]
    hidden = model.hidden_states(*(Tensor(np.asarray(value, np.int32)) for value in arguments))
    packed = model.head(hidden).asnumpy()
    assert np.abs(packed - np.concatenate(alone)).max() < LIMIT


@pytest.mark.skipif(not available(), reason="without a compiler there is no program")
@pytest.mark.parametrize("family", ("gpt2", "llama_gqa", "glm4_0414", "chatglm2"))
def test_answers_behind_a_prompt_are_computed_without_a_graph(models, prompted, fixtures, family):
    model, reference = models(family), np.load(fixtures / family / "ref.npz")
    ids, mask = reference["pad_input_ids"], reference["pad_attention_mask"]
    prompted(model, length=3)
    expected = model(ids, mask).asnumpy()[:, -3:]
    decoder = CachedDecoder(model, len(ids), bucket(ids.shape[1] - 2), 64)
    found = [decoder.start(ids[:, :-2], mask[:, :-2]), decoder.step(ids[:, -2]), decoder.step(ids[:, -1])]
    assert decoder.token is not None and decoder.eager(decoder.prefill)
    assert np.abs(np.stack(found, 1) - expected).max() < LIMIT


def test_rows_with_different_prompts_and_cached_generation(models, prompted, fixtures):
    model = models("gpt2")
    reference = np.load(fixtures / "gpt2" / "ref.npz")
    ids, mask = reference["pad_input_ids"][:1].repeat(3, 0), reference["pad_attention_mask"][:1].repeat(3, 0)
    prompted(model, length=2, name="short")
    pet.add_adapter(model, PromptConfig(length=5, seed=3), "long")
    real = mask[0] != 0
    expected, answers = [], []
    for name in ("short", "long"):
        pet.set_adapter(model, name)
        expected.append(model(ids[:1], mask[:1]).asnumpy()[0])
        answers.append(model.generate(ids[:1], mask[:1], max_new_tokens=4, use_cache=False)[0])
    with pet.disable_adapters(model):
        expected.append(model(ids[:1], mask[:1]).asnumpy()[0])
        answers.append(model.generate(ids[:1], mask[:1], max_new_tokens=4, use_cache=False)[0])
    with pet.adapter_names(model, ["short", "long", "__base__"]):
        mixed = model(ids, mask).asnumpy()
        generated = model.generate(ids, mask, max_new_tokens=4)
        with pytest.raises(InputError, match="num_beams"):
            model.generate(ids, mask, max_new_tokens=4, num_beams=2)
    assert np.abs(mixed - np.stack(expected))[:, real].max() < LIMIT
    assert np.array_equal(generated, np.stack(answers))
    assert np.abs(expected[0] - expected[1])[real].max() > 0.01
    with pytest.raises(InputError, match="only one can be active"):
        pet.set_adapter(model, ["short", "long"])


def test_a_prompt_starts_from_the_vocabulary(models, prompted):
    model = models("gpt2")
    table = weight_of(model.transformer.wte).asnumpy()
    prompted(model, length=4)
    start = pet.trainable_parameters(model)[0].asnumpy()
    assert all((table == row).all(1).any() for row in start)


@pytest.mark.parametrize("kind", ("prompt", "p_tuning"))
@pytest.mark.parametrize("family", ("gpt2", "llama_gqa"))
def test_peft_and_we_read_each_others_prompts(models, fixtures, tmp_path, family, kind):
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    peft = pytest.importorskip("peft", reason="peft is not installed: nothing to compare with")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    model = models(family)
    ids = np.load(fixtures / family / "ref.npz")["input_ids"]
    base = transformers.AutoModelForCausalLM.from_pretrained(fixtures / family).eval()
    if kind == "prompt":
        config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
    else:
        config = peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=5, encoder_hidden_size=24)
    torch.manual_seed(0)
    theirs = peft.get_peft_model(base, config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits[:, 5:].numpy()
    pet.load_adapter(model, tmp_path / "theirs")
    try:
        assert np.abs(model(ids).asnumpy() - expected).max() < LIMIT
        pet.save_adapter(model, tmp_path / "back")
    finally:
        pet.delete_adapter(model, "default")
    file = "adapter_model.safetensors"
    assert (tmp_path / "back" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes()
    if kind == "prompt":
        pet.apply_prompt(model, length=5)
    else:
        pet.apply_p_tuning(model, length=5, projection_hidden=24)
    try:
        ours = model(ids).asnumpy()
        pet.save_adapter(model, tmp_path / "ours")
    finally:
        pet.delete_adapter(model, "default")
    base = transformers.AutoModelForCausalLM.from_pretrained(fixtures / family).eval()
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    with torch.no_grad():
        assert np.abs(theirs(torch.tensor(ids)).logits[:, 5:].numpy() - ours).max() < LIMIT


@pytest.mark.parametrize("method", ("prompt", "prefix", "p_tuning"))
def test_a_window_by_which_peft_answers_otherwise_is_said(fixtures, tmp_path, caplog, method):
    """On saving, and on loading what was not made here; once."""
    model, said = pet.AutoModel.from_pretrained(fixtures / "mistral"), []

    def told():
        said[:] = [one for one in caplog.messages if "sliding_window" in one]
        return len(said)

    getattr(pet, f"apply_{method}")(model, length=2)
    assert not told()
    for _ in range(2):
        pet.save_adapter(model, tmp_path)
        assert told() == 1 and "sliding_window=5, so that in PEFT tokens behind the first 3 see less" in said[0]
    errors._warned.clear()
    pet.load_adapter(model, tmp_path, name="again")
    assert told() == 1
    file = SafetensorsFile(tmp_path / "adapter_model.safetensors")
    arrays = {name: file.read(name) for name in file.tensors}
    write_file(tmp_path / "adapter_model.safetensors", arrays, {"format": "pt"})
    pet.load_adapter(model, tmp_path, name="theirs")
    assert told() == 2


@pytest.mark.parametrize("kind", ("prompt", "prefix"))
def test_what_stands_in_front_is_seen_from_beyond_the_window(fixtures, tmp_path, kind):
    """As transformers' own model has it under a mask that says so. In PEFT it takes places of the window: the first
    w − T tokens agree."""
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    peft = pytest.importorskip("peft", reason="peft is not installed: nothing to compare with")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    front, count = 2, 12
    ids = np.random.default_rng(0).integers(3, 60, (2, count))
    model = pet.AutoModel.from_pretrained(fixtures / "mistral")
    window = model.config.windows[0]
    (pet.apply_prompt if kind == "prompt" else pet.apply_prefix)(model, length=front)
    for number, parameter in enumerate(pet.trainable_parameters(model)):
        values = np.random.default_rng(number).standard_normal(parameter.shape).astype(np.float32)
        ops.assign(parameter, Tensor(values))
    pet.save_adapter(model, tmp_path)
    base = transformers.AutoModelForCausalLM.from_pretrained(fixtures / "mistral", attn_implementation="eager").eval()
    query, key = torch.arange(front + count)[:, None], torch.arange(front + count)
    seen = (key <= query) & ((key > query - window) | (key < front))
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None].expand(2, 1, -1, -1)
    with torch.no_grad():
        theirs = peft.PeftModel.from_pretrained(base, tmp_path).eval()
        pefts = theirs(torch.tensor(ids)).logits[:, -count:].numpy()
        given = {"inputs_embeds": base.get_input_embeddings()(torch.tensor(ids)), "attention_mask": mask}
        if kind == "prompt":
            given["inputs_embeds"] = torch.cat([theirs.get_prompt(2), given["inputs_embeds"]], 1)
        else:  # a cache that keeps all, not the window alone
            layers = [(layer.keys, layer.values) for layer in theirs.get_prompt(2).layers]
            given["past_key_values"] = transformers.DynamicCache(layers)
            places = front + torch.arange(count)[None].expand(2, -1)
            given |= {"attention_mask": mask[:, :, front:], "position_ids": places}
        expected = base(**given).logits[:, -count:].numpy()
    agree = np.abs(pefts - expected).max((0, 2)) < LIMIT
    assert agree.tolist() == [token < window - front for token in range(count)]
    model.set_train(False)
    for fast in (False, True):
        model.set_fast(fast)
        with in_whole(model):  # as a training step runs them
            assert np.abs(model(ids).asnumpy() - expected).max() < LIMIT


def test_peft_opens_a_prompt_that_began_as_its_text_and_was_trained_on(models, prompted, tmp_path):
    """PEFT refuses settings of a text beside any other start."""
    peft = pytest.importorskip("peft", reason="peft is not installed: nothing to compare with")
    model = models("gpt2")
    prompted(model, length=2)
    pet.save_adapter(model, tmp_path / "theirs")
    pet.delete_adapter(model, "default")
    file = tmp_path / "theirs" / "adapter_config.json"
    text = {"prompt_tuning_init": "TEXT", "prompt_tuning_init_text": "a", "tokenizer_name_or_path": "b"}
    file.write_text(json.dumps({**json.loads(file.read_text()), **text, "tokenizer_kwargs": {"use_fast": True}}))
    assert peft.PeftConfig.from_pretrained(tmp_path / "theirs").prompt_tuning_init == "TEXT"
    pet.load_adapter(model, tmp_path / "theirs")
    prompt = registry(model).get("default").parameters()[0]
    ops.assign(prompt, prompt + 1)
    pet.save_adapter(model, tmp_path / "ours")
    assert peft.PeftConfig.from_pretrained(tmp_path / "ours").prompt_tuning_init == "RANDOM"


@pytest.mark.parametrize("order", (["prompt", "table"], ["table", "prompt"]), ids="-".join)
@pytest.mark.parametrize("kind", ("lora", "dora", "tokens"))
def test_an_adapter_on_the_embedding_changes_no_prompt(models, prompted, kind, order):
    """In whatever order they are active; as over a base whose table was changed for good."""
    model = models("llama_gqa")
    vocabulary, ids = model.config.dims.vocab, np.array([[5, 9, 3, 7]])
    rows = {"trainable_tokens": [9, vocabulary - 2, vocabulary - 1]}  # new tokens are the last ones
    table = {"lora": {}, "dora": {"use_dora": True}, "tokens": {"targets": "q_proj", **rows}}[kind]
    prompted(model, length=3, name="prompt")
    pet.add_adapter(model, pet.LoRAConfig(rank=2, **{"targets": "embed_tokens", **table}), "table")
    pet.set_adapter(model, order)
    for parameter in pet.trainable_parameters(model):
        parameter.set_data(parameter + 0.1)
    found = model(ids).asnumpy()
    pet.merge(model, "table")
    try:
        assert np.abs(model(ids).asnumpy() - found).max() < LIMIT
    finally:
        pet.unmerge(model)


def test_several_prompts_are_told_apart(models, prompted):
    model = models("gpt2")
    prompted(model, length=2)
    pet.apply_p_tuning(model, length=3, projection_hidden=8, name="second")
    names = [p.name for adapter in registry(model).adapters.values() for p in adapter.parameters()]
    assert len(set(names)) == len(names)
    with pytest.raises(InputError, match="stand in front of the input"):
        pet.merge(model)
