"""Lines that earlier runs wrote, as a resumed run finds them: damaged, cut off, or with more than one line's text."""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace

import pytest

from pet.train.callbacks.records import CsvFile, MetricsFile, SamplesFile, read_metrics

REST = "," * CsvFile.head.count(",")
FILES = {  # of each kind of file: what stands above, records of two steps, and what a kill left of a third
    "metrics.jsonl": (MetricsFile, "", '{"step": 1, "loss": 2.5}\n', '{"step": 2}\n', '{"step": 3, "lo'),
    "samples.jsonl": (SamplesFile, "", '{"step": 1, "answer": "é"}\n', '{"step": 2}\n', "{"),
    "metrics.csv": (CsvFile, CsvFile.head, *(f"{step}{REST}\n" for step in (1, 2)), ","),
}
DAMAGED = ['{"step": 1, "lo', "\0\0\0", "\xff", '"', "[1]", "7.5", "null", "{}", '{"step": "1"}', '{"step": 1.5}']
DAMAGED += ['{"step": true}', '{"step": 1} {"step": 1}', "[" * 5000, "1" * 5000]


@pytest.mark.parametrize("damaged", range(len(DAMAGED)))
@pytest.mark.parametrize("name", FILES)
def test_a_resumed_run_keeps_the_lines_around_a_damaged_one(tmp_path, caplog, name, damaged):
    """And says which that was; not of the last one, which a kill may have cut off."""
    kind, head, first, second, cut = FILES[name]
    text = f"{head}{first}{DAMAGED[damaged]}\n{second}"
    # the one that is no UTF-8
    (tmp_path / name).write_bytes((text + cut).encode().replace("\xff".encode(), b"\xff"))
    kind().start(SimpleNamespace(directory=tmp_path, recorded=2))
    assert (tmp_path / name).read_text() == head + first + second
    number = text[: text.index(DAMAGED[damaged], len(head + first))].count("\n") + 1
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / name}, line {number}: no record of a step; the line is left out"
    ]


def test_what_json_leaves_in_a_line_does_not_end_it(tmp_path):
    """U+2028 and others, which Python takes for the ends of lines."""
    answer = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei"
    file = SamplesFile()
    file.path = tmp_path / file.name
    file.path.write_text("".join(file.line({"step": step, "answer": answer}) for step in (1, 2, 3)), "utf-8")
    file.start(SimpleNamespace(directory=tmp_path, recorded=2))
    assert read_metrics(file.path) == [{"step": step, "answer": answer} for step in (1, 2)]
    assert json.loads(file.path.read_text("utf-8").split("\n")[0])["answer"] == answer


def test_a_table_has_a_column_for_everything_that_is_measured(tmp_path):
    """What an objective or an evaluation of the user's own gives stands behind the others, also in a resumed run."""
    run, (file, again) = SimpleNamespace(directory=tmp_path, recorded=0), (CsvFile(), CsvFile())
    file.start(run)
    file.step(run, {"step": 1, "loss": 2.5})
    file.step(run, {"step": 2, "loss": 2.0, "pairs": 4, "eval_score": 0.5})
    run.recorded = 2
    again.start(run)
    again.step(run, {"step": 3, "pairs": 2, 'a,"b"': 1.0})
    with open(tmp_path / "metrics.csv", newline="") as stream:
        found = [{key: value for key, value in row.items() if value} for row in csv.DictReader(stream)]
    assert found == [
        {"step": "1", "loss": "2.5"},
        {"step": "2", "loss": "2.0", "pairs": "4", "eval_score": "0.5"},
        {"step": "3", "pairs": "2"},
    ]
    assert CsvFile.head.count(",") == REST.count(","), "of this file alone"


def test_an_empty_line_is_nothing_to_speak_of(tmp_path, caplog):
    for ends in ("\n", "\r\n"):
        (tmp_path / "metrics.jsonl").write_bytes(f'{{"step": 1}}{ends}{ends}{{"step": 2}}{ends}'.encode())
        assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]
    assert read_metrics(tmp_path / "none.jsonl") == [] == caplog.records
