"""The names, each with the module that has it: for editors, and for `__init__.py`, which finds them here."""

from model_zoo.generation.streamers import (
    TextIteratorStreamer as TextIteratorStreamer,
    TextStreamer as TextStreamer,
)
from pet.compat.mindformers.asking import (
    TextClassificationPipeline as TextClassificationPipeline,
    TextGenerationPipeline as TextGenerationPipeline,
    pipeline as pipeline,
)
from pet.compat.mindformers.callbacks import (
    CheckpointMonitor as CheckpointMonitor,
    MFLossMonitor as MFLossMonitor,
    ObsMonitor as ObsMonitor,
    SummaryMonitor as SummaryMonitor,
)
from pet.compat.mindformers.classes import (
    AutoConfig as AutoConfig,
    AutoModel as AutoModel,
    AutoModelForCausalLM as AutoModelForCausalLM,
    AutoProcessor as AutoProcessor,
    AutoTokenizer as AutoTokenizer,
    ChatGLM2ForConditionalGeneration as ChatGLM2ForConditionalGeneration,
    ChatGLM2Tokenizer as ChatGLM2Tokenizer,
    ChatGLM3Tokenizer as ChatGLM3Tokenizer,
    ChatGLM4Tokenizer as ChatGLM4Tokenizer,
    ChatGLMTokenizer as ChatGLMTokenizer,
    GLMChatModel as GLMChatModel,
    GLMChatModelWithLora as GLMChatModelWithLora,
    GLMForPreTraining as GLMForPreTraining,
    GLMProcessor as GLMProcessor,
    GPT2LMHeadModel as GPT2LMHeadModel,
    GPT2Processor as GPT2Processor,
    GPT2Tokenizer as GPT2Tokenizer,
    LlamaForCausalLM as LlamaForCausalLM,
    LlamaProcessor as LlamaProcessor,
    LlamaTokenizer as LlamaTokenizer,
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
    LinearWithWarmUpLR as LinearWithWarmUpLR,
    PolynomialWithWarmUpLR as PolynomialWithWarmUpLR,
    WarmUpStableDecayLR as WarmUpStableDecayLR,
)
from pet.compat.mindformers.logs import (
    logger as logger,
)
from pet.compat.mindformers.optimizers import (
    AdamW as AdamW,
    FP32StateAdamWeightDecay as FP32StateAdamWeightDecay,
    FusedAdamWeightDecay as FusedAdamWeightDecay,
)
from pet.compat.mindformers.pet_config import (
    LoraAdapter as LoraAdapter,
    LoraConfig as LoraConfig,
    PetConfig as PetConfig,
    PrefixTuningConfig as PrefixTuningConfig,
    Ptuning2Config as Ptuning2Config,
    get_pet_model as get_pet_model,
)
from pet.compat.mindformers.script import (
    MindFormerBook as MindFormerBook,
    SFTDataLoader as SFTDataLoader,
    TrainingDataLoader as TrainingDataLoader,
    build_context as build_context,
)
from pet.compat.mindformers.script_config import (
    MindFormerConfig as MindFormerConfig,
)
from pet.compat.mindformers.training_arguments import (
    TrainingArguments as TrainingArguments,
)
