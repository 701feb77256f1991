"""The sections ``train``, ``eval``, ``generation``, ``parallel``, ``output`` and ``callbacks``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from pet.recipe.fields import HerePath, Names, Section, StepsOrShare


class LossScale(Section):
    """Dynamic loss scaling, used with precision fp16 only."""

    initial: float = Field(65536.0, gt=0, description="The loss is multiplied by this before the backward pass.")
    factor: float = Field(2.0, gt=1, description="Divided by this after an overflow, multiplied after a quiet window.")
    window: int = Field(1000, ge=1, description="Steps without an overflow before the scale grows.")


class ParameterGroup(Section):
    """Parameters with a learning rate or weight decay of their own."""

    match: Names = Field(description="Globs over parameter names. The first group that matches counts.")
    learning_rate: float | None = Field(None, gt=0, description="Peak learning rate of the group.")
    weight_decay: float | None = Field(None, ge=0, description="Weight decay of the group.")


class Train(Section):
    """Length of the run, batches, optimizer, schedule, precision, checkpoints."""

    steps: int | None = Field(None, ge=1, description="Optimizer steps. Give steps or epochs, not both.")
    epochs: float | None = Field(
        None, gt=0, description="Passes over the training data. When steps is left out too, 3."
    )
    max_seconds: float | None = Field(None, gt=0, description="Stop after this time, with everything saved.")
    batch_size: int = Field(
        8,
        ge=1,
        description="Rows in a forward pass, over all data-parallel processes together: the same recipe gives the same "
        "numbers on one device and on eight.",
    )
    accumulation: int = Field(
        1, ge=1, description="Forward passes per optimizer step; a step has batch_size × accumulation rows."
    )
    learning_rate: float = Field(
        2e-4, gt=0, description="Peak learning rate. 2e-4 suits LoRA; full fine-tuning wants about a tenth."
    )
    optimizer: Literal["adamw", "adam", "sgd", "momentum", "lamb", "adafactor"] = Field(
        "adamw", description="adamw has torch's arithmetic."
    )
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        default_factory=lambda: [0.9, 0.999],
        min_length=2,
        max_length=2,
        description="Decay of the two moments, for adamw, adam and lamb.",
    )
    eps: float = Field(1e-8, gt=0, description="Added to the root of the second moment, for adamw, adam and lamb.")
    weight_decay: float = Field(
        0.0, ge=0, description="Decoupled in adamw, lamb and adafactor; added to the gradient in adam, sgd, momentum."
    )
    decay_vectors: bool = Field(
        False, description="Decay biases and norms (parameters with one dimension) as well as matrices."
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="For the momentum optimizer.")
    groups: list[ParameterGroup] = Field(
        default_factory=list, description="Parameters with a learning rate or weight decay of their own."
    )
    lora_plus_ratio: float | None = Field(
        None, gt=0, description="LoRA+ (Hayou et al. 2024): B learns this many times faster than A; 16 is their choice."
    )
    schedule: Literal["constant", "linear", "cosine", "cosine_restarts", "polynomial", "wsd"] = Field(
        "cosine", description="How the learning rate falls after the warm-up. wsd: flat, then down at the end."
    )
    warmup: StepsOrShare = Field(
        0.03, description="Linear warm-up: a number of steps, or below 1 the share of all steps."
    )
    final_ratio: float = Field(
        0.0, ge=0, le=1, description="Where the schedule ends, as a share of the peak. Not for constant."
    )
    cycles: int = Field(2, ge=1, description="Rounds of cosine_restarts.")
    power: float = Field(2.0, gt=0, description="Exponent of polynomial; 1 is linear.")
    decay: StepsOrShare = Field(0.2, description="Length of the final descent of wsd: steps, or a share below 1.")
    clip_norm: float | None = Field(
        1.0, gt=0, description="Gradients are scaled down to this global norm; null turns it off."
    )
    precision: Literal["fp32", "fp16", "bf16"] = Field(
        "fp32", description="Of the matrix products. bf16 where the device has it; fp16 brings dynamic loss scaling."
    )
    loss_scale: LossScale = Field(default_factory=LossScale, description="Dynamic loss scaling, for fp16.")
    recompute: bool = Field(
        False, description="Forget a layer's activations and compute them again backwards: less memory, more time."
    )
    objective: str = Field(
        "causal", description="What is learnt: causal, the next token; or module:Class, an objective of your own."
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Share of the label spread over the vocabulary.")
    neftune_alpha: float = Field(
        0.0, ge=0, description="NEFTune (Jain et al. 2023): noise on the embeddings while training; 5 is usual."
    )
    r_drop_alpha: float = Field(
        0.0,
        ge=0,
        description="R-Drop (Liang et al. 2021): each row twice under different dropout, and alpha/4 times the sum of "
        "both divergences in the loss.",
    )
    seed: int = Field(42, ge=0, lt=1 << 32, description="Of initialisation, dropout and noise.")
    log_every: int = Field(1, ge=1, description="Steps between lines of metrics.jsonl.")
    save_every: int | None = Field(
        None, ge=1, description="Steps between resumable checkpoints. Left out: one at the end."
    )
    keep_last: int = Field(2, ge=1, description="Checkpoints kept, besides the best.")
    resume: bool = Field(
        False, description="Go on from the last whole checkpoint in output.dir, bit for bit; the same as --resume."
    )
    profile: bool = Field(
        False,
        description="Show what a step sends between processes, and record some steps with MindSpore's profiler to "
        "profile/; the same as --profile.",
    )
    max_loss_ratio: float | None = Field(
        10.0, gt=1, description="The run stops when the loss is this many times its recent median; null: only on NaN."
    )


Metric = Literal["loss", "perplexity", "accuracy", "rouge_1", "rouge_2", "rouge_l", "bleu", "exact_match"]
METRICS = get_args(Metric)
# Metrics for which the model has to write its answers; the others come from the logits of the given answer.
GENERATED = ("rouge_1", "rouge_2", "rouge_l", "bleu", "exact_match")
SMALLER_IS_BETTER = ("loss", "perplexity")


class Eval(Section):
    """What is measured on data.eval, and when. It is always measured after training."""

    every_steps: int | None = Field(None, ge=1, description="Evaluate every so many steps.")
    every_epochs: float | None = Field(None, gt=0, description="Evaluate every so many epochs.")
    before: bool = Field(True, description="Evaluate the model before the first step, to have a before and after.")
    batch_size: int | None = Field(None, ge=1, description="Rows in a forward pass. Left out: train.batch_size.")
    metrics: list[Metric] = Field(
        default_factory=lambda: ["loss", "perplexity"],
        min_length=1,
        description="accuracy: share of label tokens that the model ranks first. rouge_*, bleu and exact_match compare "
        "answers that the model writes, by the settings of generation.",
    )
    generated_samples: int | None = Field(
        64, ge=1, description="Rows that are answered for rouge_*, bleu and exact_match; null: all of them."
    )
    shown_samples: int = Field(3, ge=0, description="Answers shown side by side, before and after.")
    generate: Literal["always", "ends"] = Field(
        "always",
        description="When answers are written: at every evaluation, or only before and after training. With ends the "
        "evaluations in between measure what comes from the logits, which takes a fraction of the time.",
    )
    best_metric: Metric = Field("loss", description="Decides which checkpoint is the best; must be in metrics.")
    best_mode: Literal["min", "max"] | None = Field(
        None, description="Which direction is better. Left out: min for loss and perplexity, else max."
    )
    patience: int | None = Field(
        None, ge=1, description="Stop after so many evaluations without a better best_metric. Left out: never."
    )
    min_delta: float = Field(0.0, ge=0, description="What counts as better: at least by this much.")
    load_best_model_at_end: bool | None = Field(
        None,
        description="Whether the result is of the best evaluation's step instead of the last one's: adapter/, merged/ "
        "and the numbers after. Left out: true with patience, which ends a run after its best step; else false.",
    )

    def direction(self) -> Literal["min", "max"]:
        """``best_mode``, or the natural one of ``best_metric``."""
        return self.best_mode or ("min" if self.best_metric in SMALLER_IS_BETTER else "max")


EVALUATED_TOKENS = 64  # a model that is not trained yet seldom ends its answers: they would fill the context


class Generation(Section):
    """How answers are written, in evaluations and by pet predict and pet chat."""

    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=1 << 20,
        description=f"Tokens of an answer, at most. Left out: {EVALUATED_TOKENS} in evaluations, while pet predict and "
        "pet chat go on to the end-of-sequence token or the end of the context.",
    )
    do_sample: bool = Field(False, description="Draw from the distribution; false takes the likeliest token.")
    temperature: float = Field(1.0, gt=0, description="Divides the logits before drawing.")
    top_k: int | None = Field(None, ge=1, description="Draw among the k likeliest tokens.")
    top_p: float | None = Field(None, gt=0, le=1, description="Draw among the likeliest tokens of this total share.")
    repetition_penalty: float = Field(1.0, gt=0, description="Above 1 makes tokens that already occurred less likely.")
    num_beams: int = Field(1, ge=1, le=64, description="Beam search over so many beams; 1 is greedy or sampling.")
    stop: list[str] = Field(default_factory=list, description="Texts at which an answer ends.")
    seed: int | None = Field(None, ge=0, description="Seed of drawing. Left out: train.seed.")

    def in_evaluations(self) -> Generation:
        """These settings with the limit that evaluations have where none is given."""
        return self.model_copy(update={"max_new_tokens": self.max_new_tokens or EVALUATED_TOKENS})


class Parallel(Section):
    """How the work is divided. The product of data, tensor and pipeline is the number of processes."""

    data: int = Field(1, ge=1, description="Copies of the model, each on its share of the batch.")
    tensor: int = Field(1, ge=1, description="Processes that share every layer's matrices.")
    pipeline: int = Field(1, ge=1, description="Stages of consecutive layers.")
    micro_batches: int = Field(
        1, ge=1, description="Pieces that a batch is cut into to keep all stages busy; at least as many as stages."
    )
    shard_optimizer: bool = Field(False, description="Divide the optimizer's state over the copies (ZeRO stage 1).")

    @property
    def processes(self) -> int:
        """Processes that the layout needs."""
        return self.data * self.tensor * self.pipeline


class Output(Section):
    """Where results go."""

    dir: HerePath | None = Field(
        None, description="The run directory, relative to the current one. Left out: output/NAME of the recipe."
    )
    force: bool = Field(False, description="Delete another run that lies there; the same as --force.")
    only_save_strategy: bool = Field(
        False,
        description="Write the layout's strategy files for pet transform to strategy/ and end: one per process of "
        "parallel, without starting any.",
    )
    merged: bool = Field(False, description="Also write the model with the adapter merged in, to merged/.")


def _callback(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Callback(Section):
    """Something that is called at the start, at each step, evaluation and save, and at the end."""

    name: str = Field(
        min_length=1,
        description="A built-in name (csv, tensorboard, profiler), or module:Class of your own, found on the Python "
        "path or in the current directory.",
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of its constructor.")


# "csv" means {name: csv}
Callbacks = list[Annotated[Callback, BeforeValidator(_callback)]]
