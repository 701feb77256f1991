"""A worker: trains the cases of its job in their layouts, and leaves what they came to in a directory.

layout_job.py two | four   OUTPUT
"""

import json
import sys
from pathlib import Path

from pet.parallel.context import join

job = join()

import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402
from layout_cases import FOUR, TWO, Case, batches, build, generated, make_trainer, numbers  # noqa: E402
from mindspore import ParameterTuple  # noqa: E402

from adapters.files import save_adapter  # noqa: E402
from pet.parallel import collectives  # noqa: E402
from pet.parallel.world import ParallelWorld  # noqa: E402
from pet.train import state  # noqa: E402
from pet.train.loss import CausalLoss  # noqa: E402
from pet.train.step import make_forward, tensors  # noqa: E402

output = Path(sys.argv[2])


def train(case: Case, resume: Path | None = None) -> None:
    """Trains a case; its adapter goes to OUTPUT/NAME/adapter, its numbers to OUTPUT/NAME.npz."""
    world = ParallelWorld(**case.layout)
    trainer = make_trainer(case, world, output / case.name)
    if resume is not None:
        same_after_a_round_trip(trainer, resume)
    with collectives.counting() as traffic:
        trainer.train()
    weights = state.whole_weights(trainer)
    found = numbers(trainer)
    if world.can_generate:
        trainer.model.set_train(False)
        found["generated"] = generated(trainer.model)
    if world.is_main:
        save_adapter(world.whole(trainer.model, weights), output / case.name / "adapter")
        np.savez(output / f"{case.name}.npz", **found)
        counts = {f"{kind}.{group}": [entry.calls, entry.bytes] for (kind, group), entry in traffic.items()}
        (output / f"{case.name}.traffic.json").write_text(json.dumps(counts))
    world.barrier()


def same_after_a_round_trip(trainer, checkpoint: Path) -> None:
    """Another layout's checkpoint: taken apart here and put together again, it is what it was, bit for bit."""
    before = trainer.parameters() if hasattr(trainer, "parameters") else state.trained(trainer)
    kept = {name: value.asnumpy().copy() for name, value in before.items()}
    start = state.snapshot(trainer)
    trainer.resume(checkpoint)
    weights, optimizer, _ = state.snapshot(trainer)
    from pet.train.checkpoint import load

    stored = load(checkpoint)
    for whole, found in ((weights, stored.weights), (optimizer, stored.optimizer)):
        assert whole.keys() == found.keys()
        assert all(np.array_equal(whole[name], found[name]) for name in whole)
    assert any(not np.array_equal(kept[name], value.asnumpy()) for name, value in before.items())
    # back to the beginning, for the run itself
    for name, array in trainer.world.scatter(start[0]).items():
        before[name].set_data(ms.Tensor(array))
    trainer.optimizer.load_state(trainer.world.scatter(start[1]))
    trainer.position, trainer.best = state.Position(), state.Best()


def count_within_graphs() -> None:
    """The sums of one forward and backward, operator by operator, where Python sees each call."""
    case = TWO[0]
    world = ParallelWorld(**case.layout)
    model = build(case, world)
    forward = make_forward(model, CausalLoss(), None)
    arguments = tensors(make_batch(model))
    weights = ParameterTuple([parameter for parameter in model.get_parameters() if parameter.requires_grad])
    with collectives.counting() as ahead:
        forward(*arguments)
    with collectives.counting() as both:
        ms.value_and_grad(forward, None, weights)(*arguments)
    if world.is_main:
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

    from model_zoo.auto import MODEL_OF, AutoConfig
    from pet.train.memory import peak_memory

    directory = output / "large"
    config = AutoConfig.from_pretrained(directory)
    world = ParallelWorld(tensor=2)
    before = psutil.Process().memory_info().rss / 2**20
    model = MODEL_OF[type(config)](config)
    world.prepare(model, directory)
    part = sum(parameter.size * parameter.itemsize for parameter in model.get_parameters()) / 2**20
    (output / f"memory_{job.rank}.json").write_text(json.dumps([part, before, peak_memory()]))


if __name__ == "__main__":
    if sys.argv[1] == "two":
        measure_loading()  # first: the peak of everything else is higher
        count_within_graphs()
        for each in TWO:
            train(each)
    else:
        train(FOUR[0])
        train(FOUR[1], resume=output / FOUR[0].name / "checkpoints" / "step-000005")
        for each in FOUR[2:]:
            train(each)
