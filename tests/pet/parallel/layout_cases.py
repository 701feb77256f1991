"""What is trained in one process and in many, and how: shared by the test (one) and its workers (many)."""

import dataclasses
import os
from pathlib import Path

import numpy as np
from first_layers import config_of, first_layers

from adapters.apply import apply
from adapters.bottleneck import BottleneckConfig
from adapters.freeze import freeze_modules
from adapters.ia3 import IA3Config
from adapters.lora import LoRAConfig
from adapters.prefix import PrefixConfig
from model_zoo.auto import AutoConfig, AutoModel
from model_zoo.checkpoint.reading import Checkpoint, load_into
from model_zoo.quantization import Quantization
from pet.data import DataSettings, Loader, TokenDataset
from pet.recipe.training import LossScale
from pet.train.distributed import DistributedContext
from pet.train.trainer import Trainer

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
SHORTENED = Path(os.environ.get("LAYOUT_BASES", "bases"))  # where the workers find what the test has shortened
STEPS, ROWS, LENGTH, ACCUMULATION = 4, 4, 16, 2


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, an adapter, and how the work is divided."""

    base: str
    method: str
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    shard_optimizer: bool = False
    shard_base: bool = False
    reduce_dtype: str = "float32"
    reduce_buckets: int = 1
    settings: tuple = ()  # of the trainer, beside those of `make_trainer`
    whole: bool = False  # whether evaluation is compiled as well, and the model answers at the end where it can
    packed: str = ""  # type of the frozen projections, and whether their factors are in 8 bits, too
    layers: int | None = None  # the fixture's first ones; None takes all. Each takes its time to compile
    compiled: bool = True  # whether what the engine does not follow is a graph: compiling takes longer than the run
    full: bool = False  # whether it differs so little from others that it runs in `pytest -m full` alone

    @property
    def layout(self) -> dict:
        names = ("data", "tensor", "pipeline", "micro_batches", "shard_optimizer", "shard_base")
        return {name: getattr(self, name) for name in (*names, "reduce_dtype", "reduce_buckets")}

    @property
    def name(self) -> str:
        parts = [f"{key[0]}{value}" for key, value in self.layout.items() if key in ("data", "tensor", "pipeline")]
        marks = [name for name in ("shard_optimizer", "shard_base") if getattr(self, name)]
        marks += [self.reduce_dtype] if self.rounds else []
        marks += [f"in_{self.reduce_buckets}"] if self.reduce_buckets > 1 else []
        marks += [] if self.compiled else ["by_operators"]
        return "-".join([*self.alone, *parts, *marks])

    @property
    def replicas(self) -> int:
        """How many share the frozen base."""
        return self.data if self.shard_base else 1

    @property
    def rounds(self) -> bool:
        """Whether sums over processes are rounded to 16 bits."""
        return self.reduce_dtype != "float32"

    @property
    def alone(self) -> tuple:
        """What one process trains to be compared with."""
        packed = (self.packed,) if self.packed else ()
        return (self.cut, self.method, *packed, *(f"{key}_{value}" for key, value in self.settings))

    @property
    def in_one(self) -> "Case":
        """The case that it is compared with."""
        same = ("settings", "whole", "packed", "layers")
        half = ("precision", "fp16") in self.settings  # which the engine does not follow
        return Case(self.base, self.method, **{name: getattr(self, name) for name in same}, compiled=not half)

    @property
    def quantization(self) -> Quantization | None:
        """What `packed` says."""
        kind, _, double = self.packed.partition("_")
        return Quantization(kind, double=bool(double)) if kind else None

    @property
    def from_base(self) -> bool:
        """Whether the adapter starts from whole weights, so that the base is loaded first and divided then."""
        return self.method in ("pissa", "pissa_dora", "olora", "loftq", "tokens")

    @property
    def adapted(self) -> bool:
        """Whether there is an adapter; else the base itself is trained."""
        return self.method not in ("full", "partly_frozen")

    @property
    def planned(self) -> bool:
        """Whether a plan knows what is trained: it knows nothing of what a script freezes, nor of single rows."""
        return self.method not in ("partly_frozen", "tokens")

    @property
    def cut(self) -> str:
        """The fixture's name, with `layers`."""
        return f"{self.base}_{self.layers}" if self.layers else self.base

    @property
    def config(self) -> dict:
        """The fixture's configuration, with `layers`."""
        return config_of(FIXTURES / self.base, self.layers)


TWO = (
    Case("llama_gqa", "lora", tensor=2, whole=True, layers=2),
    Case("gpt2", "lora", pipeline=2, micro_batches=2, whole=True),  # the embedding is tied to the head, stages apart
    Case("qwen3_moe", "lora", tensor=2, layers=1, full=True),  # experts are summed once behind all of them
    Case("qwen3_moe", "dora", tensor=2, layers=1, full=True),  # whose factors are sums of their own, one an expert
    Case("llama_gqa", "lora", pipeline=2, micro_batches=2, full=True),  # three layers: two in a stage, one in the other
    Case("chatglm1", "prefix", tensor=2),
    Case("chatglm2", "dora", tensor=2, layers=1, compiled=False),
    Case("chatglm2", "dora", tensor=2, layers=1, full=True),
    Case("glm4_0414", "bottleneck", tensor=2, settings=(("recompute", True),), layers=1, full=True),
    Case("glm4_0414", "bottleneck", tensor=2, settings=(("recompute", 2),), full=True),
    Case("gpt2", "ia3", tensor=2, layers=1, full=True),
    Case("glm", "lora", data=2, shard_optimizer=True),
    Case("gpt2", "dropped", data=2, settings=(("precision", "fp16"),), layers=1, compiled=False, full=True),
    Case("gpt2", "dropped", data=2, settings=(("precision", "fp16"),), layers=1, full=True),
    Case(
        "gpt2",
        "partly_frozen",
        tensor=2,
        settings=(("optimizer", "momentum"),),
        reduce_dtype="float16",
        layers=1,
        compiled=False,
    ),
    Case(
        "gpt2",
        "partly_frozen",
        tensor=2,
        settings=(("optimizer", "momentum"),),
        reduce_dtype="float16",
        layers=1,
        full=True,
    ),
    # gradients sent while the backward pass runs
    Case("glm", "lora", data=2, reduce_buckets=3),
    # trained rows of the tied embedding are the head's on the last stage
    Case("gpt2", "tokens", pipeline=2, micro_batches=2, layers=2, compiled=False, full=True),
    # files hold what is not trained besides: the factors that these start from, cut by columns and by stages
    Case("llama_gqa", "pissa", tensor=2, packed="nf4_double", layers=1),
    Case("llama_gqa", "pissa", tensor=2, layers=1, full=True),
    Case("llama_gqa", "pissa_dora", tensor=2, layers=1, full=True),
    Case("gpt2", "olora", pipeline=2, micro_batches=2, layers=2, full=True),
    Case("gpt2", "olora", pipeline=2, micro_batches=2, packed="int8", layers=2, full=True),
    Case("chatglm2", "loftq", tensor=2, packed="nf4", layers=1, full=True),
    # shares of packed weights, cut within their blocks, and packed layers apart from the tied embedding
    Case("llama_gqa", "dora", tensor=2, packed="nf4_double", layers=1, compiled=False, full=True),
    Case("llama_gqa", "dora", tensor=2, packed="nf4_double", layers=1, full=True),
    Case("gpt2", "lora", pipeline=2, micro_batches=2, packed="int8", layers=2, full=True),
    Case("chatglm2", "lora", data=2, packed="nf4_double", layers=1, full=True),
    Case("glm4_0414", "lora", tensor=2, packed="int8", layers=1, full=True),
    Case("gpt2", "partly_frozen", tensor=2, settings=(("optimizer", "momentum"),), layers=1, compiled=False, full=True),
    Case("gpt2", "partly_frozen", tensor=2, settings=(("optimizer", "momentum"),), layers=1, full=True),
    # the frozen base's rows shared by replicas: read from files, cut out of what is loaded, and of (in, out) weights
    Case("llama_gqa", "lora", data=2, shard_optimizer=True, shard_base=True, whole=True, layers=2),
    Case("llama_gqa", "pissa", data=2, shard_base=True, layers=1, full=True),
    Case(
        "gpt2",
        "dropped",
        data=2,
        shard_base=True,
        settings=(("precision", "fp16"),),
        layers=1,
        compiled=False,
        full=True,
    ),
    Case("gpt2", "dropped", data=2, shard_base=True, settings=(("precision", "fp16"),), layers=1, full=True),
)
FOUR = (
    Case("llama_gqa", "lora", data=2, tensor=2, shard_optimizer=True, layers=2),
    Case("llama_gqa", "lora", tensor=2, pipeline=2, micro_batches=4, layers=2),
    Case("chatglm1", "prefix", data=2, pipeline=2, micro_batches=2, full=True),
    # by momentum: Adam would make something of a key bias's gradient, which is zero but for rounding
    Case("gpt2", "full", tensor=2, pipeline=2, micro_batches=2, settings=(("optimizer", "momentum"),), full=True),
    Case("chatglm2", "dropped", data=2, pipeline=2, micro_batches=2, settings=(("neftune_alpha", 5.0),), full=True),
    # of a fused projection each replica has some rows of its member's blocks
    Case("chatglm2", "dropped", data=2, tensor=2, shard_base=True, settings=(("neftune_alpha", 5.0),), layers=1),
    Case("llama_gqa", "lora", data=2, pipeline=2, micro_batches=2, shard_base=True, layers=2, full=True),
)

CASES = (*TWO, *FOUR)


def chosen(sets: str) -> tuple[list[Case], list[Case], list[Case]]:
    """What is trained of `TWO` and of `FOUR`, and what one process each trains for them.

    Args:
        sets: ``usual`` is what runs with `pytest`, ``full`` the rest, ``full+usual`` both.
    """
    two, four = ([case for case in cases if ("full" if case.full else "usual") in sets] for cases in (TWO, FOUR))
    return two, four, list({case.alone: case.in_one for case in (*four, *two)}.values())


# Takes a checkpoint over and trains nothing.
CARRIED = Case("llama_gqa", "lora", data=4, shard_optimizer=True, layers=2)


def config_for(method: str, family):
    """Adapters on linear cells of every kind in the layers, so that each kind of division occurs."""
    alike = ("k_proj", "gate_proj")  # divided as v_proj and up_proj are; each more takes its time to compile
    targets = [name for name in dict.fromkeys(family.column + family.row) if name not in alike]
    return {
        "lora": LoRAConfig(rank=4, targets=targets, seed=3),
        # everybody draws a part of one dropout mask: by rows of the batch and of a piece, and (DoRA's) by columns
        "dropped": LoRAConfig(rank=4, seed=3, dropout=0.1),
        "full": None,
        "partly_frozen": None,
        "dora": LoRAConfig(rank=4, targets=targets, seed=3, use_dora=True, dropout=0.1),
        "prefix": PrefixConfig(length=5),
        "bottleneck": BottleneckConfig(size=8, dropout=0.1),
        "pissa": LoRAConfig(rank=4, targets=targets, init="pissa"),
        "pissa_dora": LoRAConfig(rank=4, targets=targets, init="pissa", use_dora=True),
        "olora": LoRAConfig(rank=4, init="olora"),
        "loftq": LoRAConfig(rank=4, init="loftq"),
        "ia3": IA3Config(),
        "tokens": LoRAConfig(rank=4, seed=3, trainable_tokens=[*range(5, 45)]),
    }[method]


def base_of(case: Case) -> Path:
    """The fixture, or what `shorten` made of it."""
    return SHORTENED / case.cut if case.layers else FIXTURES / case.base


def shorten(case: Case) -> None:
    """Writes the fixture without the layers behind those that the case has."""
    first_layers(FIXTURES / case.base, base_of(case), case.layers)


def build(case: Case, distributed: DistributedContext):
    """The case's model with its adapter: this process's part of it."""
    directory = base_of(case)
    with Checkpoint(directory) as checkpoint:
        config = AutoConfig.from_pretrained(directory)
        model = AutoModel.unloaded(checkpoint, config, "float32", case.quantization)
    if isinstance(distributed, DistributedContext) and type(distributed) is DistributedContext:
        load_into(model, directory)
        adapt(model, case)
        return model
    if case.from_base:
        load_into(model, directory)
        directory = None
    adapt(model, case)
    return distributed.prepare(model, directory)


def adapt(model, case: Case) -> None:
    """Puts the case's adapter on; without one every weight is trained."""
    config = config_for(case.method, model.family)
    if config is not None:
        apply(model, config)
    if case.method == "partly_frozen":
        freeze_modules(model, ["*.mlp.*", "*ln_f*"])


def batches(model, count: int, seed: int, rank: int = 0, size: int = 1) -> list[dict]:
    """Rows of uneven length; every process takes its own out of the same ones, neighbouring ones as the loader does."""
    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        ids = random.integers(5, model.config.dims.vocab - 10, (ROWS, LENGTH)).astype(np.int32)
        if model.family.name == "glm":
            ids[:, 3], ids[:, 4] = model.config.gmask_token_id, model.config.bos_token_id
        mask = np.ones_like(ids)
        for row in range(ROWS):
            mask[row, LENGTH - random.integers(0, 6) :] = 0
        labels = np.where(mask, ids, -100)
        labels[:, :5] = -100
        names = [f"{number}.{row}" for row in range(ROWS)]
        whole = {"input_ids": ids, "labels": labels, "attention_mask": mask}
        found.append({**{k: v[own] for k, v in whole.items()}, "sample_ids": names[own]})
    return found


def make_trainer(case: Case, distributed: DistributedContext, directory=None) -> Trainer:
    """A few steps with accumulation, clipping and evaluation."""
    model = build(case, distributed)
    share = (distributed.data_rank, distributed.data_size)
    settings = dict(case.settings)
    if settings.get("precision") == "fp16":  # so large that the first step overflows, and far from the edge
        settings["loss_scale"] = LossScale(initial=2.0**20, factor=16, window=2)
    trainer = Trainer(
        model,
        batches(model, STEPS * ACCUMULATION, 0, *share),
        batches(model, 2, 9, *share),
        distributed=distributed,
        directory=directory,
        batch_size=ROWS,
        steps=STEPS,
        accumulation=ACCUMULATION,
        learning_rate=1e-3,
        clip_norm=0.5,
        save_every=STEPS // 2,
        compiled=case.compiled,
        **settings,
    )
    if not case.whole:  # compiling takes most of the time
        trainer.evaluation.losses.compiled = False
        trainer.evaluation.losses.compile_anew()
    return trainer


def numbers(trainer: Trainer) -> dict[str, np.ndarray]:
    """What a run came to."""
    lines = trainer.history
    return {
        "loss": np.array([line["loss"] for line in lines]),
        "norm": np.array([line["gradient_norm"] for line in lines], np.float64),  # NaN where it is infinite
        "labels": np.array([line["label_tokens"] for line in lines]),
        "eval": np.array([trainer.before["loss"], lines[-1]["eval_loss"]]),
        "scale": np.array([line.get("loss_scale", 1.0) for line in lines]),
        "skipped": np.array([line.get("skipped", False) for line in lines]),
    }


def samples(distributed: DistributedContext) -> tuple[Loader, Loader]:
    """Packed rows of 37 samples, and 21 more in another loader: both end with rows that only fill up."""
    random = np.random.default_rng(4)
    made = []
    for _ in range(58):
        ids = random.integers(5, 90, int(random.integers(3, LENGTH)))
        made.append((ids, np.arange(len(ids)) >= 2))
    share = {"rank": distributed.data_rank, "world_size": distributed.data_size}
    settings = DataSettings(max_length=LENGTH)
    first, second = TokenDataset.from_samples(made[:37]), TokenDataset.from_samples(made[37:])
    rows = ROWS // distributed.data_size
    return Loader(first, rows, settings, accumulation=2, **share), Loader(second, rows, settings, **share)


def see_samples(distributed: DistributedContext) -> tuple[list[list[int]], np.ndarray]:
    """An epoch over the loader: the ids that this process saw in each step, and the numbers of the run."""
    case = Case("llama_gqa", "lora", data=distributed.data_size, layers=1)
    train, held_out = samples(distributed)
    trainer = Trainer(
        build(case, distributed),
        train,
        held_out,
        distributed=distributed,
        epochs=1,
        accumulation=2,
        batch_size=ROWS,
        learning_rate=1e-3,
        compiled=False,
    )
    seen, step = [], trainer.train_step

    def noting(batches, *arguments, **settings):
        seen.append(sorted(sample for batch in batches for row in batch["sample_ids"] for sample in row))
        return step(batches, *arguments, **settings)

    trainer.train_step = noting
    trainer.train()
    lines = trainer.history
    return seen, np.array([line["loss"] for line in lines] + [trainer.before["loss"], lines[-1]["eval_loss"]])


def generated(model) -> np.ndarray:
    """Eight greedy tokens behind two prompts."""
    ids = batches(model, 1, 5)[0]["input_ids"][:2, :8]
    return np.asarray(model.generate(ids, max_new_tokens=8))
