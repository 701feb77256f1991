"""MindPet: its unit tests of layers, freezing and saving, and the calls in its two documents, with `pet.compat.mindpet`
in the place of ``mindpet``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType, SimpleNamespace

from door_counts import Case, outcome_of

WHAT = "unit tests of layers, freezing and saving, and calls in its two documents"
TESTS = ("test/unit_test/delta", "test/unit_test/graph")
DOCUMENTS = ("doc/MindPet_DeltaAlgorithm_README.md", "doc/MindPet_GraphOperation_README.md")
IMAGE = 28 * 28


def count(clone: Path, work: Path, seconds: float | None = None) -> list[Case]:
    """Each unit test, and each call in a document, is a case."""
    for part in ("test", "doc"):
        shutil.copytree(clone / part, work / part, dirs_exist_ok=True)
    return [*unit_tests(work), *documents(work)]


def unit_tests(work: Path) -> list[Case]:
    """What pytest says of the clone's tests, by this module as a plugin."""
    labels = next(iter(work.glob("test/unit_test/graph/data/*labels*")), None)
    if labels is not None:  # a clone may lack the pictures, which are large; what is on them does not matter
        number = int.from_bytes(labels.read_bytes()[4:8], "big")
        header = b"".join(value.to_bytes(4, "big") for value in (2051, number, 28, 28))
        labels.with_name("train-images.idx3-ubyte").write_bytes(header + bytes(number * IMAGE))
    report = work / "report.xml"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", __name__, f"--junit-xml={report}", "-o", "addopts="]
        + [f"--rootdir={work}", *(str(work / path) for path in TESTS)],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    cases = []
    for test in ElementTree.parse(report).iter("testcase"):
        problem = next((found for kind in ("failure", "error") if (found := test.find(kind)) is not None), None)
        reason = "" if problem is None else problem.get("message", "").splitlines()[0][:120]
        cases.append(Case(test.get("name"), "fails" if reason else "runs", reason))
    return cases


def pytest_configure(config) -> None:
    """As a plugin: ``mindpet``, and what the tests take from MindFormers and from older MindSpores."""
    import mindspore
    from mindspore import nn

    import pet.compat.mindpet

    class Transformer(nn.Cell):
        """Cells by the names that the tests match."""

        def __init__(self, hidden_size, **sizes):
            super().__init__()
            block = nn.Cell()
            block.layernorm1, block.output = nn.LayerNorm((hidden_size,)), nn.Dense(hidden_size, hidden_size)
            self.encoder = nn.Cell()
            self.encoder.blocks = nn.CellList([block])

    modules = ModuleType("mindformers.modules")
    modules.Transformer = Transformer
    sys.modules["mindpet"] = pet.compat.mindpet
    sys.modules["mindformers"], sys.modules["mindformers.modules"] = ModuleType("mindformers"), modules
    for module in (mindspore.dataset.transforms, mindspore.dataset.vision):
        name = f"{module.__name__}.c_transforms"
        module.c_transforms = sys.modules[name] = module


NAMES = "LoRADense|AdapterDense|AdapterLayer|LowRankAdapterDense|LowRankAdapterLayer|PrefixLayer|PrefixEncoder"
CALL = re.compile(
    rf"^(?!class |\s*#)[^#\n]*?(?:([\w., ]+?)\s*=\s*)?((?:\w+\.)?(?:{NAMES}|RDropLoss|rdrop_repeat|freeze_\w+|shard"
    r"|TrainableParamsCheckPoint|self\.loss))\(",
    re.MULTILINE,
)


def documents(work: Path) -> list[Case]:
    """Each call, in the documents' order, with what they leave to the reader: a network, a configuration, a path."""
    pytest_configure(None)
    os.chdir(work / "test/unit_test/graph/resource")
    cases = []
    for path in DOCUMENTS:
        text = (work / path).read_text("utf-8")
        for block in re.finditer(r"```[pP]ython\n(.*?)```", text, re.DOTALL):
            known = namespace(work)
            for found in CALL.finditer(block[1]):
                call = found[2] + arguments(block[1][found.end() :])
                if call.endswith("()") or found[2] == "shard":  # left out in the document; a signature
                    continue
                line = text[: block.start(1) + found.start(2)].count("\n") + 1
                cases.append(run(f"{Path(path).stem}:{line} {found[2]}", call, found[1], known))
    return cases


def arguments(text: str) -> str:
    """The arguments from behind a parenthesis to its end, without comments and what is left out; missing commas and the
    last parenthesis, which the documents lack in places, are put in."""
    text = re.sub(r"#.*|\.\.\.", "", text)
    text = re.sub(r"(['\"\])])\s*\n(\s*\w+\s*=)", r"\1,\n\2", text)
    depth = 1
    for end, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return "(" + re.sub(r"\s+", " ", text[:end]).strip().rstrip(",") + ")"
    return "(" + re.sub(r"\s+", " ", text).strip() + ")"


def namespace(work: Path) -> dict:
    """The names that a document's call may use."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    import pet.compat.mindpet as mindpet

    network = nn.Cell()
    network.embedding, network.dense, network.head = nn.Embedding(10, 5), nn.Dense(10, 5), nn.Dense(4, 4)
    network.transformer = sys.modules["mindformers.modules"].Transformer(8)
    network.lora = mindpet.LoRADense(4, 4, lora_rank=2, lora_alpha=4)
    network.adapter, network.low = mindpet.AdapterDense(4, 4, bottleneck_size=2), mindpet.LowRankAdapterDense(4, 4)
    network.prefix = mindpet.PrefixLayer(2, 1, 2, 4, 4)
    sizes = {"pre_seq_len": 2, "num_layers": 1, "num_heads": 2, "kv_channels": 2}
    network.encoder = mindpet.PrefixEncoder(**sizes)
    tuned = SimpleNamespace(**sizes, prefix_projection=False, projection_dim=4, dropout_prob=0.1)
    config = ms.train.CheckpointConfig()
    config.pet_config = tuned
    ids = ms.Tensor(np.zeros((2, 3), np.int32))
    labels = ms.Tensor(np.array([0, 1, 1, 0], np.int32))
    return {
        **{name: getattr(mindpet, name) for name in mindpet.__all__},
        "network": network,
        "model": network,
        "mode": "lora",
        "include": ["*embedding*"],
        "exclude": ["*head*"],
        "config_path": "test_freeze_config_file.yaml",
        "config": config,
        "ckpt_config": config,
        "directory": str(work / "saved"),
        "prefix": "delta",
        "self": SimpleNamespace(loss=mindpet.RDropLoss()),
        "logits": ms.Tensor(np.zeros((8, 2), np.float32)),
        "label_ids": labels,
        **dict.fromkeys(("input_ids", "input_mask", "token_type_id"), ids),
    }


def run(name: str, call: str, target: str | None, known: dict) -> Case:
    """Runs one call and keeps what it gives under its name."""

    def action() -> None:
        known["result"] = eval(call, known)
        if target:
            exec(f"{target.strip()} = result", known)

    return outcome_of(name, action)
