"""``pet doctor``: what this machine is, and what in it is known not to work together."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from model_zoo import BLIND
from model_zoo.errors import InputError, explain
from model_zoo.resources import available_cores, machine_memory
from pet.cli.output import check_output_file
from pet.cli.parser import Parser
from pet.files import write_text
from pet.installation import TESTED, foreign_adapters, installed, on_cpu, unmet
from pet.launching.environment import MSRUN, STARTERS, started_by

EXAMPLES = [
    ("pet doctor", "device, versions, threads, memory, and a verdict on each"),
    ("pet doctor --quick", "without starting MindSpore"),
    ("pet doctor --report doctor.txt", "in a file, to attach to a question"),
    ("pet doctor --full --processes 2", "measure everything in up to 15 minutes, and write doctor.json"),
]
PACKAGES = ("mindspore", "numpy", "safetensors", "tokenizers", "sentencepiece", "pydantic", "pyyaml", "tqdm", "psutil")
EXTRAS = ("matplotlib", "sacrebleu", "rouge-score")
REASONS = {
    "numpy": "MindSpore's wheel is built for NumPy 1; its first operator fails with another",
    "safetensors": "from 0.8 on it writes wrong bytes for non-contiguous arrays",
}

Finding = tuple[str, str, str]  # ok, note or bad; what; the detail
GB = 1 << 30


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def packages() -> Iterator[Finding]:
    """Versions, and the combinations that are known to go wrong."""
    wrongs = dict(unmet())
    wrongs.pop("mindspore", None)  # see below
    for package in PACKAGES:
        found = installed(package)
        if package not in wrongs:
            yield ("ok", package, found) if found else ("bad", package, f"is not installed: pip install {package}")
    for package, wrong in wrongs.items():
        yield "bad", package, "; ".join(filter(None, (wrong, REASONS.get(package))))
    wrong = foreign_adapters()
    if wrong:
        yield "bad", "adapters", wrong
    missing = [package for package in EXTRAS if not installed(package)]
    if missing:
        yield "note", "report extra", f"{', '.join(missing)} not installed: pip install 'mindspore-pet[report]'"
    mindspore = installed("mindspore")
    if mindspore == BLIND:
        yield "bad", "mindspore", f"{mindspore} does not say where a CPU's tensors lie. mindspore>=2.7.1"
    elif mindspore and _numbers(mindspore) != _numbers(TESTED[-1]):
        known = mindspore.startswith(tuple(f"{one}." for one in TESTED))
        told = "passed the quick tests and the full diagnosis on a CPU" if known else "was not tested"
        *older, last = TESTED[:-1]
        others = f"the quick ones with {', '.join(older)} and {last}"
        yield "note", "mindspore", f"{mindspore} {told}; all tests passed with {TESTED[-1]}, {others}"
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        yield "bad", "python", f"{platform.python_version()}: MindSpore has wheels for 3.10, 3.11 and 3.12"


def machine() -> Iterator[Finding]:
    """Processor, threads, memory, disk."""
    yield "ok", "python", f"{platform.python_version()} ({sys.executable})"
    yield "ok", "system", f"{platform.system()} {platform.machine()}"
    usable = available_cores()
    threads = os.environ.get("OMP_NUM_THREADS")
    yield "ok", "cores", f"{usable} usable of {os.cpu_count()}; OMP_NUM_THREADS {threads or 'not set'}"
    if threads and threads.isdigit() and int(threads) > usable:
        yield (
            "note",
            "threads",
            f"OMP_NUM_THREADS={threads} is more than {usable} cores: threads will wait for each other",
        )
    import psutil

    memory = psutil.virtual_memory()
    kind = "ok" if memory.available > 2 * GB else "note"
    yield kind, "memory", f"{memory.available / GB:.1f} GB free of {memory.total / GB:.1f} GB"
    if (limit := machine_memory()) < memory.total:
        kind = "ok" if limit > 2 * GB else "note"
        yield kind, "limit", f"{limit / GB:.1f} GB of memory for this container or job"
    disk = psutil.disk_usage(os.getcwd())
    yield ("ok" if disk.free > 2 * GB else "note"), "disk", f"{disk.free / GB:.1f} GB free in {os.getcwd()}"


def environment() -> Iterator[Finding]:
    """Variables that change what MindSpore does."""
    if os.environ.get("MS_COMPILER_CACHE_ENABLE", "0") not in ("", "0"):
        yield "bad", "MS_COMPILER_CACHE_ENABLE", "the compile cache has given NaN losses; unset it"
    if os.environ.get("MS_SIMULATION_LEVEL"):
        yield "note", "MS_SIMULATION_LEVEL", "a simulation is asked for: results are no results"
    names = [
        "MS_ROLE",
        *(name for one in (STARTERS[0], MSRUN, *started_by(os.environ)) for name in (one.rank, one.size)),
    ]
    if told := ", ".join(f"{name}={os.environ[name]}" for name in dict.fromkeys(names) if name in os.environ):
        yield "note", "processes", f"a launcher has started this one: {told}"


def device() -> Iterator[Finding]:
    """MindSpore's device, and whether it computes."""
    try:
        import mindspore as ms
        from mindspore import ops
    except Exception as error:
        yield "bad", "mindspore", f"cannot be imported: {explain(error)}"
        return
    target = ms.get_context("device_target")
    yield "ok", "device", f"{target} (MindSpore {ms.__version__})"
    if target != "CPU":
        yield "note", "device", "only CPU was measured; what this library does on other devices is untested"
    try:
        import numpy as np

        left = ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
        result = ops.MatMul(transpose_b=True)(left, left).asnumpy()
        right = np.array_equal(result, [[5.0, 14.0], [14.0, 50.0]])
    except Exception as error:
        yield "bad", "operators", f"a matrix product fails: {explain(error)}"
        return
    yield ("ok" if right else "bad"), "operators", "a matrix product is right" if right else "a matrix product is wrong"
    yield from kernels()
    yield from path()


def kernels() -> Iterator[Finding]:
    """Whether the kernels in C are there, and where from; or why not."""
    import mindspore as ms

    from model_zoo.engine import NoCompiler, describe, describe_bf16

    instead = "MindSpore's operators instead: slower, same results up to rounding"
    if ms.get_context("device_target") != "CPU":
        yield "note", "kernels", f"those in C are for a CPU; {instead}"
        return
    try:
        yield "ok", "kernels", f"in C, {describe()}"
        yield "ok", "bf16 products", describe_bf16()
    except NoCompiler as error:
        yield "note", "kernels", f"none in C ({error}): {instead}"
    except InputError as error:
        yield "bad", "kernels", str(error)


def path() -> Iterator[Finding]:
    """Which way training and generation take through the cells: the compiled kernels, or plain operators."""
    import mindspore as ms
    import numpy as np

    from model_zoo.activations import SwiGLU
    from model_zoo.engine import available, set_kernels
    from model_zoo.layers import Linear, name_parameters
    from model_zoo.norms import RMSNorm

    norm, linear, activation = RMSNorm(40, 1e-6), Linear(40, 24, bias=False), SwiGLU()
    name_parameters(ms.nn.CellList([norm, linear]))
    linear.weight.set_data(ms.Tensor(np.sin(np.arange(24 * 40, dtype=np.float32)).reshape(24, 40)))
    values = ms.Tensor(np.cos(np.arange(200, dtype=np.float32)).reshape(5, 40))

    def forward(x):
        y = linear(norm(x))
        return activation(y, y)

    try:
        plain = forward(values).asnumpy()
        in_c = available()
        for cell in (norm, activation, linear):
            set_kernels(cell, True)
        difference = float(np.abs(ms.jit(forward)(values).asnumpy() - plain).max() / np.abs(plain).max())
    except Exception as error:
        yield "bad", "path", f"the fast kernels do not compile ({explain(error)}); compiled=False is plain"
        return
    if not difference < 1e-5:
        yield "bad", "path", f"the fast kernels are off by {difference:.1e} from the plain operators"
        return
    kind = "kernels in C" if in_c else "compiled kernels of operators"
    yield (
        "ok",
        "path",
        f"fast: {kind}, which agree with the plain operators here, for all that is in float32; model.dtype "
        "float16 goes by plain operators",
    )


def bundled() -> Iterator[Finding]:
    """The recipes and tiny bases that the package ships."""
    from pet import names
    from pet.recipe.fields import Section  # noqa: F401 - a broken pydantic shows here, not in the middle of a run

    recipes, models = names.bundled_recipes(), names.bundled_models()
    where = names.bundled_directory()
    yield ("ok" if recipes else "bad"), "recipes", f"{len(recipes)} in {where}"
    size = sum(file.stat().st_size for path in models.values() for file in Path(path).iterdir() if file.is_file())
    yield ("ok" if models else "bad"), "tiny bases", f"{', '.join(models) or 'none'} ({size / 1e6:.1f} MB)"


def measure(options) -> int:
    """The full diagnosis."""
    from pet.diagnosis.full import run

    for name in ("quick", "report"):
        if getattr(options, name):
            raise InputError(f"--{name} does not go with --full")
    here = "CPU" if on_cpu() else "Ascend"
    device = options.device or here
    if device not in ("CPU", here):
        raise InputError(f"--device {device}: MindSpore's device here is {here}")
    check_output_file(options.output)
    chosen = options.only.split(",") if options.only else []
    return run(
        device, 2 if options.processes is None else options.processes, chosen, Path(options.output or "doctor.json")
    )


def main(arguments: Sequence[str]) -> int:
    """Print every finding; 1 when something is known to be broken."""
    parser = Parser("pet doctor", "Check device, versions, memory and known incompatibilities.", EXAMPLES)
    parser.add_argument("--quick", action="store_true", help="do not start MindSpore")
    parser.add_argument("--report", metavar="FILE", help="write it to a file as well, to attach to a question")
    parser.add_argument(
        "--full", action="store_true", help="measure messages, cells, layouts, speed, faults; 15 minutes"
    )
    parser.add_argument("--device", help="with --full: Ascend or CPU (default: MindSpore's)")
    parser.add_argument("--processes", type=int, metavar="N", help="with --full: workers of a job (default 2)")
    parser.add_argument("--only", metavar="NAME,NAME", help="with --full: these sections alone")
    parser.add_argument("--output", metavar="FILE", help="with --full (default doctor.json)")
    options = parser.read(arguments)
    if options.full:
        return measure(options)
    for name in ("device", "processes", "only", "output"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name} belongs to --full")
    checks: list[Callable[[], Iterator[Finding]]] = [machine, packages, environment, bundled]
    if not options.quick:
        checks.append(device)
    bad, lines = 0, []
    for check in checks:
        for kind, what, detail in check():
            bad += kind == "bad"
            mark = {"ok": "ok  ", "note": "note", "bad": "BAD "}[kind]
            lines.append(f"{mark}  {what:<15} {detail}")
            print(lines[-1])
    lines += ["", f"{bad} known problem{'s' if bad != 1 else ''}." if bad else "No known problems."]
    print("\n".join(lines[-2:]))
    if options.report:
        write_text(options.report, "\n".join(lines) + "\n")
    return 1 if bad else 0
