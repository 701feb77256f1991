"""Every family against the logits, losses and layouts of an independent implementation."""

import json

import mindspore as ms
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from adapters.lora import LoRAConfig
from adapters.matching import plan
from model_zoo.auto import AutoConfig, AutoModel
from model_zoo.counting import config_of
from model_zoo.errors import InputError
from model_zoo.families import config_class
from model_zoo.quantization.plan import Quantization
from pet.meta_model import MetaModel

FAMILIES = ["gpt2", "llama_mha", "llama_gqa", "qwen2_5", "mistral", "qwen3", "qwen3_moe"]
FAMILIES += ["gemma2", "gemma3", "glm", "glm4_0414", "chatglm1", "chatglm2"]
TOLERANCE = 1e-4


def cross_entropy(logits, labels):
    """Mean over labels of the next token's negative log-probability, in float64."""
    logits = logits[:, :-1].astype(np.float64)
    labels = labels[:, 1:]
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    known = labels != -100
    return -np.take_along_axis(log_probabilities, np.maximum(labels, 0)[..., None], -1)[..., 0][known].mean()


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, fixtures):
    directory = fixtures / request.param
    return request.param, AutoModel.from_pretrained(directory), dict(np.load(directory / "ref.npz"))


def padding_mask(name, reference):
    if name == "chatglm1":
        return (reference["pad_input_ids"] != 3).astype(np.int64)
    return reference["pad_attention_mask"]


def test_logits_and_loss(case):
    _, model, reference = case
    logits = model(reference["input_ids"]).asnumpy()
    assert logits.dtype == np.float32
    assert np.abs(logits - reference["logits"]).max() < TOLERANCE
    assert abs(cross_entropy(logits, reference["labels"]) - reference["loss"]) < TOLERANCE


def test_left_padding(case):
    name, model, reference = case
    mask = padding_mask(name, reference)
    assert not mask.all()
    logits = model(reference["pad_input_ids"], mask).asnumpy()
    real = mask.astype(bool)
    assert np.abs(logits - reference["pad_logits"])[real].max() < TOLERANCE
    assert abs(cross_entropy(logits, reference["pad_labels"]) - reference["pad_loss"]) < TOLERANCE


def test_given_positions(case):
    name, model, reference = case
    mask = padding_mask(name, reference)
    logits = model(reference["pad_input_ids"], mask, reference["pad_position_ids"]).asnumpy()
    assert np.abs(logits - reference["pad_logits"])[mask.astype(bool)].max() < TOLERANCE


def test_document_layout_is_the_layout_of_one_row(case):
    _, model, reference = case
    for row in reference["input_ids"]:
        positions, end = model.family.document_layout(model.config, row)
        in_graph = model.layout(ms.Tensor(row[None].astype(np.int32)))
        assert np.array_equal(in_graph[0].asnumpy()[0], positions)
        assert np.array_equal(in_graph[2].asnumpy()[0], end)


def test_lists_arrays_and_tensors_are_alike(case):
    _, model, reference = case
    ids = reference["input_ids"]
    first = model(ids.tolist()).asnumpy()
    assert np.array_equal(first, model(ms.Tensor(ids)).asnumpy())
    assert np.array_equal(first, model(ids.astype(np.int16)).asnumpy())


def test_wrong_input_is_refused(case):
    _, model, reference = case
    ids = reference["input_ids"].copy()
    vocabulary = model.config.dims.vocab
    ids[0, 0] = vocabulary
    with pytest.raises(InputError, match=rf"holds {vocabulary}, .* 0 … {vocabulary - 1}"):
        model(ids)
    ids[0, 0] = -1
    with pytest.raises(InputError, match="holds -1"):
        model(ids)
    with pytest.raises(InputError, match="context holds"):
        model(np.full((1, model.config.dims.context + 1), int(reference["input_ids"][0, -1])))
    with pytest.raises(InputError, match=r"(different|equal) lengths"):
        model([[1, 2, 3], [1, 2]])
    with pytest.raises(InputError, match="integers expected"):
        model(np.ones((1, 4), np.float32))
    with pytest.raises(InputError, match="integers expected"):
        model(ms.Tensor(np.full((1, 4), 5.5, np.float32)))
    with pytest.raises(InputError, match="input_ids holds 4294967301, which has more than 32 bits"):
        model(np.full((1, 4), 2**32 + 5))
    with pytest.raises(InputError, match="empty"):
        model(np.zeros((1, 0), np.int32))
    with pytest.raises(InputError, match="attention_mask has shape"):
        model(reference["input_ids"], np.ones((1, 2), int))
    with pytest.raises(InputError, match=r"attention_mask holds -10000\.0; 1 for real tokens and 0"):
        model(reference["input_ids"], ms.Tensor(np.where(reference["input_ids"] < 0, 0, -10000.0).astype(np.float32)))


def test_both_config_forms_give_the_same_logits(fixtures):
    for name in ("gpt2", "llama_gqa", "glm", "glm4_0414"):
        directory = fixtures / name
        current = json.loads((directory / "config.json").read_text())
        published = json.loads((directory / "config.hub.json").read_text())
        one, other = (config_class(values).from_dict(values) for values in (current, published))
        assert one.dims == other.dims
        if name != "gpt2":
            from model_zoo.rope_config import rope_settings

            keys = ("rope_type", "rope_theta", "partial_rotary_factor")
            assert [rope_settings(one)[key] for key in keys] == [rope_settings(other)[key] for key in keys]


def test_chatglm_mask_token_instead_of_gmask(fixtures):
    reference = np.load(fixtures / "chatglm1" / "ref.npz")
    model = AutoModel.from_pretrained(fixtures / "chatglm1")
    ids = reference["mask_input_ids"]
    assert np.abs(model(ids).asnumpy() - reference["mask_logits"]).max() < TOLERANCE
    positions = model.layout(ms.Tensor(ids.astype(np.int32)))[0].asnumpy()
    assert np.array_equal(positions, reference["mask_position_ids"])


@pytest.mark.parametrize("before", [0, 20000])
@pytest.mark.parametrize("mask", [130000, 130001])
def test_chatglm_masks_of_a_file_that_says_sop_alone(mask, before):
    """The published code of both numberings had them as constants."""
    values = {"model_type": "chatglm", "position_encoding_2d": True, "bos_token_id": 130004 + before}
    config = config_class(values).from_dict({**values, "gmask_token_id": None})
    positions, end = config.family.document_layout(config, [30000, 30001, mask + before, 30002, 130004 + before, 30003])
    assert positions.tolist() == [[0, 1, 2, 3, 2, 2], [0, 0, 0, 0, 1, 2]] and end.tolist() == [4, 4, 4, 4, 5, 6]


@pytest.mark.parametrize("name", ["chatglm1", "chatglm2"])
def test_weights_that_chatglms_code_has_packed(fixtures, tmp_path, name):
    """Those of 8 bits are numbers times a scale for each row; of 4 bits there are two in a byte."""
    tensors, scaled = load_file(fixtures / name / "model.safetensors"), {}
    for key, weight in tensors.items():
        if key.endswith((".query_key_value.weight", ".dense.weight", "4h.weight", "to_h.weight")):
            scale = (np.abs(weight).max(1) / 127).astype(np.float16)
            codes = np.round(weight / scale[:, None].astype(np.float32)).astype(np.int8)
            tensors[key] = codes * scale[:, None].astype(np.float32)
            scaled |= {key: codes, f"{key}_scale": scale}
    values = json.loads((fixtures / name / "config.json").read_text())
    for directory, bits, stored in (("plain", 0, tensors), ("packed", 8, {**tensors, **scaled})):
        (tmp_path / directory).mkdir()
        save_file(stored, tmp_path / directory / "model.safetensors")
        (tmp_path / directory / "config.json").write_text(json.dumps({**values, "quantization_bit": bits}))
    model, plain = (AutoModel.from_pretrained(tmp_path / directory) for directory in ("packed", "plain"))
    ids = np.load(fixtures / name / "ref.npz")["input_ids"]
    assert np.array_equal(model(ids).asnumpy(), plain(ids).asnumpy())
    model.save_pretrained(tmp_path / "saved")
    assert "quantization_bit" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    (tmp_path / "packed" / "config.json").write_text(json.dumps({**values, "quantization_bit": 4}))
    with pytest.raises(InputError, match="quantization_bit is 4; supported: 0, 8"):
        AutoModel.from_pretrained(tmp_path / "packed")


def test_chatglm_without_sop_is_refused(fixtures):
    model = AutoModel.from_pretrained(fixtures / "chatglm1")
    with pytest.raises(InputError, match="row 1 holds no <sop>"):
        model([[5, 121, 124, 7], [5, 6, 7, 8]])


def test_attention_mask_with_a_hole(fixtures):
    """A hidden token in the middle changes nothing but its own row, whatever it is."""
    model = AutoModel.from_pretrained(fixtures / "llama_gqa")
    ids = np.array([[3, 9, 27, 81, 5], [3, 9, 99, 81, 5]])
    mask = np.array([[1, 1, 0, 1, 1]] * 2)
    logits = model(ids, mask).asnumpy()
    assert np.abs(logits[0, [0, 1, 3, 4]] - logits[1, [0, 1, 3, 4]]).max() < 1e-6
    assert np.abs(model(ids).asnumpy()[0, 4] - model(ids).asnumpy()[1, 4]).max() > 1e-2


LLAMA_TINY = {
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "pad_token_id": 0,
}
VARIANTS = {
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "llama3": {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "yarn": {
        "model_type": "qwen3",
        "head_dim": 24,
        "rope_theta": 100.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "yarn_settings": {
        "rope_scaling": {
            "type": "yarn",
            "factor": 2.5,
            "attention_factor": 0.7,
            "beta_fast": 5.0,
            "beta_slow": 0.2,
            "truncate": False,
        },
    },
    "yarn_gains": {"rope_scaling": {"rope_type": "yarn", "factor": 3.0, "mscale": 0.5, "mscale_all_dim": 2.0}},
    "yarn_no_gains": {"rope_scaling": {"rope_type": "yarn", "factor": 3.0, "mscale": 0.5, "mscale_all_dim": 0}},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head_dim": {"head_dim": 24},
    "tied": {"tie_word_embeddings": True},
    "large_eps": {"rms_norm_eps": 0.1},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True},
    "qwen2_window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 7,
        "max_window_layers": 1,
    },
    "qwen3_untied": {"model_type": "qwen3", "head_dim": 8, "attention_bias": True},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 24,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "norm_topk_prob": False,
    },
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral_window": {"model_type": "mistral", "sliding_window": 9},
    "glm_tied_bias": {"model_type": "glm", "head_dim": 8, "attention_bias": True, "tie_word_embeddings": True},
    "glm4": {"model_type": "glm4", "head_dim": 16, "partial_rotary_factor": 0.25, "attention_bias": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_against_transformers(variant, tmp_path):
    """Rotary scalings, biases, head widths, ties and siblings: saved here, opened there, equal logits."""
    check_against_transformers({**LLAMA_TINY, **VARIANTS[variant]}, tmp_path)


def test_adapters_are_planned_by_the_width_of_heads():
    planned = plan(MetaModel({**LLAMA_TINY, **VARIANTS["qwen3"]}), LoRAConfig(rank=2))
    assert planned.parameters == 2 * 2 * (2 * 32 + 24 * 4 + 24 * 2)  # q and v of two layers


def test_routers_are_neither_adapted_nor_packed_unless_named():
    values = {**LLAMA_TINY, **VARIANTS["qwen3_moe"], "hidden_size": 64, "moe_intermediate_size": 64, "head_dim": 16}
    meta_model = MetaModel(values)
    experts = 2 * 3 * 3
    planned = [entry.name for entry in plan(meta_model, LoRAConfig(rank=2, targets="all-linear")).entries]
    assert len(planned) == 2 * 4 + experts and not any(name.endswith("mlp.gate") for name in planned)
    assert len(plan(meta_model, LoRAConfig(rank=2, targets="mlp")).entries) == experts
    assert len(plan(meta_model, LoRAConfig(rank=2, targets=["mlp.gate"])).entries) == 2
    packed = Quantization().places(meta_model.config)
    assert len(packed) == 2 * 4 + experts and not any(path.endswith("mlp.gate") for path in packed)


def check_against_transformers(values, tmp_path):
    torch = pytest.importorskip("torch", reason="the live comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    from model_zoo.checkpoint.saving import save_pretrained

    model = AutoModel.from_config(values, seed=3)
    generator = np.random.default_rng(1)
    for parameter in model.get_parameters():  # norms and biases too
        if len(parameter.shape) == 1:
            noise = generator.normal(1.0 if "norm" in parameter.name else 0.0, 0.3, parameter.shape)
            parameter.set_data(ms.Tensor(noise.astype(np.float32)))
    save_pretrained(model, tmp_path)
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids = generator.integers(3, 61, (2, 40))
    with torch.no_grad():
        expected = peer(torch.tensor(ids)).logits.float().numpy()
    assert np.abs(model(ids).asnumpy() - expected).max() < TOLERANCE
    again = AutoModel.from_pretrained(tmp_path)
    assert np.array_equal(again(ids).asnumpy(), model(ids).asnumpy())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({"model_type": None}, "model_type is None; supported: gpt2"),
        ({"model_type": "mixtral"}, "'mixtral': of mixtures of experts only qwen3_moe is supported"),
        ({"model_type": "qwen2_5_vl", "vision_config": {}}, "a multimodal model; of these only gemma3 opens"),
        ({"model_type": "gemma2", "hidden_act": "silu"}, "hidden_act is 'silu'; supported: 'gelu_pytorch_tanh'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: 'silu'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope'; supported: default, linear, dynamic, llama3, yarn"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn' needs factor"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'linear' needs factor"),
        ({"num_hidden_layers": 20_000}, "layers of 20000; a model has at most"),
        ({"head_dim": 1_000_000}, "head_dim of 1000000; a model has at most"),
        ({"hidden_size": 1_000_000}, "head_dim of 250000; a model has at most"),
        ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads"),
        ({"layer_types": ["full_attention"]}, "for each of 2 layers"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types must name full_attention or"),
    ],
)
def test_unsupported_configurations_are_named(changes, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_TINY, **changes}))
    with pytest.raises(InputError, match=message):
        AutoConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "changes, windows",
    [
        ({"model_type": "mistral", "sliding_window": 16}, (16, 16)),
        ({"model_type": "mistral"}, (4096, 4096)),
        ({"model_type": "mistral", "sliding_window": None}, (0, 0)),
        ({"model_type": "qwen2", "sliding_window": 16}, (0, 0)),
        ({"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True}, (0, 0)),
        ({"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, (0, 16)),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 16,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (16, 0),
        ),
        ({"sliding_window": 16}, (0, 0)),
    ],
)
def test_windows_are_what_config_json_says(changes, windows):
    values = {**LLAMA_TINY, **changes}
    config = config_class(values).from_dict(values)
    assert config.windows == windows
    assert config.dims.context == LLAMA_TINY["max_position_embeddings"]
    written = config.for_file(config.to_dict())
    assert config_class(written).from_dict(written).windows == windows


def test_a_preset_has_no_weights():
    with pytest.raises(InputError, match="holds dimensions, no weights"):
        AutoModel.from_pretrained("llama_7b")
    with pytest.raises(InputError, match="did you mean"):
        AutoConfig.from_pretrained("llama_7")


def test_random_weights_depend_on_seed_and_name_alone():
    one, same = (AutoModel.from_config(LLAMA_TINY, seed=5) for _ in range(2))
    other = AutoModel.from_config(LLAMA_TINY, seed=6)
    for name, parameter in one.parameters_dict().items():
        assert np.array_equal(parameter.asnumpy(), same.parameters_dict()[name].asnumpy())
        if len(parameter.shape) > 1:
            assert not np.array_equal(parameter.asnumpy(), other.parameters_dict()[name].asnumpy())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("given", [{"num_key_value_heads": None}, {"hidden_act": "swish"}], ids=str)
def test_null_and_other_names_mean_what_they_mean_to_transformers(kind, given):
    """As many keys as queries, and not those that the published model has; and SiLU by its other name."""
    auto = pytest.importorskip("transformers").AutoConfig
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, **given}
    expected = auto.for_model(kind, **sizes)
    found = config_of({"model_type": kind, **sizes})
    assert found.dims.kv_heads == expected.num_key_value_heads
    assert found.to_dict()["hidden_act"] == "silu"
    with pytest.raises(InputError, match="hidden_act is 'gelu'"):
        config_of({"model_type": kind, **sizes, "hidden_act": "gelu"})
