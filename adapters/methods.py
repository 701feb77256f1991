"""Every method by its name in recipes and by its name in PEFT's files."""

from __future__ import annotations

from adapters.bitfit import BitFitConfig
from adapters.bottleneck import BottleneckConfig
from adapters.ia3 import IA3Config
from adapters.lora import LoRAConfig
from adapters.low_rank_adapter import LowRankAdapterConfig
from adapters.method import MethodConfig
from adapters.prefix import PrefixConfig
from adapters.prompt import PromptConfig, PTuningConfig
from adapters.ptuning import PTuningV2Config
from adapters.tokens import TrainableTokensConfig

ALL = (
    LoRAConfig,
    PrefixConfig,
    PTuningV2Config,
    PromptConfig,
    PTuningConfig,
    BottleneckConfig,
    LowRankAdapterConfig,
    IA3Config,
    BitFitConfig,
)
METHODS: dict[str, type[MethodConfig]] = {cls.method: cls for cls in ALL}
BY_PEFT_TYPE: dict[str, type[MethodConfig]] = {
    cls.peft_type: cls for cls in (*ALL, TrainableTokensConfig) if cls.peft_type
}
