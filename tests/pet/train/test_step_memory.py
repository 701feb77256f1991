"""What a training step makes is gone behind it, whatever it did not need."""

import ctypes
import gc

import mindspore as ms
import numpy as np
import psutil
import pytest

from adapters.apply import apply_lora
from model_zoo.engine import available
from model_zoo.generation.cache import Cache
from pet import AutoModel
from pet.parallel.pipeline import stage_gradient
from pet.train.feed import BatchList
from pet.train.objectives.causal import CausalLM, RDrop
from pet.train.objectives.kto import KTO
from pet.train.objectives.pairs import DPO
from pet.train.optimizers import AdamW
from pet.train.segments import make_segments
from pet.train.step import TrainStep


def numbers_held() -> int:
    """How many numbers all tensors hold that Python knows."""
    gc.collect()
    return sum(each.size for each in gc.get_objects() if issubclass(type(each), ms.Tensor))


class Allocated(ctypes.Structure):
    """What glibc tells of its memory: ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "keepcost")
    ]


def memory_held() -> int:
    """Bytes of this process that are in use. What is free goes back first, or what is kept would go where that was, and
    some hundred steps would be seen to leave less than they do."""
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # of glibc alone
    return psutil.Process().memory_info().rss


def allocated() -> int:
    """Bytes that were allocated outside of Python and not freed, as glibc counts them: the process's size hides some
    hundred bytes a step where an earlier test left room."""
    gc.collect()
    told = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if told is None:
        pytest.skip("glibc before 2.33, or another library")
    told.restype = Allocated
    return told().used


def least_growth(meter, times, call) -> float:
    """What a call leaves, by the least of some rounds: what else a process does may grow once."""

    def grown():
        before = meter()
        for _ in range(times):
            call()
        return (meter() - before) / times

    grown()
    return min(grown() for _ in range(3))


@pytest.mark.skipif(not available(), reason="without kernels steps are compiled graphs")
@pytest.mark.parametrize("base", ["llama_gqa", "chatglm2", "gpt2"])
def test_steps_leave_nothing_behind(shortened, base):
    """A frozen embedding's rows, whose gradient nobody asks for, had stayed until the process ended."""
    model = AutoModel.from_pretrained(shortened(base)).set_fast()
    apply_lora(model, rank=4)
    ids = np.random.default_rng(0).integers(5, model.config.dims.vocab - 10, (2, 16)).astype(np.int32)
    (batch,) = BatchList([{"input_ids": ids}], model=model).list
    segments = make_segments([weight for weight in model.get_parameters() if weight.requires_grad])
    step = TrainStep(model, AdamW(segments), CausalLM())
    held = []
    for number in range(9):
        step([batch], number, 1e-3)
        if number in (2, 8):
            held.append(numbers_held())
    assert held[1] == held[0]


def pipeline_stage():
    """The gradient of a stage that does nothing but multiply."""
    weight = ms.Parameter(ms.Tensor(np.ones(20, np.float32)), name="weight")
    gradient = stage_gradient(lambda x, *layout: x * weight, ms.ParameterTuple([weight]), [(0, 1)], False)
    return lambda logits, labels: gradient(logits, labels, labels, labels, logits)


def training_step():
    """A whole step."""
    model = AutoModel.from_pretrained("llama_tiny").set_fast()
    apply_lora(model, rank=2)
    (batch,) = BatchList([{"input_ids": np.asarray([[5, 6, 7, 8]], np.int32)}], model=model).list
    segments = make_segments([weight for weight in model.get_parameters() if weight.requires_grad])
    step = TrainStep(model, AdamW(segments), CausalLM())
    return lambda logits, labels: step([batch], 0, 1e-3)


def answers(objective, **own):
    """The gradient of an objective over answers, of log-probabilities that are as they are."""
    shape, places = (4, 8), np.tile(np.arange(8, dtype=np.int32) // 4, (4, 1))
    numbers = {"pair": places, "document": places, "reference": np.zeros(shape, np.float32)}
    numbers |= {name: np.full(shape, value, np.float32) for name, value in own.items()}
    arrays = [ms.Tensor(numbers[name]) for name in objective.arrays[1:]]
    differentiate = ms.value_and_grad(lambda picked, labels: objective.measures_of(picked, (labels, *arrays))[0])
    picked = ms.Tensor(np.full(32, -1.0, np.float32))
    return lambda logits, labels: differentiate(picked, labels)


def caches():
    """The cache of an answer, which every adapter that was loaded begins anew."""
    model = AutoModel.from_pretrained("llama_tiny")
    return lambda logits, labels: Cache(model, 1, 32, available())


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda: ms.value_and_grad(RDrop(1.0).loss), 9.5e3),
        pytest.param(lambda: ms.value_and_grad(CausalLM(0.1).loss), 9.5e3, marks=pytest.mark.full),
        (pipeline_stage, 5e3),
        pytest.param(lambda: answers(DPO(), own=1.0, other=1.0), 4e3, marks=pytest.mark.full),
        (lambda: answers(KTO(), learnt=1.0, weight=-1.0, moved=0.5), 4e3),
        (caches, 3e3),
    ],
    ids=["r_drop", "label_smoothing", "pipeline", "dpo", "kto", "cache"],
)
def test_operators_of_a_step_leave_little_to_mindspore(make, most):
    """MindSpore keeps copies of arguments of operators that it runs outside of a graph: R-Drop left 15 kB a step, a
    cache 1 kB for each layer's keys. The least of some rounds counts; what else a process does may grow once."""
    generator = np.random.default_rng(0)
    logits = ms.Tensor(generator.normal(size=(4, 8, 20)).astype(np.float32))
    labels = ms.Tensor(generator.integers(0, 20, (4, 8)).astype(np.int32))
    gradients = make()
    assert least_growth(memory_held, 40, lambda: gradients(logits, labels)) < most


@pytest.mark.skipif(not available(), reason="without kernels steps are compiled graphs")
@pytest.mark.parametrize(("make", "most"), [(training_step, 250), (pipeline_stage, 700)])
def test_a_slope_is_given_to_mindspore(make, most):
    """It keeps 480 bytes of one that it makes itself, and a page's share more: days of short steps took gigabytes."""
    gradients, given = make(), ms.Tensor(np.ones((4, 8, 20), np.float32))
    assert least_growth(allocated, 20, lambda: gradients(given, given)) < most
