"""The names, each with the module that has it: for editors, and for `__init__.py`, which finds them here."""

from pet.compat.mindformers.asking import (
    TextClassificationPipeline as TextClassificationPipeline,
    TextGenerationPipeline as TextGenerationPipeline,
    pipeline as pipeline,
)
from pet.compat.mindformers.book import (
    MindFormerBook as MindFormerBook,
)
from pet.compat.mindformers.callbacks import (
    CheckpointMointor as CheckpointMointor,
    CheckpointMonitor as CheckpointMonitor,
    EvalCallBack as EvalCallBack,
    MFLossMonitor as MFLossMonitor,
    ObsMonitor as ObsMonitor,
    ProfileMonitor as ProfileMonitor,
    SummaryMonitor as SummaryMonitor,
)
from pet.compat.mindformers.checking import (
    run_check as run_check,
)
from pet.compat.mindformers.classes import (
    AutoConfig as AutoConfig,
    AutoModel as AutoModel,
    AutoModelForCausalLM as AutoModelForCausalLM,
    AutoProcessor as AutoProcessor,
    AutoTokenizer as AutoTokenizer,
    BaseConfig as BaseConfig,
    BaseModel as BaseModel,
    BaseProcessor as BaseProcessor,
    BaseStreamer as BaseStreamer,
    BaseTokenizer as BaseTokenizer,
    ChatGLM2ForConditionalGeneration as ChatGLM2ForConditionalGeneration,
    ChatGLM2Tokenizer as ChatGLM2Tokenizer,
    ChatGLM2WithPtuning2 as ChatGLM2WithPtuning2,
    ChatGLM3Tokenizer as ChatGLM3Tokenizer,
    ChatGLM4Tokenizer as ChatGLM4Tokenizer,
    ChatGLMTokenizer as ChatGLMTokenizer,
    GLMChatModel as GLMChatModel,
    GLMChatModelWithLora as GLMChatModelWithLora,
    GLMForPreTraining as GLMForPreTraining,
    GLMForPreTrainingWithLora as GLMForPreTrainingWithLora,
    GLMProcessor as GLMProcessor,
    GPT2LMHeadModel as GPT2LMHeadModel,
    GPT2Processor as GPT2Processor,
    GPT2Tokenizer as GPT2Tokenizer,
    GPT2TokenizerFast as GPT2TokenizerFast,
    GPT2WithLora as GPT2WithLora,
    LlamaForCausalLM as LlamaForCausalLM,
    LlamaForCausalLMWithLora as LlamaForCausalLMWithLora,
    LlamaProcessor as LlamaProcessor,
    LlamaTokenizer as LlamaTokenizer,
    LlamaTokenizerFast as LlamaTokenizerFast,
    PretrainedConfig as PretrainedConfig,
    PreTrainedModel as PreTrainedModel,
    PreTrainedTokenizer as PreTrainedTokenizer,
    PreTrainedTokenizerBase as PreTrainedTokenizerBase,
)
from pet.compat.mindformers.config import (
    ChatGLM2Config as ChatGLM2Config,
    GLMConfig as GLMConfig,
    GPT2Config as GPT2Config,
    LlamaConfig as LlamaConfig,
    TransformerOpParallelConfig as TransformerOpParallelConfig,
)
from pet.compat.mindformers.context import (
    ContextConfig as ContextConfig,
    ParallelContextConfig as ParallelContextConfig,
    init_context as init_context,
)
from pet.compat.mindformers.generation_defaults import (
    GenerationConfig as GenerationConfig,
)
from pet.compat.mindformers.high_level import (
    Trainer as Trainer,
)
from pet.compat.mindformers.learning_rates import (
    ConstantWarmUpLR as ConstantWarmUpLR,
    ConstantWithCoolDownLR as ConstantWithCoolDownLR,
    CosineAnnealingLR as CosineAnnealingLR,
    CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts,
    CosineWithRestartsAndWarmUpLR as CosineWithRestartsAndWarmUpLR,
    CosineWithWarmUpLR as CosineWithWarmUpLR,
    LearningRateWiseLayer as LearningRateWiseLayer,
    LinearWithWarmUpLR as LinearWithWarmUpLR,
    PolynomialWithWarmUpLR as PolynomialWithWarmUpLR,
    WarmUpStableDecayLR as WarmUpStableDecayLR,
)
from pet.compat.mindformers.logs import (
    logger as logger,
)
from pet.compat.mindformers.losses import (
    CrossEntropyLoss as CrossEntropyLoss,
)
from pet.compat.mindformers.metrics import (
    EmF1Metric as EmF1Metric,
    PerplexityMetric as PerplexityMetric,
)
from pet.compat.mindformers.optimizers import (
    AdamW as AdamW,
    FP32StateAdamWeightDecay as FP32StateAdamWeightDecay,
    FusedAdamWeightDecay as FusedAdamWeightDecay,
)
from pet.compat.mindformers.pet_config import (
    LoraAdapter as LoraAdapter,
    LoraConfig as LoraConfig,
    PetAdapter as PetAdapter,
    PetConfig as PetConfig,
    PrefixTuningAdapter as PrefixTuningAdapter,
    PrefixTuningConfig as PrefixTuningConfig,
    Ptuning2Adapter as Ptuning2Adapter,
    Ptuning2Config as Ptuning2Config,
    get_pet_model as get_pet_model,
)
from pet.compat.mindformers.registering import (
    MindFormerModuleType as MindFormerModuleType,
    MindFormerRegister as MindFormerRegister,
    build_callback as build_callback,
    build_dataset as build_dataset,
    build_dataset_loader as build_dataset_loader,
    build_loss as build_loss,
    build_lr as build_lr,
    build_metric as build_metric,
    build_model as build_model,
    build_model_config as build_model_config,
    build_network as build_network,
    build_optim as build_optim,
    build_pipeline as build_pipeline,
    build_processor as build_processor,
    build_tokenizer as build_tokenizer,
    build_wrapper as build_wrapper,
)
from pet.compat.mindformers.script import (
    SFTDataLoader as SFTDataLoader,
    TrainingDataLoader as TrainingDataLoader,
    build_context as build_context,
    build_parallel_config as build_parallel_config,
    build_profile_cb as build_profile_cb,
    cloud_monitor as cloud_monitor,
)
from pet.compat.mindformers.script_config import (
    ActionDict as ActionDict,
    DictConfig as DictConfig,
    MindFormerConfig as MindFormerConfig,
)
from pet.compat.mindformers.streaming import (
    TextIteratorStreamer as TextIteratorStreamer,
    TextStreamer as TextStreamer,
)
from pet.compat.mindformers.training_arguments import (
    TrainingArguments as TrainingArguments,
)
