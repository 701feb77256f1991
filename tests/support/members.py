"""Processes of a job, played by threads: enough of them for what is not computed together."""

from __future__ import annotations

import threading
from collections.abc import Callable

from waiting import HANGING

from pet.train.distributed import DistributedContext


class Member(DistributedContext):
    """One of two processes.

    Args:
        rank: of this one.
        table, barrier: which they share.
        sees: whether it sees the directories of rank 0.
    """

    size = 2

    def __init__(self, rank: int, table: dict, barrier: threading.Barrier, sees: bool = True):
        self.rank, self.is_main, self.table, self.barrier_, self.sees = rank, rank == 0, table, barrier, sees

    def objects(self, value):
        self.table[self.rank] = value if self.sees else value is not True and value
        self.barrier_.wait(HANGING)
        found = [self.table[rank] for rank in range(self.size)]
        self.barrier_.wait(HANGING)
        return found

    def broadcast(self, array):
        return self.objects(array)[0]


def together(function: Callable[[Member], object], kind: type[Member] = Member, sees: bool = True, own=()) -> list:
    """What two processes get, each from ``function(member)``; an error of one is its result.

    Args:
        function: what both do.
        kind: of which class they are.
        sees: whether the second one sees the first one's directories.
        own: errors that both come to; any other one would leave the other waiting.
    """
    barrier, table, found = threading.Barrier(2), {}, [None, None]

    def run(rank):
        try:
            found[rank] = function(kind(rank, table, barrier, sees or rank == 0))
        except Exception as error:
            found[rank] = error
            if not isinstance(error, own):
                barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
