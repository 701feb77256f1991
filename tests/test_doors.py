"""The document that `benchmarks/doors.py` writes."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import doors
from door_counts import Case, mindformers_calls, mindformers_documents, mindformers_lines, mindformers_words, runs


def test_a_section_counts_each_reason():
    cases = [Case("a", "runs"), Case("c", "refused", "no experts"), Case("b", "refused", "no experts")]
    text = doors.section("axolotl", "v1", [*cases, Case("d", "fails", "TypeError")])
    assert "1 of 4 run (v1)." in text
    assert "- 2 × no experts: b, c" in text
    assert "Fails:\n\n- 1 × TypeError: d" in text


def test_kinds_are_counted_by_themselves():
    cases = [
        Case("a", "runs", part="scripts"),
        Case("b", "fails", "x", part="scripts"),
        Case("c", "runs", part="files"),
    ]
    assert "2 of 3 run (v1).\n\nBy kind: 1 of 1 files, 1 of 2 scripts.\n" in doors.section("mindformers", "v1", cases)


def test_documents_blocks_are_python_on_files_of_the_base(tmp_path):
    block = '>>> model = AutoModel.from_pretrained("llama2_7b")\n>>> model.load("/path/to/x.ckpt", f"rank_{0}")\n[1]\n'
    source = mindformers_documents.with_paths(mindformers_documents.plain(block), tmp_path / "gpt_tiny", "")
    first, second = source.splitlines()
    assert first == f'model = AutoModel.from_pretrained("{tmp_path / "llama_tiny"}")'
    assert second == f'model.load("{tmp_path / "gpt_tiny/model.ckpt"}", f"rank_{{0}}")'


def test_a_line_goes_on_behind_a_backslash_and_within_quotes():
    block = '# one\n$ python a.py --x 1 \\\n  --y 2\nls\nbash scripts/b.sh "a.py\n--z 3" 8\n'
    assert list(mindformers_lines.commands(block)) == [
        (block.index("$"), "python a.py --x 1 --y 2"),
        (block.index("bash"), 'bash scripts/b.sh "a.py --z 3" 8'),
    ]
    asked = "bash run_distribute.sh {RANK_TABLE_FILE path of the first device} CONFIG_PATH DEVICE_RANGE RUN_MODE"
    assert mindformers_words.filled(asked) == "bash run_distribute.sh hccl.json config.yaml [0,2] finetune"


def test_what_a_reader_fills_in_is_of_the_base_and_of_two_processes(tmp_path):
    place = tmp_path / "models/llama_tiny"
    place.mkdir(parents=True)
    (tmp_path / "configs").mkdir()
    job = tmp_path / "configs/run_llama.yaml"
    job.write_text("run_mode: train\nmodel:\n  model_config:\n    type: LlamaConfig\n")
    started = "run.py --config x/run_llama.yaml --load_checkpoint /a/b.ckpt"
    line = f'bash scripts/msrun_launcher.sh "{started}" 16 8 10.0.0.1 8118'
    words = mindformers_words.meant(shlex.split(line), tmp_path, "llama_tiny", place, line)
    inner = f"run.py --config {job} --load_checkpoint {place}/model.ckpt"
    assert words == ["bash", "scripts/msrun_launcher.sh", inner, "2", "2", "127.0.0.1", "8118"]
    job.write_text("model:\n  model_config:\n    type: VitConfig\n")
    mindformers_words.kind.cache_clear()
    assert mindformers_words.meant(shlex.split(line), tmp_path, "llama_tiny", place, line) is None
    said = shlex.split("a.py --data_parallel 4 --model_parallel 2 --pipeline_parallel 2")
    found = shlex.join(mindformers_words.divided(said))
    assert found == "a.py --data_parallel 1 --model_parallel 2 --pipeline_parallel 1"


def test_what_a_wrapper_calls_is_noted(tmp_path):
    """By its ranks once, and msrun's with its number of processes."""
    (tmp_path / "wrap.sh").write_text(
        'for i in 0 1; do export RANK_ID=$i RANK_SIZE=2; python run.py --x "a b" & done\n'
        "unset RANK_ID RANK_SIZE\nmsrun --worker_num=8 --bind_core=True job.py -y\n"
    )
    calls, _ = mindformers_calls.called(["bash", "wrap.sh"], tmp_path, "gpt_tiny", tmp_path)
    assert sorted((call["words"], call["cards"], call["base"]) for call in calls) == [
        (["job.py", "-y"], 2, "gpt_tiny"),
        (["run.py", "--x", "a b"], 2, "gpt_tiny"),
    ]
    (tmp_path / "wrap.sh").write_text("echo no; exit 1")
    assert mindformers_calls.called(["bash", "wrap.sh"], tmp_path, "gpt_tiny", tmp_path) == ([], "no")


def test_releases_of_one_file_are_counted():
    cases = [Case(f"qlora/{name}", "refused", "no GPTQ") for name in ("a.yaml @ v2", "a.yaml @ v1", "b.yaml @ v1")]
    cases += [Case("c.yaml @ HEAD", "runs"), Case("d.yaml @ HEAD", "fails", "TypeError")]
    text = doors.section("axolotl", "v1", cases)
    assert "- 3 × no GPTQ: qlora/a.yaml (2 releases), qlora/b.yaml" in text
    assert "1 of 5 run (v1); 1 of 2 of the files in the newest state." in text


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


def test_runs_are_kept_and_one_that_ends_its_process_is_a_failure(tmp_path, monkeypatch):
    (tmp_path / "system.py").write_text(
        "import os, pathlib\n"
        "from model_zoo.errors import InputError\n"
        "def run(given):\n"
        "    with open(given['log'], 'a') as log:\n"
        "        log.write(given['does'] + ' ')\n"
        "    if given['does'] == 'die':\n"
        "        os._exit(3)\n"
        "    if given['does'] == 'refuse':\n"
        "        raise InputError.collect(['job.yaml: stage: no', 'job.yaml: rank: none'])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    log = tmp_path / "log"
    jobs = {does: {"does": does, "log": str(log)} for does in ("a", "die", "refuse", "b")}
    expected = {
        "a": None,
        "die": ("fails", "its process ended with 3"),
        "refuse": ("refused", "stage: no; rank: none"),
        "b": None,
    }
    with pytest.raises(runs.Unfinished, match="4 of 4 runs are left"):
        runs.problems("system", jobs, tmp_path, seconds=-1)
    assert runs.problems("system", jobs, tmp_path) == expected
    assert runs.problems("system", jobs, tmp_path, seconds=-1) == expected  # nothing is left
    assert log.read_text().split() == list(jobs)  # each once


def test_many_names_and_reasons_are_listed_in_part():
    cases = [Case(f"{index}.md", "refused", "no word") for index in range(9)]
    cases += [Case(f"t::{index}", "fails", f"reason {index}", part=doors.UNIT_TESTS) for index in range(5)]
    text = doors.section("mindformers", "v1", cases)
    assert "- 9 × no word: 0.md, 1.md, 2.md, 3.md, 4.md, 5.md, and 3 more\n" in text
    assert "reason 1" not in text and "- 5 × 5 other reasons, of fewer than 4 unit tests each\n" in text


def test_the_readme_claims_what_was_counted():
    """In both languages; of the scripts and the examples of MindFormers' documents it says the sum."""

    def pairs(expression, text):
        return [(int(ran), int(every)) for ran, every in re.findall(rf"(\d+) of (?:the )?(\d+) {expression}", text)]

    root = Path(__file__).parents[1]
    counted, english, chinese = (
        (root / name).read_text("utf-8") for name in ("benchmarks/DOORS.md", "README.md", "README.zh-CN.md")
    )
    parts = [pairs(kind, counted)[0] for kind in ("blocks of documents", "scripts")]
    claims = pairs("(?:published|that)", english)
    assert len(claims) == 6 and {*claims} <= {*pairs("", counted), tuple(map(sum, zip(*parts, strict=True)))}
    for ran, every in claims:
        assert re.search(rf"{every} 个[^|]*(?:{ran} 个|全部)", chinese), (ran, every)


def test_what_ends_in_an_error_of_the_documents_own_is_refused_with_its_cause():
    left_out = mindformers_documents.at_fault("1.3/docs/model_cards/glm4.md:177", ("fails", "x"))
    assert left_out == ("refused", "the tokenizer's file is left out")
    assert mindformers_documents.at_fault("1.3/docs/model_cards/glm4.md:1778", ("fails", "x")) == ("fails", "x")
    assert mindformers_documents.at_fault("1.3/docs/model_cards/glm4.md:177", None) is None


def test_a_script_of_the_name_that_takes_the_lines_options_is_called(tmp_path):
    for place, option in ((".", "model"), ("mindformers/models/glm2", "torch_ckpt_path"), ("tools", "torch_path")):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "convert.py").write_text(f"add_argument('--{option}')")
    found = {
        option: mindformers_lines.where(["convert.py"], tmp_path, [f"--{option}"])
        for option in ("model", "torch_ckpt_path", "torch_path", "other")
    }
    top = tmp_path, tmp_path / "mindformers/models/glm2", tmp_path / "tools", tmp_path
    assert found == dict(zip(found, top, strict=True))
