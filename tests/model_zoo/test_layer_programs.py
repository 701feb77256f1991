"""Programs of whole layers: their order, buffers and pieces."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from adapted_layers import FAMILIES, batch_of, disturb, gradients, same
from mindspore import Tensor, nn

import pet
from adapters.apply import apply, trainable_parameters
from adapters.dropout import dropouts
from adapters.lora import LoRAConfig
from adapters.prompt import PromptConfig
from model_zoo.auto import AutoModel
from model_zoo.engine import available, free_left, lowering, run as whole
from model_zoo.engine.gradients import Backward
from model_zoo.engine.ir import WORKSPACE, Buffer, Instruction, NotTraceable, Value, buffers
from model_zoo.engine.lowering import alias_in_place, allocate_workspace
from model_zoo.engine.ops import OPS, Op
from model_zoo.engine.schedule import batches, schedule
from model_zoo.engine.trace import SequenceTracer
from pet.parallel.collectives import Group
from pet.parallel.specs import ShardSpecs
from pet.parallel.stages import PassThrough
from pet.parallel.tensor import connect
from pet.train import step as step_module
from pet.train.precision import set_recompute

pytestmark = pytest.mark.skipif(not available(), reason="there are no C kernels here")


def test_frozen_layers_below_the_first_trained_one_keep_nothing(fixtures):
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    apply(model, LoRAConfig(rank=3, targets=[f"model.layers.{model.config.dims.layers - 1}.self_attn.v_proj"]))
    ids = frozenset(id(parameter) for parameter in model.get_parameters() if parameter.requires_grad)
    layers, width = list(model.layer_list), model.config.dims.hidden
    top = whole.FusedLayers(layers[-1:], width, ids, False, False).program
    assert whole.FusedLayers(layers, width, ids, False, False).program.saved == top.saved
    assert type(whole.FusedLayers(layers[:-1], width, ids, False, False).program) is whole.ForwardProgram


def test_what_gives_back_what_it_was_given_is_left_out_with_and_without_a_gradient(fixtures):
    model = AutoModel.from_pretrained(fixtures / "llama_mha")  # as a pipeline's stage, that has some of the layers
    apply(model, LoRAConfig(rank=3))
    layers, weights = model.layer_list, trainable_parameters(model)
    layers._cells["0"] = PassThrough()
    for input_trained in (False, True):
        with whole.fuse_layers(model, weights, input_trained):
            kinds = [type(cell) for cell in layers]
            assert kinds[0] is PassThrough and set(kinds[1:]) == {whole.FusedLayers}


def test_narrow_weights_are_not_traceable(fixtures):
    model = AutoModel.from_pretrained(fixtures / "llama_mha", dtype="float16")
    with pytest.raises(NotTraceable, match="Float16"):
        whole.FusedLayers([model.layer_list[0]], model.config.dims.hidden, frozenset(), False, False)


@pytest.mark.cover(pairs=False)
@pytest.mark.parametrize("trained", ["lora", "all", "virtual tokens"])
@pytest.mark.parametrize("name", ["gpt2", "glm", "gemma2"])
def test_in_a_graph_the_same_operators_give_the_same_bits(fixtures, monkeypatch, name, trained):
    """With layers that are not traceable among them they are part of one."""
    model = AutoModel.from_pretrained(fixtures / name)
    if trained != "all":
        apply(model, LoRAConfig(rank=3) if trained == "lora" else PromptConfig(length=3))
        disturb(model)
    model.set_train(True)
    (total, found), fused = gradients(model, batch_of(model), True), whole.fuse_layers

    def within_graphs(*arguments):
        made = fused(*arguments)
        made.whole = False
        return made

    monkeypatch.setattr(step_module, "fuse_layers", within_graphs)
    expected_total, expected = gradients(model, batch_of(model), True, graph=True)
    assert total == expected_total and np.array_equal(found, expected) and np.abs(found).max() > 1e-3


@pytest.fixture
def other_ops(monkeypatch):
    """Operations that no rule knows, for random programs."""
    for name in ("start", "other"):
        monkeypatch.setitem(OPS, name, Op(name, "-> "))


def test_buffers_in_use_at_the_same_time_do_not_overlap(other_ops):
    """Random programs: whoever reads a place finds what was written there last."""
    for seed in range(50):
        generator = np.random.default_rng(seed)
        places, calls = [Value((1, int(generator.integers(1, 9))), Buffer(0)) for _ in range(3)], []
        for place in places:
            place.buffer.size = place.width
        calls.append(Instruction("start", [], list(places)))
        for _ in range(30):
            x, y = (places[int(i)] for i in generator.integers(0, len(places), 2))
            width = y.width if generator.random() < 0.5 else int(generator.integers(1, 9))
            out = Value((1, width), Buffer(width))
            calls.append(Instruction("add" if width == y.width == x.width else "other", [x, y], [out]))
            places.append(out)
        values = {id(place): number for number, place in enumerate(places)}
        alias_in_place(calls, set())
        end = allocate_workspace(calls)
        held = np.full(end, -1)
        for call in calls:
            for place in call.inputs:
                found = held[place.buffer.offset : place.buffer.offset + place.width]
                assert (found == values[id(place)]).all()
            for place in call.outputs:
                held[place.buffer.offset : place.buffer.offset + place.width] = values[id(place)]
        distinct = {memory for call in calls for memory in buffers(call.values)}
        assert all(memory.storage is WORKSPACE for memory in distinct)
        assert end < sum(place.width for place in places)


class Follower:
    """Programs on numbers that tell which ones they were made of.

    Attributes:
        read: what each call read, by its id.
    """

    def __init__(self):
        self.read: dict[int, tuple] = {}

    def run(self, call: Instruction, get, put) -> None:
        """One call: `get` gives what is in a buffer, `put` writes there."""
        added = OPS[call.op].product == "adds"
        given = tuple(get(place.buffer) for place in call.inputs[: 2 if added else None])
        (out,) = call.outputs
        before = get((call.inputs[2] if call.op.endswith("_onto") else out).buffer) if added else 0
        seen = (given, before)
        assert self.read.setdefault(id(call), seen) == seen
        put(out.buffer, hash((call.op.removesuffix("_added"), given)) % 2**40 + before)


def random_program(generator) -> list[Instruction]:
    """Calls of which some add to what is there, as those of a backward pass do."""
    places = [Value((1, 4), Buffer(4)) for _ in range(3)]
    calls = [Instruction("start", [], [place]) for place in places]
    for _ in range(40):
        x, y, z = (places[int(i)] for i in generator.integers(0, len(places), 3))
        kernel = str(
            generator.choice(["product_of_rows", "plain_product_added", "product_of_rows_onto", "add", "other"])
        )
        if kernel == "plain_product_added" and z.buffer not in (x.buffer, y.buffer):
            calls.append(Instruction(kernel, [x, y], [Value((1, 4), z.buffer)]))
            continue
        out = Value((1, 4), Buffer(4))
        inputs = [x, y, z][: 3 if kernel.endswith("_onto") else 2]
        calls.append(Instruction(kernel.removesuffix("_added"), inputs, [out]))
        places.append(out)
    return calls


def test_products_that_run_at_once_give_what_they_give_one_after_the_other(other_ops):
    """Random programs: every call reads what it read before they were scheduled and given buffers, and no product
    finds what it reads changed by another one of its group."""
    several = 0
    for seed in range(200):
        calls, follower, alone = random_program(np.random.default_rng(seed)), Follower(), {}
        for call in calls:
            follower.run(call, alone.__getitem__, alone.__setitem__)
        calls = schedule(calls)
        alias_in_place(calls, set())
        held = np.zeros(allocate_workspace(calls), np.int64)

        def get(memory, held=held):
            found = set(held[memory.offset : memory.offset + memory.size].tolist())
            assert len(found) == 1
            return found.pop()

        def put(memory, value, held=held):
            held[memory.offset : memory.offset + memory.size] = value

        for group in batches(calls):
            several += len(group) > 1
            before = [[get(place.buffer) for place in call.inputs[:2]] for call in group]
            for call in group:
                follower.run(call, get, put)
            if len(group) > 1:
                assert before == [[get(place.buffer) for place in call.inputs[:2]] for call in group]
    assert several > 200


def test_a_share_of_the_columns_is_dropped_as_in_the_whole(fixtures):
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    apply(model, LoRAConfig(rank=3, targets="all-linear", dropout=0.4))
    disturb(model)
    for cell in dropouts(model):
        cell.members, cell.place = 3, 2
    same(model.set_train(True), batch_of(model))


@pytest.mark.cover(pairs=False)  # layers that are computed again are held to the others above, family by family
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_in_pieces_give_what_those_in_one_do(family, recompute, fixtures, groups):
    """Cut where a group adds something up, here one of one process."""
    model = AutoModel.from_pretrained(fixtures / family)
    apply(model, LoRAConfig(rank=3, targets="all-linear"))
    disturb(model)
    model.set_train(True)
    if recompute:
        set_recompute(model)
    expected_total, expected = gradients(model, batch_of(model), True)
    connect(dict(model.cells_and_names()), ShardSpecs(model.config, 2), Group("tensor", "", (0,), 0))
    total, found = gradients(model, batch_of(model), True)
    assert groups[-1] == [1] * model.config.dims.layers
    assert total == expected_total
    # ChatGLM's residuals begin where the sublayers do: the terms of their gradients are added in another order
    assert np.abs(found - expected).max() <= (1e-6 if family == "chatglm1" else 0.0) * np.abs(expected).max()


def test_what_a_pass_keeps_is_written_over_by_the_next_one_alone(fixtures):
    """Two passes whose backward passes come after both have memory of their own, also behind one that has left some."""
    model = AutoModel.from_pretrained(fixtures / "llama_gqa")
    apply(model, LoRAConfig(rank=3, targets="all-linear"))
    disturb(model)
    model.set_fast(True)
    weights = ms.ParameterTuple(trainable_parameters(model))
    some = [batch_of(model, length=length, seed=seed) for length, seed in ((17, 1), (17, 2), (9, 3))]
    tensors = [[Tensor(one[name]) for name in ("input_ids", "position_ids", "start", "end")] for one in some]

    def loss(which):
        return sum((model.hidden_states(*tensors[index], None) ** 2).sum() for index in which)

    with whole.fuse_layers(model, weights):
        taken, kept = whole.LaunchLayers.take_left, []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(whole.LaunchLayers, "take_left", lambda program: kept.append(taken(program)) or {**kept[-1]})
            (one, other, shorter), both = (
                [[g.asnumpy() for g in ms.grad(loss, None, weights)([index])] for index in range(3)],
                [g.asnumpy() for g in ms.grad(loss, None, weights)([0, 1, 2])],
            )
    assert [len(blocks) for blocks in kept] == [0, 1, 1, 1, 0, 0]
    first, second = (next(iter(blocks.values())) for blocks in kept[1:3])
    assert first is second, "the same shape"
    for parts in zip(one, other, shorter, both, strict=True):
        np.testing.assert_allclose(parts[3], parts[0] + parts[1] + parts[2], rtol=0, atol=1e-5 * np.abs(parts[3]).max())
    free_left()
    assert whole.LaunchLayers.left == (None, ())


def test_queries_keys_and_values_are_products_that_run_at_once(fixtures):
    """With LoRA's sums, and so are their gradients."""
    model = pet.apply_lora(AutoModel.from_pretrained(fixtures / "llama_gqa"), rank=2, targets="all-linear")
    told = []
    with pytest.MonkeyPatch.context() as patch:
        real = lowering.lower
        patch.setattr(lowering, "lower", lambda calls, *others: told.append(calls) or real(calls, *others))
        same(model, batch_of(model))
    sizes = [[len(group) for group in batches(calls) if OPS[group[0].op].product] for calls in told]
    # q, k and v, the output, gate and up, down: each with its sum
    assert [6, 2, 4, 2] * model.config.dims.layers in sizes
    # nobody asks for what goes into the lowest of them
    assert [2, 4, 2, 6] * (model.config.dims.layers - 1) + [2, 4, 2] in sizes


def test_layers_that_share_a_trained_weight_are_operators_of_their_own(fixtures, groups):
    """The gradient is the sum of what two give."""
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    first, *others = model.layer_list
    for parameter in model.get_parameters():
        parameter.requires_grad = parameter is first.self_attn.q_proj.weight
    for other in others:
        other.self_attn.q_proj.weight = first.self_attn.q_proj.weight
    same(model.set_train(True), batch_of(model))
    assert groups == [[1] * model.config.dims.layers]


def test_a_gradient_is_not_added_to_where_it_is_read():
    """z = x + x·Wᵀ: the gradient of x is at first that of z, which the product reads."""
    factors, weight = (ms.Parameter(Tensor(np.ones(shape, np.float32)), name="w") for shape in (8, (8, 8)))

    class Layer(nn.Cell):
        def construct(self, x, start, end, keep):
            return x

    tracer = SequenceTracer(8, Layer(), frozenset(), True)
    x = tracer.emit("scale_columns", tracer.hidden, factors)
    z = x + tracer.emit("product_of_rows", x, weight)
    result = tracer.emit("scale_columns", z, factors)
    calls = Backward(tracer.instructions, tracer.trained, result).instructions
    (product,) = (call for call in calls if call.op.startswith("plain_product"))
    assert not any(place.buffer is product.outputs[0].buffer for place in product.inputs)


def test_columns_beside_the_whole_are_refused():
    """z = x + x[:, 4:]·Wᵀ: the gradient of x is at first that of z, over which that of the columns was written."""
    factors, weight = (ms.Parameter(Tensor(np.ones(shape, np.float32)), name="w") for shape in (8, (8, 4)))

    class Layer(nn.Cell):
        def construct(self, x, start, end, keep):
            return x

    tracer = SequenceTracer(8, Layer(), frozenset(), True)
    x = tracer.emit("scale_columns", tracer.hidden, factors)
    z = x + tracer.emit("product_of_rows", tracer.columns(x, 4, 4), weight)
    result = tracer.emit("scale_columns", z, factors)
    with pytest.raises(NotTraceable, match="columns of what is used otherwise, too"):
        Backward(tracer.instructions, tracer.trained, result)
