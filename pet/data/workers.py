"""Work on chunks in other processes, without ``fork`` and without running the user's script again.

``fork`` copies a process that may hold MindSpore's threads and locks, and can hang; ``multiprocessing``'s other ways
import ``__main__`` anew, so that a script without an ``if __name__ == "__main__"`` line would start itself over and
over. So a worker is a fresh interpreter that runs :func:`main`; chunks go in and results come out through its pipes.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from model_zoo import progress
from model_zoo.errors import InputError

# Both modules are built in: -c puts the current directory first on the path, where any file of the user's would shadow
# another one. The path comes through the pipe, as a directory's name may have a colon in it.
START = "import marshal, sys; sys.path = marshal.load(sys.stdin.buffer); from pet.data.workers import main; main()"
BEGINS = b"\0answers\n"
"""What a worker writes before its answers: the start of Python itself may print (``sitecustomize``)."""
PATIENCE = 10.0
"""Seconds in which a worker that answers no more has ended."""


class NoWorkers(Exception):
    """This process is to do the work by itself; the message says why."""


class Workers(contextlib.AbstractContextManager["Workers"]):
    """Processes that hold a function and apply it to whatever they are sent.

    Args:
        function: importable by name, or otherwise able to be pickled; it gets one chunk.

    Attributes:
        within: whether this process is a worker itself.

    Raises:
        NoWorkers: the function cannot be sent to a process, a process cannot load it (a class of the user's script is
            in no module that another process could import), or none can be started.
    """

    within = False

    def __init__(self, function: Callable[[Any], Any], count: int) -> None:
        try:
            first = pickle.dumps(function)
        except Exception as error:  # also whatever a tokenizer's own code raises
            raise NoWorkers(f"this tokenizer cannot be sent to other processes ({error})") from error
        # the current directory, where it takes part, is last
        path = sorted((entry for entry in sys.path if isinstance(entry, str)), key=lambda entry: entry == "")
        self._free: SimpleQueue[subprocess.Popen] = SimpleQueue()
        self._processes: list[subprocess.Popen] = []
        self._threads = ThreadPoolExecutor(count)
        self.count = count
        try:
            for _ in range(count):
                self._processes.append(self._started())
            for process in self._processes:  # after all have been started: a large tokenizer waits to be read
                self._send(process, marshal.dumps(path) + first)
                self._free.put(process)
            with progress.pausing():
                for process in self._processes:
                    while not (line := process.stdout.readline()).endswith(BEGINS) and line:
                        pass
                    error, _ = self._answer(process)
                    if error is not None:
                        raise NoWorkers(f"this tokenizer cannot be sent to other processes ({error})")
        except InputError as ended:
            self.close()
            raise NoWorkers(f"this tokenizer cannot be sent to other processes ({ended})") from ended
        except OSError as error:
            self.close()
            raise NoWorkers(f"other processes cannot be started ({error})") from error
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _started() -> subprocess.Popen:
        if getattr(sys, "frozen", False) or not sys.executable:
            raise OSError("this program has no Python beside it")
        environment = dict(os.environ, TOKENIZERS_PARALLELISM="false")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-c", START], env=environment, **pipes)

    @staticmethod
    def _send(process: subprocess.Popen, pickled: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it ended, as its answer will tell
            process.stdin.write(pickled)
            process.stdin.flush()

    @staticmethod
    def _answer(process: subprocess.Popen) -> tuple[Exception | None, Any]:
        try:
            return pickle.load(process.stdout)
        except (EOFError, pickle.UnpicklingError) as broken:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            process.kill()
            code = process.wait()
            why = "was ended by the system (SIGKILL), most likely for lack of memory" if code == -9 else ""
            why = why or f"ended with exit code {code}"
            raise InputError(f"a data worker {why}; data.workers: 0 tokenises in the process itself") from broken

    def _ask(self, chunk: Any) -> Any:
        process = self._free.get()
        try:
            self._send(process, pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL))
            error, result = self._answer(process)
        finally:
            self._free.put(process)
        if error is not None:
            raise error
        return result

    def map(self, chunks: Iterable[Any]) -> Iterator[Any]:
        """The results in the order of the chunks; a few chunks ahead of the reader, never all."""
        waiting: deque[Future] = deque()
        for chunk in chunks:
            waiting.append(self._threads.submit(self._ask, chunk))
            if len(waiting) > 2 * self.count:
                yield self._next(waiting)
        while waiting:
            yield self._next(waiting)

    @staticmethod
    def _next(waiting: deque[Future]) -> Any:
        with progress.pausing():  # this process sleeps, and how long a chunk takes nobody knows
            return waiting.popleft().result()

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()
        self._threads.shutdown(cancel_futures=True)

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    """A worker: the function first, then chunk after chunk until the pipe closes. Each is answered: (error, result)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    Workers.within = True
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints must not land among the results
    results.write(BEGINS)

    def answer(error: Exception | None, result: Any) -> None:
        try:
            said = pickle.dumps((error, result), pickle.HIGHEST_PROTOCOL)
            if error is not None:
                pickle.loads(said)
        except Exception:  # an error of the user's own kind
            said = pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), None))
        results.write(said)
        results.flush()

    try:
        function = pickle.load(sys.stdin.buffer)
    except Exception as error:
        answer(RuntimeError(f"{type(error).__name__}: {error}"), None)
        return
    answer(None, None)
    while True:
        try:
            chunk = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            result = function(chunk)
        except Exception as error:
            answer(error, None)
        else:
            answer(None, result)
