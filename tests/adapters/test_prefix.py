"""Prefix tuning and P-Tuning v2 against the reference files: logits, training curves, and files byte for byte."""

from __future__ import annotations

import json
import os

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from safetensors.numpy import load_file, save_file

import pet
from adapters.prefix import PrefixConfig
from adapters.registry import registry
from model_zoo.engine import available
from model_zoo.errors import InputError
from model_zoo.generation.decoders import CachedDecoder, bucket
from pet.train.objectives.causal import CausalLM

os.environ.setdefault("HF_HUB_OFFLINE", "1")
FAMILIES = ("gpt2", "llama_mha", "llama_gqa", "glm")
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


def differ(logits, expected, where=None) -> float:
    distance = np.abs(logits.asnumpy() - expected)
    return float((distance if where is None else distance[where]).max())


@pytest.mark.parametrize("kind", ("prefix", "prefix_proj"))
@pytest.mark.parametrize("family", FAMILIES)
def test_pefts_prefixes_give_their_logits_and_their_files_back(fixtures, models, tmp_path, family, kind):
    model, reference = models(family), np.load(fixtures / family / f"{kind}_ref.npz")
    pet.load_adapter(model, fixtures / family / kind)
    try:
        assert differ(model(reference["input_ids"]), reference["prefix_logits"]) < LIMIT
        real = reference["pad_attention_mask"] != 0
        padded = model(reference["pad_input_ids"], reference["pad_attention_mask"])
        assert differ(padded, reference["pad_prefix_logits"], real) < LIMIT
        pet.save_adapter(model, tmp_path)
    finally:
        pet.delete_adapter(model, "default")
    file = "adapter_model.safetensors"
    assert (tmp_path / file).read_bytes() == (fixtures / family / kind / file).read_bytes()
    written, given = (
        json.loads((place / "adapter_config.json").read_text()) for place in (tmp_path, fixtures / family / kind)
    )
    assert written == given


@pytest.mark.parametrize("kind", ("ptuning_v2", "ptuning_v2_proj"))
@pytest.mark.parametrize("family", ("chatglm1", "chatglm2"))
def test_chatglms_own_prefixes(fixtures, models, tmp_path, family, kind):
    model, reference = models(family), np.load(fixtures / family / f"{kind}_ref.npz")
    source = fixtures / family / f"{kind}.safetensors"
    pet.load_ptuning(model, source)
    try:
        assert differ(model(reference["input_ids"]), reference["logits"]) < LIMIT
        pet.save_ptuning(model, tmp_path / "native.safetensors")
        pet.save_adapter(model, tmp_path / "directory")
        pet.delete_adapter(model, "default")
        pet.load_adapter(model, tmp_path / "directory")
        assert differ(model(reference["input_ids"]), reference["logits"]) < LIMIT
    finally:
        pet.delete_adapter(model, "default")
    written, given = load_file(tmp_path / "native.safetensors"), load_file(source)
    assert written.keys() == given.keys()
    assert all(np.array_equal(written[key], given[key]) for key in given)


def test_a_prefix_as_chatglms_script_leaves_it(fixtures, models, tmp_path):
    torch = pytest.importorskip("torch")
    model, reference = models("chatglm1"), np.load(fixtures / "chatglm1" / "ptuning_v2_ref.npz")
    tensors = load_file(fixtures / "chatglm1" / "ptuning_v2.safetensors")
    torch.save({name: torch.from_numpy(value) for name, value in tensors.items()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "optimizer.pt").write_bytes(b"of another matter")
    pet.load_ptuning(model, tmp_path)
    try:
        assert differ(model(reference["input_ids"]), reference["logits"]) < LIMIT
    finally:
        pet.delete_adapter(model, "default")


def set_encoder(adapter, reference) -> None:
    """PEFT's encoder, as the reference file names its parts, into the layers' shares."""
    parts = {key[4:]: reference[key] for key in reference.files if key.startswith("enc/")}
    modules = list(adapter.modules.values())
    if "transform.0.weight" not in parts:
        shares = np.split(parts["embedding.weight"], len(modules), 1)
        for module, share in zip(modules, shares, strict=True):
            module.prompt.set_data(Tensor(np.ascontiguousarray(share)))
        return
    trunk = modules[0].trunk
    for parameter, key in (
        (trunk.embedding, "embedding.weight"),
        (trunk.weight, "transform.0.weight"),
        (trunk.bias, "transform.0.bias"),
    ):
        parameter.set_data(Tensor(parts[key]))
    weights, biases = (np.split(parts[f"transform.2.{key}"], len(modules)) for key in ("weight", "bias"))
    for module, weight, bias in zip(modules, weights, biases, strict=True):
        module.weight.set_data(Tensor(np.ascontiguousarray(weight)))
        module.bias.set_data(Tensor(np.ascontiguousarray(bias)))


@pytest.mark.cover(by=lambda family, kind: [family, (kind, family in ("gpt2", "glm"))])  # with biases and without
@pytest.mark.parametrize("kind", ("prefix", "prefix_proj"))
@pytest.mark.parametrize("family", FAMILIES)
def test_training_follows_pefts_curve(fixtures, models, tmp_path, family, kind):
    model, reference = models(family), np.load(fixtures / family / f"{kind}_ref.npz")
    hidden = 48 if kind == "prefix_proj" else None
    pet.apply_prefix(model, length=8, projection=hidden is not None, projection_hidden=hidden)
    try:
        set_encoder(registry(model).get("default"), reference)
        parameters = pet.trainable_parameters(model)
        optimizer, loss = nn.Adam(parameters, 1e-3, beta1=0.9, beta2=0.999, eps=1e-8), CausalLM()

        def mean_loss(ids, labels):
            total = loss(model.head(model.hidden_states(ids, *model.layout(ids))), labels)
            return total / (labels[:, 1:] != -100).astype(ms.float32).sum()

        step = ms.value_and_grad(mean_loss, None, optimizer.parameters)
        for number, expected in enumerate(reference["train_losses"]):
            batch = (reference[key][number % 5].astype(np.int32) for key in ("train_input_ids", "train_labels"))
            value, gradients = step(*map(Tensor, batch))
            assert abs(float(value.asnumpy()) - expected) < LIMIT, f"step {number}"
            optimizer(gradients)
        pet.save_adapter(model, tmp_path)
    finally:
        pet.delete_adapter(model, "default")
    final = load_file(fixtures / family / f"{kind}_train_final" / "adapter_model.safetensors")["prompt_embeddings"]
    distance = np.abs(load_file(tmp_path / "adapter_model.safetensors")["prompt_embeddings"] - final)
    # Adam divides by the gradient's size: where that is all but zero, its sign is chance
    assert distance.mean() < LIMIT and distance.max() < 5e-3


@pytest.mark.parametrize("family", ("llama_gqa", "chatglm1"))
def test_a_prefix_from_a_text_acts_as_the_text(models, fixtures, family):
    """Behind its real keys and values, tokens see what they would see behind the text itself."""
    model = models(family)
    ids = np.load(fixtures / family / "ref.npz")["input_ids"][:1]
    text, rest = [7, 9, 30, 41], ids
    if family == "chatglm1":
        # the text's keys were made without the question in sight, so only the positions can be told from outside
        model_ids = np.concatenate([[text], rest], 1)
        pet.apply_prefix(model, length=4, init_ids=text)
        try:
            first = next(iter(registry(model).get("default").modules.values()))
            keys = first.prompt.asnumpy()[:, : first.prompt.shape[1] // 2]
            recorded = record_keys(model, model_ids)
        finally:
            pet.delete_adapter(model, "default")
        assert np.abs(keys - recorded[:4]).max() < 1e-5
        return
    whole = model(np.concatenate([[text], rest], 1)).asnumpy()[:, 4:]
    pet.apply_prefix(model, length=4, init_ids=text)
    try:
        assert differ(model(rest), whole) < LIMIT
    finally:
        pet.delete_adapter(model, "default")


def record_keys(model, ids) -> np.ndarray:
    """The first layer's rotated keys of a text, ``(S, kv_dim)``: they depend on nothing but token and position."""
    from adapters.matching import sites
    from adapters.prefix import real_shares

    with pet.disable_adapters(model):
        chosen = [site for site in sites(model) if site.kind == "attention"]
        return real_shares(model, chosen, ids[0].tolist())[0][:, : chosen[0].in_features * chosen[0].out_features]


@pytest.mark.skipif(not available(), reason="without a compiler there is no program")
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_behind_a_prefix_are_computed_without_a_graph(models, fixtures, family):
    """A prompt, which is padded, and single tokens give the logits of all of it at once."""
    model, reference = models(family), np.load(fixtures / family / "prefix_ref.npz")
    ids, mask = reference["pad_input_ids"], reference["pad_attention_mask"]
    pet.load_adapter(model, fixtures / family / "prefix")
    try:
        decoder = CachedDecoder(model, len(ids), bucket(ids.shape[1] - 2), 64)
        found = [decoder.start(ids[:, :-2], mask[:, :-2]), decoder.step(ids[:, -2]), decoder.step(ids[:, -1])]
        assert decoder.token is not None and decoder.eager(decoder.prefill)
    finally:
        pet.delete_adapter(model, "default")
    expected = reference["pad_prefix_logits"]
    real = mask[:, -1] != 0
    assert real.any() and np.abs(np.stack(found, 1) - expected[:, -3:])[real].max() < LIMIT


def test_rows_of_a_batch_each_with_their_own_prefix(models, fixtures):
    model, reference = models("llama_gqa"), np.load(fixtures / "llama_gqa" / "ref.npz")
    ids = np.repeat(reference["input_ids"][:1], 4, 0)
    pet.apply_prefix(model, length=3, name="short")
    pet.add_adapter(model, PrefixConfig(length=6, seed=1), "long")
    pet.add_adapter(model, pet.LoRAConfig(rank=2), "lora")
    try:
        lora = registry(model).get("lora")
        for parameter in lora.parameters():
            parameter.set_data(Tensor(np.random.default_rng(0).standard_normal(parameter.shape).astype(np.float32)))
        expected = []
        for name in ("short", "long", "lora"):
            pet.set_adapter(model, name)
            expected.append(model(ids[:1]).asnumpy()[0])
        with pet.disable_adapters(model):
            expected.append(model(ids[:1]).asnumpy()[0])
        with pet.adapter_names(model, ["short", "long", "lora", "__base__"]):
            mixed = model(ids).asnumpy()
        assert np.abs(mixed - np.stack(expected)).max() < LIMIT
        assert np.abs(expected[0] - expected[1]).max() > 0.01  # they do differ
    finally:
        for name in ("short", "long", "lora"):
            pet.delete_adapter(model, name)


def test_the_network_of_a_projection_is_trained_and_its_names_are_unique(models):
    model = models("gpt2")
    pet.apply_prefix(model, length=4, projection=True, projection_hidden=8)
    pet.apply_ptuning(model, length=4, projection=True, projection_hidden=8, name="second")
    try:
        every = [p for adapter in registry(model).adapters.values() for p in adapter.parameters()]
        names = [parameter.name for parameter in every]
        assert len(set(names)) == len(names) == len({id(parameter) for parameter in every})
        for name in ("default", "second"):
            adapter = registry(model).get(name)
            count = sum(parameter.size for parameter in adapter.parameters())
            assert count == pet.plan(model, adapter.config).parameters
    finally:
        pet.delete_adapter(model, "second")
        pet.delete_adapter(model, "default")


def test_what_cannot_be_is_refused(models, fixtures, tmp_path):
    model = models("gpt2")
    before = [parameter.name for parameter in model.get_parameters()]
    for settings, text in (
        ({"length": 0}, "length"),
        ({"length": 4, "targets": ["c_attn"]}, "targets"),
        ({"length": 4, "init_text": "hello"}, "tokenizer"),
        ({"length": 4, "init_text": "hello", "tokenizer": "llama_tiny"}, "tokenizer is of the type str"),
        ({"length": 4, "tokenizer": "llama_tiny"}, "tokenizer is of the type str"),
        ({"length": 4, "projection_hidden": 8}, "projection_hidden has no effect without projection"),
        ({"length": 4, "init_ids": [5, 999999]}, "999999"),
        ({"length": 4, "init_ids": [5], "projection": True}, "init_ids gives keys and values"),
        ({"size": 4}, "there is no setting 'size'"),
    ):
        with pytest.raises(InputError, match=text):
            pet.apply_prefix(model, **settings)
    with pytest.raises(InputError, match="embedding_size has no effect without projection"):
        pet.apply_ptuning(model, length=4, embedding_size=8)
    with pytest.raises(InputError, match="known family"):
        pet.apply_prefix(nn.Dense(4, 4))
    with pytest.raises(InputError, match="prompt_embeddings has shape"):
        pet.load_adapter(model, fixtures / "llama_mha" / "prefix")
    save_file(
        {"transformer.prefix_encoder.embedding.weight": np.zeros((4, 7), np.float32)}, tmp_path / "odd.safetensors"
    )
    with pytest.raises(InputError, match=r"shape \(4, 7\)"):
        pet.load_ptuning(model, tmp_path / "odd.safetensors")
    save_file({"other": np.zeros((4, 7), np.float32)}, tmp_path / "odd.safetensors")
    with pytest.raises(InputError, match=r"odd\.safetensors: holds no transformer\.prefix_encoder\.embedding\.weight"):
        pet.load_ptuning(model, tmp_path / "odd.safetensors")
    with pytest.raises(InputError, match=r"none\.safetensors: no such file"):
        pet.load_ptuning(model, tmp_path / "none.safetensors")
    save_file({"other": np.zeros((4, 7), np.float32)}, tmp_path / "even.safetensors")
    with pytest.raises(InputError, match=r"one \*\.safetensors file expected.*there are 2"):
        pet.load_ptuning(model, tmp_path)
    pet.apply_prefix(model, length=4)
    with pytest.raises(InputError, match="no weight can do"):
        pet.merge(model)
    limit = model.config.dims.context
    with pytest.raises(InputError, match="4 of them taken by the adapter"):
        model(np.ones((1, limit - 3), np.int32))
    pet.delete_adapter(model, "default")
    assert [parameter.name for parameter in model.get_parameters()] == before


@pytest.mark.parametrize("projection", (False, True))
@pytest.mark.parametrize("family", ("gpt2", "llama_gqa", "glm"))
def test_peft_reads_our_prefixes(fixtures, models, tmp_path, family, projection):
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    peft = pytest.importorskip("peft", reason="peft is not installed: nothing to compare with")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    model, ids = models(family), np.load(fixtures / family / "ref.npz")["input_ids"]
    pet.apply_prefix(model, length=5, projection=projection, projection_hidden=12 if projection else None)
    try:
        for parameter in pet.trainable_parameters(model):
            noise = np.random.default_rng(0).standard_normal(parameter.shape).astype(np.float32)
            parameter.set_data(Tensor(parameter.asnumpy() + 0.3 * noise))
        expected = model(ids).asnumpy()
        pet.save_adapter(model, tmp_path)
    finally:
        pet.delete_adapter(model, "default")
    base = transformers.AutoModelForCausalLM.from_pretrained(fixtures / family)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    with torch.no_grad():
        found = theirs(torch.tensor(ids)).logits.numpy()
    assert np.abs(found - expected).max() < LIMIT


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_virtual_tokens": -3}, "length is -3"),
        ({"num_virtual_tokens": 10**9}, "at most 65536"),
        ({"num_virtual_tokens": "8"}, "length is '8'"),
        ({"num_virtual_tokens": None}, "length is None"),
        ({"num_virtual_tokens": 9}, r"prompt_embeddings has shape \(8, 256\)"),
        ({"peft_type": "PREFIX_TUNNING"}, "PREFIX_TUNING"),
    ],
)
def test_absurd_configurations_are_one_clear_error(fixtures, models, tmp_path, change, text):
    model, source = models("gpt2"), fixtures / "gpt2" / "prefix"
    values = json.loads((source / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**values, **change}))
    (tmp_path / "adapter_model.safetensors").write_bytes((source / "adapter_model.safetensors").read_bytes())
    with pytest.raises(InputError, match=text):
        pet.load_adapter(model, tmp_path)
    assert pet.list_adapters(model) == []
