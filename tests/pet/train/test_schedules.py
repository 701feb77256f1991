from __future__ import annotations

import math

import mindspore as ms
import pytest
from mindspore.nn import WarmUpLR

from model_zoo.errors import InputError
from pet.recipe.training import Train
from pet.train.schedules import BODIES, Schedule, steps_of


def rates(name, total=20, warmup=4, **settings):
    schedule = Schedule(name, 0.5, total, warmup, **settings)
    return [schedule(step) for step in range(total)]


@pytest.mark.parametrize("name", sorted(BODIES))
def test_warmup_climbs_in_equal_parts_and_wastes_no_step(name):
    values = rates(name, decay=5)
    assert values[:5] == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5])


def test_a_quadratic_warm_up():
    assert rates("linear", warmup_power=2.0)[:5] == pytest.approx([0.5 / 16, 0.125, 0.5 * 9 / 16, 0.5, 0.5])
    schedule = Schedule.from_settings(Train(steps=20, warmup=4, warmup_power=2.0, learning_rate=0.5), 20)
    assert schedule(1) == pytest.approx(0.125)


@pytest.mark.parametrize("warmup", [0, 0.13, 4, 30])
@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
def test_a_warm_up_like_that_of_transformers(name, warmup):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    train = Train(steps=20, warmup=warmup, learning_rate=0.5, schedule=name, warmup_like="transformers")
    ours = Schedule.from_settings(train, 20)
    arguments = transformers.TrainingArguments("x", use_cpu=True, warmup_steps=warmup)
    kind = "constant_with_warmup" if name == "constant" else name
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    theirs = transformers.get_scheduler(kind, optimizer, arguments.get_warmup_steps(20), 20)
    for step in range(20):
        assert ours(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step(), theirs.step()


@pytest.mark.parametrize("name", ["constant", "cosine"])
@pytest.mark.parametrize(("every", "warmup", "decay"), [(6, 3, 2), (5, 1, 1), (7, 4, 3), (4, 0, 0)])
def test_the_rate_falls_before_restarts_and_rises_behind_them(name, every, warmup, decay):
    """As axolotl's, whose first round has no warm-up; its step at a restart is at a thousandth."""
    settings = {"restart_every": every, "restart_warmup": warmup, "restart_decay": decay}
    theirs = rates(name, total=24, warmup=0, warmup_like="axolotl", **settings)
    ours, plain = rates(name, total=24, warmup=0, **settings), rates(name, total=24, warmup=0)
    for step, rate in enumerate(plain):
        place, share = step % every, 1.0
        if step >= every and place < warmup:
            share = 0.001 + 0.999 * place / warmup
            assert ours[step] == pytest.approx(rate * (0.001 + 0.999 * (place + 1) / warmup))
        elif place > every - decay:
            share = 0.001 + 0.999 * (every - place) / decay
        assert theirs[step] == pytest.approx(rate * share)
        if share == 1.0:
            assert ours[step] == theirs[step] == rate


LIKE_TRANSFORMERS = [
    ("constant", "constant_with_warmup", {}, {}),
    ("linear", "linear", {}, {}),
    ("cosine", "cosine", {}, {}),
    ("inverse_sqrt", "inverse_sqrt", {}, {}),
    *(("cosine", "cosine_with_min_lr", {"final_ratio": r}, {"min_lr_rate": r}) for r in (0.1, 1.0)),
    *(("cosine_restarts", "cosine_with_restarts", {"cycles": n}, {"num_cycles": n}) for n in (1, 2, 3, 5)),
    *(
        ("polynomial", "polynomial", {"power": p, "final_ratio": 2 * end}, {"power": p, "lr_end": end})
        for p, end in ((1.0, 1e-7), (2.0, 0.05), (0.5, 0.05))
    ),
    *(
        (
            "wsd",
            "warmup_stable_decay",
            {"decay": decay, "decay_shape": shape, "final_ratio": r},
            {"num_decay_steps": decay, "decay_type": shape, "min_lr_ratio": r},
        )
        for decay in (0, 1, 4, 13, 50)
        for shape, r in (("linear", 0.0), ("cosine", 0.2), ("1-sqrt", 0.1))
    ),
]


@pytest.mark.parametrize(("name", "kind", "ours", "theirs"), LIKE_TRANSFORMERS)
def test_every_step_like_that_of_transformers(name, kind, ours, theirs):
    """Over short and long runs and warm-ups, a descent of wsd longer than the rest of the run among them."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    for total in (1, 2, 3, 7, 12, 40):
        for warmup in sorted({0, 1, 2, total // 2, total - 1, total, total + 7}):
            optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
            scheduler = transformers.get_scheduler(kind, optimizer, warmup, total, scheduler_specific_kwargs=theirs)
            schedule = Schedule(name, 0.5, total, warmup, warmup_like="transformers", **ours)
            for step in range(total):
                assert schedule(step) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9, abs=1e-12), (total, warmup)
                if step + 1 < total:
                    optimizer.step(), scheduler.step()


@pytest.mark.parametrize(("warmup", "steps"), [(0.19, 3), (4, 4)])
def test_a_warm_up_like_that_of_mindformers(warmup, steps):
    train = Train(steps=20, warmup=warmup, learning_rate=0.5, schedule="linear", warmup_like="mindformers")
    ours, theirs = Schedule.from_settings(train, 20), WarmUpLR(0.5, steps)  # its own is a line from 0, too
    for step in range(steps + 1):
        assert ours(step) == pytest.approx(float(theirs(ms.Tensor(step, ms.int32)).asnumpy()), rel=1e-6)


@pytest.mark.parametrize(("decay", "like", "steps"), [(0.12, "mindformers", 3), (0.12, None, 2), (4, "mindformers", 4)])
def test_a_decay_like_that_of_mindformers(decay, like, steps):
    """There a share says when it begins, ``int(0.88 * 20)``; a number of steps is what it is."""
    train = Train(steps=20, learning_rate=0.5, schedule="wsd", decay=decay, warmup_like=like)
    assert Schedule.from_settings(train, 20).decay == steps


@pytest.mark.parametrize(
    ("given", "total", "steps"),
    [({"warmup": 0.03}, 1000, 30), ({"warmup": 0.03}, 66, 2), ({"warmup": 1}, 66, 2), ({"warmup": 0.03}, 20, 0)]
    + [({"warmup": 0.03, "warmup_most": 100}, 9000, 100), ({"warmup": 0.3}, 9000, 2700)]
    + [({"warmup": 200, "warmup_most": 100}, 9000, 200)],
)
def test_a_warm_up_like_that_of_axolotl(given, total, steps):
    """A share is rounded down, one step becomes two, and the default share is bounded."""
    train = Train(steps=total, learning_rate=0.5, warmup_like="axolotl", **given)
    assert Schedule.from_settings(train, total).warmup == steps


def test_bodies_follow_their_formulas():
    body = [step / 16 for step in range(16)]
    assert rates("constant")[4:] == [0.5] * 16
    assert rates("linear")[4:] == pytest.approx([0.5 * (1 - p) for p in body])
    assert rates("cosine")[4:] == pytest.approx([0.25 * (1 + math.cos(math.pi * p)) for p in body])
    assert rates("polynomial", power=3.0)[4:] == pytest.approx([0.5 * (1 - p) ** 3 for p in body])
    restarts = [0.25 * (1 + math.cos(math.pi * ((4 * p) % 1))) for p in body]
    assert rates("cosine_restarts", cycles=4)[4:] == pytest.approx(restarts)
    wsd = [0.5] * 12 + [0.5 * (1 - step / 4) for step in range(4)]
    assert rates("wsd", decay=4)[4:] == pytest.approx(wsd)


@pytest.mark.parametrize("name", sorted(set(BODIES) - {"constant", "inverse_sqrt"}))
def test_final_ratio_is_where_it_ends(name):
    schedule = Schedule(name, 0.5, 20, 4, final_ratio=0.1, decay=4)
    assert schedule(20) == pytest.approx(0.05)
    assert min(schedule(step) for step in range(4, 20)) > 0.05


@pytest.mark.parametrize("name", sorted(BODIES))
def test_a_warm_up_rises_from_0_wherever_the_run_ends(name):
    schedule = Schedule(name, 0.5, 20, 4, final_ratio=0.1, decay=4)
    assert [schedule(step) for step in range(4)] == pytest.approx([0.125, 0.25, 0.375, 0.5])


def test_a_run_of_warmup_alone_and_a_run_of_one_step():
    assert Schedule("cosine", 1.0, 4, 8)(3) == 0.5
    assert Schedule("linear", 1.0, 1, 0)(0) == 1.0


def test_amounts_below_one_are_shares():
    assert [steps_of(amount, 200) for amount in (0.03, 0.5, 1, 30)] == [6, 100, 1, 30]


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'cosine'"):
        Schedule("cosin", 1.0, 10)


def test_a_warm_up_longer_than_the_run_is_shortened_with_a_note(caplog):
    train = Train(steps=5, warmup=100, learning_rate=1.0)
    schedule = Schedule.from_settings(train, 5)
    assert [schedule(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert [record.message for record in caplog.records] == [
        "train.warmup: 100 steps are more than the run has: shortened to 5"
    ]
    caplog.clear()
    assert Schedule.from_settings(train, 100).warmup == 100
    assert not caplog.records
