"""What is trained in one process and in many, and how: shared by the test (one) and its workers (many)."""

import dataclasses
from pathlib import Path

import numpy as np
from mindspore import Tensor

from adapters.apply import apply
from adapters.bottleneck import BottleneckConfig
from adapters.ia3 import IA3Config
from adapters.lora import LoRAConfig
from adapters.prefix import PrefixConfig
from model_zoo.auto import MODEL_OF, AutoConfig
from pet.train.trainer import Trainer
from pet.train.world import World

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
STEPS, ROWS, LENGTH, ACCUMULATION = 10, 4, 16, 2


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

    @property
    def layout(self) -> dict:
        names = ("data", "tensor", "pipeline", "micro_batches", "shard_optimizer")
        return {name: getattr(self, name) for name in names}

    @property
    def name(self) -> str:
        parts = [f"{key[0]}{value}" for key, value in self.layout.items() if key in ("data", "tensor", "pipeline")]
        return "-".join([self.base, self.method, *parts, *(["zero"] if self.shard_optimizer else [])])


TWO = (
    Case("llama_gqa", "lora", tensor=2),
    Case("gpt2", "lora", pipeline=2, micro_batches=2),  # the embedding is tied to the head, stages apart
    Case("chatglm1", "prefix", tensor=2),
    Case("chatglm2", "dora", tensor=2),
    Case("glm4_0414", "bottleneck", tensor=2),
    Case("gpt2", "ia3", tensor=2),
    Case("glm", "lora", data=2, shard_optimizer=True),
)
FOUR = (
    Case("llama_gqa", "lora", data=2, tensor=2, shard_optimizer=True),
    Case("llama_gqa", "lora", tensor=2, pipeline=2, micro_batches=4),
    Case("chatglm1", "prefix", data=2, pipeline=2, micro_batches=2),
    Case("glm", "lora", data=4),
)


def config_for(method: str, family):
    """Adapters on every linear cell of the layers, so that each kind of division occurs."""
    targets = list(dict.fromkeys(family.column + family.row))
    return {
        # tensor-parallel members draw their parts of one dropout mask; replicas draw masks of their own
        "lora": LoRAConfig(rank=4, targets=targets, seed=3),
        "dora": LoRAConfig(rank=4, targets=targets, seed=3, use_dora=True, dropout=0.1),
        "prefix": PrefixConfig(length=5),
        "bottleneck": BottleneckConfig(size=8),
        "ia3": IA3Config(),
    }[method]


def build(case: Case, world: World):
    """The case's model with its adapter: this process's part of it."""
    directory = FIXTURES / case.base
    config = AutoConfig.from_pretrained(directory)
    model = MODEL_OF[type(config)](config)
    if isinstance(world, World) and type(world) is World:
        from model_zoo.checkpoint import load_into

        load_into(model, directory)
        apply(model, config_for(case.method, model.family))
        return model
    apply(model, config_for(case.method, model.family))
    return world.prepare(model, directory)


def batches(model, count: int, seed: int, rank: int = 0, size: int = 1) -> list[dict]:
    """Rows of uneven length; every process takes its own out of the same ones."""
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
        found.append({**{k: v[rank::size] for k, v in whole.items()}, "sample_ids": names[rank::size]})
    return found


def make_trainer(case: Case, world: World, directory=None) -> Trainer:
    """Ten steps with accumulation, clipping and evaluation."""
    model = build(case, world)
    share = (world.data_rank, world.data_size)
    return Trainer(
        model,
        batches(model, STEPS * ACCUMULATION, 0, *share),
        batches(model, 2, 9, *share),
        world=world,
        directory=directory,
        batch_size=ROWS,
        steps=STEPS,
        accumulation=ACCUMULATION,
        learning_rate=1e-3,
        clip_norm=0.5,
        save_every=STEPS // 2,
    )


def numbers(trainer: Trainer) -> dict[str, np.ndarray]:
    """What a run came to."""
    lines = trainer.history
    return {
        "loss": np.array([line["loss"] for line in lines]),
        "norm": np.array([line["gradient_norm"] for line in lines]),
        "labels": np.array([line["label_tokens"] for line in lines]),
        "eval": np.array([trainer.before["loss"], lines[-1]["eval_loss"]]),
    }


def generated(model) -> np.ndarray:
    """Eight greedy tokens behind two prompts."""
    ids = batches(model, 1, 5)[0]["input_ids"][:2, :8]
    return np.asarray(model.generate(ids, max_new_tokens=8))


def logits(model) -> np.ndarray:
    """The model's answer to a batch."""
    ids = batches(model, 1, 5)[0]["input_ids"]
    return model(Tensor(ids)).asnumpy()
