"""The text model within Gemma 3's multimodal files, under the tensor names that it has there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from model_zoo.configs import Config
from model_zoo.errors import InputError, shown
from model_zoo.families.gemma3 import Gemma3Config
from model_zoo.families.rotary import rotary_family
from model_zoo.rope_config import with_older_form

ENCODER = r"^(model\.)?(vision_tower|multi_modal_projector)\."
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclasses.dataclass
class Gemma3MultimodalConfig(Gemma3Config):
    """config.json of a Gemma 3 with an image encoder; the text model's fields are its ``text_config``'s."""

    family = rotary_family("gemma3", root="model.language_model", ignored=(ENCODER,))
    architectures: ClassVar[dict[str, str]] = {"gemma3": "Gemma3ForConditionalGeneration"}
    sized_by = ("hidden_size", "intermediate_size", "num_hidden_layers")  # published files leave out the rest
    left_out = "the image encoder of a Gemma 3 is left out: its text model is opened"

    model_type: str = "gemma3"

    @classmethod
    def flat(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        text = values.get("text_config")
        if not isinstance(text, Mapping):
            raise InputError(f"config.json: text_config is {shown(text)}; the text model's configuration was expected")
        return {**text, **values}

    @classmethod
    def for_file(cls, values: Mapping[str, Any], dtype: str | None = None) -> dict[str, Any]:
        return super().for_file({**values, "text_config": with_older_form(values["text_config"])}, dtype)

    @property
    def padding_row(self) -> int:
        return self.row_of_padding(self.extra["text_config"])

    @property
    def alone(self) -> Config:
        values, text = self.to_dict(), self.extra["text_config"]
        fields = {field.name for field in dataclasses.fields(Gemma3Config)} - {"extra", "model_type"}
        kept = fields.union(text, TOKENS, ("dtype", "torch_dtype", "quantization_config")) - {"architectures"}
        values = {key: value for key, value in values.items() if key in kept}
        return Gemma3Config.from_dict({**values, "model_type": "gemma3_text"})

    def check(self) -> None:
        super().check()
        self.require("final_logit_softcapping", None)  # transformers caps those of the text model by itself alone


CONFIG = Gemma3MultimodalConfig
PRESETS: dict[str, dict] = {}
