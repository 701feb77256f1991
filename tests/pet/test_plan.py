"""Plans: what they list, and what they refuse."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections import Counter

import pytest

from adapters.lora import LoRAConfig
from model_zoo.auto import AutoConfig
from model_zoo.counting import parameter_shapes
from model_zoo.errors import InputError
from model_zoo.families import PRESETS
from pet.cli.main import main
from pet.meta_model import MetaModel
from pet.names import find_recipe
from pet.parallel.mesh import Mesh
from pet.parallel.shares import shares, uncut
from pet.planning import Cluster, Work, parse_bytes, plan, room, search
from pet.planning.search import flops
from pet.planning.table import as_text
from pet.planning.traffic import Steps, step_traffic
from pet.recipe import load


def test_stages_compute_the_same_layers_again_as_the_whole_model():
    """Counted from the model's first layer, whatever stage a layer is on."""
    again = Steps(1, 1, 3, 4, 8, 4, recompute=3).again
    assert [list(again(range(*ends))) for ends in ((0, 4), (4, 6), (6, 8), (1, 3))] == [[0, 3], [], [6], []]
    assert list(Steps(1, 1, 1, 1, 8, 4, recompute=True).again(range(2, 5))) == [2, 3, 4]
    assert list(Steps(1, 1, 1, 1, 8, 4).again(range(5))) == []


def test_recomputation_is_proposed_where_a_layout_is_too_large_without():
    work = work_for("llama_7b", 64, micro_batch=8)
    tight = plan(work, Cluster(8, 40e9))
    forced = plan(dataclasses.replace(work, recompute=1), Cluster(8, 40e9))
    layouts = {one.recompute: set() for one in tight.feasible}
    for one in tight.feasible:
        layouts[one.recompute].add((one.data, one.tensor, one.pipeline, one.zero))
        assert one.settings().get("train.recompute", False) is bool(one.recompute)
        assert one.total + 2e9 <= 40e9
    assert layouts[0] and layouts[1] and not layouts[0] & layouts[1]
    assert layouts[0] | layouts[1] == {(one.data, one.tensor, one.pipeline, one.zero) for one in forced.feasible}
    assert all(one.recompute == 0 for one in plan(work, Cluster(8, 400e9)).feasible)
    text = as_text(tight, "llama_7b")
    assert text.count("s R\n") == len(layouts[1]) and "R: with activation checkpointing (train.recompute)" in text
    assert "recompute" not in as_text(plan(work, Cluster(8, 400e9)), "llama_7b")


def test_a_shared_base_is_proposed_where_a_layout_is_too_large_without():
    work = work_for(batch=64, length=512)
    found = plan(work, Cluster(8, 32e9))
    (one,) = [one for one in found.feasible if one.data == 8 and not one.zero]
    assert one.shard_base and one.recompute and one.settings()["parallel.shard_base"] is True
    # a device holds its eighth of the layers, the whole of the rest, and gathers a layer's matrices
    whole, layer = 2 * 32000 * 8192, 4 * 8192 * 8192 + 3 * 8192 * 22016
    assert one.memory["weights"] == pytest.approx(2 * (whole + 80 * layer / 8), rel=0.01)
    gradients = 8 * 80 * 2 * 8 * 2 * 8192  # rank 8 on two projections: the bucket and its sum
    assert one.memory["buffers"] == 2 * layer + gradients
    # twice forward, once backward, but for what needs no gradient
    assert one.traffic["all_gather", "base"][1] == pytest.approx(3 * one.pieces * 2 * 80 * layer / 8, rel=0.01)
    text = as_text(found, "llama_65b")
    assert f"the first: {64 * 512 / found.feasible[0].seconds:,.0f} tokens/s" in text
    assert " RS\n" in text and "S: with the frozen base sharded" in text
    assert max(map(len, text.splitlines())) <= 100
    assert not any(one.shard_base for one in plan(work, Cluster(8, 320e9)).feasible)


def work_for(name="llama_65b", batch=256, length=512, dtype="float16", adapter=None, **settings):
    adapter = LoRAConfig(rank=8) if adapter is None else adapter
    return Work(MetaModel(PRESETS[name]), adapter, batch, length, dtype, **settings)


def test_65_billion_on_64_devices_in_seconds():
    begin = time.process_time()
    found = plan(work_for(), Cluster(64, 64e9))
    assert time.process_time() - begin < 30
    layouts = {(one.data, one.tensor, one.pipeline, one.zero) for one in found.feasible}
    assert len(layouts) == len(found.feasible)
    for one in found.feasible:
        assert one.data * one.tensor * one.pipeline == 64
        assert one.total + 2e9 <= 64e9
        assert one.pieces * one.micro_batch * one.data == 256
        assert one.pieces >= one.pipeline
        assert one.bubble == (one.pipeline - 1) / (one.pieces + one.pipeline - 1)
    times = [one.seconds for one in found.feasible]
    assert times == sorted(times)
    # no layout is left out: all products, with and without ZeRO where there are replicas
    products = [(t, p) for t in range(1, 65) for p in range(1, 65) if 64 % t == 0 and 64 // t % p == 0]
    assert len(found.feasible) + sum(found.refused.values()) == sum(1 + (t * p < 64) for t, p in products)
    # 65 billion halves do not fit on one device, nor on two, unless replicas share them
    assert all(one.shard_base == (one.tensor * one.pipeline < 4) for one in found.feasible)
    assert plan(work_for(), Cluster(2, 64e9)).refused["too large for the memory"] > 0
    one = next(one for one in found.feasible if (one.data, one.tensor, one.pipeline, one.zero) == (8, 8, 1, False))
    # a sixteenth of a gigabyte apart: what lies whole on every shard (embedding, head, norms) is counted whole
    whole = 2 * 2 * 32000 * 8192
    assert one.memory["weights"] == pytest.approx((2 * 65.2856e9 - whole) / 8 + whole, rel=0.01)


def test_facts_of_a_stage_are_worked_out_once_for_all_sizes_of_a_micro_batch(monkeypatch):
    divided, seen = [], []
    monkeypatch.setattr(search, "uncut", lambda *arguments: divided.append(arguments[2:]) or uncut(*arguments))
    monkeypatch.setattr(Work, "bytes", lambda work, share, known=Work.bytes: seen.append(share) or known(work, share))
    found = plan(work_for(), Cluster(8, 640e9))
    assert len(found.feasible) == 16 and divided == [(1, 1), (2, 1), (4, 1), (8, 1)]
    # of the weights held; of those that a checkpoint holds, and of what others send of them
    assert max(Counter(map(id, seen)).values()) == 3


def test_sums_in_16_bits_are_half_as_large_and_said_in_the_settings(capsys):
    """All that is added up, and nothing else; the test of layouts holds the numbers to what processes send."""
    adapter = LoRAConfig(rank=8, use_dora=True, targets=["o_proj", "down_proj"])
    whole, halves = (
        plan(work_for("llama_7b", 64, adapter=adapter, micro_batch=1, reduce_dtype=kind), Cluster(8, 64e9)).feasible
        for kind in ("float32", "float16")
    )
    halves = {(one.data, one.tensor, one.pipeline, one.zero): one for one in halves}
    assert len(whole) == len(halves) > 10
    for one in whole:
        other = halves[one.data, one.tensor, one.pipeline, one.zero]
        for (operation, group), (calls, nbytes) in one.traffic.items():
            assert other.traffic[operation, group] == [calls, nbytes // (1 + (operation == "all_reduce"))]
        summed = one.data * one.tensor > 1  # stages alone add nothing up
        said = {"parallel.reduce_dtype": "float16"} if summed else {}
        assert other.settings() == {**one.settings(), **said}
        assert (other.seconds < one.seconds) == summed
    alone = plan(work_for("llama_7b", 4, reduce_dtype="float16"), Cluster(1, 64e9)).feasible[0]
    assert "parallel.reduce_dtype" not in alone.settings()
    assert main(["plan", "llama_7b", "--devices", "8", "--memory", "64GB", "--reduce-dtype", "bfloat16"]) == 0
    assert "parallel.reduce_dtype=bfloat16" in capsys.readouterr().out.replace("\n    ", " ")


def test_what_helps_against_what():
    cluster = Cluster(8, 64e9)
    found = {(one.tensor, one.pipeline, one.zero): one for one in plan(work_for("llama_7b", 64), cluster).feasible}
    assert found[1, 1, True].memory["optimizer"] < found[1, 1, False].memory["optimizer"] / 7
    assert found[2, 1, False].memory["weights"] < 0.6 * found[1, 1, False].memory["weights"]
    assert found[1, 2, False].memory["weights"] < 0.6 * found[1, 1, False].memory["weights"]
    assert found[1, 1, False].traffic["all_reduce", "data"] == [1, 4 * 4_194_304]
    full = {
        (one.tensor, one.pipeline, one.zero): one for one in plan(full_work("llama_7b"), Cluster(8, 500e9)).feasible
    }
    assert full[1, 1, False].memory["optimizer"] == 8 * 6_738_415_616
    assert full[1, 1, False].traffic["all_reduce", "data"] == [1, 4 * 6_738_415_616]
    slow = plan(work_for("llama_7b", 64), Cluster(8, 64e9, network=1e9, per_machine=1)).feasible
    assert slow[0].tensor == 1 and slow[-1].tensor == 8  # with slow wires the layout that talks least comes first
    small = plan(work_for("llama_7b", 64, recompute=True, micro_batch=8), cluster)
    large = plan(work_for("llama_7b", 64, micro_batch=8), Cluster(8, 640e9))
    pairs = {(one.tensor, one.pipeline, one.zero): one for one in large.feasible}
    for one in small.feasible:
        other = pairs[one.tensor, one.pipeline, one.zero]
        assert one.memory["activations"] < other.memory["activations"] and one.seconds > other.seconds


@pytest.mark.parametrize(
    ("tensor", "pipeline", "zero"), [(1, 1, False), (1, 1, True), (2, 1, False), (2, 1, True), (1, 2, False)]
)
def test_the_time_of_a_step_is_that_of_its_products_and_messages(tensor, pipeline, zero):
    """Machines of two devices: pairs of shards are within one, replicas and stages are not."""
    cluster = Cluster(8, 640e9, per_machine=2, bandwidth=5e10, network=1e9, latency=3e-5)
    plans = plan(work_for("llama_7b", 64), cluster).feasible
    (one,) = [one for one in plans if (one.tensor, one.pipeline, one.zero) == (tensor, pipeline, zero)]
    data = 8 // tensor // pipeline
    in_pieces = at_the_end = 0.0
    for (operation, group), (calls, nbytes) in one.traffic.items():
        if operation == "receive":  # while others send
            continue
        speed = 5e10 if group == "tensor" else 1e9
        sent = {"broadcast": nbytes, "send": nbytes, "all_gather": 0}  # a gather's few bytes take no time of their own
        members = tensor if group == "tensor" else data
        seconds = calls * 3e-5 + sent.get(operation, 2 * (members - 1) / members * nbytes) / speed
        if group in ("tensor", "pipeline"):
            in_pieces += seconds
        else:
            at_the_end += seconds
    assert (in_pieces > 0) == (tensor * pipeline > 1) and at_the_end > 3 * 3e-5
    assert one.communication == pytest.approx(in_pieces + at_the_end, rel=1e-6)
    # the first stage's pieces go through all of them before the last one's
    filled = (one.pieces + pipeline - 1) / one.pieces
    assert one.seconds == pytest.approx((one.compute + in_pieces) * filled + at_the_end, rel=0.01)


def full_work(name):
    return Work(MetaModel(PRESETS[name]), None, 64, 512, "float32")


def test_operations_are_six_per_parameter_and_token():
    work = full_work("llama_7b")
    divided = shares(work.meta_model, None)
    steps = Steps(1, 1, 1, 1, 1000 * 512, 4)
    matrices = 6_738_415_616 - 32000 * 4096 - 65 * 4096
    attention = 3 * 4 * 1000 * 512 * 512 * 4096 * 32
    assert flops(work, divided, steps, 0) == pytest.approx(6 * 512e3 * matrices + attention, rel=0.03)
    adapted = work_for("llama_7b")
    divided = shares(adapted.meta_model, adapted.adapter)
    with_adapter = flops(adapted, divided, steps, 0)
    assert with_adapter == pytest.approx(4 * 512e3 * matrices + 2 * attention / 3, rel=0.03)


def test_attention_is_counted_within_windows():
    """mistral_7b's window is 4096 tokens in each of 32 layers; what is beyond it takes no time."""
    steps = Steps(1, 1, 1, 1, 16384, 4)

    def operations(**window):
        values = {**PRESETS["mistral_7b"], **window}
        work = Work(MetaModel(values), LoRAConfig(rank=8), 1, 16384, "float16")
        divided = shares(work.meta_model, work.adapter)
        return flops(work, divided, steps, 0)

    beyond = 4 * 16384 * (16384 - 4096) * 32 * 128 * 32
    assert operations(sliding_window=None) - operations() == 3 * beyond  # forward, and twice that backward
    assert operations(sliding_window=32768) == operations(sliding_window=None)


def test_stages_and_their_messages():
    meta_model = MetaModel(PRESETS["llama_7b"])
    divided = shares(meta_model, LoRAConfig(rank=8), tensor=2, pipeline=4)
    # embedding and head weigh as much as a layer each
    assert [len(part) for part in divided.layers] == [7, 9, 9, 7]
    names = [{share.name for share in divided.of_stage(stage)} for stage in range(4)]
    assert sum(map(len, names)) == len(set().union(*names)) == len(meta_model.shapes) + 2 * 2 * 32
    assert "model.embed_tokens.weight" in names[0] and {"model.norm.weight", "lm_head.weight"} <= names[3]
    steps = Steps(1, 2, 4, 8, 512, 2)
    block = 512 * 4096 * 2
    sums = [step_traffic(meta_model, divided, steps, stage)["all_reduce", "tensor"][0] for stage in range(4)]
    # forward, forward again, backward; the very first input needs no gradient; partial gradients once a step
    assert sums == [8 * (3 * 14 - 1) + 1, 8 * 54 + 1, 8 * 54 + 1, 8 * 28 + 1]
    for stage, neighbours in enumerate((1, 2, 2, 1)):
        assert step_traffic(meta_model, divided, steps, stage)["send", "pipeline"] == [
            8 * neighbours,
            8 * neighbours * block,
        ]
    assert Mesh(1, 2, 4, 7).stage == 3


def test_prints_a_table_and_json(capsys, tmp_path, fixtures):
    line = ["plan", str(fixtures / "llama_gqa"), "--devices", "4", "--memory", "8GB", "--dtype", "float32"]
    assert main([*line, "--top", "2"]) == 0
    text = capsys.readouterr().out
    for part in ("ZeRO", "activ ", "buffer", "bubble", "in a recipe: parallel.data=", "more layouts fit"):
        assert part in text, text
    assert main([*line, "--top", "2", "--all"]) == 2
    assert "--top: has no effect with --all" in capsys.readouterr().err
    assert main([*line, "--json", "targets=all-linear"]) == 0
    values = json.loads(capsys.readouterr().out)
    first = values["feasible"][0]
    assert first["memory_bytes"]["total"] == pytest.approx(sum(first["memory_bytes"].values()) / 2, abs=8)
    assert first["settings"]["train.batch_size"] * first["settings"]["train.accumulation"] == values["batch"] == 16
    # more shards than key heads: named as the reason
    heads = AutoConfig.from_pretrained(fixtures / "llama_gqa").dims.kv_heads
    assert heads < 4 and values["infeasible"]["heads or widths cannot be divided by tensor"] >= 1
    # a config.json alone will do
    (tmp_path / "config.json").write_text((fixtures / "llama_gqa" / "config.json").read_text())
    assert main(["plan", str(tmp_path / "config.json"), *line[2:]]) == 0
    capsys.readouterr()
    assert main([*line, "--batch", "10", "--micro-batch", "3"]) == 1
    text = capsys.readouterr().out
    assert "5 not possible: a replica's rows are no multiple of --micro-batch" in text, text
    assert "2 not possible: the batch cannot be divided over the replicas" in text, text
    assert main(["plan", "llama_65b", "--devices", "1", "--memory", "16GB"]) == 1
    assert "the smallest of those that are too large needs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("llama_7b --devices 8 --memory 64XB", "--memory '64XB': a size was expected, such as 64GB"),
        ("llama_7b --devices 8 --memory 64GB --bandwidth fast", "--bandwidth 'fast': a size was expected"),
        ("llama_7b --devices 0 --memory 64GB", "--devices is 0"),
        ("llama_7b --devices 8 --memory 1GB", "--reserve: takes all of --memory"),
        ("lama_7b --devices 8 --memory 64GB", "llama_7b"),
        ("llama_7b --devices 8 --memory 64GB --method lorra", "'lorra' is unknown"),
        ("llama_7b --devices 8 --memory 64GB rnak=3", "no setting 'rnak'"),
        ("llama_7b --devices 8 --memory 64GB --method none rank=3", "has no effect with method none"),
        ("llama_7b --devices 8 --memory 64GB --length 4096", "holds 2048"),
        ("llama_7b --devices 8 --memory 64GB --optimizer adm", "'adm' is unknown"),
        ("llama_7b --devices 8 --memory 64GB --dtype int4", "not a supported"),
        ("llama_7b --devices 8 --memory 64GB --batch 0", "--batch is 0"),
        ("llama_7b --devices 8 --memory 64GB --utilisation 2", "--utilisation is 2"),
        ("llama_7b --devices 8 --memory 64GB --utilisation nan", "--utilisation is nan"),
        ("llama_7b --devices 8 --memory 64GB --tflops inf", "--tflops is inf"),
        ("llama_7b --devices 8 --memory 64GB --latency nan", "--latency is nan"),
        ("llama_7b --devices 8 --memory 64GB --latency -1", "--latency is -1; 0 or more"),
        ("llama_7b --devices 8 --memory 64GB --top 0", "--top is 0"),
        ("llama_7b --memory 64GB", "--devices"),
    ],
)
def test_what_is_refused(capsys, words, message):
    assert main(["plan", *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1


def test_sizes():
    assert parse_bytes("64GB", "--memory") == 64e9 and parse_bytes("64GiB", "--memory") == 64 * 2**30
    assert parse_bytes("12.5 GB/s", "--network") == 12.5e9 and parse_bytes("100b", "--reserve") == 100
    assert parse_bytes("0GB", "--reserve", zero=True) == 0
    for text in ("64", "GB", "-1GB", "0GB", "64PB"):
        with pytest.raises(InputError, match="a size was expected"):
            parse_bytes(text, "--memory")


@pytest.mark.parametrize("layout", [[], ["parallel.pipeline=2", "parallel.micro_batches=2"]])
def test_a_step_of_several_batches_has_room_for_the_sum_of_their_gradients(layout):
    """As it is planned: the sum, and the gradients under way."""
    words = ["adapter={method: none}", "eval.metrics=[loss]", *layout]
    one, two = (load(find_recipe("llama_lora"), [*words, f"train.accumulation={n}"]) for n in (1, 2))
    config = one.model.config_json()
    needed = [room.step_memory(recipe, config, None, 64, dtype="float32") for recipe in (one, two)]
    if layout:  # of which a step has several in any case
        assert needed[0] == needed[1]
    else:
        assert needed[1] - needed[0] == 4 * sum(map(math.prod, parameter_shapes(config).values()))
