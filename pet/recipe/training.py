"""The sections ``train``, ``eval``, ``generation``, ``parallel``, ``output`` and ``callbacks``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, create_model, field_validator

from model_zoo.generation_settings import FIELDS, HINTS
from pet.recipe.fields import HerePath, Interval, Names, ReferencePath, Section, StepsOrShare, every, setting_field

Rows = Annotated[int, Field(ge=1, le=1 << 20)]  # what is planned holds a number for each row of a step


class LossScale(Section):
    """Dynamic loss scaling, used with precision fp16 only."""

    initial: float = Field(65536.0, gt=0, description="Initial loss scale.")
    factor: float = Field(
        2.0,
        gt=1,
        description="The scale is divided by this after an overflow, and multiplied by it after a window without one.",
    )
    window: int = Field(1000, ge=1, description="Steps without an overflow before the scale grows.")


class ParameterGroup(Section):
    """Parameters with a learning rate or weight decay of their own."""

    match: Names = Field(description="Globs over parameter names. The first matching group applies.")
    learning_rate: float | None = Field(None, gt=0, description="Peak learning rate of the group.")
    weight_decay: float | None = Field(None, ge=0, description="Weight decay of the group.")


class Train(Section):
    """Length of the run, batches, optimizer, schedule, precision, checkpoints."""

    steps: int | None = Field(None, ge=1, description="Number of optimizer steps. Set steps or epochs, not both.")
    epochs: float | None = Field(
        None, gt=0, le=1 << 20, description="Number of epochs. Default: 3 where steps is not set either."
    )
    max_seconds: float | None = Field(None, gt=0, description="Stop after this wall-clock time and save a checkpoint.")
    batch_size: Rows = Field(
        8,
        description="Global batch size per forward pass, summed over all processes: the same recipe gives the same "
        "numbers on one device and on eight.",
    )
    accumulation: Rows = Field(
        1,
        description="Gradient accumulation steps; an optimizer step has batch_size × accumulation rows.",
    )
    learning_rate: float = Field(
        2e-4, gt=0, description="Peak learning rate. 2e-4 suits LoRA; full fine-tuning wants about a tenth."
    )
    optimizer: Literal["adamw", "adam", "sgd", "momentum", "lamb", "lion", "adafactor"] = Field(
        "adamw", description="Optimizer; adamw matches torch's AdamW."
    )
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        default_factory=lambda: [0.9, 0.999],
        min_length=2,
        max_length=2,
        description="Decay rates of the moments, for adamw, adam, lamb and lion, whose paper has 0.9, 0.99.",
    )
    eps: float = Field(1e-8, gt=0, description="Added to the denominator, for adamw, adam and lamb.")
    bias_correction: bool = Field(
        True,
        description="Divide adamw's moments by what they lack at first; false is MindSpore's AdamWeightDecay.",
    )
    weight_decay: float = Field(
        0.0, ge=0, description="Added to the gradient in adam, sgd and momentum, decoupled in all others."
    )
    decay_vectors: bool = Field(
        False, description="Apply weight decay to biases and norms (one-dimensional parameters) too."
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of the momentum optimizer.")
    groups: list[ParameterGroup] = Field(
        default_factory=list, description="Parameters with a learning rate or weight decay of their own."
    )
    lora_plus_ratio: float | None = Field(
        None,
        gt=0,
        description="LoRA+ (Hayou et al. 2024): learning rate of B, and as in PEFT of vectors (biases, DoRA's "
        "magnitudes), over that of A; the paper uses 16.",
    )
    schedule: Literal["constant", "linear", "cosine", "cosine_restarts", "polynomial", "wsd", "inverse_sqrt"] = Field(
        "cosine",
        description="Learning rate schedule after the warm-up. wsd: warmup-stable-decay; inverse_sqrt: over the root "
        "of the steps, in units of the warm-up's.",
    )
    warmup: StepsOrShare = Field(0.03, description="Warm-up: a number of steps, or below 1 a fraction of all steps.")
    warmup_power: float = Field(1.0, gt=0, description="Exponent of the warm-up: 1 is linear, 2 quadratic.")
    warmup_from: float = Field(0.0, ge=0, le=1, description="Where the warm-up begins, as a fraction of the peak.")
    schedule_steps: int | None = Field(
        None,
        ge=1,
        description="Steps that the schedule and its fractions are of, where these are more or fewer than the run's: "
        "a longer run stays at the schedule's end, a shorter one does not reach it.",
    )
    warmup_like: Literal["transformers", "mindformers", "axolotl"] | None = Field(
        None,
        description="Warm-up as there: its first step at a rate of 0, a fraction of all steps rounded up "
        "(transformers) or down (the others; axolotl makes two steps of one), and a longer one than the run not "
        "shortened; nor, of transformers and axolotl, is a decay of wsd that is longer than the rest.",
    )
    warmup_most: int | None = Field(None, ge=1, description="The most steps of a warm-up that is a fraction.")
    final_ratio: float = Field(
        0.0, ge=0, le=1, description="Final learning rate as a fraction of the peak. Not for constant and inverse_sqrt."
    )
    cycles: int = Field(2, ge=1, description="Cycles of cosine_restarts.")
    power: float = Field(2.0, gt=0, description="Exponent of polynomial; 1 is linear.")
    decay: StepsOrShare = Field(
        0.2, description="Length of wsd's decay phase: steps, or below 1 a fraction of all steps."
    )
    decay_shape: Literal["linear", "cosine", "1-sqrt"] = Field("linear", description="How wsd descends.")
    restart_every: int | None = Field(
        None,
        ge=1,
        description="ReLoRA (Lialin et al. 2023): every N steps LoRA's B·A becomes part of the base and the adapter "
        "begins anew, so that what is learnt has a higher rank. What is saved is one LoRA adapter of all parts, whose "
        "rank is their number times adapter.rank.",
    )
    restart_warmup: int = Field(
        10, ge=0, description="Steps after a restart in which the learning rate rises from a thousandth of its value."
    )
    restart_decay: int = Field(0, ge=0, description="Steps before a restart in which the learning rate falls.")
    restart_prune: float = Field(
        0.9,
        ge=0,
        le=1,
        description="Share of the optimizer's state of A and B that a restart sets to 0, where the first moments are "
        "smallest; 1 resets it.",
    )
    clip_norm: float | None = Field(1.0, gt=0, description="Clip gradients to this global norm; null: no clipping.")
    precision: Literal["fp32", "fp16", "bf16", "auto"] = Field(
        "fp32",
        description="Precision of the matrix products. bf16 where the device has it; fp16 uses dynamic loss scaling; "
        "auto: bf16 where its products are fast, else fp32.",
    )
    loss_scale: LossScale = Field(default_factory=LossScale, description="Dynamic loss scaling, for fp16.")
    recompute: bool | Annotated[int, Field(strict=True, ge=2)] = Field(
        False,
        description="Activation (gradient) checkpointing: less memory, more time. N: only every Nth layer.",
    )
    objective: str = Field(
        "causal",
        description="Training objective: causal (next token; also called sft), or dft, the same with each token's loss "
        "times the probability that the model gives it (Wu et al. 2025); of preferred and rejected answers dpo, hinge, "
        "ipo, robust, simpo or orpo, or a reward model's head (reward); of answers with a label kto; of texts with a "
        "label classification; or module:Class for a custom one.",
    )
    beta: float | None = Field(
        None,
        gt=0,
        description="Of preferences: how strongly the model is held to the reference; in orpo the weight of the odds. "
        "Default: 0.1, in simpo 2.",
    )
    sft_weight: float = Field(
        0.0, ge=0, description="Of preferences: weight of the preferred answer's mean negative log-likelihood."
    )
    gamma: float = Field(0.5, ge=0, description="Of simpo: margin that the preferred answer is to have.")
    desirable_weight: float = Field(1.0, gt=0, description="Of kto: weight of the answers whose label is true.")
    undesirable_weight: float = Field(1.0, gt=0, description="Of kto: weight of the answers whose label is false.")
    center_rewards_coefficient: float = Field(
        0.0,
        ge=0,
        description="Of reward: weight of the squared sum of both scores, which keeps scores around 0; usually 0.01.",
    )
    reference: ReferencePath | None = Field(
        None,
        description="Of dpo, hinge, ipo, robust and kto: precompute (the log-probabilities of adapter.load where the "
        "run starts from one, else of the base, computed before the first step and kept on disk), adapters_off (those "
        "of the base, by one forward pass more in each step), or the directory of an adapter. Default: precompute; of "
        "data that streams they are computed in each step.",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Label smoothing factor.")
    base_dropout: dict[Literal["embedding", "hidden", "attention"], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default_factory=dict,
        description="Dropout of the base's own layers while training, for the GPT family: of the embeddings, of what "
        "attention and feed-forward give (hidden), and of the attention weights (slower: not in the attention kernel).",
    )
    neftune_alpha: float = Field(
        0.0, ge=0, description="NEFTune (Jain et al. 2023): noise on the embeddings in training; usually 5."
    )
    r_drop_alpha: float = Field(
        0.0,
        ge=0,
        description="R-Drop (Liang et al. 2021): each row twice under different dropout, and alpha/4 times the sum of "
        "both divergences in the loss.",
    )
    seed: int = Field(42, ge=0, lt=1 << 32, description="Seed of initialisation, dropout and noise.")
    log_every: int = Field(1, ge=1, description="Log to metrics.jsonl every N steps.")
    save_every: Interval | None = Field(
        None,
        description="Save a resumable checkpoint every N steps; below 1, after each such fraction of all steps. "
        "Default: only at the end, so that a run that is killed (SIGKILL, a power cut) has nothing to resume from.",
    )
    keep_last: int = Field(2, ge=1, description="Number of most recent checkpoints kept, besides the best.")
    save_prefix: str = Field(
        "", pattern=r"^[\w.-]{0,64}$", description="Prefix of the checkpoints' names: PREFIX-step-000020."
    )
    resume: bool = Field(
        False, description="Resume from the last complete checkpoint in output.dir, bit for bit; the same as --resume."
    )
    accept_changes: bool = Field(
        False,
        description="Resume although the content of the data or of the base is not what the run began with. What has "
        "changed is named; the run continues, but not bit for bit as it would have. Streamed files are compared by "
        "size and by both ends.",
    )
    profile: bool = Field(
        False,
        description="Report communication per step and save traces of some steps by MindSpore's profiler to "
        "profile/; the same as --profile.",
    )
    max_loss_ratio: float | None = Field(
        10.0, gt=1, description="Stop when the loss exceeds this multiple of its recent median; null: only on NaN."
    )

    _recompute = field_validator("recompute", mode="before")(every)


Metric = Literal["loss", "perplexity", "accuracy", "f1", "rouge_1", "rouge_2", "rouge_l", "bleu", "exact_match"]
METRICS = get_args(Metric)
Compared = Literal["reward_accuracy", "reward_margin"]  # is always measured where answers are compared
COMPARED_BY = get_args(Compared)
# Metrics for which the model has to write its answers; the others come from the logits of the given answer.
GENERATED = ("rouge_1", "rouge_2", "rouge_l", "bleu", "exact_match")
SMALLER_IS_BETTER = ("loss", "perplexity")


class Eval(Section):
    """What is measured on data.eval, and when. It is always measured after training."""

    every_steps: Interval | None = Field(
        None, description="Evaluate every N steps; below 1, after each such fraction of all steps."
    )
    every_epochs: float | None = Field(None, gt=0, description="Evaluate every N epochs.")
    before: bool = Field(True, description="Evaluate before the first step, for a before/after comparison.")
    batch_size: Rows | None = Field(None, description="Evaluation batch size. Default: train.batch_size.")
    metrics: list[Metric] = Field(
        default_factory=lambda: ["loss", "perplexity"],
        description="accuracy: top-1 accuracy over label tokens, or of classification over texts; f1: its mean over "
        "the labels (macro F1). rouge_*, bleu and exact_match compare "
        "generated answers, by the settings of generation.",
    )
    generated_samples: int | None = Field(
        64, ge=1, description="Number of rows answered for rouge_*, bleu and exact_match; null: all."
    )
    shown_samples: int = Field(3, ge=0, description="Number of sample answers shown side by side, before and after.")
    generate: Literal["always", "ends"] = Field(
        "always",
        description="When answers are generated: at every evaluation (always), or only before and after training "
        "(ends). The others then take a fraction of the time: metrics of the logits only.",
    )
    best_metric: Literal[Metric, Compared] = Field(
        "loss", description="Metric that selects the best checkpoint; in metrics, or what comparing answers measures."
    )
    best_mode: Literal["min", "max"] | None = Field(
        None,
        description="Whether lower (min) or higher (max) is better. Default: min for loss and perplexity, else max.",
    )
    patience: int | None = Field(
        None, ge=1, description="Early stopping: evaluations without improvement of best_metric. Default: off."
    )
    min_delta: float = Field(
        0.0, ge=0, description="Minimum change that counts as an improvement, for patience and for the best checkpoint."
    )
    load_best_model_at_end: bool | None = Field(
        None,
        description="Whether the result is of the best evaluation's step instead of the last one's: adapter/, merged/ "
        "and the numbers after. Left out: true with patience, which ends a run after its best step; else false.",
    )

    _metrics = field_validator("metrics")(lambda value: value or ["loss"])

    @property
    def written(self) -> list[str]:
        """The metrics for which the model has to write its answers."""
        return [name for name in self.metrics if name in GENERATED]

    @property
    def asked(self) -> int | None:
        """How many questions are answered, for these metrics or to be shown; None for all."""
        limit = self.generated_samples if self.written else self.shown_samples
        return None if limit is None else max(limit, self.shown_samples)

    def direction(self) -> Literal["min", "max"]:
        """``best_mode``, or the natural one of ``best_metric``."""
        return self.best_mode or ("min" if self.best_metric in SMALLER_IS_BETTER else "max")

    def choice(self) -> str:
        """By what the best evaluation is chosen."""
        return f"{self.direction()} {self.best_metric}"


EVALUATED_TOKENS = 64  # a model that is not trained yet seldom ends its answers: they would fill the context


class Answering(Section):
    """How long answers are."""

    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=1 << 20,
        description=f"Tokens of an answer, at most. Left out: {EVALUATED_TOKENS} in evaluations, while pet predict and "
        "pet chat take max_new_tokens or max_length of the base's generation_config.json, or go on to the "
        "end-of-sequence token or the end of the context.",
    )
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="Stop sequences. Left out: stop_strings of the base's generation_config.json."
    )
    seed: int | None = Field(None, ge=0, description="Seed of sampling. Default: train.seed.")

    def in_evaluations(self) -> Answering:
        """These settings with the limit that evaluations have where none is given."""
        return self.model_copy(update={"max_new_tokens": self.max_new_tokens or EVALUATED_TOKENS})

    def choosing(self) -> dict[str, Any]:
        """How `model.generate` chooses tokens by these settings."""
        return {**{name: getattr(self, name) for name in FIELDS}, "stop_strings": self.stop or None}


Generation = create_model(
    "Generation",
    __base__=Answering,
    __doc__="How answers are written, in evaluations and by pet predict and pet chat. What is left out is as the "
    "base's generation_config.json has it, but for do_sample.",
    **{name: setting_field(HINTS[name], field) for name, field in FIELDS.items()},
)


class Parallel(Section):
    """How the work is divided. The product of data, tensor and pipeline is the number of processes."""

    data: int = Field(1, ge=1, description="Data-parallel size: replicas of the model, each on its share of the batch.")
    tensor: int = Field(
        1, ge=1, description="Tensor-parallel size: processes that every layer's matrices are split over."
    )
    pipeline: int = Field(1, ge=1, description="Pipeline-parallel size: stages of consecutive layers.")
    micro_batches: int = Field(
        1, ge=1, description="Micro-batches per batch in a pipeline; at least the number of stages."
    )
    shard_optimizer: bool = Field(False, description="Shard the optimizer state over the replicas (ZeRO stage 1).")
    shard_base: bool = Field(
        False,
        description="Shard the frozen matrices of the layers over the replicas (ZeRO stage 3): each is gathered before "
        "it is multiplied with, forward and backward. Not with packed bases, DoRA, or where every weight is trained.",
    )
    reduce_dtype: Literal["float32", "float16", "bfloat16"] = Field(
        "float32",
        description="Type in which sums of gradients and activations are sent and added; 16 bits halve the messages "
        "and round. bfloat16 needs Ascend.",
    )
    reduce_buckets: int = Field(
        1,
        ge=1,
        le=64,
        description="Messages in which replicas send their gradients while the backward pass runs; 1 sends all of them "
        "after it. Data parallelism alone.",
    )

    @property
    def processes(self) -> int:
        """Processes that the layout needs."""
        return self.data * self.tensor * self.pipeline


class Output(Section):
    """Output directory and what is saved."""

    dir: HerePath | None = Field(
        None, description="Run directory, relative to the current directory. Default: output/NAME of the recipe."
    )
    force: bool = Field(False, description="Overwrite an existing run; the same as --force.")
    only_save_strategy: bool = Field(
        False,
        description="Only write the layout's strategy files for pet transform to strategy/: one per process of "
        "parallel; nothing is trained.",
    )
    merged: bool = Field(False, description="Also save the merged model to merged/.")


def _callback(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Callback(Section):
    """Something that is called at the start, at each step, evaluation and save, and at the end."""

    name: str = Field(
        min_length=1,
        description="A built-in name (csv, tensorboard, wandb, swanlab, mlflow, hub, profiler), or module:Class of "
        "your own, found on the Python path or in the current directory.",
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of its constructor.")


# "csv" means {name: csv}
Callbacks = list[Annotated[Callback, BeforeValidator(_callback)]]
