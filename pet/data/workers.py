"""Work on chunks in other processes, without ``fork`` and without running the user's script again.

``fork`` copies a process that may hold MindSpore's threads and locks, and can hang; ``multiprocessing``'s other ways
import ``__main__`` anew, so that a script without an ``if __name__ == "__main__"`` line would start itself over and
over. So a worker is a fresh interpreter that runs :func:`main`; chunks go in and results come out through its pipes.
"""

from __future__ import annotations

import contextlib
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

# -c puts the current directory first on the path, where any file of the user's would shadow a module
START = "import sys; sys.path = [*filter(None, sys.path)]; from pet.data.workers import main; main()"


class Workers(contextlib.AbstractContextManager["Workers"]):
    """Processes that hold a function and apply it to whatever they are sent.

    Args:
        function: importable by name, or otherwise able to be pickled; it gets one chunk.

    Raises:
        pickle.PicklingError, AttributeError, TypeError: the function cannot be sent to a process, or a process cannot
            load it: a class of the user's script is in no module that another process could import.
    """

    def __init__(self, function: Callable[[Any], Any], count: int) -> None:
        first = pickle.dumps(function)
        environment = dict(os.environ, TOKENIZERS_PARALLELISM="false")
        path = sorted(sys.path, key=lambda entry: entry == "")  # the current directory, where it takes part, is last
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path))
        self._free: SimpleQueue[subprocess.Popen] = SimpleQueue()
        self._processes: list[subprocess.Popen] = []
        self._threads = ThreadPoolExecutor(count)
        self.count = count
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-c", START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            self._processes.append(process)
        try:
            for process in self._processes:  # after all have been started: a large tokenizer waits to be read
                self._send(process, first)
                self._free.put(process)
            for process in self._processes:
                if (error := self._answer(process)[0]) is not None:
                    raise pickle.PicklingError(str(error))
        except BaseException:
            self.close()
            raise

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
            raise RuntimeError(f"a data worker ended with exit code {process.wait()}") from broken

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
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

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
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints must not land among the results

    def answer(error: Exception | None, result: Any) -> None:
        pickle.dump((error, result), results, pickle.HIGHEST_PROTOCOL)
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
