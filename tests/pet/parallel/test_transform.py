"""Sharded checkpoints: to any layout and back bit for bit, by our strategy files and by MindSpore's."""

import errno
import json
import os
import shutil
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore.common.np_dtype import bfloat16
from mindspore.train.node_strategy_pb2 import ParallelStrategyMap

from adapters.lora import LoRAConfig
from model_zoo.checkpoint.ckpt_io import CkptFile, write_ckpt
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.checkpoint.safetensors_io import write_file
from model_zoo.errors import InputError
from model_zoo.unwritable import CannotWrite
from pet.cli.main import main
from pet.meta_model import MetaModel
from pet.parallel import transform as transform_module
from pet.parallel.shares import shares
from pet.parallel.strategy import TensorLayout, read_strategy, write_strategies
from pet.parallel.transform import transform


def strategy(fixtures, name, directory, data=1, tensor=1, pipeline=1):
    meta_model = MetaModel(read_config(fixtures / name))
    divided = shares(meta_model, LoRAConfig(rank=4, targets="all-linear"), tensor, pipeline)
    write_strategies(directory, divided, data, tensor, pipeline)
    return divided


def whole_tensors(fixtures, name):
    """The base with an adapter, optimizer state and a counter, as arrays."""
    random = np.random.default_rng(0)
    with Checkpoint(fixtures / name) as checkpoint:
        found = {key: checkpoint.read(key) for key in checkpoint}
    meta_model = MetaModel(read_config(fixtures / name))
    for share in shares(meta_model, LoRAConfig(rank=4, targets="all-linear")).shares:
        if share.adapter:
            found[share.name] = random.normal(size=share.shape).astype(np.float32)
            found[f"exp_avg.{share.name}"] = random.normal(size=share.shape).astype(np.float16)
    found["global_step"] = np.array([7], np.int32)
    return {key: value for key, value in found.items() if key in meta_model.shapes or "." not in key or "lora" in key}


def write_whole(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_ckpt(path, {key: (str(value.dtype), value.shape) for key, value in tensors.items()}, tensors.__getitem__)


def read_all(path):
    with CkptFile(path) as file:
        return {name: file.read(name) for name in file.tensors}


@pytest.mark.parametrize("name", ["llama_gqa", "gpt2", "chatglm2", "glm4_0414"])
def test_there_and_back_bit_for_bit(fixtures, tmp_path, name):
    tensors = whole_tensors(fixtures, name)
    write_whole(tmp_path / "start/rank_0/checkpoint_0.ckpt", tensors)
    divided = strategy(fixtures, name, tmp_path / "a", data=2, tensor=2)
    strategy(fixtures, name, tmp_path / "b", tensor=2, pipeline=2)
    # one layout into another, by a single file where there is one stage, by a folder where there are several
    transform(tmp_path / "start", tmp_path / "one", None, tmp_path / "a" / "ckpt_strategy_rank_3.json")
    transform(tmp_path / "one", tmp_path / "two", tmp_path / "a", tmp_path / "b", prefix="other_")
    transform(tmp_path / "two", tmp_path / "end", tmp_path / "b", None)
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [f"rank_{rank}" for rank in range(4)]
    end = read_all(tmp_path / "end/rank_0/checkpoint_0.ckpt")
    assert end.keys() == tensors.keys()
    for key, array in tensors.items():
        assert end[key].dtype == array.dtype and np.array_equal(end[key], array), key
    # each part is what the tensor-parallel cells would hold, in files that MindSpore opens
    one = [read_all(tmp_path / f"one/rank_{rank}/checkpoint_{rank}.ckpt") for rank in range(4)]
    opened = ms.load_checkpoint(str(tmp_path / "one/rank_1/checkpoint_1.ckpt"))
    for share in divided.shares:
        for rank in range(4):
            expected = tensors[share.name]
            if share.division is not None:
                expected = share.division.take(expected, rank % 2)
            assert np.array_equal(one[rank][share.name], expected), share.name
        assert np.array_equal(opened[share.name].asnumpy(), one[1][share.name])
    split = next(share.name for share in divided.shares if share.adapter and share.division is not None)
    assert one[0][f"exp_avg.{split}"].shape == one[0][split].shape != tensors[split].shape
    two = [read_all(tmp_path / f"two/rank_{rank}/other_{rank}.ckpt") for rank in range(4)]
    assert two[0].keys() != two[2].keys() and two[0].keys() == two[1].keys()
    assert all("global_step" in part for part in two)


def test_mindspore_reads_our_strategies_and_writes_the_same_parts(fixtures, tmp_path):
    tensors = {key: value for key, value in whole_tensors(fixtures, "llama_gqa").items() if value.dtype == np.float32}
    write_whole(tmp_path / "start/rank_0/checkpoint_0.ckpt", tensors)
    strategy(fixtures, "llama_gqa", tmp_path / "strategies", data=2, tensor=2)
    file = tmp_path / "strategies" / "ckpt_strategy_rank_0.json"
    assert ms.build_searched_strategy(str(file)).keys() == tensors.keys()
    ms.transform_checkpoints(str(tmp_path / "start"), str(tmp_path / "theirs"), "checkpoint_", None, str(file))
    transform(tmp_path / "start", tmp_path / "ours", None, file)
    for rank in range(4):
        ours, theirs = (read_all(tmp_path / f"{who}/rank_{rank}/checkpoint_{rank}.ckpt") for who in ("ours", "theirs"))
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def foreign_strategy(path: Path, stage=0, names=("a", "b", "c", "d")):
    """A protobuf file as MindSpore writes one on Ascend: tensor parallel, parallel optimizer, two axes on one."""
    content = ParallelStrategyMap()
    content.current_stage = 1
    node = content.parallel_strategy_item.add()
    node.node_name, node.parallel_strategys.stage = "node", stage
    layouts = {
        "a": ([4, 2], [0, -1], 0, 0),
        "b": ([4, 2], [0, -1], 2, 4),  # parallel optimizer: rows once more over the four replicas
        "c": ([4, 2], [-1, 0], 0, 0),
        "d": ([8], [-1], 1, 8),
    }
    for name in names:
        matrix, places, step, size = layouts[name]
        item = content.parallel_layout_item.add()
        item.param_name = name
        item.parallel_layouts.dev_matrix.add().dim.extend(matrix)
        item.parallel_layouts.tensor_map.add().dim.extend(places)
        item.parallel_layouts.param_split_shape.add()
        item.parallel_layouts.indices_offset.add()
        item.parallel_layouts.field = 0
        item.parallel_layouts.opt_weight_shard_step, item.parallel_layouts.opt_weight_shard_size = step, size
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.SerializeToString())


def test_mindspores_own_strategies(tmp_path):
    random = np.random.default_rng(0)
    shapes = {"a": (4, 6), "b": (16, 3), "c": (3, 4), "d": (8,)}
    tensors = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    write_whole(tmp_path / "start/rank_0/checkpoint_0.ckpt", tensors)
    file = tmp_path / "strategy.ckpt"
    foreign_strategy(file)
    ms.transform_checkpoints(str(tmp_path / "start"), str(tmp_path / "theirs"), "checkpoint_", None, str(file))
    transform(tmp_path / "start", tmp_path / "ours", None, file)
    for rank in range(8):
        ours, theirs = (read_all(tmp_path / f"{who}/rank_{rank}/checkpoint_{rank}.ckpt") for who in ("ours", "theirs"))
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert np.array_equal(ours[key], theirs[key]), (key, rank)
    transform(tmp_path / "theirs", tmp_path / "end", file, None)
    end = read_all(tmp_path / "end/rank_0/checkpoint_0.ckpt")
    assert all(np.array_equal(end[key], tensors[key]) for key in tensors)
    # a folder of stages
    foreign_strategy(tmp_path / "stages/s0.ckpt", 0, ("a", "b"))
    foreign_strategy(tmp_path / "stages/s1.ckpt", 1, ("c", "d"))
    found = read_strategy(tmp_path / "stages")
    assert (found.ranks, found.devices) == (16, 8)
    transform(tmp_path / "start", tmp_path / "piped", None, tmp_path / "stages")
    assert read_all(tmp_path / "piped/rank_9/checkpoint_9.ckpt").keys() == {"c", "d"}


def test_two_axes_of_the_box_on_one_axis_of_the_tensor():
    layout = TensorLayout((2, 2, 2), ((2, 0), ()))
    assert layout.parts(0) == 4 and layout.parts(1) == 1
    assert [layout.place(device, 0) for device in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]


def test_bfloat16_and_hugging_face_directories(tmp_path):
    bits = np.arange(64, dtype=np.uint16).reshape(8, 8) + 0x3F80
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text("{}")
    write_file(tmp_path / "base/model.safetensors", {"w": bits.view(bfloat16)})
    entry = {"dev_matrix": [1, 2], "tensor_map": [-1, 0], "opt_weight_shard_step": 0, "opt_weight_shard_size": 0}
    content = {"parallel_strategy_item": {"x": {"stage": 0}}, "parallel_layout_item": {"w": {**entry, "field": 0}}}
    (tmp_path / "s.json").write_text(json.dumps(content))
    transform(tmp_path / "base", tmp_path / "parts", None, tmp_path / "s.json")
    with CkptFile(tmp_path / "parts/rank_1/checkpoint_1.ckpt") as file:
        assert file.info("w") == ("bfloat16", (8, 4))
        assert np.array_equal(file.read("w").view(np.uint16), bits[:, 4:])
    write_file(tmp_path / "base/model.safetensors", {"w": bits[:, :7].copy()})
    with pytest.raises(InputError, match=r"w: axis 1 of \(8, 7\) cannot be cut into 2 parts"):
        transform(tmp_path / "base", tmp_path / "odd", None, tmp_path / "s.json")
    assert not (tmp_path / "odd").exists()


def test_a_disk_that_fills_leaves_no_part_of_a_layout(fixtures, tmp_path, monkeypatch):
    """Some ranks of it would be taken for a whole checkpoint, and the command could not be repeated."""
    strategy(fixtures, "llama_gqa", tmp_path / "s", tensor=2)
    real = transform_module.write_ckpt

    def full(path, *more):
        if "rank_1" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, *more)

    monkeypatch.setattr(transform_module, "write_ckpt", full)
    with pytest.raises(CannotWrite, match=r"/parts: cannot be written: the disk is full"):
        transform(fixtures / "llama_gqa", tmp_path / "parts", None, tmp_path / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    monkeypatch.undo()
    assert transform(fixtures / "llama_gqa", tmp_path / "parts", None, tmp_path / "s").ranks == 2


ROWS = {"dev_matrix": [2], "tensor_map": [0, -1]}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "strategies: holds no strategy files"),
        ({0: {}}, "strategy .*0.json: describes no tensor"),
        ({0: {"w": {**ROWS, "field": 1}}}, "0.json: cannot be read .*divided by field are not supported"),
        ({0: {"w": {**ROWS, "tensor_map": [1, -1]}}}, "0.json: cannot be read .*an axis that dev_matrix does not have"),
        ({0: {"w": {**ROWS, "opt_weight_shard_size": 2}}}, "0.json: cannot be read .*without opt_weight_shard_step"),
        ({0: {"w": ROWS}, 1: {"w": {**ROWS, "dev_matrix": [4]}}}, "stages of 2, 4 devices; one size was expected"),
        ({0: {"w": ROWS, "0-w": {**ROWS, "tensor_map": [-1, 0]}}}, "w lies otherwise than in another file of stage 0"),
    ],
)
def test_strategies_that_mean_nothing_are_refused_by_their_files(tmp_path, files, message):
    (tmp_path / "strategies").mkdir()
    for stage, layouts in files.items():
        content = {"parallel_strategy_item": {"node": {"stage": stage}}, "parallel_layout_item": layouts}
        (tmp_path / f"strategies/{stage}.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        read_strategy(tmp_path / "strategies")


def test_parts_that_do_not_make_a_whole_are_refused(tmp_path):
    layouts = {"w": {"dev_matrix": [2], "tensor_map": [0, -1], "blocks": [2, 2]}}
    (tmp_path / "s.json").write_text(json.dumps({"parallel_layout_item": layouts}))
    for shapes, message in (
        ([(2, 3), (2, 4)], r"checkpoint_1.ckpt: w does not fit its parts in other ranks \(4, 4\)"),
        ([(2, 3), None], "w: the ranks hold 6 of its 12 numbers"),
        ([(3, 3), (3, 3)], "strategy: blocks of 4 for an axis of 6"),
    ):
        for rank, shape in enumerate(shapes):
            values = {"w": np.ones(shape, np.float32)} if shape else {"other": np.ones(1, np.float32)}
            write_whole(tmp_path / f"parts/rank_{rank}/checkpoint_{rank}.ckpt", values)
        with pytest.raises(InputError, match=message):
            transform(tmp_path / "parts", tmp_path / "whole", tmp_path / "s.json", None)
        assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
def test_all_ranks_are_read_at_the_newest_step_that_each_has(tmp_path, caplog, form):
    """A job that ends while only some have written leaves others a step behind: half of each would be no model."""
    (tmp_path / "s.json").write_text(json.dumps({"parallel_layout_item": {"w": ROWS}}))
    for number, (step, rank) in enumerate([("1_9", 1), ("1_9", 0), ("1_10", 0), ("1_10", 1), ("1_20", 0), ("1_8", 1)]):
        file = tmp_path / f"parts/rank_{rank}/llama_rank_{rank}-{step}.{form}"
        file.parent.mkdir(parents=True, exist_ok=True)
        values = [{"name": "w", "data": ms.Tensor(np.full((2, 3), int(step[2:]), np.float32))}]
        ms.save_checkpoint(values, str(file), format=form)
        os.utime(file, (number, number))
    transform(tmp_path / "parts", tmp_path / "whole", tmp_path / "s.json", None)
    assert np.array_equal(read_all(tmp_path / "whole/rank_0/checkpoint_0.ckpt")["w"], np.full((4, 3), 10))
    assert f"rank_0-1_20.{form} is left: not all ranks have that step; llama_rank_0-1_10.{form} is read" in caplog.text
    for file in (tmp_path / "parts").glob("rank_1/*_rank_1-1_*0.*"):
        file.unlink()
    (tmp_path / f"parts/rank_1/llama_rank_1-1_9.{form}").unlink()
    ends = f"rank_0/llama_rank_0-1_20.{form}, rank_1/llama_rank_1-1_8.{form}"
    with pytest.raises(InputError, match=f"the ranks have no step in common; they end with {ends}"):
        transform(tmp_path / "parts", tmp_path / "other", tmp_path / "s.json", None)


def test_the_command_and_what_it_refuses(fixtures, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = ["finetune", "glm_lora", "parallel.tensor=2", "parallel.pipeline=2", "parallel.micro_batches=2"]
    line += ["output.only_save_strategy=true", "output.dir=out", "eval.metrics=[loss]"]
    assert main(line) == 0
    assert sorted(path.name for path in Path("out/strategy").iterdir()) == [
        f"ckpt_strategy_rank_{rank}.json" for rank in range(4)
    ]
    assert not Path("out/recipe.yaml").exists() and "nothing was trained" in capsys.readouterr().out
    for name, value in (("PET_LAUNCH", "1"), ("RANK_ID", "1"), ("RANK_SIZE", "4")):
        monkeypatch.setenv(name, value)
    assert main([*line, "output.dir=other"]) == 0
    assert not Path("other").exists() and not capsys.readouterr().out, "rank 0 writes"
    for name in ("PET_LAUNCH", "RANK_ID", "RANK_SIZE"):
        monkeypatch.delenv(name)
    layout = json.loads(Path("out/strategy/ckpt_strategy_rank_0.json").read_text())["parallel_layout_item"]
    assert layout["transformer.layers.0.attention.query_key_value.lora_B.weight"]["tensor_map"] == [0, -1]

    base = str(fixtures / "llama_gqa")
    strategy(fixtures, "llama_gqa", "s", tensor=2, pipeline=2)
    command = ["transform", "--src_ckpt_dir", base, "--dst_ckpt_dir", "parts", "--dst_ckpt_strategy"]
    assert main([*command, "s", "--src_ckpt_strategy", "None"]) == 0
    assert "in 4 ranks" in capsys.readouterr().out
    back = ["transform", "--src-ckpt-dir", "parts", "--src-ckpt-strategy"]
    assert main([*back, "s", "--dst-ckpt-dir", "whole"]) == 0
    whole = read_all("whole/rank_0/checkpoint_0.ckpt")
    with Checkpoint(base) as checkpoint:
        assert whole.keys() == set(checkpoint.names)
        assert all(np.array_equal(whole[name], checkpoint.read(name)) for name in whole)
    Path("steps").mkdir()
    for name in ("x-1_5.ckpt", "x-1_9.ckpt"):
        shutil.copy("whole/rank_0/checkpoint_0.ckpt", Path("steps", name))
    Path("text.json").write_text("{")
    Path("text.ckpt").write_text("no strategy")
    for words, message in (
        (["transform", "--src_ckpt_dir", base, "--dst_ckpt_dir", "parts"], "parts: is there already"),
        ([*command[:-2], "new", "--dst_ckpt_strategy", "nowhere"], "strategy nowhere: no such file"),
        ([*command[:-2], "new", "--dst_ckpt_strategy", "text.json"], "text.json"),
        ([*command[:-2], "new", "--dst_ckpt_strategy", "text.ckpt"], "cannot be read"),
        ([*command[:-2], "new", "--dst_ckpt_strategy", "out/strategy"], "describes none of the checkpoint's tensors"),
        ([*back, "s/ckpt_strategy_rank_3.json", "--dst_ckpt_dir", "new"], "describes stage 1 alone"),
        ([*back, "s/ckpt_strategy_rank_0.json", "--dst_ckpt_dir", "new"], "parts/rank_2: is there, but the strategy"),
        (["transform", "--src_ckpt_dir", "parts", "--dst_ckpt_dir", "new"], "holds 4 ranks"),
        (
            ["transform", "--src_ckpt_dir", "steps", "--dst_ckpt_dir", "new"],
            "steps: holds 2 .ckpt files; give one of them, such as",
        ),
        (["transform", "--src_checkpoint", "x", "--dst_checkpoint_dir", "new"], "x: no such file or directory"),
        (["transform", "--dst_ckpt_dir", "new"], "--src_ckpt_dir"),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.strip().splitlines()) == 1, error
    Path("parts/rank_2/checkpoint_2.ckpt").unlink()
    with pytest.raises(InputError, match=r"rank_2: there is no \.ckpt file"):
        transform("parts", "new", "s", None)
    assert not Path("new").exists()
