"""How the launcher tells a worker that hangs from one that waits or works for long."""

import json
import os
import sysconfig
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from launches import ROOT

from model_zoo import progress
from pet.launching import heartbeat, launcher
from pet.launching.heartbeat import CALLING, JOINED, JOINING, LEAVING, PAUSING, SILENT, WAITING, WORKING
from pet.launching.stacks import Stack
from pet.launching.watch import Clock, Watch, find_awaited, find_hanging


def stack(*frames):
    """An answer, from the innermost frame on."""
    return Stack([(str(file), name) for file, name in frames])


def seen(
    state,
    heard=1.0,
    due=None,
    active=10.0,
    busy=0.0,
    calm=9.5,
    awake=10.0,
    stack=None,
    outside=0,
    looked=10.0,
    woke=1.0,
):
    """A worker as the launcher sees it after ten seconds of a limit of three, without a process."""
    watch = object.__new__(Watch)
    watch.woke = woke
    watch.limit, watch.use_idle, watch.running, watch.look = 3.0, True, True, lambda: None
    watch.state, watch.heard, watch.active, watch.awake, watch.seen = state, heard, active, awake, looked
    watch.due = due or (5.0 if state == WORKING else float("inf"))
    watch.calm, watch.stack, watch.outside = calm, stack, outside
    watch.clock = SimpleNamespace(wall=10.0, fair=10.0, busy=busy)
    return watch


LIBRARY = f"{sysconfig.get_path('purelib')}/mindspore"
IN_LIBRARY, IN_OURS = (stack((f"{root}/a.py", "f")) for root in (LIBRARY, ROOT / "pet"))
LOOP, NAP = {"busy": 0.9, "calm": 1.0}, {"heard": 0.5}
IDLE = {"active": 1.0}


@pytest.mark.parametrize(
    ("workers", "culprit"),
    [
        # whatever it was at, a stopped one
        ([seen(WAITING, **IDLE), seen(WAITING, awake=2.0)], 1),
        ([seen(CALLING), seen(PAUSING, awake=2.0)], 1),
        # a loop, though the others sleep in a graph or are overdue too
        ([seen(WORKING, **IDLE), seen(WORKING, **LOOP)], 1),
        ([seen(WORKING), seen(WAITING), seen(WORKING, **LOOP)], 2),
        ([seen(CALLING), seen(WORKING, **LOOP)], 1),
        # also in the first run of a graph, and where it says that it waits, but for what only beats by itself
        ([seen(CALLING), seen(CALLING, **LOOP, stack=IN_OURS)], 1),
        ([seen(WAITING), seen(WAITING, **LOOP, stack=IN_OURS)], 1),
        ([seen(WORKING, due=20.0, heard=0.1, **IDLE), seen(WORKING, **NAP)], 1),
        ([seen(WAITING, heard=0.1), seen(WORKING, **NAP)], 1),
        # sleeping: whoever was heard from first, and not one that waits
        ([seen(WORKING, heard=2.0, due=20.0, **IDLE), seen(WORKING, due=20.0, **IDLE)], 1),
        ([seen(WAITING, heard=0.5, **IDLE), seen(CALLING, **IDLE)], 1),
        ([seen(WAITING, heard=2.0, **IDLE), seen(WAITING, **IDLE)], 1),
        ([seen(SILENT), seen(SILENT, **IDLE)], 1),
        ([seen(SILENT, woke=9.5, **IDLE), seen(SILENT, **IDLE)], 1),
        ([seen(SILENT, woke=9.5, **IDLE)], 0),
        ([seen(JOINED, heard=2.0, **IDLE), seen(JOINED, heard=1.0, **IDLE)], 1),
        ([seen(WAITING), seen(JOINED, **IDLE)], 1),
        # but one of a script that has joined may wait for another one
        ([seen(JOINED), seen(JOINED, **IDLE)], None),
        # or ask for a file of its, now and then
        ([seen(SILENT), seen(SILENT, woke=9.5, **IDLE)], None),
        # what it has done since it was last looked at is not known
        ([seen(SILENT), seen(SILENT, active=6.9, looked=9.5)], None),
        ([seen(WAITING), seen(WAITING, awake=6.9, looked=9.5)], None),
        # one that says it waits, and sleeps elsewhere, though another one still asks for it
        ([seen(WAITING), seen(WAITING, **IDLE, stack=IN_OURS, outside=2)], 1),
        ([seen(WAITING), seen(WAITING, **IDLE, stack=IN_OURS, outside=1)], None),
        ([seen(WAITING), seen(WAITING, stack=IN_OURS, outside=2)], None),
        ([seen(WAITING), seen(LEAVING, **IDLE, stack=IN_OURS, outside=2)], None),
        ([seen(JOINING), seen(JOINING, **IDLE, stack=IN_OURS, outside=2)], 1),
        ([seen(JOINING, **IDLE), seen(WORKING, **NAP)], 1),
        ([seen(JOINING, **IDLE), seen(CALLING)], None),
        # what is through waits for the others, and ends by itself where they have ended already
        ([seen(LEAVING, heard=0.5, **IDLE), seen(WAITING, **IDLE)], 1),
        ([seen(LEAVING, **IDLE), seen(WORKING, **NAP)], 1),
        ([seen(LEAVING, **IDLE), seen(LEAVING, heard=0.5, **IDLE)], None),
        ([seen(LEAVING, **IDLE)], None),
        ([seen(LEAVING, **IDLE), seen(CALLING, busy=0.9)], None),
        # and not one that sleeps within MindSpore, where it waits for the others
        ([seen(CALLING, **IDLE, stack=IN_LIBRARY), seen(CALLING, heard=2.0, **IDLE, stack=IN_OURS)], 1),
        ([seen(CALLING, due=5.0), seen(WORKING, heard=2.0, **IDLE, stack=IN_OURS)], 1),
        # nobody: one works, or compiles, or waits for something outside, or the limit is not reached
        ([seen(WORKING, **IDLE), seen(CALLING)], None),
        ([seen(WAITING, **IDLE), seen(CALLING, busy=0.9, stack=IN_OURS)], None),
        ([seen(WORKING, **IDLE), seen(WORKING, busy=0.9, due=20.0, calm=1.0)], None),
        ([seen(WAITING, **IDLE), seen(CALLING, busy=0.9)], None),
        ([seen(WORKING), seen(CALLING)], None),
        ([seen(WAITING, **IDLE), seen(PAUSING, **IDLE)], None),
        ([seen(WAITING, **IDLE), seen(WORKING, due=20.0, busy=0.9)], None),
        ([seen(WAITING), seen(WAITING, **IDLE)], None),
        ([seen(WAITING, **IDLE), seen(SILENT)], None),
        ([seen(SILENT), seen(SILENT)], None),
    ],
)
def test_the_worker_that_hangs_is_told_from_those_that_wait_for_it(workers, culprit):
    found = find_hanging(workers)
    index = find_awaited([worker.view() for worker in workers]) if found is None else workers.index(found)
    assert index == culprit


@pytest.mark.parametrize(
    ("states", "seconds"),
    [
        ([CALLING, WAITING], launcher.NOTICE),
        ([WAITING, None], launcher.NOTICE),  # the last step's, of which the other one has its part
        ([JOINING, WORKING], launcher.NOTICE),
        ([JOINING, JOINING], launcher.GRACE),
        ([JOINING, None], launcher.GRACE),  # MindSpore keeps it from receiving a signal
        ([None, None], 0.0),
    ],
)
def test_who_only_waits_for_others_to_join_has_little_time_when_the_job_is_to_end(monkeypatch, states, seconds):
    monkeypatch.setattr(launcher, "exit_code", lambda process: process)
    workers = object.__new__(launcher._Workers)
    workers.watches = [seen(SILENT if state is None else state) for state in states]
    workers.processes, workers.grace = [143 if state is None else None for state in states], launcher.NOTICE
    assert not workers._may_go_on(seconds, launcher.NOTICE)
    assert not seconds or workers._may_go_on(seconds - 0.1, launcher.NOTICE)
    workers.grace = 0.0  # a second signal
    assert not workers._may_go_on(0.0, launcher.NOTICE)


def test_who_waited_for_one_that_has_ended_has_its_time_from_there_on(monkeypatch):
    now, found = [0.0], []

    def pass_seconds(seconds):
        now[0] += seconds

    def awaited(views):
        found.append(find_awaited([*views.values()]))

    monkeypatch.setattr(launcher, "exit_code", lambda process: process)
    monkeypatch.setattr(launcher, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: pass_seconds(2.0)))
    workers = object.__new__(launcher._Workers)
    workers.failure, workers.idle_limit, workers.count = None, 3.0, 2
    workers.processes, workers.watches = [0, None], [seen(WAITING), seen(SILENT, **IDLE)]
    exchange = Mock(side_effect=[None, None, (0, "")])
    workers.control = SimpleNamespace(first_rank=0, awaited=awaited, exchange=exchange)
    workers._poll()
    assert found == [None, None, 0]


REASONS = [
    # C++, which does not answer, and other libraries, in a call and in a wait; a compilation and imports always
    (CALLING, [None], True),
    (WAITING, [None], True),
    (CALLING, [stack((f"{LIBRARY}/a.py", "f"))], True),
    (WAITING, [stack((f"{LIBRARY}/a.py", "f"))], True),
    (WORKING, [stack((f"{LIBRARY}/a.py", "f"))], False),
    (WORKING, [stack(("/usr/x.py", "f"), (f"{LIBRARY}/a.py", "_compile"))], False),
    (WORKING, [stack((os.__file__, "f"), (f"{LIBRARY}/a.py", "f"), (f"{LIBRARY}/b.py", "compile"))], True),
    (WORKING, [stack(("<frozen importlib._bootstrap>", "_load"), (file, "<module>")) for file in ("a", "b")], True),
    (WORKING, [stack(("<frozen importlib._bootstrap>", "_load"), ("a", "<module>"))] * 2, False),
    # ours, that of a user, also where MindSpore called it or the standard library is at work; C++ that promised an end
    (CALLING, [stack((ROOT / "pet/a.py", "f"), (f"{LIBRARY}/a.py", "compile"))], False),
    (CALLING, [stack(("<string>", "f"))], False),
    (CALLING, [stack((os.__file__, "f"), ("/home/me/train.py", "f"))], False),
    (WORKING, [None], False),
]


@pytest.mark.parametrize(("state", "answers", "expected"), REASONS)
def test_a_stack_tells_work_that_takes_long_from_a_loop(state, answers, expected):
    watch = seen(state, due=5.0)
    before = None
    found = False
    for watch.stack in answers:
        watch.due = 5.0
        found, before = watch._has_reason(before), watch.stack
    assert found == expected
    assert watch.due == (13.0 if expected and state == WORKING else 5.0)  # the promise is put off


@pytest.fixture
def times(tmp_path, monkeypatch):
    """A time to set, and the file of a worker's lines, of which the last is read by calling it: state, seconds."""
    now = [1000.0]
    monkeypatch.setenv("PET_BEAT_FILE", str(tmp_path / "beat"))
    monkeypatch.setattr("pet.launching.heartbeat.time.monotonic", lambda: now[0])
    for name, value in (("_now", (SILENT, 0.0)), ("_joined", False), ("_place", None), ("_took", {})):
        monkeypatch.setattr(heartbeat, name, value)

    def line():
        heard, state, within, pid = map(float, (tmp_path / "beat").read_bytes().split())
        assert (heard, pid) == (now[0], os.getpid())
        return int(state), within

    return now, line


def test_a_graph_may_take_a_multiple_of_its_last_runs(times):
    now, line = times
    progress.tick("graph")  # nobody watches
    with heartbeat.watched():
        expected = [
            (40.0, (CALLING, 0.0)),  # the first run, compiled: it takes 40 s
            (2.0, (CALLING, 40.0)),
            (3.0, (CALLING, 5 * 2.0)),
            (90.0, (CALLING, 5 * 2.0)),  # it waits for a peer that compiles
            (3.0, (CALLING, 5 * 2.0)),
            (3.0, (CALLING, 5 * 3.0)),  # the last three count
        ]
        for seconds, wanted in expected:
            progress.tick("graph")
            assert line() == wanted
            now[0] += seconds
        progress.tick()
        assert line() == (WORKING, 0.0)
        now[0] += 1.0
        with heartbeat.waiting():
            assert line() == (WAITING, 0.0)
        assert line() == (WORKING, 0.0)
        with progress.pausing():
            assert line() == (PAUSING, 0.0)
            now[0] += 1.0
            with progress.pausing():
                progress.tick("graph")
            progress.tick()
            assert heartbeat._now == (PAUSING, 0.0)
        assert line() == (WORKING, 0.0)
        heartbeat.beat(600.0)
        assert line() == (WORKING, 600.0)
    assert line() == (SILENT, 0.0)
    heartbeat.joined()
    assert line() == (JOINED, 0.0)
    with heartbeat.watched():
        progress.tick()
        heartbeat.joined()
        assert line() == (WORKING, 0.0)
    assert line() == (JOINED, 0.0)
    with heartbeat.waiting():
        assert line() == (WAITING, 0.0)
    assert line() == (JOINED, 0.0)


def test_every_graph_says_when_it_runs_and_that_its_first_run_may_take_long(times):
    from mindspore import Tensor

    from model_zoo.graph import Graph

    def following(x):
        return x + 1

    graph, lines = Graph(following), []
    with heartbeat.watched():
        for size in (2, 2, 3):
            graph(Tensor(np.zeros(size, np.float32)))
            lines.append(times[1]())
            times[0][0] += 7.0
    assert lines == [(CALLING, 0.0), (CALLING, 7.0), (CALLING, 0.0)]


def test_what_takes_long_of_large_models_and_data_says_that_it_gets_on(tmp_path, monkeypatch):
    """The others wait meanwhile: a base of 7 B takes half a minute to be hashed, after which the job had ended."""
    from model_zoo.checkpoint.digests import digest_file
    from model_zoo.checkpoint.fingerprint import digest
    from pet.data import TokenDataset

    config = json.loads((ROOT / "recipes/bases/llama_tiny/config.json").read_text())
    (tmp_path / "file").write_bytes(bytes(5 << 19))
    for work in (
        lambda: digest(config, dict.fromkeys("abc", ("float32", (1,))), lambda name: [np.zeros(1, np.float32)]),
        lambda: digest_file(tmp_path / "file"),
        lambda: TokenDataset.from_samples([([1, 2], [0, 1])] * 3).without_repeated(),
    ):
        monkeypatch.setattr(progress, "watcher", Mock())
        work()
        assert progress.watcher.tick.call_count == 3


def test_time_passes_as_the_worker_had_it(times, monkeypatch):
    now, demand = times[0], [0.0] * 5
    monkeypatch.setattr(Clock, "_demand", lambda self: list(demand))
    clock = Clock(1)

    def pass_seconds(count, *used, step=1.0, pages=1000.0):
        for _ in range(count):
            now[0] += step
            demand[:] = [before + new for before, new in zip(demand, (*used, pages), strict=True)]
            clock.tick()
        return clock.fair

    assert pass_seconds(4, 0.25, 0.75, 0.5, 5.0) == pytest.approx(1.0)  # the machine is busy: a quarter of a core
    assert clock.busy == pytest.approx(1.0)
    assert pass_seconds(4, 0.0, 0.0, 1.0, 3.0) == pytest.approx(2.0)  # the same within a graph
    assert clock.busy == 0.0
    assert pass_seconds(4, 0.01, 0.0, 0.01, 0.0) == pytest.approx(6.0)  # it sleeps
    assert pass_seconds(1, 0.0, 0.0, 0.0, 0.0, step=3600.0) == pytest.approx(7.0)  # the launcher stood still as well
    # Python code that takes no memory: as many seconds again, but none that has not passed
    for clock.answers, pages, seconds in ((True, 1000.0, 1.0), (False, 0.0, 1.0), (True, 0.0, 2.0)):
        before = clock.fair
        assert pass_seconds(4, 0.25, 0.75, 0.5, 5.0, pages=pages) - before == pytest.approx(seconds)
    before = clock.fair
    assert pass_seconds(4, 0.8, 0.2, 0.8, 0.2, pages=0.0) - before == pytest.approx(4.0)
    clock.answers = False
    assert pass_seconds(100, 0.0, 0.0, 0.0, 1e3) >= 12.0 - 1e-6  # whatever the machine does, a hang is one in the end


def test_a_line_of_the_worker_renews_its_time(times, tmp_path):
    watch = Watch(os.getpid(), tmp_path / "beat", 3.0)
    watch.clock = SimpleNamespace(pid=os.getpid(), tick=lambda: None, wall=0.0, fair=0.0, busy=0.0)
    heartbeat.beat(within=8.0)
    watch.look()
    watch.clock.fair = 8.0
    assert not watch.overdue
    watch.clock.fair = 8.5
    assert watch.overdue and "made no progress" in watch.reason
    times[0][0] += 1.0
    heartbeat.beat(within=1.0)  # the launcher's own limit is longer
    watch.look()
    watch.clock.fair = 11.0
    assert watch.state == WORKING and not watch.overdue
