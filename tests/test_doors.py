"""The document that `benchmarks/doors.py` writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import doors
from door_counts import Case


def test_a_section_counts_each_reason():
    cases = [Case("a", "runs"), Case("c", "refused", "no experts"), Case("b", "refused", "no experts")]
    text = doors.section("axolotl", "v1", [*cases, Case("d", "fails", "TypeError")])
    assert "1 of 4 run (v1)." in text
    assert "- 2 × no experts: b, c" in text
    assert "Fails:\n\n- 1 × TypeError: d" in text


def test_a_count_leaves_the_other_sections():
    text = doors.updated("", "axolotl", doors.section("axolotl", "v1", [Case("a", "runs")]))
    text = doors.updated(text, "mindpet", doors.section("mindpet", "v2", [Case("b", "runs")]))
    again = doors.updated(text, "axolotl", doors.section("axolotl", "v3", [Case("a", "fails", "x")]))
    assert text.index("## MindPet") < text.index("## axolotl")  # the order does not depend on who counted first
    assert "(v2)" in again and "(v3)" in again and "(v1)" not in again
    assert again.count(doors.HEAD.strip()) == 1


def test_a_clone_is_recognised_by_what_it_holds(tmp_path):
    (tmp_path / "src/axolotl").mkdir(parents=True)
    assert doors.system_of(tmp_path) == "axolotl"
    with pytest.raises(SystemExit, match="is no clone of"):
        doors.system_of(tmp_path / "src")
