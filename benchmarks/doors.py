"""Which published scripts and job files of other systems run here, counted in clones of their repositories.

    git clone https://github.com/mindspore-lab/mindformers
    python benchmarks/doors.py mindformers [MORE_CLONES …]

Each clone's section of DOORS.md is written anew; the other sections stay. A system's own files are read where they lie
and run at tiny sizes; nothing is downloaded.

Long counts in pieces: with `--work DIR --seconds 240` a count stops starting runs after that time and keeps in DIR what
has run; the same command again goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from door_counts import Case
from door_counts.runs import Unfinished

MARKERS = {
    "mindformers": "run_mindformer.py",
    "mindpet": "mindpet",
    "mindsporetrainer": "MindsporeTrainer",
    "flagai": "flagai",
    "llama_factory": "src/llamafactory",
    "axolotl": "src/axolotl",
}
"""A path that only a clone of this system has."""
TITLES = {
    "mindformers": "MindFormers",
    "mindpet": "MindPet",
    "mindsporetrainer": "MindsporeTrainer",
    "flagai": "FlagAI",
    "llama_factory": "LLaMA-Factory",
    "axolotl": "axolotl",
}
MOST = 6
"""Names that are listed for a reason."""
UNIT_TESTS, FEW = "unit tests", 4
"""The part whose reasons are many; so many of them at least have to have one."""
OUTCOMES = {"refused": "Refused, with the reason", "fails": "Fails"}
HEAD = """# What people bring

Published scripts, job files and tests of other systems, run here at tiny sizes. Written by
`python benchmarks/doors.py DIR_OF_A_CLONE…`, which also counts a newer release.
"""


def system_of(clone: Path) -> str:
    """Which system a clone is."""
    found = [system for system, marker in MARKERS.items() if (clone / marker).exists()]
    if len(found) != 1:
        sys.exit(f"{clone}: is no clone of {', '.join(TITLES.values())}: none has one of {', '.join(MARKERS.values())}")
    return found[0]


def version_of(clone: Path) -> str:
    """Tag, commit and date of what is checked out."""

    def git(*arguments: str) -> str:
        ran = subprocess.run(["git", "-C", clone, *arguments], capture_output=True, text=True)
        return ran.stdout.strip()

    return f"{git('describe', '--tags', '--always')} of {git('log', '-1', '--format=%cs')}" if git("log", "-1") else "?"


def section(system: str, version: str, cases: list[Case], what: str = "") -> str:
    """A system's section: how many run, and each reason with the cases that it keeps out."""
    runs = sum(case.outcome == "runs" for case in cases)
    newest = [case.outcome == "runs" for case in cases if case.name.endswith(" @ HEAD")]
    apart = f"; {sum(newest)} of {len(newest)} of the files in the newest state" if newest else ""
    parts: dict[str, list[bool]] = defaultdict(list)
    for case in cases:
        parts[case.part].append(case.outcome == "runs")
    by_part = ", ".join(f"{sum(each)} of {len(each)} {part}" for part, each in sorted(parts.items()) if part)
    lines = [f"## {TITLES[system]}", "", f"{runs} of {len(cases)} run ({version}){apart}.", ""]
    lines += [f"By kind: {by_part}.", ""] if by_part else []
    lines += [f"Counted: {what}.", ""] if what else []
    for outcome, title in OUTCOMES.items():
        by_reason: dict[str, list[Case]] = defaultdict(list)
        for case in cases:
            if case.outcome == outcome:
                by_reason[case.reason].append(case)
        if by_reason:
            lines += [f"{title}:", ""]
            few = [
                each for each in by_reason.values() if len(each) < FEW and {one.part for one in each} == {UNIT_TESTS}
            ]
            groups = [(reason, each) for reason, each in by_reason.items() if each not in few]
            for reason, each in sorted(groups, key=lambda group: (-len(group[1]), group[0])):
                lines.append(f"- {len(each)} × {reason}: {', '.join(listed([case.name for case in each]))}")
            if few:
                lines.append(f"- {sum(map(len, few))} × {len(few)} other reasons, of fewer than {FEW} unit tests each")
            lines.append("")
    return "\n".join(lines)


def listed(names: list[str]) -> list[str]:
    """Names in order; the releases of one file (``path @ release``) with their number."""
    releases = Counter(name.partition(" @ ")[0] for name in names)
    found = sorted(names)
    if any(" @ " in name for name in names):
        found = [f"{path} ({number} releases)" if number > 1 else path for path, number in sorted(releases.items())]
    return found if len(found) <= MOST else [*found[:MOST], f"and {len(found) - MOST} more"]


def updated(text: str, system: str, new: str) -> str:
    """The document with one section in the place of that system's old one; sections are in the order of `TITLES`."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    sections = {part.partition("\n")[0].removeprefix("## ").strip(): part for part in parts[1:]}
    sections[TITLES[system]] = new
    return "\n".join([HEAD, *(sections[title].strip() + "\n" for title in TITLES.values() if title in sections)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, nargs="+", help="directory of a clone")
    parser.add_argument("--work", type=Path, help="keep results here and go on from them (default: a new directory)")
    parser.add_argument("--seconds", type=float, help="start no run after this time")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("DOORS.md"))
    options = parser.parse_args()
    output = options.output.resolve()  # counts change the current directory
    for clone in [each.resolve() for each in options.clone]:
        system = system_of(clone)
        module = importlib.import_module(f"door_counts.{system}")
        with contextlib.ExitStack() as stack:
            if options.work is None:
                work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"doors_{system}_")))
            else:
                work = options.work.resolve() / system
                work.mkdir(parents=True, exist_ok=True)
            try:
                cases = module.count(clone, work, options.seconds)
            except Unfinished as left:
                sys.exit(f"{TITLES[system]}: {left}" + (f"; {options.work} has the others" if options.work else ""))
        version = getattr(module, "version_of", version_of)(clone)
        new = section(system, version, cases, getattr(module, "WHAT", ""))
        text = output.read_text("utf-8") if output.is_file() else HEAD
        output.write_text(updated(text, system, new), "utf-8")
        print(new)


if __name__ == "__main__":
    main()
