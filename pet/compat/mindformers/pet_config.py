"""MindFormers' ``pet_config``: a section of its files, and the classes and the function that scripts use for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from model_zoo.counting import layout_of
from model_zoo.errors import InputError
from pet.compat.mindformers.presets import CLASSES
from pet.compat.mindformers.script_config import MindFormerConfig
from pet.compat.mindformers.targets import targets_of
from pet.compat.translation import elsewhere, method_of, number, same
from pet.recipe.translation import Ignored, Refused, Translation

Model = TypeVar("Model")
DEFAULTS = {
    "lora": {"lora_dropout": 0.01},
    "prefix": {"prefix_token_num": 128, "mid_dim": 512},
    "ptuning2": {"projection_dim": 128},
}
"""What MindFormers does where nothing is said, as far as a method has something else."""


def _mid_dim(t: Translation, name: str, value: Any) -> None:
    t.settings.setdefault("adapter.projection", True)
    t.put("adapter.projection_hidden", value if t.get("adapter.projection") else None)


FROZEN = "the base is frozen; see pet.freeze_modules for more"
PET = {
    "lora_rank": "adapter.rank",
    "lora_alpha": number("adapter.alpha"),
    "lora_dropout": number("adapter.dropout"),
    "exclude_layers": "adapter.exclude",
    "lora_a_init": Ignored("A starts Kaiming-uniform, adapter.init chooses otherwise"),
    "lora_b_init": Ignored("B starts at zero"),
    **same("adapter.length", "prefix_token_num prefix_seq_len pre_seq_len num_virtual_tokens"),
    **same("adapter.projection", "projection prefix_projection"),
    "mid_dim": _mid_dim,
    "projection_dim": lambda t, n, v: t.put("adapter.projection_hidden", v if t.get("adapter.projection") else None),
    **same(elsewhere, "pet_type target_modules"),  # targets depend on the model
    **same(Ignored("the matrices' own widths are taken"), "in_channels out_channels"),
    **same(Ignored("a prefix has no dropout of its own here"), "dropout_rate dropout_prob"),
    "freeze_include": Refused(FROZEN, harmless=(["*"],)),  # as release 1.7's files say it
    "freeze_exclude": Refused(FROZEN, harmless=(["*lora*"],)),
}


def put_method(t: Translation, pet: Mapping[str, Any], kind: str | None, base: Mapping[str, Any] | None) -> None:
    """The recipe's adapter for a ``pet_config``.

    Args:
        kind: ``model_config.type``.
        base: config.json's dictionary of the base; without one targets are left to the family.
    """
    method = method_of(pet.get("pet_type"))
    t.put("adapter.method", method)
    t.apply({**DEFAULTS.get(method, {}), **pet}, PET, "pet_config.")
    if pet.get("target_modules") and base is not None:
        t.put("adapter.targets", targets_of(t, pet["target_modules"], kind, base))


class PetConfig(MindFormerConfig):
    """``PetConfig(pet_type="lora", lora_rank=8)``: the section as an object."""

    _type: str | None = None

    def __init__(self, **given):
        super().__init__(**({"pet_type": self._type} if self._type else {}), **given)


class LoraConfig(PetConfig):
    """``LoraConfig(lora_rank=8, lora_alpha=16, lora_dropout=0.01, target_modules=".*wq|.*wv")``."""

    _type = "lora"


class Ptuning2Config(PetConfig):
    """``Ptuning2Config(pre_seq_len=128, prefix_projection=False, projection_dim=128)``."""

    _type = "ptuning2"


class PrefixTuningConfig(PetConfig):
    """``PrefixTuningConfig(prefix_token_num=128, mid_dim=512)``."""

    _type = "prefixtuning"


def pet_config_of(lora: Mapping[str, Any] | None) -> PetConfig | None:
    """A preset's LoRA or P-Tuning v2 (`pet.compat.mindformers.presets`) by MindFormers' names."""
    if lora is None:
        return None
    if lora["method"] == "ptuning2":
        return Ptuning2Config(pre_seq_len=lora["length"])
    return LoraConfig(**{f"lora_{name}": lora[name] for name in ("rank", "alpha", "dropout")})


def get_pet_model(base_model: Model, config: Mapping[str, Any]) -> Model:
    """The model with the method's adapter on it; only that is trained. LoRA's matrices are those of the file that the
    base's configuration names by ``checkpoint_name_or_path``, where it holds any, as there.

    Args:
        base_model: a model of this library.
        config: one of the classes above, or a dictionary with ``pet_type``.

    Raises:
        InputError: a method or setting that there is not; the base may not have the targets.
    """
    if getattr(base_model, "made_with", None) == config:
        return base_model  # its configuration has named it already
    t, base = Translation("pet_config"), base_model.config.to_dict()
    kinds = [name for name, (layouts, _) in CLASSES.items() if layout_of(base) in layouts]
    put_method(t, config, kinds[0] if kinds else None, base)
    t.finish()
    return with_adapter(base_model, {key.partition(".")[2]: value for key, value in t.settings.items()})


def with_adapter(model: Model, settings: Mapping[str, Any] | None) -> Model:
    """The model with an adapter of a recipe's settings, LoRA with the matrices of its MindFormers file; without
    settings as it is."""
    from adapters.apply import apply
    from adapters.methods import method_config

    if not settings:
        return model
    apply(model, method_config(settings, 0))
    if settings["method"] == "lora" and (fill := getattr(model, "held_lora", None)):
        fill(model)
    return model


def is_supported_pet_type(pet_type: str) -> bool:
    """Whether there is such a method."""
    try:
        return method_of(pet_type) != "none"
    except InputError:
        return False


class PetAdapter:
    """MindFormers' form of `get_pet_model` for one method: ``LoraAdapter.get_pet_model(model, config)``."""

    _type: str | None = None

    @classmethod
    def get_pet_model(cls, model: Model, config: Mapping[str, Any]) -> Model:
        """See `get_pet_model`; the class says the method where the configuration does not."""
        return get_pet_model(model, {**({"pet_type": cls._type} if cls._type else {}), **config})

    @classmethod
    def freeze_pretrained_model(cls, model, pet_type: str, freeze_include=None, freeze_exclude=None) -> None:
        """See `pet.freeze_delta`."""
        from adapters.freeze import freeze_delta

        freeze_delta(model, pet_type, freeze_include, freeze_exclude)


class LoraAdapter(PetAdapter):
    """LoRA."""

    _type = LoraConfig._type


class PrefixTuningAdapter(PetAdapter):
    """A prefix."""

    _type = PrefixTuningConfig._type


class Ptuning2Adapter(PetAdapter):
    """P-Tuning v2."""

    _type = Ptuning2Config._type
