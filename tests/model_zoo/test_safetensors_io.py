"""The safetensors reader and writer against the reference package, and against damaged files."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file, save

from model_zoo.checkpoint.ckpt_io import CkptFile, write_ckpt
from model_zoo.checkpoint.dtypes import convert, float_name, from_bfloat16, to_bfloat16
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, read_file, write_file, write_stream
from model_zoo.errors import InputError


def every_fixture(fixtures):
    return sorted(path for path in fixtures.rglob("*.safetensors"))


def test_fixtures_read_and_written_byte_for_byte(fixtures, tmp_path):
    files = every_fixture(fixtures)
    assert len(files) > 20
    for path in files:
        with SafetensorsFile(path) as file:
            if any(entry.dtype == "bfloat16" for entry in file.tensors.values()):
                continue  # NumPy has no such type: these are read as their bits
            tensors = {name: file.read(name) for name in file.tensors}
            metadata = file.metadata
        for name, expected in load_file(path).items():
            np.testing.assert_array_equal(tensors[name], expected)
        write_file(tmp_path / "copy.safetensors", tensors, metadata)
        assert (tmp_path / "copy.safetensors").read_bytes() == path.read_bytes(), path


def test_writer_equals_package_for_mixed_types(tmp_path):
    generator = np.random.default_rng(0)
    tensors = {
        "b": generator.standard_normal((3, 5)).astype(np.float32),
        "a": generator.standard_normal(7).astype(np.float16),
        "größe": np.arange(6, dtype=np.int64).reshape(2, 3),
        "flag": np.array([True, False]),
        "scalar": np.array(3.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "rows of nothing": np.zeros((3, 0), np.float32),
        "double": generator.standard_normal((2, 2)),
    }
    write_file(tmp_path / "x.safetensors", tensors, {"format": "pt"})
    assert (tmp_path / "x.safetensors").read_bytes() == save(tensors, {"format": "pt"})
    for name, value in read_file(tmp_path / "x.safetensors").items():
        np.testing.assert_array_equal(value, tensors[name])


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[:, 1:4], lambda x: x[::-1], lambda x: x[::2, ::3]])
def test_non_contiguous_arrays_are_written_right(view, tmp_path):
    array = view(np.arange(48, dtype=np.float32).reshape(6, 8))
    write_file(tmp_path / "x.safetensors", {"x": array})
    np.testing.assert_array_equal(load_file(tmp_path / "x.safetensors")["x"], array)


def test_slices_read_only_the_block(tmp_path, monkeypatch):
    monkeypatch.setattr("model_zoo.checkpoint.safetensors_io.CHUNK", 64)  # many pieces
    array = np.arange(13 * 7 * 3, dtype=np.float32).reshape(13, 7, 3)
    write_file(tmp_path / "x.safetensors", {"pad": np.zeros(3, np.float32), "x": array, "v": array.reshape(-1)})
    with SafetensorsFile(tmp_path / "x.safetensors") as file:
        for slices in (
            None,
            (slice(2, 9),),
            (slice(None), slice(1, 5)),
            (slice(3, 4), slice(2, 2)),
            (slice(-3, None),),
        ):
            expected = array if slices is None else array[slices]
            np.testing.assert_array_equal(file.read("x", slices), expected)
        np.testing.assert_array_equal(file.read("v", slice(5, 100)), array.reshape(-1)[5:100])
        target = np.zeros((13, 3, 7), np.float32).transpose(0, 2, 1)  # not contiguous
        file.read_into("x", target)
        np.testing.assert_array_equal(target, array)
        with pytest.raises(InputError, match="step 1"):
            file.read("x", (slice(0, 9, 2),))
        with pytest.raises(InputError, match="too many"):
            file.read("v", (slice(0, 1), slice(0, 1)))
        with pytest.raises(InputError, match="does not fit"):
            file.read_into("x", np.zeros((13, 7), np.float32))
        with pytest.raises(InputError, match="did you mean 'pad'"):
            file.read("pax")


def test_bfloat16_every_value_widens_and_narrows_to_itself():
    bits = np.arange(65536, dtype=np.uint16)
    wide = from_bfloat16(bits)
    assert wide[0x3F80] == 1.0 and wide[0xC040] == -3.0 and np.isinf(wide[0x7F80])
    again = to_bfloat16(wide)
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(again[number], bits[number])
    assert np.isnan(from_bfloat16(again[~number])).all()
    np.testing.assert_array_equal(to_bfloat16(wide[number].astype(np.float64)), bits[number])


@settings(max_examples=200)
@given(arrays.arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e38, 1e38, allow_subnormal=True)))
def test_bfloat16_rounds_once_to_nearest_even(values):
    bits = to_bfloat16(values)
    rounded = from_bfloat16(bits).astype(np.float64)
    for neighbour in (bits - np.uint16(1), bits + np.uint16(1)):
        other = from_bfloat16(neighbour).astype(np.float64)
        usable = np.isfinite(other) & (np.sign(other) * np.sign(rounded) >= 0)
        distance, limit = np.abs(values - rounded), np.abs(values - other)
        assert (distance <= limit)[usable].all()
        tie = usable & (distance == limit) & (other != rounded)
        assert (bits[tie] & 1 == 0).all()


def test_bfloat16_from_float64_is_not_rounded_twice():
    # Just above the middle between two neighbours by less than float32 can see: rounding to float32 first would land
    # on the middle, and then on the even neighbour below.
    value = np.float64(1.0 + 2.0**-8 + 2.0**-40)
    assert to_bfloat16(np.array([value]))[0] == 0x3F81
    assert to_bfloat16(np.array([value], np.float32))[0] == 0x3F80


def test_conversion_agrees_with_torch():
    torch = pytest.importorskip("torch", reason="torch is the reference for bfloat16 rounding")
    values = np.random.default_rng(1).standard_normal(100_000).astype(np.float32)
    values = values * 10.0 ** np.random.default_rng(2).integers(-38, 38, values.size).astype(np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(to_bfloat16(values), expected)
    half = torch.from_numpy(values).to(torch.float16).numpy()
    np.testing.assert_array_equal(convert(values, "float32", "float16"), half)


@pytest.mark.parametrize("word, name", [("bf16", "bfloat16"), ("fp32", "float32"), (np.float16, "float16")])
def test_float_names(word, name):
    assert float_name(word if isinstance(word, str) else np.dtype(word)) == name


def test_unsupported_float_name():
    with pytest.raises(InputError, match=r"'floaty32'.*float32"):
        float_name("floaty32")


def whole_file(tmp_path):
    path = tmp_path / "x.safetensors"
    write_file(path, {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(5, np.float16)})
    return path, path.read_bytes()


@pytest.mark.parametrize(
    "keep, words",
    [
        *((0, "it has 0 bytes"), (4, "it has 4 bytes"), (8, "the file has 8")),
        *((20, "the file has 20"), (-1, ""), (-40, "")),
    ],
)
def test_truncated_file(keep, words, tmp_path):
    path, content = whole_file(tmp_path)
    path.write_bytes(content[:keep])
    with pytest.raises(InputError, match=f"not a whole safetensors file: .*{words}"):
        SafetensorsFile(path)


@pytest.mark.parametrize("lacking", [1, 5, 8, 9])
def test_a_header_that_is_cut_off(lacking, tmp_path):
    head = b'{"__metadata__": {"a": "0123456789"}}'
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head[:-lacking])
    words = f"its header claims {len(head)} bytes, the file has {len(head) + 8 - lacking}"
    with pytest.raises(InputError, match=words):
        SafetensorsFile(path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "base.ckpt"])
def test_a_file_that_git_left_on_the_server(name, tmp_path):
    """What a clone without Git LFS has in place of every file of weights."""
    (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9976578928\n")
    with pytest.raises(InputError, match=rf"{name}: only a Git LFS pointer, .*'git lfs pull'"):
        (CkptFile if name.endswith(".ckpt") else SafetensorsFile)(tmp_path / name)


def edited(content: bytes, change) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["a"].update(shape=[3, 5]),
        lambda h: h["a"].update(shape=[-3, -4]),
        lambda h: h["a"].update(shape=[2**62, 2**62]),
        lambda h: h["a"].update(shape="34"),
        lambda h: h["a"].update(dtype="F99"),
        lambda h: h["a"].update(data_offsets=[8, 56]),
        lambda h: h["a"].update(data_offsets=[48, 0]),
        lambda h: h["a"].update(data_offsets=[0.0, 48.0]),
        lambda h: h.pop("a"),
        lambda h: h.update(c=h["a"]),
        lambda h: h.update(a=[1, 2]),
        lambda h: h.update(__metadata__=3),
    ],
)
def test_corrupt_header(change, tmp_path):
    path, content = whole_file(tmp_path)
    path.write_bytes(edited(content, change))
    with pytest.raises(InputError, match="not a whole safetensors file"):
        SafetensorsFile(path)


@pytest.mark.parametrize(
    "head",
    [b"{]", b'{"a": 1, "a": 2}', b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}'],
)
def test_header_that_is_no_json_object(head, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head)
    with pytest.raises(InputError, match="not a whole safetensors file"):
        SafetensorsFile(path)


@settings(max_examples=300)
@given(st.integers(0, 400), st.integers(0, 255))
def test_any_changed_byte_gives_a_tensor_or_a_clear_error(tmp_path_factory, position, value):
    path, content = whole_file(tmp_path_factory.mktemp("flip"))
    content = bytearray(content)
    content[position % len(content)] = value
    path.write_bytes(bytes(content))
    try:
        for array in read_file(path).values():
            assert isinstance(array, np.ndarray)
    except InputError as error:
        assert str(path) in str(error) or "cannot be read" in str(error)


def test_writer_refuses_what_was_not_announced(tmp_path):
    with open(tmp_path / "x", "wb") as file, pytest.raises(ValueError, match="announced"):
        write_stream(file, {"a": ("float32", (2, 3))}, lambda name: np.zeros((3, 2), np.float32))
    with open(tmp_path / "x", "wb") as file, pytest.raises(ValueError, match="bytes were given"):
        write_stream(file, {"a": ("float32", (2, 3))}, lambda name: [memoryview(b"abc")])


def test_a_file_that_is_cut_off_while_it_is_read_is_an_error(tmp_path):
    """A mapped file would end the process."""
    path, array = tmp_path / "x.safetensors", np.arange(1 << 15, dtype=np.float32).reshape(128, 256)
    write_file(path, {"x": array})
    with SafetensorsFile(path) as file:
        os.truncate(path, 4096 + 512)
        for read in (
            lambda: file.read("x"),
            lambda: file.read("x", (slice(None), slice(3, 9))),
            lambda: file.read("x", dtype="float16"),
            lambda: list(file.blocks("x")),
        ):
            with pytest.raises(
                InputError, match=r"x\.safetensors: ends at byte 4608 and had \d+ bytes when it was opened"
            ):
                read()
    write_ckpt(tmp_path / "x.ckpt", {"x": ("float32", array.shape)}, lambda name: array)
    with CkptFile(tmp_path / "x.ckpt") as file:
        os.truncate(tmp_path / "x.ckpt", 4096)
        with pytest.raises(InputError, match=r"x\.ckpt: ends at byte 4096"):
            file.read("x")


def test_a_file_that_is_replaced_or_deleted_is_read_as_it_was_opened(tmp_path):
    path = tmp_path / "x.safetensors"
    write_file(path, {"x": np.arange(4)})
    with SafetensorsFile(path) as file:
        write_file(path, {"x": np.zeros(9)})
        path.unlink()
        assert file.read("x").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("narrow", [0, 8, 10_000])
@pytest.mark.parametrize("chunk", [16, 1 << 20])
def test_any_block_is_the_array_s(tmp_path, monkeypatch, narrow, chunk):
    monkeypatch.setattr("model_zoo.checkpoint.safetensors_io.CHUNK", chunk)
    monkeypatch.setattr("model_zoo.checkpoint.safetensors_io.NARROW", narrow)
    random = np.random.default_rng(0)
    array = random.standard_normal((4, 5, 6)).astype(np.float32)
    write_file(tmp_path / "x.safetensors", {"pad": np.zeros(3, np.float16), "x": array})
    with SafetensorsFile(tmp_path / "x.safetensors") as file:
        for _ in range(60):
            slices = tuple(
                slice(*sorted(random.integers(0, size + 1, 2).tolist())) if random.random() < 0.6 else slice(None)
                for size in array.shape[: random.integers(1, 4)]
            )
            np.testing.assert_array_equal(file.read("x", slices), array[slices])
            turned = np.zeros(array[slices].shape[::-1], np.float64).T
            file.read_into("x", turned, slices)
            np.testing.assert_array_equal(turned, array[slices])
