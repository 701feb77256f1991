"""A pipeline's messages over a transport that delivers only when both sides have met, as a device's does."""

import threading

import numpy as np
import pytest

from pet.parallel import collectives
from pet.parallel.mesh import Mesh
from pet.parallel.pipeline import pieces_of
from pet.parallel.schedule import Neighbour, one_forward_one_backward


class Sent:
    """What `send` returns. It has arrived by then."""

    def wait(self):
        return None


class Rendezvous:
    """A send returns when its receiver has taken it, and each process does one thing after another.

    Nobody waits for a time that runs out: as soon as all that still run wait for each other, all of them fail.
    """

    def __init__(self, processes: int):
        self.changed, self.place = threading.Condition(), threading.local()
        self.running, self.waiting, self.arrived = processes, {}, {}
        self.messages = 0

    def send(self, x, rank, label="pipeline"):
        self._meet("send", rank, x)
        return Sent()

    def receive(self, shape, dtype, rank, label="pipeline"):
        found = self._meet("receive", rank, None)
        assert shape == (rows_of(int(found.split()[1])), 8), f"{found} as {shape}"
        return found

    def _meet(self, kind: str, peer: int, payload):
        own = self.place.rank
        with self.changed:
            partner = self.waiting.get(peer)
            if partner is not None and partner[:2] == ({"send": "receive", "receive": "send"}[kind], own):
                del self.waiting[peer]
                self.arrived[peer] = payload
                self.messages += 1
                self.changed.notify_all()
                return partner[2]
            self.waiting[own] = (kind, peer, payload)
            self._look()
            self.changed.wait_for(lambda: own not in self.waiting)
            if own not in self.arrived:
                raise RuntimeError(f"all wait for each other: {kind} at stage {own}")
            return self.arrived.pop(own)

    def _look(self):
        if len(self.waiting) == self.running:
            self.waiting.clear()
            self.changed.notify_all()

    def run(self, work) -> list[BaseException]:
        """Runs ``work(rank)`` in all of them at once; what they raised."""
        errors = []

        def process(rank):
            self.place.rank = rank
            try:
                work(rank)
            except BaseException as error:
                errors.append(error)
            with self.changed:
                self.running -= 1
                self._look()

        threads = [threading.Thread(target=process, args=(rank,)) for rank in range(self.running)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors


def rows_of(piece: int) -> int:
    """Of its activations: the batches of a step are padded each to its own longest row."""
    return 4 + piece


def pipeline(monkeypatch, stages: int, pieces: int, sends_first=None):
    """Runs a step of that many stages. Returns the errors, the order of each stage's work, and the messages."""
    transport = Rendezvous(stages)
    monkeypatch.setattr(collectives, "send", transport.send)
    monkeypatch.setattr(collectives, "receive", transport.receive)
    done: list[list] = [[] for _ in range(stages)]

    def work(stage):
        mesh = Mesh(pipeline=stages, rank=stage)
        before, behind = (Neighbour(mesh, number, 8, "float32") for number in (stage - 1, stage + 1))
        if sends_first is not None:
            before.sends_first = behind.sends_first = sends_first

        def forward(number, x):
            assert x == (None if stage == 0 else f"activations {number} of {stage - 1}")
            done[stage].append(f"F{number}")
            return None if stage == stages - 1 else f"activations {number} of {stage}"

        def backward(number, slope):
            assert slope == (None if stage == stages - 1 else f"gradient {number} of {stage + 1}")
            done[stage].append(f"B{number}")
            return None if stage == 0 else f"gradient {number} of {stage}"

        one_forward_one_backward(mesh, [*map(rows_of, range(pieces))], forward, backward, before, behind)
        assert not before.under_way and not behind.under_way

    return transport.run(work), done, transport.messages


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
@pytest.mark.parametrize("more", [0, 1, 6])
def test_no_two_stages_wait_for_each_other(monkeypatch, stages, more):
    pieces = stages + more
    errors, done, messages = pipeline(monkeypatch, stages, pieces)
    assert not errors
    assert messages == 2 * (stages - 1) * pieces
    for stage, order in enumerate(done):
        assert sorted(order) == sorted(f"{kind}{number}" for kind in "FB" for number in range(pieces))
        ahead = 0
        for step in order:
            ahead += 1 if step[0] == "F" else -1
            assert 0 <= ahead <= stages - stage  # inputs that it holds


def test_a_batch_is_cut_into_its_micro_batches():
    batch = {name: np.arange(12).reshape(6, 2) for name in ("input_ids", "position_ids", "start", "end", "labels")}
    pieces = pieces_of({**batch, "count": 5}, 3, ("labels",))
    assert len(pieces) == 3 and all(piece["count"] == 5 for piece in pieces)
    for name, array in batch.items():
        assert [piece[name].tolist() for piece in pieces] == array.reshape(3, 2, 2).tolist()


def test_the_drawing(monkeypatch):
    _, done, _ = pipeline(monkeypatch, 2, 4)
    assert [" ".join(order) for order in done] == ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]


@pytest.mark.parametrize("sends_first", [True, False])
def test_this_transport_finds_stages_that_do_the_same_first(monkeypatch, sends_first):
    """Otherwise the test above could not fail."""
    errors, _, _ = pipeline(monkeypatch, 2, 4, sends_first)
    assert len(errors) == 2 and all("wait for each other" in str(error) for error in errors)
