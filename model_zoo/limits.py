"""What a process runs out of beside the disk: memory and threads. How that is recognised, and which limit helps."""

from __future__ import annotations

from model_zoo.errors import first_line
from model_zoo.posix import resource

MEMORY = ("out of memory", "memory isn't enough", "cannot allocate memory", "bad_alloc", "could not create a primitive")
"""What Python, MindSpore, the system, C++ and oneDNN say of memory that could not be had."""
UNMAPPED = "failed to map segment"
"""What the system says of a library where there is no memory for it, or where its file may not be executed."""
THREADS = ("can't start new thread", "resource temporarily unavailable")
"""The same of a thread or a process."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is about memory or threads that could not be had, which doing it in another way makes worse."""
    of_threads = any(said in str(error).lower() for said in THREADS)
    return isinstance(error, (MemoryError, RuntimeError, OSError)) and (of_threads or _of_memory(error))


def shortage(error: BaseException) -> tuple[str, str] | None:
    """What could not be had, with the reason, and the limit to raise (which may be empty); None for other errors."""
    unmapped = isinstance(error, ImportError) and UNMAPPED in str(error)
    if not (unmapped or out_of_memory(error)):
        return None
    memory, threads = _limit("RLIMIT_AS"), _limit("RLIMIT_NPROC")
    room = "" if memory is None else f"raise the limit on address space (ulimit -v: {memory / 1e6:,.0f} MB)"
    if unmapped:
        return first_line(error), room or "its file system may be mounted noexec: install the packages elsewhere"
    if _of_memory(error):
        return f"no memory could be had ({first_line(error)})", room
    allowed = "unlimited" if threads is None else threads
    helps = f"raise the limit on processes (ulimit -u: {allowed}, or the container's)"
    return f"no thread or process could be started ({first_line(error)})", f"{helps}, or {room}" if room else helps


def _of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    said = any(words in text for words in MEMORY) or ("alloc" in text and "fail" in text)
    return said or isinstance(error, MemoryError)


def _limit(name: str) -> int | None:
    """This process's limit; None where it has none."""
    if resource is None:
        return None
    soft = resource.getrlimit(getattr(resource, name))[0]
    return None if soft == resource.RLIM_INFINITY else soft


def reserve_buffer() -> None:
    """Has NumPy's OpenBLAS take the buffer of its products, which it keeps, while there is memory.

    It asks for it at the first product, and where it gets none (``ulimit -v``) asks again without end: a run spun in
    its first picture, at a product of 3 × 3.
    """
    import numpy as np

    square = np.ones((64, 64), np.float32)
    square @ square
