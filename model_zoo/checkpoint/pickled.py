"""Files that ``torch.save`` wrote (``pytorch_model.bin``, ``adapter_model.bin``), read without running their code.

A pickle names classes and functions to call. Here the few names that a dictionary of tensors needs stand for records
of where a tensor lies (`NAMES`). Any other stands for itself, and is an error where a tensor is wanted, so that nothing
of the file is ever run. The numbers are read later, straight from the file, as those of a safetensors file are. Where a
dictionary holds one of tensors beside other things (a training state), that one counts.

Both forms are known: since PyTorch 1.6 a zip archive of ``data.pkl`` and one uncompressed entry per storage; before
that a row of pickles with the storages behind them.
"""

from __future__ import annotations

import collections
import math
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

from model_zoo.atomic import open_file
from model_zoo.errors import InputError

ARCHIVE, STREAM = b"PK\x03\x04", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How the two forms begin: a zip archive's first entry, and PyTorch's own number as a pickle."""
LONGEST = max(len(ARCHIVE), len(STREAM))
MAX_PICKLE = 100_000_000  # bytes, as for a safetensors header: the numbers are not among them
WORDS = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
}
"""{what the class of a storage is called before ``Storage``: the word for its type}"""
MOVABLE = "write it once as safetensors: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR), or save_file"


class Storage(NamedTuple):
    """`count` numbers of one type in a row; `key` names them in the file."""

    dtype: str
    key: str
    count: int


class Tensor(NamedTuple):
    """A view of a storage, in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _tensor(storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Tensor:
    numbers = (offset, *shape, *strides)
    if type(storage) is not Storage or not all(type(number) is int and number >= 0 for number in numbers):
        raise pickle.UnpicklingError("a tensor is malformed")
    if len(shape) != len(strides):
        raise pickle.UnpicklingError("a tensor has not as many strides as axes")
    return Tensor(storage, offset, tuple(shape), tuple(strides))


def _parameter(data: Tensor, *_: Any) -> Tensor:
    return data


class _Other(NamedTuple):
    """What a file makes by a name of its own, which is not run. It takes what is put into it, and keeps nothing."""

    name: str

    def __call__(self, *_: Any) -> _Other:
        return self

    append = extend = __setitem__ = __call__


NAMES: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    **{("torch", f"{name}Storage"): word for name, word in WORDS.items()},
}
"""What a file may name, and what it stands for here."""


OPERATIONS = (
    *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "BINPERSID", "BINPUT", "LONG_BINPUT", "BINGET"),
    *("LONG_BINGET", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NONE", "NEWTRUE", "NEWFALSE"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1"),
    *("TUPLE2", "TUPLE3", "BINBYTES", "SHORT_BINBYTES", "FRAME", "MEMOIZE", "SHORT_BINUNICODE", "STACK_GLOBAL"),
    *("EMPTY_SET", "ADDITEMS"),
)
"""What ``torch.save`` writes, by the pickle format's own names, the last ones with ``pickle_protocol=4``, as large
models were once saved: with others a few bytes may ask for any memory."""


class _Reader(pickle._Unpickler):  # in Python: the one in C takes memory for places that a file merely names
    """Reads one pickle of those names and operations alone."""

    dispatch: ClassVar[dict[int, Any]] = {
        code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in OPERATIONS)
    }

    def __init__(self, file: Any):
        super().__init__(file)
        self.types: dict[str, str] = {}  # {storage: its type}

    def load_build(self) -> None:
        """What is set on the dictionary itself (``_metadata``: versions of cells) is of no use here."""
        self.stack.pop()

    dispatch[pickle.BUILD[0]] = load_build

    dispatch[pickle.NEWOBJ[0]] = dispatch[pickle.REDUCE[0]]

    def find_class(self, module: str, name: str) -> Any:
        return NAMES.get((module, name)) or _Other(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Storage:
        kind, dtype, key, _, count, *view = pid
        if kind != "storage" or dtype not in WORDS.values() or type(count) is not int or any(view):
            raise pickle.UnpicklingError("a storage is malformed")
        self.types[str(key)] = dtype
        return Storage(dtype, str(key), count)


CORRUPT = (
    *(ValueError, TypeError, LookupError, AttributeError, AssertionError, NotImplementedError),
    *(RecursionError, OverflowError, MemoryError, struct.error),
)
"""What reading may raise where bytes are not what was written."""
Header = dict[str, tuple[str, tuple[int, ...], int, tuple[int, ...] | None]]
"""{tensor: (type, shape, byte at which it begins, strides in elements where it does not lie row by row)}"""


def form_of(start: bytes) -> str:
    """What a file of tensors is by its first `LONGEST` bytes, whatever it is called: ``"torch"``, ``"safetensors"``
    (the header's JSON comes after its length), or empty where it is neither."""
    return "torch" if start.startswith((ARCHIVE, STREAM)) else "safetensors" if start[8:9] == b"{" else ""


def read_header(path: Path, size_of: Callable[[str, Iterable[int]], int]) -> Header:
    """Where the tensors of a file lie.

    Args:
        size_of: the bytes of a tensor of this type and shape.

    Raises:
        InputError: it is another file, cut off, compressed or big-endian, or holds something else than tensors by their
            names, code that makes them among it.
    """
    try:
        with open_file(path) as file:
            start = file.read(LONGEST)
            file.seek(0)
            if form_of(start) != "torch":
                raise InputError(f"{path}: is not a file of torch.save, nor of safetensors")
            held, places = _archive(file) if start.startswith(ARCHIVE) else _stream(file, size_of)
            return {name: _placed(name, value, places, size_of) for name, value in _named(held)}
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise InputError(f"{path}: cannot be opened as a file of tensors: {error}; {MOVABLE}") from None
    except (zipfile.BadZipFile, EOFError):
        raise InputError(f"{path}: not a whole file of torch.save: it is cut off; download or write it again") from None
    except CORRUPT as error:
        raise InputError(f"{path}: not a whole file of torch.save ({error}); download or write it again") from None


def _named(held: Any) -> Iterable[tuple[str, Any]]:
    """The tensors, where they lie by their names in the object itself, or in one of the dictionaries in it."""
    if isinstance(held, dict) and not _of_tensors(held):
        within = {key: value for key, value in held.items() if _of_tensors(value)}
        if len(within) > 1:
            raise pickle.UnpicklingError(f"tensors lie under {' and '.join(map(repr, within))}: which is unknown")
        held = next(iter(within.values()), held)
    if not isinstance(held, dict) or not held:
        raise pickle.UnpicklingError(f"tensors by their names were expected, there lies {_shown(held)}")
    return held.items()


def _of_tensors(held: Any) -> bool:
    return isinstance(held, dict) and any(type(value) is Tensor for value in held.values())


def _shown(value: Any) -> str:
    return f"what {value.name} makes, which is not run" if type(value) is _Other else "no tensor"


def _placed(name: Any, value: Any, places: Mapping[str, tuple[int, int]], size_of: Callable) -> tuple:
    """One tensor's type, shape and first byte; `places` has each storage's first byte and size."""
    if type(name) is not str or type(value) is not Tensor:
        raise pickle.UnpicklingError(f"under {name!r} lies {_shown(value)}")
    storage, shape = value.storage, value.shape
    start, held = places[storage.key]
    if size_of(storage.dtype, (storage.count,)) != held:
        raise pickle.UnpicklingError(f"the storage of {name!r} has {held} bytes, not {storage.count} {storage.dtype}")
    last = sum((size - 1) * stride for size, stride in zip(shape, value.strides, strict=True))
    if value.offset + (last + 1 if math.prod(shape) else 0) > storage.count:
        raise pickle.UnpicklingError(f"{name!r} reaches beyond its storage")
    expected = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    by_rows = all(size < 2 or own == its for size, own, its in zip(shape, value.strides, expected, strict=True))
    strides = None if by_rows or not math.prod(shape) else value.strides
    return storage.dtype, shape, start + size_of(storage.dtype, (value.offset,)), strides


def _archive(file: BinaryIO) -> tuple[Any, dict[str, tuple[int, int]]]:
    """The object in a zip archive, and where its storages lie: {key: (first byte, bytes)}."""
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
        if odd := [entry.filename for entry in entries.values() if entry.compress_type != zipfile.ZIP_STORED]:
            raise pickle.UnpicklingError(f"{odd[0]} is compressed")
        if "byteorder" in entries and archive.read(entries["byteorder"]).strip() != b"little":
            raise pickle.UnpicklingError("its numbers are big-endian")
        if "data.pkl" not in entries:
            raise pickle.UnpicklingError("it has no data.pkl")
        if entries["data.pkl"].file_size > MAX_PICKLE:
            raise pickle.UnpicklingError(f"its data.pkl has more than {MAX_PICKLE} bytes")
        with archive.open(entries["data.pkl"]) as data:
            held = _Reader(data).load()
    places = {}
    for name, entry in entries.items():
        if name.startswith("data/"):
            file.seek(entry.header_offset + 26)  # the entry's own head says how long its last two parts are
            name_size, extra_size = struct.unpack("<HH", file.read(4))
            places[name[5:]] = (entry.header_offset + 30 + name_size + extra_size, entry.file_size)
    return held, places


def _stream(file: BinaryIO, size_of: Callable) -> tuple[Any, dict[str, tuple[int, int]]]:
    """The same of the older form: a number, a version, the machine's facts, the object, keys, then the storages."""
    reader = _Reader(file)
    _, _, machine, held, keys = (reader.load() for _ in range(5))
    if not machine["little_endian"]:
        raise pickle.UnpicklingError("its numbers are big-endian")
    places, start, end = {}, file.tell(), file.seek(0, 2)
    for key in keys:
        file.seek(start)
        (count,) = struct.unpack("<q", file.read(8))
        size = size_of(reader.types[key], (count,))
        if count < 0 or start + 8 + size > end:
            raise EOFError
        places[key] = (start + 8, size)
        start += 8 + size
    return held, places
