"""The text model within Gemma 3's multimodal files, against transformers' multimodal class."""

import json
import logging
import shutil

import numpy as np
import pytest
from peers import imported, random_second_factors

import pet
from adapters.peft_config import WEIGHTS
from model_zoo.auto import AutoConfig, AutoModel
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, write_file
from model_zoo.counting import config_of, parameter_shapes, unread_fields
from model_zoo.errors import InputError
from model_zoo.families import PRESETS
from model_zoo.quantization import Quantization
from model_zoo.rope_config import rope_settings, with_changes
from pet.quantize import quantize_checkpoint

torch = peft = transformers = None
peers = imported(globals(), "torch", "peft", "transformers")
LIMIT = 1e-4
TEXT = {
    "model_type": "gemma3_text",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "query_pre_attn_scalar": 20,
    "max_position_embeddings": 256,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window": 5,
    "sliding_window_pattern": 3,
}
VALUES = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "boi_token_index": 90,
    "eoi_token_index": 91,
    "image_token_index": 92,
    "mm_tokens_per_image": 4,
    "eos_token_id": [1, 93],
    "torch_dtype": "float32",
    "text_config": TEXT,
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
        "vision_use_head": False,
    },
}
IDS = np.random.default_rng(5).integers(3, 90, (2, 14))


def logits_of(model) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.tensor(IDS), attention_mask=torch.ones(IDS.shape)).logits.float().numpy()


def arrays_in(directory) -> dict:
    with SafetensorsFile(directory / "model.safetensors") as file:
        return {name: file.read(name) for name in file.tensors}


def opened(directory, kind="Gemma3ForConditionalGeneration"):
    return getattr(transformers, kind).from_pretrained(directory, attn_implementation="eager").eval()


@pytest.fixture(scope="module", params=["published", "modules"])
def case(request, tmp_path_factory):
    """A directory with the names of published files, or of transformers' modules; and the model there."""
    directory = tmp_path_factory.mktemp(request.param)
    config = transformers.Gemma3Config(**{key: value for key, value in VALUES.items() if key != "architectures"})
    model = transformers.Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            narrow = 0.3 if parameter.dim() == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * narrow)
    model.tie_weights()
    arrays = {name: value.numpy() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    if request.param == "published":
        own = "model.language_model."
        arrays = {
            f"language_model.model.{name.removeprefix(own)}" if name.startswith(own) else name.removeprefix("model."): a
            for name, a in arrays.items()
        }
    write_file(directory / "model.safetensors", arrays, {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(VALUES))
    return directory, model


PARAMETERS = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": 5e5},
        {"rope_scaling": None},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_local_base_freq": 123.0, "max_position_embeddings": 99},
        {"rope_parameters": {**PARAMETERS, "full_attention": {"rope_type": "default", "rope_theta": 7e5}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [{"rope_scaling": TEXT["rope_scaling"]}, {"rope_parameters": PARAMETERS}], ids=list)
def test_other_rotations_count_as_for_the_text_model_alone(form, change):
    """In either form of a file; transformers 5 writes ``rope_parameters``, beside which the older keys are not read."""
    text = {**{key: one for key, one in TEXT.items() if key != "rope_scaling"}, **form}
    wholes = [text, {**VALUES, "text_config": text}]
    alone, within = ([rope_settings(config_of(one), local) for local in (False, True)] for one in wholes)
    assert alone == within
    found, expected = (
        [rope_settings(config_of(with_changes(one, change)), local) for local in (False, True)] for one in wholes
    )
    assert found == expected != alone
    within = config_of(with_changes(wholes[1], {"text_config": change}))
    assert [rope_settings(within, local) for local in (False, True)] == expected
    assert wholes[1]["text_config"] is text and text.keys() >= form.keys()


def test_a_change_within_the_text_model_s_section_leaves_the_rest_of_it():
    change = {"text_config": {"max_position_embeddings": 99}}
    assert config_of(with_changes(VALUES, change)).dims == config_of(VALUES).dims._replace(context=99)
    assert unread_fields(VALUES, change)[0] == []
    assert unread_fields(VALUES, {"text_config": {"hidden_sizes": 3}})[0] == ["hidden_sizes"]


def test_the_text_model_opens_and_says_what_is_left_out(case, caplog, tmp_path):
    directory, peer = case
    expected = logits_of(opened(directory))
    assert np.abs(expected - logits_of(peer)).max() < 1e-6  # transformers takes these names, too
    with caplog.at_level(logging.WARNING, "pet"):
        models = [AutoModel.from_pretrained(directory) for _ in range(2)]
    assert [record.message for record in caplog.records] == [
        f"{directory}: the image encoder of a Gemma 3 is left out: its text model is opened"
    ]
    assert np.abs(models[0](IDS).asnumpy() - expected).max() < LIMIT
    assert models[0].eos_token_ids == [1, 93] and models[0].config.windows == (5, 5, 0, 5)
    models[0].save_pretrained(tmp_path)
    assert "written as a model of type gemma3_text" in caplog.text
    alone = opened(tmp_path, "Gemma3ForCausalLM")
    assert np.abs(logits_of(alone) - expected).max() < LIMIT
    again = AutoModel.from_pretrained(tmp_path)
    assert np.array_equal(again(IDS).asnumpy(), models[0](IDS).asnumpy()) and again.eos_token_ids == [1, 93]
    written = json.loads((tmp_path / "config.json").read_text())
    assert "vision_config" not in written and written["model_type"] == "gemma3_text"


def test_adapters_go_both_ways_and_merge_into_all_of_it(case, tmp_path):
    directory, _ = case
    theirs = opened(directory)
    plain, targets = logits_of(theirs), r".*language_model.*\.(q_proj|down_proj)"
    theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=3, lora_alpha=6, target_modules=targets))
    random_second_factors(theirs, 0.2)
    theirs.save_pretrained(tmp_path / "theirs")
    expected = logits_of(theirs)
    assert np.abs(expected - plain).max() > 0.01
    shutil.copytree(tmp_path / "theirs", tmp_path / "older")
    with SafetensorsFile(tmp_path / "theirs" / WEIGHTS) as file:
        own, published = "model.model.language_model.", "model.language_model.model."
        write_file(
            tmp_path / "older" / WEIGHTS, {name.replace(own, published): file.read(name) for name in file.tensors}
        )
    mine = AutoModel.from_pretrained(directory)
    for written in ("theirs", "older"):  # by transformers from 4.52 on, and before; PEFT opens both, too
        pet.load_adapter(mine, tmp_path / written)
        assert np.abs(mine(IDS).asnumpy() - expected).max() < LIMIT
        pet.delete_adapter(mine, "default")
    pet.merge_checkpoint(directory, tmp_path / "older", tmp_path / "older_merged")
    assert np.abs(logits_of(opened(tmp_path / "older_merged")) - expected).max() < LIMIT

    pet.apply_lora(mine, rank=2, targets=["q_proj", "v_proj"])
    generator = np.random.default_rng(4)
    for parameter in mine.trainable_params():
        parameter.set_data(type(parameter.data)(generator.normal(0, 0.3, parameter.shape).astype(np.float32)))
    expected = mine(IDS).asnumpy()
    pet.save_adapter(mine, tmp_path / "mine")
    fresh = peft.PeftModel.from_pretrained(opened(directory), tmp_path / "mine")
    assert np.abs(logits_of(fresh) - expected).max() < LIMIT
    adapted = [name for name, _ in fresh.named_parameters() if "lora_A" in name]
    assert len(adapted) == 8 and not any("vision_tower" in name for name in adapted)

    pet.merge_checkpoint(directory, tmp_path / "mine", tmp_path / "merged")
    assert np.abs(logits_of(opened(tmp_path / "merged")) - expected).max() < LIMIT
    before, after = arrays_in(directory), arrays_in(tmp_path / "merged")
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert len(changed) == 8 and all("language_model" in name for name in changed)
    written = json.loads((tmp_path / "merged/config.json").read_text())
    assert {key: written[key] for key in VALUES} == VALUES


def test_factors_of_the_encoder_are_passed_over_where_they_do_nothing(case, tmp_path):
    """As text alone leaves them."""
    directory, _ = case
    theirs = peft.get_peft_model(opened(directory), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    random_second_factors(theirs, 0.2)
    for kind in ("changed", "untouched"):
        theirs.save_pretrained(tmp_path / kind)
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                if "vision_tower" in name and "lora_B" in name:
                    parameter.zero_()
    mine = AutoModel.from_pretrained(directory)
    for door in (pet.load_adapter, lambda _, adapter: pet.merge_checkpoint(directory, adapter, tmp_path / "merged")):
        with pytest.raises(
            InputError, match=r"vision_tower.*lora_B.*changes what is not opened here \(the image encoder"
        ):
            door(mine, tmp_path / "changed")
        door(mine, tmp_path / "untouched")
    expected = logits_of(theirs)
    assert np.abs(mine(IDS).asnumpy() - expected).max() < LIMIT
    assert np.abs(logits_of(opened(tmp_path / "merged")) - expected).max() < LIMIT


def test_sizes_and_what_is_refused(tmp_path):
    """A published config.json leaves out what transformers assumes."""
    small = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    found, expected = (parameter_shapes(one) for one in ({**VALUES, "text_config": small}, PRESETS["gemma3_4b"]))
    assert [*found.values()] == [*expected.values()]
    for changes, words in (
        ({"text_config": None}, "text_config is None; the text model's configuration was expected"),
        ({"model_type": "mistral3"}, "'mistral3', a multimodal model; of these only gemma3 opens"),
        ({"text_config": {**TEXT, "hidden_act": "silu"}}, "hidden_act is 'silu'; supported"),
        ({"text_config": {**TEXT, "final_logit_softcapping": 30.0}}, "final_logit_softcapping is 30.0; supported"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**VALUES, **changes}))
        with pytest.raises(InputError, match=words):
            AutoConfig.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(VALUES))
    with pytest.raises(InputError, match=r"image encoder of a Gemma 3 is left out.*save that by itself first"):
        quantize_checkpoint(tmp_path, tmp_path / "packed", Quantization("nf4"))
