"""Training: every layout against one device, speed and memory against the plan, recomputation, overflow."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Iterator

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from adapters.apply import apply
from adapters.lora import LoRAConfig
from model_zoo.auto import AutoModel
from pet.diagnosis.report import NOTE, Section
from pet.meta_model import MetaModel
from pet.parallel import collectives
from pet.parallel.context import ParallelContext
from pet.parallel.join import join
from pet.parallel.shares import shares
from pet.planning.process_memory import PARTS, memory
from pet.planning.search import Work
from pet.planning.traffic import Steps
from pet.recipe.training import LossScale
from pet.train.distributed import DistributedContext
from pet.train.memory import peak_memory, present_memory
from pet.train.trainer import Trainer

STEPS = 5
LAYOUT = {"model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128}
LAYOUT |= {"num_attention_heads": 8, "max_position_embeddings": 64}
SPEED = {
    True: LAYOUT | {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4},
    False: {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5504,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "max_position_embeddings": 1024,
    },
}
ROWS, LENGTH = 8, {True: 64, False: 1024}
LIMIT, LAYOUT_LIMIT = 1e-5, 200.0
"""Largest difference from one device, and seconds after which no further layout begins."""


def layouts(section: Section, small: bool) -> None:
    """Five steps of each layout of the job's workers, against one device. Runs in every worker of a job."""
    job = join()
    config = LAYOUT | {"num_hidden_layers": max(2, job.size)}
    alone, _ = train(config, DistributedContext(), LENGTH[True])
    begin = time.monotonic()
    for layout in possible(job.size):
        name = ", ".join(f"{key} {value}" for key, value in layout.items() if key != "micro_batches")
        seconds = max(collectives.all_gather_object(time.monotonic() - begin, collectives.world()))
        if seconds > LAYOUT_LIMIT:
            section.add(name, NOTE, f"left out: {LAYOUT_LIMIT:.0f} s are over")
            continue
        with section.checking(name):
            found, seconds = train(config, ParallelContext(**layout), LENGTH[True])
            apart = max(float(np.abs(np.subtract(found[key], alone[key])).max()) for key in ("loss", "gradient_norm"))
            text = f" of losses and norms of {STEPS} steps; {seconds:.3f} s a step"
            section.difference(name, apart, LIMIT, text, seconds=seconds)


def possible(size: int) -> Iterator[dict]:
    """Every data × tensor × pipeline of that many workers, with and without a divided optimizer; those that divide one
    way alone come first."""
    divisors = [one for one in range(1, size + 1) if size % one == 0]
    layouts = [(size // tensor // pipeline, tensor, pipeline) for tensor in divisors for pipeline in divisors]
    for data, tensor, pipeline in sorted(layouts, key=lambda layout: sum(one > 1 for one in layout)):
        if data * tensor * pipeline != size or LAYOUT["num_attention_heads"] % tensor or ROWS % data:
            continue
        rows = ROWS // data
        if rows < pipeline:
            continue
        layout = {"data": data, "tensor": tensor, "pipeline": pipeline}
        layout["micro_batches"] = pipeline if rows % pipeline == 0 else rows
        yield layout
        if data > 1:
            yield {**layout, "shard_optimizer": True}
        if layout["data"] == size:
            yield {**layout, "reduce_buckets": 4}


def train(config: dict, distributed: DistributedContext, length: int, dtype: str = "float32", **settings):
    """A few steps of LoRA. Returns the columns of the history, and the seconds of a step that compiled nothing."""
    trainer = make(config, distributed, length, dtype, **settings)
    trainer.train()
    history = {key: [line[key] for line in trainer.history] for key in ("loss", "gradient_norm", "seconds")}
    return history, statistics.median(history["seconds"][1:])


def make(config: dict, distributed: DistributedContext, length: int, dtype: str = "float32", **settings) -> Trainer:
    """A trainer over random tokens; every process takes its rows out of the same ones."""
    model = apply(AutoModel.from_config(config, dtype, seed=1), LoRAConfig(rank=8, seed=2))
    model = distributed.prepare(model)
    rows = ROWS // distributed.data_size
    own = slice(distributed.data_rank * rows, (distributed.data_rank + 1) * rows)
    random = np.random.default_rng(0)
    batches = [
        {"input_ids": random.integers(5, config["vocab_size"] - 5, (ROWS, length)).astype(np.int32)[own]}
        for _ in range(STEPS)
    ]
    settings = {"steps": STEPS, "batch_size": ROWS, "learning_rate": 1e-3, "log_every": 1, **settings}
    return Trainer(model, batches, distributed=distributed, **settings)


def speed(section: Section, small: bool) -> None:
    """Time and memory of a step on one device against the plan, without and with recomputation."""
    config, length = SPEED[small], LENGTH[small]
    dtype = "float32" if small else narrow_type()
    peaks = []
    for name, recompute in (("one device", False), ("with recomputation", True)):
        before = begin_memory(small)
        trainer = make(config, DistributedContext(), length, dtype, recompute=recompute)
        trainer.train()
        peaks.append(peak_memory() - before)
        seconds = statistics.median(line["seconds"] for line in trainer.history[1:])
        tokens, compiling = ROWS * length / seconds, trainer.position.compile_seconds
        section.add(
            name,
            math.isfinite(trainer.history[-1]["loss"]),
            f"{seconds:.3f} s a step, {tokens:,.0f} tokens/s, compiled in {compiling:.1f} s",
            seconds=seconds,
            tokens_per_second=tokens,
            compile_seconds=compiling,
        )
        planned = planned_memory(config, length, dtype, recompute)
        total = sum(planned.values()) / 1e6
        if small:  # the compiler's own memory is many times this
            text = f"planned {total:,.0f} MB; of a CPU's process it cannot be told apart at this size"
        else:
            text = (
                f"device {peaks[-1]:,.0f} MB at most, planned {total:,.0f} MB ({100 * (total / peaks[-1] - 1):+.0f} %)"
            )
        text += f"; host {present_memory():,.0f} MB"
        section.add(f"memory, {name}", NOTE, text, peak=peaks[-1], planned=planned, host=present_memory())
        del trainer
    if not small:
        saved = 100 * (1 - peaks[1] / peaks[0])
        section.add("recomputation", peaks[1] < peaks[0], f"saves {saved:.0f} % of the peak", peaks=peaks)


def narrow_type() -> str:
    """bfloat16 where the device multiplies in it, else float16."""
    try:
        ops.matmul(Tensor(np.ones((16, 16)), ms.bfloat16), Tensor(np.ones((16, 16)), ms.bfloat16)).asnumpy()
    except Exception:
        return "float16"
    return "bfloat16"


def begin_memory(small: bool) -> float:
    """What is to be taken off a later peak, in MB: an accelerator counts anew."""
    if small:
        return present_memory()
    gc.collect()
    ms.runtime.empty_cache()
    ms.runtime.reset_max_memory_allocated()
    return 0.0


def planned_memory(config: dict, length: int, dtype: str, recompute: bool) -> dict[str, float]:
    """Bytes of a step on one device, as `pet plan` counts them."""
    meta_model, adapter = MetaModel(config), LoRAConfig(rank=8)
    work = Work(meta_model, adapter, ROWS, length, dtype, recompute=recompute)
    divided = shares(meta_model, adapter, 1, 1)
    steps = Steps(1, 1, 1, 1, ROWS * length, work.width, False, recompute)
    found = memory(work, divided, steps, 0)
    return {part: float(found[part]) for part in PARTS}


def overflow(section: Section, small: bool) -> None:
    """Half precision: what is too large must become infinite, and a step with it must change no weight."""
    with section.checking("float16 beyond its range"):
        large = (Tensor(np.full(4, 300.0, np.float16)) * Tensor(np.full(4, 300.0, np.float16))).asnumpy()
        hint = "" if np.isinf(large).all() else ": it saturates; set MS_ASCEND_CHECK_OVERFLOW_MODE=INFNAN_MODE"
        section.add("float16 beyond its range", bool(np.isinf(large).all()), f"300 · 300 = {large[0]}{hint}")
    with section.checking("overflow of a step"):
        scale = LossScale(initial=2.0**30, factor=2.0**10, window=100)
        config = LAYOUT | {"num_hidden_layers": 1}
        trainer = make(config, DistributedContext(), LENGTH[True], precision="fp16", loss_scale=scale)
        weights = [p for segment in trainer.optimizer.segments for p in segment.parameters]
        seen: list[tuple[bool, bool]] = []
        step = trainer.train_step

        def watched(*arguments, **named):
            before = [weight.asnumpy().copy() for weight in weights]
            result = step(*arguments, **named)
            same = all(np.array_equal(one, weight.asnumpy()) for one, weight in zip(before, weights, strict=True))
            seen.append((result.applied, same))
            return result

        trainer.train_step = watched
        trainer.train()
        skipped = sum(not applied for applied, _ in seen)
        right = 0 < skipped < len(seen) and all(applied != same for applied, same in seen)
        scales = [line["loss_scale"] for line in trainer.history]
        text = f"{skipped} of {len(seen)} steps skipped, loss scale {scales[0]:g} to {scales[-1]:g}"
        section.add("overflow of a step", right, text, skipped=skipped)


def guard(section: Section, small: bool) -> None:
    """Whether a compiled graph follows a weight that was given another tensor, and addresses stay between calls."""
    from model_zoo.layers import Linear, name_parameters
    from pet.train.compiled import Compiled

    with section.checking("moved weights"):
        cell = Linear(4, 4, bias=False)
        name_parameters(cell)
        run = Compiled(lambda x: cell(x), True, parameters=list(cell.get_parameters()))
        x, found = Tensor(np.eye(4, dtype=np.float32)), []
        addresses = []
        for value in (1.0, 1.0, 1.0, 2.0):
            if value != 1.0 or not found:
                cell.weight.set_data(Tensor(np.full((4, 4), value, np.float32)))
            found.append(float(run(x).asnumpy()[0, 0]))
            addresses.append(cell.weight.data_ptr())
        section.add("moved weights", found == [1.0, 1.0, 1.0, 2.0], f"{found}", results=found)
        stays = len(set(addresses[:3])) == 1
        section.add("addresses of weights", stays, "stay where they are" if stays else "change at every call")
