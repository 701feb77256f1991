"""Files of torch.save: the same numbers as from safetensors, and nothing of the file is run.

``fixtures/torch_save`` was written by PyTorch 2.13, in the form of today and in that before 1.6.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import zipfile

import numpy as np
import pytest

from model_zoo.checkpoint import pickled
from model_zoo.checkpoint.reading import Checkpoint
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, read_file, write_file
from model_zoo.errors import InputError

FORMS = ("archive", "stream")
WHOLE = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
HELD = {
    "whole": WHOLE,
    "rows": WHOLE[1:],
    "tied": WHOLE,
    "half": (np.arange(6) / 4).astype(np.float16).reshape(2, 3),
    "brain": (np.arange(4, dtype=np.float32) / 2).view(np.uint32).__rshift__(16).astype(np.uint16),
    "count": np.array(7, np.int64),
    "mask": np.array([True, False, True]),
    "none": np.zeros((0, 3), np.float32),
    "trained": np.array([1.5, -2.5], np.float32),
}


def same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("form", FORMS)
def test_every_tensor_of_either_form(fixtures, form):
    with SafetensorsFile(fixtures / "torch_save" / f"{form}.bin") as file:
        assert list(file.tensors) == list(HELD)
        for name, expected in HELD.items():
            same(file.read(name), expected)
        same(file.read("whole", (slice(1, 3), slice(1, 2)), "float64"), WHOLE[1:3, 1:2].astype(np.float64))
        assert b"".join(bytes(block) for block in file.blocks("rows")) == WHOLE[1:].tobytes()


class Calls:
    """Asks, when it is opened, to make a directory."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def archive(path, held, compression=zipfile.ZIP_STORED, **entries):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in {"data.pkl": pickle.dumps(held, 2), **entries}.items():
            file.writestr(f"archive/{name}", content)


@pytest.mark.parametrize(
    "held, protocol",
    [(Calls(), 2), ({"a": Calls()}, 0), ({"a": Calls()}, 2), ({"a": Calls()}, 4), ({"a": 1, "b": Calls()}, 5)],
)
def test_nothing_is_run(tmp_path, monkeypatch, held, protocol):
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps(held, protocol)
    archive("archive.bin", None, **{"data.pkl": content})
    (tmp_path / "stream.bin").write_bytes(
        b"".join(pickle.dumps(one, 2) for one in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
        + content
        + pickle.dumps([], 2)
    )
    (tmp_path / "bare.bin").write_bytes(content)
    for name in ("archive.bin", "stream.bin", "bare.bin"):
        with pytest.raises(InputError, match=f"^{name}: "):
            SafetensorsFile(name)
    assert not (tmp_path / "ran").exists()
    pickle.loads(content)
    assert (tmp_path / "ran").exists(), "the file asks for nothing"


@pytest.mark.parametrize(
    "held, reason",
    [
        ({}, "tensors by their names were expected"),
        ([1], "tensors by their names were expected"),
        ({"a": 3}, "under 'a' lies no tensor"),
        ({"model": {"b": 3}}, "under 'model' lies no tensor"),
        ({"a": np.zeros(3)}, "under 'a' lies what numpy.* makes, which is not run"),
        (np.zeros(3), "there lies what numpy.* makes, which is not run"),
    ],
)
def test_what_is_no_file_of_tensors(tmp_path, held, reason):
    archive(tmp_path / "x.bin", held)
    with pytest.raises(InputError, match=rf"x\.bin: .*{reason}"):
        SafetensorsFile(tmp_path / "x.bin")


STORAGE = pickled.Storage("float32", "0", 4)


@pytest.mark.parametrize(
    "made, words",
    [
        (lambda: pickled._tensor("no storage", 0, (2,), (1,)), "malformed"),
        (lambda: pickled._tensor(STORAGE, -1, (2,), (1,)), "malformed"),
        (lambda: pickled._tensor(STORAGE, 0, (2.0,), (1,)), "malformed"),
        (lambda: pickled._tensor(STORAGE, 0, (2, 2), (1,)), "not as many strides as axes"),
        (lambda: placed(pickled.Tensor(STORAGE, 0, (2, 3), (3, 1))), "reaches beyond its storage"),
        (lambda: placed(pickled.Tensor(STORAGE, 1, (2, 2), (2, 1))), "reaches beyond its storage"),
        (lambda: placed(pickled.Tensor(STORAGE, 0, (2,), (4,))), "reaches beyond its storage"),
        (lambda: placed(pickled.Tensor(STORAGE._replace(count=5), 0, (2,), (1,))), "has 16 bytes, not 5 float32"),
    ],
)
def test_a_tensor_is_within_its_storage(made, words):
    assert placed(pickled.Tensor(STORAGE, 0, (2, 2), (2, 1))) == ("float32", (2, 2), 100, None)
    assert placed(pickled.Tensor(STORAGE, 1, (3,), (1,))) == ("float32", (3,), 104, None)
    assert placed(pickled.Tensor(STORAGE, 0, (2, 2), (1, 2))) == ("float32", (2, 2), 100, (1, 2))
    assert placed(pickled.Tensor(STORAGE, 4, (0,), (1,))) == ("float32", (0,), 116, None)
    with pytest.raises(pickle.UnpicklingError, match=words):
        made()


def placed(tensor):
    return pickled._placed("w", tensor, {"0": (100, 16)}, lambda dtype, shape: 4 * int(np.prod(shape)))


def test_compressed_big_endian_and_other_files(tmp_path, fixtures):
    path = tmp_path / "x.bin"
    archive(path, {}, zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match="is compressed"):
        SafetensorsFile(path)
    archive(path, {}, byteorder=b"big")
    with pytest.raises(InputError, match="big-endian"):
        SafetensorsFile(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "hello")
    with pytest.raises(InputError, match=r"has no data\.pkl"):
        SafetensorsFile(path)
    path.write_bytes(b"hello, these are no weights")
    with pytest.raises(InputError, match=r"x\.bin: .*torch\.save"):
        SafetensorsFile(path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.pt"])
def test_a_file_is_what_it_holds_whatever_it_is_called(fixtures, tmp_path, name):
    write_file(tmp_path / name, {"whole": WHOLE})
    with Checkpoint(tmp_path) as checkpoint:
        same(checkpoint.read("whole"), WHOLE)
    (tmp_path / name).write_bytes((fixtures / "torch_save" / "archive.bin").read_bytes())
    with Checkpoint(tmp_path) as checkpoint:
        same(checkpoint.read("whole"), WHOLE)


@pytest.mark.parametrize("form", FORMS)
def test_changed_bytes_are_other_numbers_or_one_clear_error(fixtures, tmp_path, form):
    whole, draw, path = (fixtures / "torch_save" / f"{form}.bin").read_bytes(), random.Random(form), tmp_path / "x.bin"
    opened = 0
    for _ in range(400):
        changed = bytearray(whole)
        for _ in range(draw.choice((1, 2, 5))):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed[: draw.choice((len(changed), draw.randrange(len(changed))))])
        try:
            with SafetensorsFile(path) as file:
                for name in file.tensors:
                    file.read(name)
                opened += 1
        except InputError as error:
            assert "\n" not in str(error) and str(path) in str(error)
    assert 0 < opened < 300


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_of_torch_is_that_of_safetensors(fixtures, tmp_path, form, shards):
    torch = pytest.importorskip("torch")
    tensors = read_file(fixtures / "chatglm1" / "model.safetensors")
    names = ["pytorch_model.bin"] if shards == 1 else [f"pytorch_model-{n + 1:05}-of-00003.bin" for n in range(shards)]
    placed = {name: names[number % shards] for number, name in enumerate(tensors)}
    for file in names:
        held = {name: torch.from_numpy(value) for name, value in tensors.items() if placed[name] == file}
        torch.save(held, tmp_path / file, _use_new_zipfile_serialization=form == "archive")
    for indexed in (True, False):
        if indexed and shards > 1:
            (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": placed}))
        with Checkpoint(tmp_path) as checkpoint:
            assert checkpoint.names == sorted(tensors)
            for name, expected in tensors.items():
                same(checkpoint.read(name), expected)
        (tmp_path / "pytorch_model.bin.index.json").unlink(missing_ok=True)
    if shards > 1:
        (tmp_path / names[1]).unlink()
        with pytest.raises(InputError, match=r"shards \[2\] of 3 are missing, and pytorch_model\.bin\.index\.json too"):
            Checkpoint(tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_tensors_that_do_not_lie_row_by_row(tmp_path, form):
    torch = pytest.importorskip("torch")
    whole = torch.arange(120).reshape(4, 5, 6) / 8
    held = {
        "turned": whole.permute(2, 0, 1)[1:, :, 2:],
        "columns": whole[0].t(),
        "spread": whole[0, :1].expand(7, 6),
        "every other": whole[:, 1, ::2].half(),
        "one": whole[1:2, 3, 4:5].t(),
    }
    torch.save(held, tmp_path / "x.bin", _use_new_zipfile_serialization=form == "archive")
    with SafetensorsFile(tmp_path / "x.bin") as file:
        for name, tensor in held.items():
            expected = tensor.numpy()
            same(file.read(name), np.ascontiguousarray(expected))
            assert b"".join(map(bytes, file.blocks(name))) == expected.tobytes()
            some = tuple(slice(size // 3, size) for size in expected.shape)
            same(file.read(name, some, "float64"), expected[some].astype(np.float64))
            file.read_into(name, out := np.empty(expected[:2].shape, np.float32), (slice(0, 2),))
            np.testing.assert_array_equal(out, expected[:2])


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("key", ["state_dict", "module", "model"])
def test_the_model_of_a_training_state(fixtures, tmp_path, key, protocol):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(value) for name, value in HELD.items() if name != "brain"}
    state = {
        key: tensors,
        "epoch": 3,
        "numpy": np.arange(3),
        "sizes": [{"a": torch.Size([2])}],
        "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 1e-3, "params": [0]}]},
        "hyper_parameters": argparse.Namespace(path=tmp_path, names={"a"}, dtype=torch.float32),
    }
    torch.save(state, tmp_path / "last.ckpt", pickle_protocol=protocol)
    with SafetensorsFile(tmp_path / "last.ckpt") as file:
        assert list(file.tensors) == list(tensors)
        for name in tensors:
            same(file.read(name), HELD[name])
    torch.save({**state, "ema": tensors}, tmp_path / "last.ckpt")
    with pytest.raises(InputError, match=f"tensors lie under '{key}' and 'ema': which is unknown"):
        SafetensorsFile(tmp_path / "last.ckpt")
