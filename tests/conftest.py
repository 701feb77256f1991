"""What every test shares: which sets it belongs to, where the reference files lie, and a core for each of the processes
that pytest-xdist starts.

MindSpore's threads wait for one another in a busy loop. On a core of its own a test process is as fast as on two, and
two of them on the same two cores are twice as slow as they need be.
"""

import atexit
import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import hypothesis
import pytest

# Not this directory: its `pet` would be found before the package that `pip install -e` installs.
sys.path.insert(0, str(Path(__file__).parent / "support"))

import peers
import sets
from waiting import HANGING

# What is imported and collected is no garbage: Python's collector rests until all of it is there, and lets it be then.
gc.disable()

# A shell's background commands ignore Ctrl-C, and what they start does, too; tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start some two hundred processes, and each would compile the packages anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

QUICK_RUNS = str(Path(__file__).parent / "support" / "quick_runs")
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, …
# This process's part of them. A job whose processes wait for one another has no more: one of them that shared a core
# with another test process would have half of it, and the others, who sleep while they wait, half of theirs idle.
OWN = CORES[int(WORKER[2:]) % len(CORES) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])] if WORKER and CORES else CORES
if WORKER and CORES:  # before MindSpore counts the cores for its threads
    os.sched_setaffinity(0, OWN[:1])
    os.environ["OMP_NUM_THREADS"] = "1"

import model_zoo  # noqa: E402, F401  (it sets what MindSpore reads when it is imported)

os.environ.setdefault("GLOG_v", "3")  # MindSpore's C++ log: errors only

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and so it would be by the programs under test


@atexit.register
def leave_cells_alone() -> None:
    """What MindSpore's cells do as they go is a traceback of each that is there until Python has taken its module
    apart."""
    if "mindspore.nn.cell" in sys.modules:  # pytest-xdist's first process has no use for it
        del sys.modules["mindspore.nn.cell"].Cell.__del__


# an example may take as long as a busy machine needs: no result depends on the clock
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)  # pytest-xdist may be switched off
def pytest_xdist_auto_num_workers(config) -> int | None:
    """As many processes as there are cores to have; pytest-xdist would count the machine's."""
    asked = "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ
    return None if asked else len(CORES) or None


def pytest_ignore_collect(collection_path, config) -> bool | None:
    """Of the quick tests alone the other files are not even imported."""
    alone = config.option.markexpr == "quick" and collection_path.match("test_*.py")
    return True if alone and not sets.is_quick(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Every second process collects from the other end: a file that one has compiled, which takes as long as all else
    the first time, the next one finds."""
    report = yield
    if WORKER and int(WORKER[2:]) % 2 and isinstance(collector, pytest.Directory):
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)  # before pytest's own -m
def pytest_collection_modifyitems(config, items) -> None:
    """Gives every test its sets, leaves out `full` unless -m names it, and starts the long files first."""
    sets.mark(items)
    if "full" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]
    if WORKER:
        sets.long_files_first(items)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # the collector took a twentieth of all time, and no memory is won by it
    gc.enable()


def pytest_runtest_setup() -> None:
    """A warning that a process gives once is given once in each test, whichever ran before."""
    from model_zoo import errors

    errors._warned.clear()
    peers.seed()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """What a file's tests have imported and left is no garbage either. MindSpore collects before each graph of its own
    mode, for up to a second where nothing of this rests, and pytest five times at the end."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def pictures():
    """Runs draw no picture, which takes a quarter of a second, but within ``with pictures():``."""
    from pet.train.callbacks.plot import LossPlot

    @contextlib.contextmanager
    def drawn():
        with pytest.MonkeyPatch.context() as again:
            again.setattr(LossPlot, "_draw", draw)
            yield

    draw = LossPlot._draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LossPlot, "_draw", lambda *_: None)
        yield drawn


@pytest.fixture(scope="session", autouse=True)
def unsynced():
    """Nothing waits for the disk, some milliseconds for each file: what tests write need not outlast a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def quick_runs(monkeypatch):
    """Nor do the processes that the test starts; and they do not find matplotlib."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [QUICK_RUNS, os.environ.get("PYTHONPATH")])))


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The reference models, tokenizers and adapters, each with the outputs of an independent implementation."""
    return Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def shortened(tmp_path_factory, fixtures):
    """Gives a reference model without the layers behind the first ones, for what compiles graphs: these take as long as
    there are layers, and layer after layer is compiled alike."""
    from first_layers import first_layers

    home = tmp_path_factory.mktemp("shortened")

    def directory(name: str, layers: int = 1) -> Path:
        place = home / f"{name}_{layers}"
        return place if place.exists() else first_layers(fixtures / name, place, layers)

    return directory


@pytest.fixture(scope="session")
def own_cache(tmp_path_factory):
    """Makes a user's cache (``XDG_CACHE_HOME``) with nothing in it but the kernels, which take half a minute of a core
    to compile; returns its path."""
    from model_zoo.engine import build

    kept = tmp_path_factory.mktemp("kernels")
    with contextlib.suppress(build.NoCompiler):
        shutil.copy2(build.library(), kept)

    def make(directory: Path) -> str:
        home = directory / "mindspore-pet"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in kept.iterdir():
            if not (home / file.name).exists():
                os.link(file, home / file.name)
        return str(directory)

    return make


@pytest.fixture(scope="session")
def tiny_gpt():
    """Writes a random GPT-2 of some ten thousand weights with a bundled tokenizer to a directory, which it returns."""
    from model_zoo.auto import AutoModel
    from model_zoo.checkpoint.saving import save_pretrained
    from pet.names import bundled_directory

    def write(directory: Path, context: int = 128) -> Path:
        source = bundled_directory() / "bases" / "gpt_tiny"
        config = json.loads((source / "config.json").read_text())
        config.update(n_embd=32, n_layer=2, n_head=2, n_positions=context)
        save_pretrained(AutoModel.from_config(config, seed=1), directory)
        for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
            shutil.copyfile(source / name, directory / name)
        return directory

    return write


@pytest.fixture(scope="session")
def base(tmp_path_factory, tiny_gpt):
    """A `tiny_gpt` with questions of one answer each beside it: ``data.jsonl`` and ``held_out.jsonl``."""
    home = tiny_gpt(tmp_path_factory.mktemp("base"))
    for name, numbers in (("data.jsonl", range(16)), ("held_out.jsonl", range(16, 20))):
        rows = [{"prompt": f"What is {number}?", "completion": f"It is {number}."} for number in numbers]
        (home / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


@pytest.fixture(scope="session")
def numpy_loss():
    """The mean over labels of what a model's logits give them, by NumPy: no code of the trainer takes part."""
    import numpy as np

    def measure(model, samples) -> float:
        """Of ``(ids, trained)`` pairs: tokens, and which of them are labels (the first never is)."""
        chosen = []
        for ids, trained in samples:
            ids, labels = np.asarray(ids), np.asarray(trained)[1:]
            logits = model(ids[None].astype(np.int32))
            logits = logits[0] if isinstance(logits, tuple) else logits  # of MindFormers' cells the first of three
            logits = logits.asnumpy()[0].astype(np.float64)
            top = logits.max(-1, keepdims=True)
            logs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
            chosen += logs[np.arange(len(ids) - 1), ids[1:]][labels].tolist()
        return -float(np.mean(chosen))

    return measure


@pytest.fixture(scope="session")
def asked():
    """Rows of a question and its answer as ``(ids, trained)`` pairs, by a tokenizer's own prompt."""

    def pairs(tokenizer, rows):
        for row in rows:
            talk = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]
            yield tokenizer.example(talk)

    return pairs


@pytest.fixture(scope="module")
def all_cores():
    """For tests that start several processes: these may run on every core again."""
    if not WORKER or not CORES:
        yield
        return
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    yield
    os.sched_setaffinity(0, mine)


PAIR = """
import json, os, sys
cores, commands = map(json.loads, sys.argv[1:])
if cores:
    os.sched_setaffinity(0, {cores[int(os.environ["RANK_ID"]) % len(cores)]})
from pet.cli.imports import import_quickly
import_quickly()
from pet.cli.main import run
from pet.parallel.join import join, leave
join()
for words in commands:
    print("pet", *words, flush=True)
    assert not run(words), words
leave(0)
"""


@pytest.fixture(scope="session")
def own_cores() -> list[int]:
    """What processes that wait for one another are divided over; nothing where the system does not say."""
    return OWN


@pytest.fixture(scope="session")
def pair(tmp_path_factory, own_cores):
    """Runs command lines of `pet`, one after another, in one job of two processes, divided over `own_cores`."""

    def run(*commands: list[str]) -> None:
        home = tmp_path_factory.mktemp("pair")
        (home / "pair.py").write_text(PAIR)
        words = [json.dumps(own_cores), json.dumps([[str(word) for word in command] for command in commands])]
        launch = [sys.executable, "-m", "pet", "launch", "-n", "2", "--log-dir", home / "log", "--hang-timeout", "120"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANK_", "MS_"))}
        environment |= {"PYTHONPATH": os.pathsep.join([QUICK_RUNS, *filter(None, sys.path)])}
        environment |= {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*map(str, launch), "--", sys.executable, str(home / "pair.py"), *words],
            env=environment, cwd=home, capture_output=True, text=True, timeout=HANGING,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    return run


@pytest.fixture(scope="session")
def until():
    """Waits until a condition holds, and returns what it came to. The limit is no requirement: it ends what hangs."""

    def wait(condition, limit: float = HANGING):
        end = time.monotonic() + limit
        while not (found := condition()):
            assert time.monotonic() < end, "it never happened"
            time.sleep(0.01)
        return found

    return wait
