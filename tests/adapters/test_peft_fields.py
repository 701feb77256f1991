"""Every field of PEFT's configurations of the methods that are here: honoured, harmless, or refused by name."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shutil
import warnings

import numpy as np
import pytest
from peers import imported

import pet

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = peft = transformers = None
peers = imported(globals(), "torch", "peft", "transformers")
IDS = np.random.default_rng(0).integers(3, 90, (2, 9))
SAME = ""  # beside the text that a refusal must have


class Made(dict):
    """Settings with which PEFT makes an adapter, which gives the same logits here; `family`: on this base."""

    family = "llama_gqa"

    def on(self, family):
        self.family = family
        return self


class Written(tuple):
    """A value put into adapter_config.json, and what the refusal says; `SAME` where it changes nothing."""

    def __new__(cls, value, refusal=SAME, **others):
        made = super().__new__(cls, (value, refusal))
        made.others = others
        return made


COMMON = {
    "task_type": Written("CAUSAL_LM"),
    "peft_type": Written("MISS", "peft_type is 'MISS'; supported"),
    "auto_mapping": Written({"base_model_class": "LlamaForCausalLM", "parent_library": "transformers"}),
    "peft_version": Written("0.99.0"),
    "base_model_name_or_path": Written("meta-llama/Llama-3.2-3B"),
    "revision": Written("main"),
    "inference_mode": Written(False),
}
TARGETS = {
    "target_modules": Made(target_modules=["o_proj", "down_proj"]),
    "exclude_modules": Made(target_modules=["q_proj", "v_proj"], exclude_modules=["layers.1.self_attn.q_proj"]),
    "fan_in_fan_out": Made(target_modules=["c_attn"], fan_in_fan_out=True).on("gpt2"),
    "modules_to_save": Made(modules_to_save=["lm_head"]),
}
LORA = {
    **COMMON,
    **TARGETS,
    "r": Made(r=3),
    "lora_alpha": Made(lora_alpha=5),
    "lora_dropout": Made(lora_dropout=0.5),
    "bias": Made(target_modules=["c_attn"], bias="all").on("gpt2"),
    "use_rslora": Made(use_rslora=True, r=4),
    "init_lora_weights": [
        *(Made(init_lora_weights=name) for name in (False, "gaussian", "orthogonal", "mica", "pissa", "OLoRA")),
        Written("corda", "init_lora_weights is 'corda'.*path_initial_model_for_weight_conversion"),
        Written("pissa_niter_4", "init_lora_weights is 'pissa_niter_4'.*path_initial_model_for_weight_conversion"),
        Written("LoRA_GA", "init_lora_weights is 'lora_ga'.*path_initial_model_for_weight_conversion"),
        Written("loftq", "init_lora_weights is 'loftq'.*path_initial_model_for_weight_conversion"),
        Written("olora", "is 'olora' on a matrix stored .* merge_and_unload.. makes a checkpoint", fan_in_fan_out=True),
        Written("eva"),
    ],
    "layers_to_transform": Made(target_modules=["q_proj"], layers_to_transform=[0, 2]),
    "layers_pattern": Made(target_modules=["q_proj"], layers_to_transform=[1], layers_pattern="layers"),
    "rank_pattern": Made(rank_pattern={"v_proj": 3}),
    "alpha_pattern": Made(alpha_pattern={"layers.1.*.v_proj": 3}),
    "megatron_config": Written({"hidden_size": 64}),  # how Megatron's own layers are made
    "megatron_core": Written("megatron.core.other"),
    "trainable_token_indices": Made(trainable_token_indices=[5, 77]),
    "loftq_config": Written({"loftq_bits": 4, "loftq_iter": 1}),  # what a start was given says nothing once it is made
    "eva_config": Written({"rho": 2.0}, init_lora_weights="eva"),
    "corda_config": Written({"corda_method": "ipm"}),
    "lora_ga_config": Written({"direction": "ArB2r"}),
    "use_dora": Made(use_dora=True),
    "velora_config": Written({"num_groups": 64}, "velora_config is not supported"),
    "alora_invocation_tokens": Written([3, 4], "alora_invocation_tokens is not supported: the adapter works behind"),
    "use_qalora": Written(True, "use_qalora is not supported"),
    "qalora_group_size": Written(32),
    "monteclora_config": Written({"monteclora_at": ["q_proj"]}, "monteclora_config is not supported"),
    "layer_replication": Written([[0, 2], [1, 3]], "layer_replication is not supported"),
    "runtime_config": Written({"ephemeral_gpu_offload": True}),
    "lora_bias": Written(True, "lora_bias is not supported"),
    "target_parameters": [
        Made(target_modules=["q_proj"], target_parameters=["mlp.experts.down_proj"]).on("qwen3_moe"),
        Written(["layers.0.norm.scale"], "target_parameters: .*only experts'"),
    ],
    "use_bdlora": Written({"nblocks": 2, "target_modules_bd_a": ["q_proj"]}, "use_bdlora is not supported"),
    "arrow_config": Written({"top_k": 2}, "arrow_config is not supported"),
    "kasa_config": Written({"beta": 1e-4}, "kasa_config is not supported"),
    "ensure_weight_tying": Written(True),  # nothing that is tied is adapted
}
IN_FRONT = {
    **COMMON,
    "num_virtual_tokens": Made(num_virtual_tokens=3),
    **{name: Written(None) for name in ("num_transformer_submodules", "num_layers", "token_dim")},
    "num_attention_heads": Written(None),
    "modules_to_save": Written(["lm_head"], "modules_to_save .*'lm_head'.*: weights in full beside"),
}
FIELDS = {
    "LoraConfig": LORA,
    "AdaLoraConfig": {
        **{name: LORA[name] for name in LORA if isinstance(LORA[name], Written) or name in TARGETS},
        # its own defaults, or what PEFT refuses beside AdaLoRA
        **{name: Made() for name in ("r", "init_lora_weights", "use_dora", "layers_pattern", "target_parameters")},
        "init_r": Made(init_r=5),
        "lora_alpha": Made(lora_alpha=5),
        "lora_dropout": Made(lora_dropout=0.5),
        "bias": Made(target_modules=["c_attn"], bias="all").on("gpt2"),
        "use_rslora": Made(use_rslora=True),
        "layers_to_transform": Made(target_modules=["q_proj"], layers_to_transform=[0, 2]),
        "rank_pattern": Made(),
        "alpha_pattern": Made(alpha_pattern={"v_proj": 3}),
        "trainable_token_indices": Made(trainable_token_indices=[5, 77]),
        **{name: Written(0.5) for name in ("beta1", "beta2", "orth_reg_weight")},  # what trains it
        **{name: Written(7) for name in ("deltaT", "target_r", "tfinal", "tinit", "total_step")},
    },
    "IA3Config": {
        **COMMON,
        "modules_to_save": TARGETS["modules_to_save"],
        "exclude_modules": Made(**TARGETS["exclude_modules"], feedforward_modules=[]),
        "target_modules": Made(target_modules=["q_proj", "down_proj"], feedforward_modules=["down_proj"]),
        "fan_in_fan_out": Made(target_modules=["c_attn"], feedforward_modules=[], fan_in_fan_out=True).on("gpt2"),
        "feedforward_modules": Made(target_modules=["q_proj", "up_proj"], feedforward_modules=["up_proj", "q_proj"]),
        "init_ia3_weights": Made(init_ia3_weights=False),
    },
    "PrefixTuningConfig": {
        **IN_FRONT,
        "encoder_hidden_size": Made(encoder_hidden_size=24, prefix_projection=True),
        "prefix_projection": Made(prefix_projection=True),
        "init_weights": Made(init_weights="zero"),
    },
    "PromptTuningConfig": {
        **IN_FRONT,
        "prompt_tuning_init": Made(prompt_tuning_init="SAMPLE_VOCAB"),
        "prompt_tuning_init_text": Written("Is this good?"),
        "tokenizer_name_or_path": Written("bigscience/bloomz-560m", prompt_tuning_init="TEXT"),
        "tokenizer_kwargs": Written({"trust_remote_code": True}, prompt_tuning_init="TEXT"),
    },
    "PromptEncoderConfig": {
        **IN_FRONT,
        "encoder_reparameterization_type": Made(encoder_reparameterization_type="LSTM"),
        "encoder_hidden_size": Made(encoder_hidden_size=24),
        "encoder_num_layers": Made(encoder_reparameterization_type="LSTM", encoder_num_layers=1),
        "encoder_dropout": Made(encoder_reparameterization_type="LSTM", encoder_dropout=0.3),
    },
    "TrainableTokensConfig": {
        **COMMON,
        "token_indices": Made(token_indices=[9, 11]),
        "target_modules": Made(target_modules=["embed_tokens"]),
        "init_weights": Made(init_weights=False),
    },
}
BESIDE = {
    "LoraConfig": {"r": 2},
    "AdaLoraConfig": {"init_r": 4, "total_step": 10},
    "IA3Config": {},
    "TrainableTokensConfig": {"token_indices": [5, 77]},
    **{kind: {"num_virtual_tokens": 4} for kind in ("PrefixTuningConfig", "PromptTuningConfig", "PromptEncoderConfig")},
}
CASES = [
    (kind, field, number, value)
    for kind, fields in FIELDS.items()
    for field, values in fields.items()
    for number, value in enumerate(values if isinstance(values, list) else [values])
]


def test_every_field_is_in_the_table():
    """Of the PEFT that is installed, which may be later than this table."""
    for kind, fields in FIELDS.items():
        assert set(fields) == {field.name for field in dataclasses.fields(getattr(peft, kind))}, kind


WITHIN_PEFT = {
    *("active_peft_config", "base_model_torch_dtype", "create_or_update_model_card", "from_pretrained", "get_prompt"),
    *("get_prompt_embedding_to_save", "has_active_enabled_adapter", "modules_to_save", "prepare_inputs_for_generation"),
    *("prepare_model_for_gradient_checkpointing", "set_requires_grad", "supports_lora_conversion"),
}
"""What a script does not call."""


def test_classes_and_methods_of_peft_are_named_here():
    """Of the PEFT that is installed: what a script may import or call says what is here in its place."""
    model = pet.AutoModel.from_pretrained("llama_tiny")
    methods = {name for name in vars(peft.PeftModel) if not name.startswith("_")} | {"add_weighted_adapter", "unload"}
    for name in methods - WITHIN_PEFT - {"generate", "save_pretrained"}:
        with pytest.raises(AttributeError, match=f"a model has no {name}: it "):
            getattr(model, name)
    classes = {config.__name__ for config in peft.PEFT_TYPE_TO_CONFIG_MAPPING.values()}
    classes |= {name for name in dir(peft) if name.startswith(("PeftModel", "AutoPeftModel"))}
    for name in classes - {"IA3Config"}:  # whose name is the same here
        with pytest.raises(ImportError, match=f"pet has no {name}: it "):
            exec(f"from pet import {name}", {})
    with pytest.raises(
        ImportError, match=r"LoHaConfig: it has no counterpart: LOHA is not trained here; .*save_as_lora"
    ):
        exec("from pet import LoHaConfig", {})


@pytest.fixture(scope="module")
def bases(fixtures):
    """{family: the base in both libraries}"""
    made = {}

    def base(family):
        if family not in made:
            theirs = transformers.AutoModelForCausalLM.from_pretrained(fixtures / family, dtype=torch.float32).eval()
            made[family] = pet.AutoModel.from_pretrained(fixtures / family), theirs
        return made[family]

    return base


@pytest.fixture(scope="module")
def adapters(bases, tmp_path_factory):
    """(kind, settings, family) → PEFT's adapter directory, and the logits that PEFT has by it."""
    made = {}

    def adapter(kind, settings, family="llama_gqa"):
        if (key := repr((kind, settings, family))) not in made:
            directory, theirs = tmp_path_factory.mktemp("adapter"), bases(family)[1]
            torch.manual_seed(0)
            config = getattr(peft, kind)(**{"task_type": "CAUSAL_LM", **BESIDE[kind], **settings})
            changed = peft.get_peft_model(copy.deepcopy(theirs), config).eval()
            with torch.no_grad():
                for parameter in changed.parameters():
                    if parameter.requires_grad:
                        parameter += 0.05 * torch.randn(parameter.shape)
            changed.save_pretrained(directory)
            opened = peft.PeftModel.from_pretrained(copy.deepcopy(theirs), directory).eval()
            with torch.no_grad():
                logits = opened(torch.tensor(IDS)).logits.numpy()[:, -IDS.shape[1] :]
            made[key] = directory, logits
        return made[key]

    return adapter


@pytest.mark.parametrize(("kind", "field", "number", "value"), CASES, ids=lambda one: one if type(one) is str else "")
def test_what_a_field_says(kind, field, number, value, bases, adapters, tmp_path):
    warnings.simplefilter("ignore")
    if isinstance(value, Made):
        ours, (directory, expected) = bases(value.family)[0], adapters(kind, dict(value), value.family)
    else:
        (directory, expected), ours = adapters(kind, {}), bases("llama_gqa")[0]
        directory = shutil.copytree(directory, tmp_path / "edited")
        file = directory / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **value.others, field: value[0]}))
        if value[1] != SAME:
            with pytest.raises(pet.InputError, match=value[1]):
                pet.load_adapter(ours, directory)
            assert pet.list_adapters(ours) == []
            return
    bare = ours(IDS).asnumpy()
    pet.load_adapter(ours, directory)
    try:
        found = ours(IDS).asnumpy()
    finally:
        pet.delete_adapter(ours, "default")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert np.abs(found - bare).max() > 1e-3
