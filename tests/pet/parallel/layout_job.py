"""A worker: trains the cases of its job in their layouts, and leaves what they came to in a directory.

layout_job.py two | four   usual | full | full+usual   OUTPUT

The two workers of the first job also train every case alone, each half of them, as one process does.
"""

import json
import os
import sys
from pathlib import Path

# MindSpore's threads wait for one another in busy loops: a process on one core is fastest
if CORES := json.loads(os.environ["LAYOUT_CORES"]):
    os.sched_setaffinity(0, {CORES[int(os.environ["RANK_ID"]) % len(CORES)]})

from pet.cli.imports import import_quickly
from pet.parallel.join import join

import_quickly()
job = join()

import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402
from layout_cases import (  # noqa: E402
    CARRIED,
    FOUR,
    STEPS,
    TWO,
    Case,
    batches,
    build,
    chosen,
    generated,
    make_trainer,
    numbers,
    see_samples,
)
from mindspore import ParameterTuple  # noqa: E402

from adapters.saving import save_adapter  # noqa: E402
from model_zoo.checkpoint.safetensors_io import write_file  # noqa: E402
from pet.parallel import collectives  # noqa: E402
from pet.parallel.context import ParallelContext  # noqa: E402
from pet.parallel.split import division_of  # noqa: E402
from pet.train import state  # noqa: E402
from pet.train.distributed import DistributedContext  # noqa: E402
from pet.train.objectives.causal import CausalLM  # noqa: E402
from pet.train.step import tensors  # noqa: E402

sets, output = sys.argv[2], Path(sys.argv[3])
KEYS = ("dropout_key", "neftune_key", "key")


def train(case: Case, resume: Path | None = None) -> None:
    """Trains a case; its adapter goes to OUTPUT/NAME/adapter, its numbers to OUTPUT/NAME.npz."""
    distributed = ParallelContext(**case.layout, profile=True)
    trainer = make_trainer(case, distributed, output / case.name)
    note_memory(case, trainer)
    if resume is not None:
        same_after_a_round_trip(trainer, resume)
    trainer.train()
    assert is_compiled(trainer) == trainer.compiled  # what cannot be compiled runs to the same numbers
    note_traffic(case, distributed)
    note_saving(case, trainer)
    keep(case, trainer)
    if case.shard_optimizer and case.shard_base:
        same_from_the_middle(case, trainer)
    distributed.barrier()


def same_from_the_middle(case: Case, trainer) -> None:
    """Resumed on the layout that wrote the checkpoint, a run gives the numbers of the one that went on, bit for bit."""
    again = make_trainer(case, ParallelContext(**case.layout), output / f"{case.name}-again")
    again.train(resume=checkpoint_of(case))
    keys = ("step", "loss", "gradient_norm", "eval_loss")
    whole, rest = ([[line.get(key) for key in keys] for line in run.history] for run in (trainer, again))
    assert len(rest) == STEPS // 2 and rest == whole[-len(rest) :]
    after = state.trained(again)
    assert all(np.array_equal(after[name].asnumpy(), value.asnumpy()) for name, value in state.trained(trainer).items())


def is_compiled(trainer) -> bool:
    """Whether all passes of a step are graphs."""
    passes = trainer.train_step.gradient
    parts = [passes.backward] if trainer.distributed.mesh.pipeline > 1 else [passes, *trainer.train_step.last]
    return all(part.compiled for part in parts)


def train_alone(case: Case) -> None:
    """The same, by this process for itself."""
    trainer = make_trainer(case, DistributedContext(), output / case.name)
    trainer.train()
    keep(case, trainer)


def keep(case: Case, trainer) -> None:
    """Writes what a run came to."""
    distributed, weights, found = trainer.distributed, state.whole_weights(trainer), numbers(trainer)
    if case.whole and distributed.can_generate:
        trainer.model.set_train(False)
        found["generated"] = generated(trainer.model)
    if not distributed.is_main:
        return
    whole = distributed.whole(trainer.model, weights)
    if case.adapted:
        save_adapter(whole, output / case.name / "adapter")
    else:
        write_file(output / case.name / "weights.safetensors", {p.name: p.asnumpy() for p in whole.get_parameters()})
    np.savez(output / f"{case.name}.npz", **found)


def note_memory(case: Case, trainer) -> None:
    """Bytes that this process holds: parameters, the gradients of a pass, the optimizer's state."""
    parameters = {id(p): p for p in trainer.model.get_parameters() if p.name.rpartition(".")[2] not in KEYS}
    held = {
        "weights": sum(int(p.size) * p.itemsize for p in parameters.values()),
        "gradients": 4 * sum(segment.size for segment in trainer.optimizer.segments),
        "optimizer": sum(array.nbytes for array in trainer.optimizer.state_arrays().values()),
        "divisions": {
            p.name: division_of(p) and [division_of(p).axis, *division_of(p).blocks] for p in parameters.values()
        },
    }
    (output / f"{case.name}.memory_{job.rank}.json").write_text(json.dumps(held))


def note_traffic(case: Case, distributed) -> None:
    """What this process sent in one step."""
    counts = {"/".join(key): [entry.calls, entry.bytes] for key, entry in distributed.meter.traffic().items()}
    (output / f"{case.name}.step_{job.rank}.json").write_text(json.dumps(counts))
    assert "all_" in distributed.traffic_report() or "send" in distributed.traffic_report()


def note_saving(case: Case, trainer) -> None:
    """What this process sends and receives for a checkpoint, and what it holds of others then."""
    with collectives.counting() as traffic:
        state.snapshot(trainer)
    counts = {name: traffic[name, "files"].bytes for name in ("send", "receive")}
    counts["held"] = sum(array.nbytes for array in trainer.whole_weights.values())
    (output / f"{case.name}.saving_{job.rank}.json").write_text(json.dumps(counts))


def same_after_a_round_trip(trainer, checkpoint: Path) -> None:
    """Another layout's checkpoint: taken apart here and put together again, it is what it was, bit for bit."""
    before = trainer.parameters() if hasattr(trainer, "parameters") else state.trained(trainer)
    kept = {name: value.asnumpy().copy() for name, value in before.items()}
    slots = {name: array.copy() for name, array in trainer.optimizer.state_arrays().items()}
    trainer.resume(checkpoint)
    weights, optimizer = map(trainer.distributed.gather, state.snapshot(trainer)[:2])
    from pet.train.checkpoint import load

    stored = load(checkpoint)
    for whole, found in ((weights, stored.weights), (optimizer, stored.optimizer)):
        assert whole.keys() == (found.keys() if trainer.distributed.is_main else set())  # nobody else writes files
        assert all(np.array_equal(whole[name], found[name]) for name in whole)
    assert any(not np.array_equal(kept[name], value.asnumpy()) for name, value in before.items())
    # back to the beginning, for the run itself
    for name, array in kept.items():
        before[name].set_data(ms.Tensor(array))
    trainer.optimizer.load_state(slots)
    trainer.position, trainer.best = state.Position(), state.Best()


def count_within_graphs() -> None:
    """The sums of one forward and backward, operator by operator, where Python sees each call."""
    case = TWO[0]
    distributed = ParallelContext(**case.layout)
    model = build(case, distributed)
    objective = CausalLM()
    forward = objective.forward(model)
    arguments = tensors(make_batch(model), objective.arrays)
    weights = ParameterTuple([parameter for parameter in model.get_parameters() if parameter.requires_grad])
    with collectives.counting() as ahead:
        forward(*arguments)
    with collectives.counting() as both:
        ms.value_and_grad(forward, None, weights)(*arguments)
    if distributed.is_main:
        found = {
            name: [counts["all_reduce", "tensor"].calls, counts["all_reduce", "tensor"].bytes]
            for name, counts in (("forward", ahead), ("both", both))
        }
        dims = model.config.dims
        (output / "graph_traffic.json").write_text(json.dumps({**found, "layers": dims.layers, "hidden": dims.hidden}))


def make_batch(model) -> dict:
    from pet.train.feed import complete

    return complete(batches(model, 1, 0)[0], model)


def measure_loading() -> None:
    """Memory that a process's part of a larger model takes, against the part's size."""
    import psutil

    from model_zoo.auto import AutoConfig, model_class
    from pet.train.memory import peak_memory

    directory = output / "large"
    config = AutoConfig.from_pretrained(directory)
    distributed = ParallelContext(tensor=2)
    before = psutil.Process().memory_info().rss / 2**20
    model = model_class(type(config))(config)
    distributed.prepare(model, directory)
    part = sum(parameter.size * parameter.itemsize for parameter in model.get_parameters()) / 2**20
    (output / f"memory_{job.rank}.json").write_text(json.dumps([part, before, peak_memory()]))


def carry_over(case: Case, source: Path) -> None:
    """A checkpoint taken over and written again, without a step between."""
    trainer = make_trainer(case, ParallelContext(**case.layout), output / case.name)
    same_after_a_round_trip(trainer, source)
    trainer.resume(source)
    trainer.save()


def checkpoint_of(case: Case, step: int = STEPS // 2) -> Path:
    """Where a case's run has left one."""
    return output / case.name / "checkpoints" / f"step-{step:06d}"


if __name__ == "__main__":
    (two, four, alone), usual = chosen(sets), "usual" in sets
    if sys.argv[1] == "two":
        if usual:
            measure_loading()  # first: the peak of everything else is higher
        for each in alone[job.rank :: 2]:
            train_alone(each)
        if usual:
            if job.rank == 1:
                seen, losses = see_samples(DistributedContext())
                (output / "samples_alone.json").write_text(json.dumps([seen, losses.tolist()]))
            count_within_graphs()
            seen, losses = see_samples(ParallelContext(data=2))
            (output / f"samples_{job.rank}.json").write_text(json.dumps([seen, losses.tolist()]))
        for each in two:
            train(each)
    else:
        if usual:
            # checkpoints go from one process over 2 x 2 and two more layouts of four, and back to one in the test
            train(FOUR[0], resume=checkpoint_of(FOUR[0].in_one))
            train(FOUR[1], resume=checkpoint_of(FOUR[0]))
            carry_over(CARRIED, checkpoint_of(FOUR[1]))
        for each in four:
            if each not in FOUR[:2]:  # which are, above
                train(each)
