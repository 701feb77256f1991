"""How many groups a layout makes: each takes memory of a device, which the plan counts."""

from types import SimpleNamespace

import mindspore
import pytest
from mindspore import Parameter, Tensor, nn

import pet
from pet.parallel import collectives, context, tensor
from pet.parallel.mesh import Mesh
from pet.parallel.specs import TIED
from pet.parallel.split import mark
from pet.planning.cluster import Cluster

LAYOUTS = [(2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 3), (1, 1, 4), (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tied", [False, True])
def test_no_group_more_than_needed(monkeypatch, layout, tied):
    made = set()

    def make_group(label, ranks, sums="float32"):
        if len(ranks) > 1:
            made.add(tuple(ranks))
        return collectives.Group(label, label, tuple(ranks), 0, sums)

    job = SimpleNamespace(size=layout[0] * layout[1] * layout[2], rank=0)
    for module, name in ((context, "come_together"), (collectives, "join")):
        monkeypatch.setattr(module, name, lambda: job)
    monkeypatch.setattr(collectives, "make_group", make_group)
    weight = Parameter(Tensor([1.0]), name="weight")
    if tied and layout[2] > 1:
        mark(weight, TIED)
    model = nn.Cell()
    model.weight = weight
    for name in ("shard", "cut_stage", "form_of"):
        monkeypatch.setattr(context, name, lambda *_, **__: None)
    monkeypatch.setattr(context.ParallelContext, "adopt", lambda *_: None)
    model.base_fingerprint = None
    distributed = context.ParallelContext(*layout, micro_batches=layout[2])
    distributed.prepare(model)
    most = Mesh(*layout).communicators
    assert len(made) == most - (layout[2] > 2 and not tied)
    assert (distributed.ends_group is not None) == (tied and layout[2] > 1)


def test_names_of_groups_are_what_hccl_takes_however_many_are_in_one(monkeypatch):
    made = {}
    monkeypatch.setattr(collectives, "join", lambda: SimpleNamespace(size=1024, rank=1023))
    monkeypatch.setattr(collectives, "create_group", made.__setitem__)
    monkeypatch.setattr(collectives, "_groups", {})
    groups = [collectives.make_group("data", range(start, 1024, 8)) for start in (7, 519)]
    assert [made[group.name] for group in groups] == [list(range(start, 1024, 8)) for start in (7, 519)]
    assert all(len(name) < 128 for name in made)


@pytest.mark.parametrize(("version", "graphs"), [("2.7.2", False), ("2.8.0", True)])
def test_a_cpu_sums_over_some_of_the_processes_outside_of_graphs_before_mindspore_2_8(monkeypatch, version, graphs):
    everybody = collectives.Group("data", collectives.world_group(), (0, 1, 2, 3), 0)
    half = collectives.Group("tensor", "half", (0, 1), 0)
    monkeypatch.setattr(mindspore, "__version__", version)
    monkeypatch.setattr(collectives.distributed, "all_reduce", lambda x, group: x.assign_value(x * len(group)))
    assert collectives.in_graphs(everybody) and collectives.in_graphs(half) is graphs
    model = tensor.shard(pet.AutoModel.from_pretrained("llama_tiny"), half)
    assert model.compiles is graphs
    if not graphs:  # with nobody else there, an operator would wait
        number = Tensor([2.0])
        assert collectives.all_reduce(number, half).asnumpy() == 8.0 and number.asnumpy() == 2.0
        assert collectives.GroupSum(half)(number).asnumpy() == 8.0


def test_each_group_after_the_first_takes_room():
    cluster = Cluster(8, 64e9)
    assert [cluster.kept(count) for count in (0, 1, 2, 5)] == [2e9, 2e9, 2.4e9, 3.6e9]
