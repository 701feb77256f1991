"""RESULTS.md from results.json: for every machine, this library beside the fastest way of running the peer."""

from __future__ import annotations

from cases import CASES, NEW_TOKENS

HEAD = """# Measured against transformers + peft

Written by `python benchmarks/compare.py`, which says how it measures; `sides.py` lists the ways in which the peer is
run. *The peer* of a case is the fastest of them, in whatever precision. Ratios are medians of per-round ratios with the
least and the most. *Others* is the share of the processor that other programs used meanwhile (median over turns); it
should be near 0, and above 20 % a case is void. A dash is what was not measured there."""

TRAINED = """### Training step: time of this library / time of the peer

| case | | batch × length | the peer | bf16 / the peer | fp32 / the peer | bf16 / best bf16 peer \
| fp32 / best fp32 peer | peak MB (ratio) | first step, s (peer) | start to first step, s (peer) | date, others |
|---|---|---|---|---|---|---|---|---|---|---|---|"""

RATED = """### Useful tokens per second, and decoded tokens per second: this library / the peer

| case | | the peer | bf16 / the peer | fp32 / the peer | bf16 / best bf16 peer | fp32 / best fp32 peer \
| tokens/s here | peak MB (ratio) | date, others |
|---|---|---|---|---|---|---|---|---|---|"""


def report(results: dict[str, dict]) -> str:
    """RESULTS.md."""
    parts = [HEAD]
    for name, machine in results.items():
        rates = ", ".join(f"{side} {rate:.0f}" for side, rate in machine.get("rates", {}).items())
        products = f"\n\nProducts of 1024 × 1024 × 2752 alone, GFLOP/s: {rates}." if rates else ""
        parts.append(f"## {name}\n\n{machine['about']}.{products}")
        for kinds, head, row in ((("train",), TRAINED, train_row), (("packed", "decode"), RATED, rate_row)):
            found = [row(key, CASES[key], case) for key, case in machine["cases"].items() if CASES[key].kind in kinds]
            if found:
                parts.append("\n".join([head, *found]))
        tried = [tried_row(key, case) for key, case in machine["cases"].items()]
        parts.append("\n".join(["### Every way of running the peer by itself, seconds", "", *tried]))
    return "\n\n".join(parts) + "\n"


def ratio_cell(result: dict, mine: str, other: str | None, invert: bool = False) -> str:
    """`0.62 (0.58–0.70)`; inverted for rates, where more is better."""
    values = result["ratio"].get(f"pet {mine} / {other}")
    if values is None:
        return "–"
    middle, low, high = values
    if invert:
        middle, low, high = 1 / middle, 1 / high, 1 / low
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def the_peer(result: dict) -> str:
    """The fastest of those that ran beside this library."""
    return min(result["peers"].values(), key=lambda name: result["seconds"][name][0])


def best_ours(result: dict) -> str:
    return min((name for name in result["seconds"] if name.startswith("pet ")), key=lambda n: result["seconds"][n][0])


def ratios(result: dict, invert: bool) -> list[str]:
    """The four cells of both precisions against the fastest peer, and each against the fastest of its own."""
    peers, best = result["peers"], the_peer(result)
    own = {precision: peers.get(f"packed {precision}", peers.get(precision)) for precision in ("bf16", "fp32")}
    cells = [ratio_cell(result, precision, best, invert) for precision in own]
    for precision, name in own.items():
        cell = ratio_cell(result, precision, name, invert)
        cells.append(cell if cell == "–" else f"{cell} *{name}*")
    return cells


def memory_cell(result: dict) -> str:
    mine, other = result["peak_mb"][best_ours(result)], result["peak_mb"][the_peer(result)]
    return f"{mine:.0f} ({mine / other:.2f})"


def end(result: dict) -> str:
    return f"{result['date']}, {result['others']:.0%}"


def row(cells: list[str], result: dict, count: int) -> str:
    """A line of a table; of a void case without numbers."""
    if result["void"]:
        cells = [*cells, f"void: {result['void']}"]
        cells += [""] * (count - len(cells))
    return "| " + " | ".join([*cells, end(result)]) + " |"


def train_row(name: str, case, result: dict) -> str:
    cells = [f"`{name}`", case.about, f"{case.batch} × {case.length}"]
    if not result["void"]:
        mine, best = best_ours(result), the_peer(result)
        cells += [best, *ratios(result, False), memory_cell(result)]
        cells += [f"{result[key][mine]:.1f} ({result[key][best]:.1f})" for key in ("first_seconds", "start_seconds")]
    return row(cells, result, 11)


def rate_row(name: str, case, result: dict) -> str:
    cells = [f"`{name}`", case.about]
    if not result["void"]:
        tokens = result.get("useful_tokens") or case.batch * NEW_TOKENS
        cells += [the_peer(result), *ratios(result, True)]
        cells += [f"{tokens / result['seconds'][best_ours(result)][0]:.0f}", memory_cell(result)]
    return row(cells, result, 9)


def tried_row(name: str, result: dict) -> str:
    return f"- `{name}`: " + ", ".join(f"{side} {seconds:.2f}" for side, seconds in result["tried"].items())
