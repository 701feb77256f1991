import functools
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from model_zoo.arguments import checked, misfit
from model_zoo.elsewhere import ELSEWHERE, METHODS, NAMES, OF_TOKENIZERS
from model_zoo.errors import NEEDLESS, InputError
from pet.text_classification import TextClassification

FITTING = {
    "int": [3, np.int64(3)],
    "float": [3, 2.5, np.float32(2)],
    "bool": [True, False, np.bool_(True), 1],
    "str": ["x", ""],
    "str | Path": ["x", Path("x")],
    "list[str] | str | None": [None, "x", [], ["x"], ("x",), {"x"}, np.array(["x"]), iter("x")],
    "list[int | str] | int | str | None": [3, [0, "4-7"], range(3)],
    "Sequence[float] | None": [[1, 0.5], np.ones(2)],
    "str | os.PathLike | dict[str, Any]": [{"a": 1}, "x"],
    "object": [object(), None],
    "SomethingElse | None": [object(), 3],
}


@pytest.mark.parametrize("annotation", FITTING)
def test_what_an_annotation_says_fits(annotation):
    assert [misfit("name", annotation, value) for value in FITTING[annotation]] == [None] * len(FITTING[annotation])


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        ("int", "3", "name is '3'; a whole number was expected"),
        ("int", True, "name is True; a whole number was expected"),
        ("int | None", 2.5, "name is 2.5; a whole number was expected"),
        ("float", None, "name is None; a number was expected"),
        ("bool", "false", "name is 'false'; True or False was expected"),
        ("bool", np.ones(2), "name is of the type ndarray; True or False was expected"),
        ("str", b"x", "name is b'x'; a text was expected"),
        ("str | Path", 3, "name is 3; a text or a path was expected"),
        ("str | Path", "", "name is an empty text; a path was expected"),
        ("list[str] | str | None", 3, "name is 3; a list of texts or a text was expected"),
        ("list[str]", ["x", 3], "name is ['x', 3]; a list of texts was expected"),
        ("list[int | str]", {"a": 1}, "name is {'a': 1}; a list of whole numbers or texts was expected"),
        ("Iterable[str]", np.ones((2, 2)), "name is of the type ndarray; a list of texts was expected"),
        ("Callable[[Any], int | None] | None", 3, "name is 3; a function was expected"),
        ("str | Path", "a\0b", "name is 'a\\x00b': no file can have this name (embedded null byte)"),
        (
            "nn.Cell",
            np.ones((2, 2)),
            "name is of the type ndarray; an opened model (pet.AutoModel.from_pretrained) was expected",
        ),
        ("Config | dict | str", 3, "name is 3; a configuration or a dictionary or a text was expected"),
    ],
)
def test_what_does_not_fit_is_said_in_its_words(annotation, value, words):
    assert misfit("name", annotation, value) == words


def test_a_checked_function():
    not_given = object()

    @checked
    def function(model, rank: "int", names: "list[str] | None" = not_given, *more: "int", **settings: "int"):
        """What it does."""
        return model, rank, names, more, settings

    assert function("anything", 3) == ("anything", 3, not_given, (), {})
    assert function(None, 3, ["x"], 4, other="y") == (None, 3, ["x"], (4,), {"other": "y"})
    assert function.__doc__ == "What it does." and function.__wrapped__ is not None
    with pytest.raises(InputError, match=r"(?s)2 problems:.*rank is 'x'; a whole.*names is 5; a list of texts"):
        function(None, "x", 5)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'rank'"):
        function(None)


def test_public_functions_are_checked():
    import pet

    calls = {
        "rank is 'x'; a whole number": functools.partial(pet.apply_lora, None, rank="x"),
        "model is None; an opened model (pet.AutoModel": functools.partial(pet.trainable_parameters, None),
        "directory is 3; a text or a path": functools.partial(pet.save_adapter, None, 3),
        "names is 2.5; a text or a list": functools.partial(pet.set_adapter, None, 2.5),
        "weights is 3; a list of numbers": functools.partial(pet.combine_adapters, None, ["a"], weights=3),
        "output is an empty text": functools.partial(pet.merge_checkpoint, "a", "b", ""),
        "an adapter's configuration was expected, as": functools.partial(pet.plan, None, 3),
        "config is 3; a configuration": functools.partial(pet.AutoModel.from_config, 3),
        "a name or a path was expected, got ''": functools.partial(pet.AutoModel.from_pretrained, ""),
        "quantization is 3; a Quantization or a dict": functools.partial(
            pet.AutoModel.from_pretrained, "x", quantization=3
        ),
        "tokenizer is of the type int, which has no stream": functools.partial(pet.TextStreamer, 3),
        "directory is 3; a text or a path was": functools.partial(pet.TrainableParamsCheckPoint, 3),
        "model is 3; an opened model": functools.partial(pet.freeze_modules, 3, ["*"]),
        "lora: seed is -1; a whole number of at least 0": pet.LoRAConfig(seed=-1).validate,
        "lora: targets is an empty list": pet.LoRAConfig(targets=[]).validate,
        "lora: targets is 2.5; a list of texts": pet.LoRAConfig(targets=2.5).validate,
        "lora: modules_to_save is 'lm_head'; a list": pet.LoRAConfig(modules_to_save="lm_head").validate,
    }
    for words, call in calls.items():
        with pytest.raises(InputError) as caught:
            call()
        assert words in str(caught.value)


def test_arguments_of_other_libraries_are_named_here(tmp_path):
    import pet

    model = pet.apply_lora(pet.AutoModel.from_pretrained("llama_tiny"), rank=2)
    calls = {
        "AutoModel.from_pretrained: torch_dtype is dtype": (pet.AutoModel.from_pretrained, "x", "torch_dtype"),
        "AutoModel.from_pretrained: ms_dtype is dtype": (pet.AutoModel.from_pretrained, "x", "ms_dtype"),
        "AutoTokenizer.from_pretrained: mirror is part of": (pet.AutoTokenizer.from_pretrained, "x", "mirror"),
        "pipeline: device_map has no counterpart": (pet.pipeline, "text_generation", "device_map"),
        'load_in_4bit is quantization={"type": "nf4"}': (pet.AutoModel.from_pretrained, "x", "load_in_4bit"),
        "quantization_config is quantization, as": (pet.AutoModel.from_pretrained, "x", "quantization_config"),
        "device_map has no counterpart: a model is on": (pet.AutoModel.from_pretrained, "x", "device_map"),
        "AutoTokenizer.from_pretrained: use_fast has no": (pet.AutoTokenizer.from_pretrained, "x", "use_fast"),
        "num_labels comes with a head, by pet.Trainer": (pet.AutoModel.from_pretrained, "x", "num_labels"),
        "from_config: torch_dtype is dtype": (pet.AutoModel.from_config, "llama_7b", "torch_dtype"),
        "generate: generation_config is its settings": (model.generate, [[5]], "generation_config"),
        "generate: penalty_alpha has no counterpart": (model.generate, [[5]], "penalty_alpha"),
        "generate: prefix_allowed_tokens_fn has no counterpart": (model.generate, [[5]], "prefix_allowed_tokens_fn"),
        "generate: max_time is stop_strings or max_new": (model.generate, [[5]], "max_time"),
        "generate: token_type_ids has no counterpart: leave it out": (model.generate, [[5]], "token_type_ids"),
        "model: labels has no counterpart: logits are given; pet.Trainer computes": (model, [[5]], "labels"),
        "load_adapter: adapter_name is name": (functools.partial(pet.load_adapter, model), "x", "adapter_name"),
        "load_adapter: device_map has no counterpart": (functools.partial(pet.load_adapter, model), "x", "device_map"),
        "hotswap_adapter: adapter_name is name": (functools.partial(pet.hotswap_adapter, model), "x", "adapter_name"),
        "load_adapter: model_id is directory": (functools.partial(pet.load_adapter, model), "x", "model_id"),
        "add_adapter: adapter_name is name": (functools.partial(pet.add_adapter, model), "x", "adapter_name"),
        "load_adapter: is_trainable has no": (functools.partial(pet.load_adapter, model), "x", "is_trainable"),
        "save_adapter: selected_adapters is name": (pet.save_adapter, model, "selected_adapters"),
        "save_pretrained: safe_serialization has no": (model.save_pretrained, tmp_path, "safe_serialization"),
        "merge_and_unload: safe_merge is safe": (pet.merge_and_unload, model, "safe_merge"),
        "combine_adapters: svd_rank is rank": (functools.partial(pet.combine_adapters, model), ["default"], "svd_rank"),
        "pipeline: return_all_scores is top_k": (object.__new__(TextClassification), "x", "return_all_scores"),
    }
    for words, (call, first, name) in calls.items():
        with pytest.raises(InputError) as caught:
            call(first, **{name: True})
        assert words in str(caught.value) and "\n" not in str(caught.value)
    for call in (pet.AutoModel.from_pretrained, functools.partial(pet.load_adapter, model), model.generate, model):
        with pytest.raises(TypeError, match="unexpected keyword argument 'nothing_of_this_name'"):
            call([[5]], nothing_of_this_name=True)
    assert not list(tmp_path.iterdir())


def test_what_is_said_of_other_libraries_arguments_is_true():
    """No function has an argument that the table says it has not, and every one has those that the table names."""
    import pet
    from model_zoo.causal_lm import CausalLM
    from model_zoo.generation import generate

    own = {"CausalLM.__call__": CausalLM.__call__, "generate": generate}
    own["TextClassification.__call__"] = TextClassification.__call__
    for name, others in ELSEWHERE.items():
        function = own.get(name) or functools.reduce(getattr, name.split("."), pet)
        known = inspect.signature(function).parameters
        assert not others.keys() & known.keys(), name
        here = [said.removeprefix("is ") for said in others.values() if re.fullmatch(r"is \w+", said)]
        assert set(here) <= known.keys(), name


def test_names_and_methods_of_other_libraries_are_named_here():
    """A first line that says what to write in its place, however the name is asked for."""
    import pet
    from pet.compat import mindformers

    model = pet.AutoModel.from_pretrained("llama_tiny")
    assert {"get_peft_model_state_dict", "set_peft_model_state_dict", "prepare_model_for_int8_training"} <= NAMES.keys()
    for name, said in NAMES.items():
        with pytest.raises(ImportError) as caught:
            exec(f"from pet import {name}", {})
        assert str(caught.value) == f"pet has no {name}: it {said}" and not hasattr(pet, name)
        with pytest.raises(AttributeError, match=re.escape(said)):
            getattr(pet, name)
    for name, said in METHODS.items():
        with pytest.raises(AttributeError, match=re.escape(f"a model has no {name}: it {said}")):
            getattr(model, name)
    tokenizer = pet.AutoTokenizer.from_pretrained("llama_tiny")
    for name, said in OF_TOKENIZERS.items():
        with pytest.raises(AttributeError, match=re.escape(f"no attribute {name!r}: it {said}")):
            getattr(tokenizer, name)
        assert all(hasattr(tokenizer, own) for own in re.findall(r"^is (\w+)\(", said))
    for said in [*NAMES.values(), *METHODS.values()]:
        for own in re.findall(r"pet\.(\w+)(?:\.(\w+))?\b(?! merge)", said):
            functools.reduce(getattr, filter(None, own), pet)  # it is there
    with pytest.raises(ImportError, match="cannot import name 'nothing_of_this_name' from 'pet'"):
        exec("from pet import nothing_of_this_name", {})
    with pytest.raises(AttributeError, match="object has no attribute 'nothing_of_this_name'"):
        model.nothing_of_this_name  # noqa: B018
    from_compat = {
        "mindformers.models.nowhere import X": "mindformers has no models.nowhere: the models here are GPT-2, LLaMA",
        "mindformers.tools.utils import nothing": "mindformers has no tools.utils.nothing; docs/",
        "flagai.auto_model.auto_loader import AutoLoader": "flagai has no auto_model; docs/coming-from/flagai.md",
    }
    for words, message in from_compat.items():
        with pytest.raises(ImportError, match=re.escape(f"pet.compat.{message}")):
            exec(f"from pet.compat.{words}", {})
    assert not hasattr(mindformers, "nowhere")
    for name, reason in NEEDLESS.items():
        with pytest.raises(InputError, match=re.escape(f"lora: there is no setting '{name}' (leave it out: {reason})")):
            pet.LoRAConfig(**{name: True})


def test_an_adapter_in_a_models_place_is_called_one(tmp_path):
    import pet

    pet.save_adapter(pet.apply_lora(pet.AutoModel.from_pretrained("llama_tiny"), rank=2), tmp_path)
    with pytest.raises(
        InputError, match=r"holds no config.json.*adapter_config.json is an adapter's: open its base, then"
    ):
        pet.AutoModel.from_pretrained(tmp_path)
