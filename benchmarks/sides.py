"""Who is measured: this library, and every way of running the peer that may be its fastest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from cases import CASES, COMPILED

OURS, PEER = "mine.py", "peer.py"


@dataclasses.dataclass(frozen=True)
class Side:
    """A process of a comparison.

    Attributes:
        script: what runs it.
        precision: of its products: ``fp32`` or ``bf16``.
        options: what the script is told beside the case.
        environment: variables that it gets.
        kinds: of cases that it takes part in.
        slow: whether it takes so long to begin that ``--quick`` leaves it out.
    """

    script: str
    precision: str
    options: Mapping = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    kinds: tuple[str, ...] = ("train", "packed", "decode")
    slow: bool = False


SIDES = {
    "pet fp32": Side(OURS, "fp32"),
    "pet bf16": Side(OURS, "bf16"),
    "eager": Side(PEER, "fp32"),
    "active waiting": Side(PEER, "fp32", environment={"OMP_WAIT_POLICY": "active"}, slow=True),
    "compiled": Side(PEER, "fp32", {"compile": True}, kinds=("train",), slow=True),
    "packed": Side(PEER, "fp32", {"packed": True}, kinds=("packed",)),
    "autocast": Side(PEER, "bf16", {"autocast": True}),
    "compiled autocast": Side(PEER, "bf16", {"autocast": True, "compile": True}, kinds=("train",), slow=True),
    "bf16 weights": Side(PEER, "bf16", {"autocast": True, "weights": "bfloat16"}, kinds=("train", "packed")),
    "compiled bf16 weights": Side(
        PEER, "bf16", {"autocast": True, "compile": True, "weights": "bfloat16"}, kinds=("train",), slow=True
    ),
    "packed autocast": Side(PEER, "bf16", {"autocast": True, "packed": True}, kinds=("packed",)),
    "packed bf16 weights": Side(
        PEER, "bf16", {"autocast": True, "packed": True, "weights": "bfloat16"}, kinds=("packed",)
    ),
    "all bf16": Side(PEER, "bf16", {"weights": "bfloat16"}, kinds=("decode",)),
}
"""By name. This library's bf16 is a precision of products, and of the stored weights where they are frozen. *compiled*
is `torch.compile`, after warm-up; *autocast* `torch.autocast("cpu", torch.bfloat16)`; *packed* rows of several
documents, which position ids keep apart, as TRL packs."""


def sides_of(case: str, quick: bool, rates: Mapping[str, float]) -> dict[str, Side]:
    """Those that take part in a case. ``quick`` leaves out what is slow: padding, where there is packing, too.

    Where products are slower in bfloat16 than in float32 by ``rates``, those of `Run.rates`, training has no side
    of that precision: the processor has no instructions for it. In decoding it is one of stored weights.
    """
    what, found = CASES[case], {}
    for name, side in SIDES.items():
        options, slow = side.options, side.slow
        library = "pet" if side.script == OURS else "torch"
        if what.kind != "decode" and rates.get(f"{library} {side.precision}", 0) < rates[f"{library} fp32"]:
            continue
        if what.kind == "packed":
            slow = slow or (side.script == PEER and "packed" not in options)
        if what.kind not in side.kinds or (quick and slow):
            continue
        if "compile" in options and case not in COMPILED:
            continue
        if what.kind == "train" and not what.targets and "weights" in options:
            continue  # AdamW would lose updates of weights in bfloat16
        found[name] = side
    return found
