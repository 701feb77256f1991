"""Which published scripts and job files of other systems run here, counted in clones of their repositories.

    git clone https://github.com/mindspore-lab/mindformers
    python benchmarks/doors.py mindformers [MORE_CLONES …]

Each clone's section of DOORS.md is written anew; the other sections stay. A system's own files are read where they lie
and run at tiny sizes; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from door_counts import Case

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
    lines = [f"## {TITLES[system]}", "", f"{runs} of {len(cases)} run ({version}).", ""]
    lines += [f"Counted: {what}.", ""] if what else []
    for outcome, title in OUTCOMES.items():
        by_reason: dict[str, list[str]] = defaultdict(list)
        for case in cases:
            if case.outcome == outcome:
                by_reason[case.reason].append(case.name)
        if by_reason:
            lines += [f"{title}:", ""]
            groups = sorted(by_reason.items(), key=lambda group: (-len(group[1]), group[0]))
            lines += [f"- {len(names)} × {reason}: {', '.join(sorted(names))}" for reason, names in groups]
            lines.append("")
    return "\n".join(lines)


def updated(text: str, system: str, new: str) -> str:
    """The document with one section in the place of that system's old one; sections are in the order of `TITLES`."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    sections = {part.partition("\n")[0].removeprefix("## ").strip(): part for part in parts[1:]}
    sections[TITLES[system]] = new
    return "\n".join([HEAD, *(sections[title].strip() + "\n" for title in TITLES.values() if title in sections)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, nargs="+", help="directory of a clone")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("DOORS.md"))
    options = parser.parse_args()
    for clone in options.clone:
        system = system_of(clone)
        module = importlib.import_module(f"door_counts.{system}")
        with tempfile.TemporaryDirectory(prefix=f"doors_{system}_") as work:
            cases = module.count(clone.resolve(), Path(work))
        version = getattr(module, "version_of", version_of)(clone)
        new = section(system, version, cases, getattr(module, "WHAT", ""))
        text = options.output.read_text("utf-8") if options.output.is_file() else HEAD
        options.output.write_text(updated(text, system, new), "utf-8")
        print(new)


if __name__ == "__main__":
    main()
