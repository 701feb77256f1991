"""Tokenised data on disk, mapped into memory, made once for each content, tokenizer and settings.

A cache is a directory named by a digest of all that its content depends on. It holds ``tokens.bin`` (int32),
``trained.bin`` (int32), ``lengths.bin`` (int32), ``origin.bin`` (int64 triples), ``said.bin`` (int32, what the data
says of each sample) and ``meta.json`` with their sizes and check sums, with what is said, and with its own digest. It
appears whole or not at all; one that does not match its sums is made again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from model_zoo import progress
from model_zoo.atomic import cache_directory, locked, make_private, until_exit
from model_zoo.checkpoint.digests import Damaged, read_sealed, sealed
from model_zoo.errors import InputError
from model_zoo.unwritable import WRITING, CannotWrite
from pet.files import UNFINISHED, atomic_directory, finite, write_json

from .compressed import inner_suffix
from .dataset import Counts, TokenDataset, starts_of
from .encode import Encoded, Encoder
from .finding import parts_of
from .row import Row
from .settings import DataSettings

log = logging.getLogger("pet.data")

# Goes into every digest: raise it when the same input gives other samples than before, or a file other places.
VERSION = 21
ROOM = 1 << 20
"""Bytes without which a directory counts as full."""
PARTS = {"tokens": np.int32, "trained": np.int32, "lengths": np.int32, "origin": np.int64, "said": np.int32}
# What a tokenizer is asked so that a change in its code, and not only in its files, is noticed.
PROBE = [
    {"role": "user", "content": "What's  1+1?\n你好\t"},
    {"role": "assistant", "content": "2. "},
    {"role": "user", "content": "é 😀"},
    {"role": "assistant", "content": ""},
]


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of the files a tokenizer saves, and of what it makes of a few texts; empty without one."""
    if tokenizer is None:
        return ""
    digest = hashlib.blake2b(type(tokenizer).__name__.encode(), digest_size=16)
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        for path in sorted(Path(directory).rglob("*")):
            if path.is_file():
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    try:
        probed = repr(tokenizer.example(PROBE))
    except InputError as error:  # a chat template may refuse it
        probed = str(error)
    digest.update(probed.encode())
    digest.update(repr(tokenizer.encode(PROBE[0]["content"])).encode())
    return digest.hexdigest()


def settings_digest(tokenizer: Any, settings: DataSettings) -> str:
    """A digest of the tokenizer and of the settings that decide which samples come out."""
    from pet.recipe.data import Reading

    deciding = (*Reading.model_fields, "max_length", "min_length", "max_samples")  # the others only arrange samples
    chosen = {name: getattr(settings, name) for name in deciding}
    if settings.conversations is not None:
        chosen["conversations"] = source_of(settings.conversations)
    text = json.dumps([VERSION, chosen], sort_keys=True) + tokenizer_digest(tokenizer)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def encoder_digest(encoder: Encoder, files: Iterable[Path]) -> str:
    """A digest of what an encoder makes of files."""
    digests = {id(one): settings_digest(one.tokenizer, one.settings) for one in encoder.every()}
    return digests[id(encoder)] + "".join(digests[id(encoder.of(path))] for path in files if encoder.own)


def source_of(function: Any) -> str:
    """What a function of the user's own is known by: its name and, where it can be had, the text of its module, which
    holds what it calls, or else its own."""
    name = f"{function.__module__}:{function.__qualname__}"
    for known_by in (inspect.getmodule(function), function):
        with contextlib.suppress(OSError, TypeError):
            return f"{name}\n{inspect.getsource(known_by)}"
    return name


def content_digest(files: Iterable[Path]) -> str:
    """A digest of the content and order of files; where they lie does not matter, their kind does."""
    digest = hashlib.blake2b(digest_size=16)
    for path in [part for file in files for part in parts_of(file)]:
        digest.update(f"{inner_suffix(path)} {path.stat().st_size}\0".encode())
        with open(path, "rb") as stream:
            while block := stream.read(1 << 22):
                progress.tick()
                digest.update(block)
    return digest.hexdigest()


def file_versions(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Name, size and time of all files that are read."""
    stats = [(part, part.stat()) for path in files for part in parts_of(path)]
    return [(str(part), found.st_size, found.st_mtime_ns) for part, found in stats]


def check_unchanged(versions: list[tuple[str, int, int]], files: Iterable[Path]) -> None:
    """Raises InputError where one of the files has not the version that it had before it was read."""
    try:
        now = file_versions(files)
    except OSError as error:
        raise InputError(f"{error.filename}: is gone since it was read; start again with all files") from None
    if changed := sorted({*versions} ^ {*now}):
        raise InputError(f"{changed[0][0]}: was written to while it was read; start again when it is whole")


def _check_sum(path: Path) -> int:
    total = 0
    with open(path, "rb") as stream:
        while block := stream.read(1 << 22):
            progress.tick()
            total = zlib.crc32(block, total)
    return total


def read_cache(directory: Path, files: list[Path]) -> TokenDataset | None:
    """The dataset of a cache; None where there is none. A damaged one is None too, with a warning.

    Args:
        files: the files it was made of, as they are called now.
    """
    if not directory.is_dir():
        return None
    try:
        meta = read_sealed(directory / "meta.json")
        for name in PARTS:
            path = directory / f"{name}.bin"
            if [path.stat().st_size, _check_sum(path)] != meta["parts"][name]:
                raise ValueError(f"{path.name} does not match its check sum")
        arrays = {
            name: np.memmap(directory / f"{name}.bin", kind, "r") if meta["parts"][name][0] else np.zeros(0, kind)
            for name, kind in PARTS.items()
        }
        counts = Counts(**meta["counts"])
    except (OSError, ValueError, KeyError, Damaged) as error:
        log.warning("%s: damaged cache of tokenised data (%s); rebuilding it", directory, error)
        return None
    lengths = arrays["lengths"].astype(np.int64)
    origin = arrays["origin"].reshape(-1, 3)
    names = [str(path) for path in files]
    found = TokenDataset(arrays["tokens"], arrays["trained"], starts_of(lengths), lengths, origin, names, counts)
    found.said, found.said_of = meta["said"], arrays["said"]
    return found


def write_cache(directory: Path, chunks: Iterable[tuple[list[Row], Encoded]], files: list[Path]) -> None:
    """Write samples as they come, so that no more than a chunk of them is in memory."""
    numbers = {path: number for number, path in enumerate(files)}
    counts, said = Counts(), {}
    with atomic_directory(directory) as temporary:
        with contextlib.ExitStack() as stack:
            streams = {name: stack.enter_context(open(temporary / f"{name}.bin", "wb")) for name in PARTS}
            for rows, encoded in chunks:
                counts.add(encoded.counts)
                for (ids, trained), number in zip(encoded.samples, encoded.rows, strict=True):
                    row = rows[number]
                    streams["tokens"].write(ids.tobytes())
                    streams["trained"].write(trained.tobytes())
                    streams["lengths"].write(np.int32(len(ids)).tobytes())
                    streams["origin"].write(np.asarray([numbers[row.path], row.line, row.row], np.int64).tobytes())
                    number = said.setdefault(json.dumps(row.label), len(said))
                    streams["said"].write(np.int32(number).tobytes())
        parts = {}
        for name in PARTS:
            path = temporary / f"{name}.bin"
            parts[name] = [path.stat().st_size, _check_sum(path)]
        meta = {"parts": parts, "counts": vars(counts), "said": [json.loads(text) for text in said]}
        write_json(temporary / "meta.json", sealed(finite(meta)))


def writable_directory(wanted: str | os.PathLike | None) -> Path:
    """The cache directory; where it cannot be written, with a warning, one that is gone when the process ends. One that
    becomes full meanwhile is the business of who writes."""
    directory = Path(wanted).expanduser() if wanted else cache_directory()
    if directory is None:
        return fallback(Path("~/.cache"), "this user has no home directory")
    try:
        directory.mkdir(parents=True, exist_ok=True) if wanted else make_private(directory)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(ROOM))
            file.flush()
        return directory
    except OSError as error:
        return fallback(directory, reason(error))


def reason(error: OSError) -> str:
    """Why nothing can be written."""
    return WRITING[error.errno][0] if error.errno in WRITING else error.strerror or str(error)


@functools.cache
def fallback(directory: Path, why: str) -> Path:
    """What stands for a directory that cannot be written, in this process."""
    temporary = until_exit()
    log.warning("%s: cannot be written (%s); tokenised data goes to %s", directory, why, temporary)
    return temporary


def cached(
    rows: Callable[[], Iterable[Row]], encoder: Encoder, files: list[Path], parts: Any = "", *, progress: bool = True
) -> TokenDataset:
    """The samples of the rows that ``rows`` reads, which are these ``parts`` of the files, from the cache where it has
    them."""
    from .encode import encode_rows

    settings = encoder.settings
    versions = file_versions(files)  # before their digest, under which rows of later versions must not be kept

    def chunks() -> Iterator[tuple[list[Row], Encoded]]:
        yield from encode_rows(rows(), encoder, progress=progress)
        check_unchanged(versions, files)

    key = f"{encoder_digest(encoder, files)}{content_digest(files)}{parts}"
    name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()

    def kept(base: Path) -> TokenDataset:
        with locked(base / f"{name}.lock"):
            dataset = read_cache(base / name, files)
            if dataset is None:
                # what a killed run left half written; nobody else writes here while the lock is held
                for rubbish in base.glob(f".{name}{UNFINISHED}*"):
                    shutil.rmtree(rubbish, ignore_errors=True)
                with contextlib.closing(chunks()) as given:  # here, and not in a thread that must end with it
                    write_cache(base / name, given, files)
                dataset = read_cache(base / name, files)
        if dataset is None:
            raise OSError(f"{base / name}: the cache was written and cannot be read back")
        return dataset

    base = writable_directory(settings.cache_dir)
    try:
        dataset = kept(base)
    except CannotWrite as error:  # it became full
        dataset = kept(fallback(base, reason(error)))
    dataset.documents = settings.documents
    return dataset
