"""MindFormers' concrete classes of models, tokenizers and processors, over those of `model_zoo`.

Model classes take a configuration (`pet.compat.mindformers.config`) and give this library's models.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.apply import list_adapters
from model_zoo import tokenizers as own
from model_zoo.causal_lm import CausalLM
from model_zoo.configs import Config
from model_zoo.elsewhere import OPENED
from model_zoo.errors import InputError, check_one_of, similar
from model_zoo.generation.streamers import TextStreamer
from model_zoo.tokenizers.chatglm import ChatGLMTokenizer as OwnChatGLM
from model_zoo.tokenizers.chatglm2 import ChatGLM2Tokenizer as OwnChatGLM2, ChatGLM3Tokenizer as OwnChatGLM3
from model_zoo.tokenizers.glm4 import GLM4Tokenizer
from model_zoo.tokenizers.gpt2 import GPT2Tokenizer as OwnGPT2
from model_zoo.tokenizers.llama import LlamaTokenizer as OwnLlama
from pet import auto
from pet.compat.mindformers.building import built, from_pretrained
from pet.compat.mindformers.config import (
    ChatGLM2Config,
    GLMConfig,
    GPT2Config,
    LlamaConfig,
    TransformerOpParallelConfig,
    name_weights,
)
from pet.compat.mindformers.encodings import AddedToken
from pet.compat.mindformers.model_file import model_section, read_file, saved_model
from pet.compat.mindformers.pet_config import PetConfig, get_pet_model, pet_config_of, with_adapter
from pet.compat.mindformers.presets import CLASSES, LORA, TRUST, TYPES, Listed, Making, split_name, take_said
from pet.compat.mindformers.saving import place_of
from pet.compat.mindformers.script_config import MindFormerConfig
from pet.compat.mindformers.sizes import file_config, tokenizer_of
from pet.compat.mindformers.tokenizing import Spoken, spoken
from pet.names import find_tokenizer
from pet.recipe.translation import Ignored, is_off

if TYPE_CHECKING:
    from typing_extensions import Self

    class ScriptConfig(Config):
        """A configuration with what scripts set on it."""

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...


CONFIGS = {name: globals()[kind] for name, kind in TYPES.items()}
"""By MindFormers' names of families."""


def _values(name: Any) -> dict[str, Any] | None:
    """What stands in a MindFormers YAML file, if this is one that was read, or the path of one."""
    if isinstance(name, MindFormerConfig):
        return name
    return read_file(Path(name)) if str(name).endswith((".yaml", ".yml")) else None


def _model_values(name: Any) -> dict[str, Any] | None:
    """`_values`, or what MindFormers' ``save_pretrained`` has written there."""
    values = _values(name)
    return saved_model(name) if values is None and isinstance(name, (str, os.PathLike)) else values


class AutoConfig(Listed, auto.AutoConfig):
    """Configurations by directory, name, also ``glm_6b_lora``: that of the model, which has LoRA as ``pet_config``, or
    MindFormers' YAML file."""

    @staticmethod
    def from_pretrained(name_or_directory, **settings) -> ScriptConfig:
        """See `pet.AutoConfig`. Scripts read and set it by MindFormers' names, until a model is made of it: sizes,
        ``checkpoint_name_or_path``, ``do_sample`` and the like; those among the settings are set at once.
        ``parallel_config`` is there to be set, too.
        """
        take_said("AutoConfig", settings, TRUST)
        (name, lora), values = split_name(name_or_directory), _model_values(name_or_directory)
        if values is None:
            config = auto.AutoConfig.from_pretrained(name)
        else:
            config, name = file_config(values), model_section(values).get("checkpoint_name_or_path")
        name_weights(config, name)
        config.parallel_config = TransformerOpParallelConfig()
        config.pet_config = pet_config_of(lora)
        if section := values and model_section(values).get("pet_config"):
            config.pet_config = PetConfig(**section)
        kind = type(config).kind
        lacking = [f"{one!r}{similar(one, kind.rules)}" for one in settings if kind.rule(one) is None]
        InputError.raise_any(f"AutoConfig.from_pretrained: there is no {one}" for one in lacking)
        for one, value in settings.items():
            setattr(config, one, value)
        return config

    @staticmethod
    def for_model(model_type: str, **settings) -> ScriptConfig:
        """The configuration of a family by its name (``gpt2``, ``llama``, ``glm``, ``glm2``), of settings by name."""
        check_one_of("AutoConfig.for_model: model_type", model_type, tuple(CONFIGS))
        return CONFIGS[model_type](**settings)


class AutoModel(Listed, auto.AutoModel):
    """Models by directory or name; ``X_lora`` with MindFormers' LoRA for X on it."""

    @staticmethod
    def from_pretrained(name_or_directory, **settings) -> CausalLM:
        """See `pet.AutoModel`. Of a MindFormers YAML file: the model that it describes, with the weights that it
        names; of a directory that MindFormers' ``save_pretrained`` has written, the one there. With
        ``download_checkpoint=False`` random weights. Settings of the configuration, such as ``use_past`` or
        ``seq_length``, are set on it."""
        take_said("AutoModel", settings, TRUST)
        loads, values = settings.pop("download_checkpoint", True), _model_values(name_or_directory)
        own = {*inspect.signature(auto.AutoModel.from_pretrained).parameters, *OPENED}
        opening, kept = sorted(own & settings.keys()), sorted(settings.keys() - own)
        if loads and values is None and not kept:
            return from_pretrained(name_or_directory, **settings)
        if opening and kept:
            raise InputError(
                f"AutoModel.from_pretrained: {', '.join(kept)} belong to a configuration, {', '.join(opening)} to "
                "opening weights; set the former on AutoConfig.from_pretrained's, or leave them out"
            )
        config = AutoConfig.from_pretrained(name_or_directory, **settings)
        named = (
            split_name(name_or_directory)[0] if values is None else model_section(values).get("checkpoint_name_or_path")
        )
        config.checkpoint_name_or_path = named
        return AutoModel.from_config(config, download_checkpoint=loads)

    @staticmethod
    def from_config(config, **settings) -> CausalLM:
        """See `pet.AutoModel`; with the weights of a configuration's ``checkpoint_name_or_path``, unless
        ``download_checkpoint`` is False."""
        config = AutoConfig.from_pretrained(config) if _values(config) is not None else config
        name, lora = split_name(config)
        loads = settings.pop("download_checkpoint", True)
        if isinstance(name, str):
            return with_adapter(auto.AutoModel.from_config(name, **settings), lora)
        if settings:
            raise InputError(f"AutoModel.from_config: {', '.join(settings)}: set it on the configuration")
        pet, model = getattr(name, "pet_config", None), built(name, loads)
        if pet:
            model = get_pet_model(model, pet)
            model.made_with = pet
        return model


AutoModelForCausalLM = AutoModel


class AutoTokenizer(Listed, auto.AutoTokenizer):
    """Tokenizers by directory, file or name, also ``X_lora``, or of MindFormers' YAML file."""

    @staticmethod
    def from_pretrained(name_or_path, *arguments, **settings) -> own.Tokenizer:
        """See `pet.AutoTokenizer`."""
        if (values := _values(name_or_path)) is not None:
            name_or_path = tokenizer_of("mindformers", values)
        take_said("AutoTokenizer", settings, {**TRUST, "use_fast": Ignored("there is one tokenizer for each file")})
        return spoken(auto.AutoTokenizer.from_pretrained(split_name(name_or_path)[0], *arguments, **settings))


class FamilyModel(Listed, CausalLM if TYPE_CHECKING else object, metaclass=Making):
    """A model of one family: random weights, or those of the configuration's ``checkpoint_name_or_path``."""

    _config: Any = None
    _lora = ""

    @classmethod
    def _makes(cls, one: object) -> bool:
        kin = cls._config is not None and isinstance(one, CausalLM) and isinstance(one.config, cls._config)
        return kin and (not cls._lora or bool(list_adapters(one)))

    def __new__(cls, config=None) -> CausalLM:
        model = AutoModel.from_config(CLASSES[cls._config.__name__][1] if config is None else config)
        plain = not cls._lora or getattr(config, "pet_config", None)
        return model if plain else with_adapter(model, dict(LORA[cls._lora]))

    @staticmethod
    def from_pretrained(name_or_directory) -> CausalLM:
        """The model of a checkpoint directory, bundled base or MindFormers ``.ckpt`` file, with its weights."""
        return AutoModel.from_pretrained(name_or_directory)


class GPT2LMHeadModel(FamilyModel):
    """GPT-2."""

    _config = GPT2Config


class LlamaForCausalLM(FamilyModel):
    """LLaMA 1 to 3.2."""

    _config = LlamaConfig


class GLMForPreTraining(FamilyModel):
    """ChatGLM-6B."""

    _config = GLMConfig


GLMChatModel = GLMForPreTraining
"""Its answers come from ``generate`` like every model's."""


class GLMChatModelWithLora(GLMForPreTraining):
    """ChatGLM-6B with LoRA: that of the configuration's ``pet_config``, or else MindFormers' own for it."""

    _lora = "glm"


GLMForPreTrainingWithLora = GLMChatModelWithLora


class LlamaForCausalLMWithLora(LlamaForCausalLM):
    """LLaMA with LoRA, in the same way."""

    _lora = "llama"


class GPT2WithLora(GPT2LMHeadModel):
    """GPT-2 with LoRA, in the same way."""

    _lora = "gpt2"


class ChatGLM2ForConditionalGeneration(FamilyModel):
    """ChatGLM2, ChatGLM3 and GLM-4."""

    _config = ChatGLM2Config


class ChatGLM2WithPtuning2(ChatGLM2ForConditionalGeneration):
    """ChatGLM2 with P-Tuning v2: that of the configuration's ``pet_config``, or else MindFormers' own for it."""

    _lora = "ptuning2"


SAID = (
    *("bos_token", "eos_token", "unk_token", "pad_token", "add_bos_token", "add_eos_token", "padding_side"),
    *("model_max_length", "clean_up_tokenization_spaces", "chat_template"),
)
"""Settings of tokenizer_config.json that MindFormers' tokenizers are made with."""
UNUSED = ("type", "auto_register")
"""What else stands in its files' section ``tokenizer``, and says nothing here."""
OFF = ("sp_model_kwargs", "use_default_system_prompt", "spaces_between_special_tokens")
"""What may stand there, but is not here."""


class _Named(Listed, Spoken):
    """Tokenizers by the name of a bundled base as well."""

    def __init__(self, vocab_file=None, *arguments, settings: dict | None = None, **more) -> None:
        if vocab_file is None:
            raise InputError(f"{type(self).__name__}: vocab_file is None; give the tokenizer's file")
        own = inspect.signature(super().__init__).parameters
        said = {name: more.pop(name) for name in (*SAID, *UNUSED, *OFF) if name in more and name not in own}
        if on := [f"{name}={said[name]!r}" for name in OFF if not is_off(said.get(name))]:
            raise InputError(f"{type(self).__name__}: {', '.join(on)}: is not supported; expected it off")
        said = {name: value for name, value in said.items() if name in SAID and value is not None}
        said = {name: str(value) if isinstance(value, AddedToken) else value for name, value in said.items()}
        further = more.pop("additional_special_tokens", None) or ()
        super().__init__(vocab_file, *arguments, settings={**(settings or {}), **said}, **more)
        self.add_tokens(further)

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        """Also what `spoken` has made of the same tokenizer."""
        return (_Named in cls.__bases__ and {Spoken, cls.__bases__[1]} <= {*other.__mro__}) or NotImplemented

    @classmethod
    def from_pretrained(cls, path, prompt_style: str | None = None) -> Self:
        """The tokenizer of a directory, file or bundled base."""
        return super().from_pretrained(find_tokenizer(path), prompt_style)


class GPT2Tokenizer(_Named, OwnGPT2):
    """GPT-2's byte-level BPE."""


class LlamaTokenizer(_Named, OwnLlama):
    """LLaMA's SentencePiece tokenizer."""


GPT2TokenizerFast, LlamaTokenizerFast = GPT2Tokenizer, LlamaTokenizer
"""The same ids."""


class ChatGLMTokenizer(_Named, OwnChatGLM):
    """ChatGLM-6B's tokenizer."""


class ChatGLM2Tokenizer(_Named, OwnChatGLM2):
    """ChatGLM2's tokenizer."""


class ChatGLM3Tokenizer(_Named, OwnChatGLM3):
    """ChatGLM3's tokenizer."""


class ChatGLM4Tokenizer(_Named, GLM4Tokenizer):
    """GLM-4's tokenizer."""

    def apply_chat_template(self, conversation, *arguments, **settings) -> Any:
        """See `Spoken`. One message alone, of whatever role, has the mark of an answer behind it, as there."""
        if len(conversation) != 1 or arguments or settings.keys() - {"tokenize", "add_generation_prompt"}:
            return super().apply_chat_template(conversation, *arguments, **settings)
        ids = self.prompt([{**conversation[0], "role": "user"}])
        mark = ids.index(self.special_tokens["<|user|>"])
        ids[mark] = self.special_tokens[f"<|{conversation[0]['role']}|>"]
        return ids if settings.get("tokenize", True) else self.decode(ids, False)


PROCESSOR = ("max_length", "padding", "return_tensors")


class Processor(Listed):
    """Texts to a model's input, padded to one length.

    Args:
        tokenizer: any tokenizer of this library.
        max_length: longer texts are cut, shorter ones padded on the right.
        return_tensors: ``ms``, ``np`` or None for lists.
    """

    def __init__(self, tokenizer=None, max_length: int = 128, padding="max_length", return_tensors: str | None = "ms"):
        if not isinstance(tokenizer, own.Tokenizer):
            raise InputError("Processor: tokenizer= is missing, or none of this library's")
        self.tokenizer, self.max_length = tokenizer, max_length
        self.padding, self.return_tensors = padding, return_tensors

    def __call__(self, text) -> dict[str, Any]:
        """``input_ids`` (also as ``text``) and ``attention_mask``, both ``(B, max_length)``."""
        inputs = self.tokenizer(
            [text] if isinstance(text, str) else text,
            padding=self.padding,
            padding_side="right",
            max_length=self.max_length,
            truncation=True,
            return_tensors=self.return_tensors,
        )
        return {**inputs, "text": inputs["input_ids"]}

    @classmethod
    def from_pretrained(cls, name_or_directory, **settings) -> Self:
        """The processor over the tokenizer of a checkpoint directory or bundled base, or of MindFormers' YAML file."""
        section = (_values(name_or_directory) or {}).get("processor") or {}
        settings = {**{name: section[name] for name in PROCESSOR if name in section}, **settings}
        take_said("AutoProcessor", settings, TRUST)
        return cls(AutoTokenizer.from_pretrained(name_or_directory), **settings)

    def save_pretrained(self, save_directory=None, save_name: str | None = None) -> None:
        """Writes the tokenizer's files, from which `AutoProcessor.from_pretrained` makes a processor again."""
        self.tokenizer.save_pretrained(place_of(save_directory, save_name))

    def decode(self, ids) -> list[str]:
        """The texts of a batch of ids."""
        return [self.tokenizer.decode(row.tolist(), skip_special_tokens=True) for row in np.atleast_2d(np.asarray(ids))]


GPT2Processor = GLMProcessor = LlamaProcessor = AutoProcessor = BaseProcessor = ProcessorMixin = Processor
"""The tokenizer says what differs."""
BaseConfig = PretrainedConfig = Config
BaseModel = PreTrainedModel = CausalLM
BaseStreamer = TextStreamer
BaseTokenizer = PreTrainedTokenizer = PreTrainedTokenizerBase = own.Tokenizer
"""What scripts ask of an object whether it is one."""
WIDE = dict(zip(",!:;?", "，！：；？", strict=True))


def process_response(response: str) -> str:
    """An answer of ChatGLM-6B with a year in the place of its mark, and Chinese punctuation beside Chinese letters."""
    text = response.strip().replace("[[训练时间]]", "2023年")
    return re.sub(r"(?<=[\u4e00-\u9fff])[,!:;?]|[,!:;?](?=[\u4e00-\u9fff])", lambda found: WIDE[found[0]], text)
