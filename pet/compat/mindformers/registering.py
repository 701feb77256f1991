"""``MindFormerRegister`` and MindFormers' ``build_…``: objects by the name of their class.

What is here is found by its name, MindSpore's own by its, and a script's own class where it has been registered. A job
file's trainer does not look for registered classes: it knows the models, loaders and callbacks that are here.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from model_zoo.errors import InputError, located, similar
from pet.compat.mindformers.pet_config import get_pet_model
from pet.compat.mindformers.script_config import MindFormerConfig
from pet.compat.translation import same

OWN = "pet.compat.mindformers"
PLACES = {
    **same((f"{OWN}.classes",), "models tokenizer processor"),
    "config": (f"{OWN}.config",),
    "lr": (f"{OWN}.learning_rates", "mindspore.nn.learning_rate_schedule"),
    "optimizer": (f"{OWN}.optimizers", "mindspore.nn.optim"),
    "callback": (f"{OWN}.callbacks", "mindspore.train.callback"),
    "metric": (f"{OWN}.metrics", "mindspore.train"),
    "pipeline": (f"{OWN}.asking",),
    **same(("mindspore.dataset",), "dataset_loader dataset_sampler"),
    "loss": (f"{OWN}.losses", "mindspore.nn"),
    "wrapper": ("mindspore.nn",),
    **same((), "dataset trainer mask_policy transforms encoder modules transformer base_layer core head context"),
    **same((), "feature_extractor data_handler tools"),
}
"""Where a kind's classes are."""
ALIASES = {
    "lr": {
        "constant_with_warmup": "ConstantWarmUpLR",
        "linear": "LinearWithWarmUpLR",
        "cosine": "CosineWithWarmUpLR",
        "cosine_with_restarts": "CosineWithRestartsAndWarmUpLR",
        "polynomial": "PolynomialWithWarmUpLR",
        "cosine_annealing": "CosineAnnealingLR",
        "cosine_annealing_warm_restarts": "CosineAnnealingWarmRestarts",
    },
    "optimizer": {
        "adamw": "AdamWeightDecay",
        **{name.lower(): name for name in ("Adam", "SGD", "Adagrad")},
        "fused_adamw": "FusedAdamWeightDecay",
        "fp32_adamw": "FP32StateAdamWeightDecay",
    },
}


class MindFormerModuleType:
    """The kinds."""


for _kind in PLACES:
    setattr(MindFormerModuleType, _kind.upper(), _kind)


class MindFormerRegister:
    """Classes by kind and name."""

    registry: ClassVar[dict[str, dict[str, type]]] = {kind: {} for kind in PLACES}
    """Those of scripts."""

    @classmethod
    def register(cls, module_type: str = "tools", alias: str | None = None, legacy=True, search_names=None) -> Callable:
        """A decorator that registers a class, by one name; the other two are about MindFormers' search."""
        return lambda one: cls.register_cls(one, module_type, alias)

    @classmethod
    def register_cls(cls, register_class, module_type: str = "tools", alias=None, legacy=True, search_names=None):
        """Registers a class and gives it back; arguments are those of `register`."""
        cls.registry.setdefault(module_type, {})[alias or register_class.__name__] = register_class
        return register_class

    @classmethod
    def _find(cls, kind: str, name: str) -> Any:
        name = ALIASES.get(kind, {}).get(name, name)
        if name in cls.registry.get(kind, {}):
            return cls.registry[kind][name]
        for place in PLACES.get(kind, ()):
            found = getattr(importlib.import_module(place), name, None)
            if getattr(found, "__module__", "") == place or (inspect.isclass(found) and not place.startswith(OWN)):
                return found
        return None

    @classmethod
    def is_exist(cls, module_type: str, class_name: str | None = None) -> bool:
        """Whether there is such a kind, or a class of it."""
        return cls._find(module_type, class_name) is not None if class_name else module_type in cls.registry

    @classmethod
    def get_cls(cls, module_type: str, class_name: str | None = None) -> Any:
        """The class.

        Raises:
            InputError: there is none.
        """
        found = cls._find(module_type, class_name) if class_name else None
        if found is None:
            near = similar(str(class_name), cls.registry.get(module_type, {}))
            raise InputError(f"{module_type}: {class_name!r} is not here, and nobody has registered it{near}")
        return found

    @classmethod
    def get_instance(cls, module_type: str = "tools", class_name: Any = None, **settings: Any) -> Any:
        """An object of a class, or of its name."""
        return (class_name if inspect.isclass(class_name) else cls.get_cls(module_type, class_name))(**settings)

    @classmethod
    def get_instance_from_cfg(cls, cfg: Mapping[str, Any], module_type: str = "tools", default_args=None) -> Any:
        """An object of a section with ``type``; `default_args` count before the section's own."""
        if not isinstance(cfg, Mapping) or "type" not in cfg:
            raise InputError(f"{module_type}: a section with type was expected, found {cfg!r}")
        settings = {**cfg, **(default_args or {})}
        return cls.get_instance(module_type, settings.pop("type"), **settings)


def _builder(kind: str, name: str, part: str = "", of_part: str = "") -> Callable[..., object]:
    def build(config=None, default_args=None, module_type: str = kind, class_name=None, **settings) -> object:
        if isinstance(config, Mapping) and isinstance(config.get(part), Mapping):
            config = {**config, part: MindFormerRegister.get_instance_from_cfg(config[part], of_part)}
        if config is None and class_name is None:
            return None
        if class_name is not None:
            return MindFormerRegister.get_instance(module_type, class_name, **settings)
        if isinstance(config, (list, tuple)):
            return [MindFormerRegister.get_instance_from_cfg(one, kind, default_args) for one in config]
        return MindFormerRegister.get_instance_from_cfg(config, kind, default_args)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = (
        f"The {kind} of a section with ``type``, of a list of those, or of ``class_name=``; None of nothing."
        + f" Its ``{part}`` may be a section itself." * bool(part)
    )
    return build


build_lr = _builder("lr", "build_lr")
build_callback = _builder("callback", "build_callback")
build_loss = _builder("loss", "build_loss")
build_metric = _builder("metric", "build_metric")
build_model_config = _builder("config", "build_model_config")
build_pipeline = _builder("pipeline", "build_pipeline")
build_tokenizer = _builder("tokenizer", "build_tokenizer")
build_wrapper = _builder("wrapper", "build_wrapper")
build_dataset = _builder("dataset", "build_dataset")
build_dataset_loader = _builder("dataset_loader", "build_dataset_loader")
build_optim = _builder("optimizer", "build_optim", "learning_rate", "lr")
build_processor = _builder("processor", "build_processor", "tokenizer", "tokenizer")


def build_model(config=None, default_args=None, module_type: str = "models", class_name=None, **settings) -> object:
    """The model of a section ``model``: of ``arch`` by ``model_config``, with the weights that this names.

    Args:
        default_args: what counts before the section's ``model_config``.
    """
    if class_name is not None:
        return MindFormerRegister.get_instance(module_type, class_name, config=config, **settings)
    section = MindFormerConfig(config or {}).model_config
    if section is None:
        return None
    if isinstance(section, Mapping):
        given = {name: _nested(value) for name, value in {**section, **(default_args or {})}.items()}
        section = MindFormerRegister.get_instance_from_cfg(given, "config")
    return MindFormerRegister.get_instance_from_cfg((config or {}).get("arch"), "models", {"config": section})


def _nested(value: Any) -> Any:
    """A configuration within another one."""
    own = isinstance(value, Mapping) and "type" in value
    return MindFormerRegister.get_instance_from_cfg(value, "config") if own else value


def build_network(config=None, default_args=None) -> object:
    """The same, with the adapter of ``pet_config``."""
    model = build_model(config, default_args)
    pet = ((config or {}).get("model_config") or {}).get("pet_config")
    if not pet:
        return model
    with located("pet_config"):
        return get_pet_model(model, pet)
