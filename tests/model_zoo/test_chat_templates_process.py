"""Templates that are hostile, broken or large, and the process that renders them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from templates import TALK

from model_zoo.errors import InputError
from model_zoo.programs import file_program
from model_zoo.tokenizers import AutoTokenizer, renderer
from model_zoo.tokenizers.chat_template import LARGEST, Renderer


def test_what_no_json_can_hold_is_refused(made):
    """transformers makes a schema of a function."""
    tokenizer = AutoTokenizer.from_pretrained(made("{{ messages[0].content }}{{ tools }}"))
    assert tokenizer.prompt(TALK[:2])
    process = tokenizer.template.renderer.worker.process
    for messages, tools in ((TALK[:2], [print]), ([*TALK[:1], {**TALK[1], "at": datetime.now()}], None)):
        with pytest.raises(InputError, match="messages, tools: JSON was expected, of a tool its schema: Object of"):
            tokenizer.prompt(messages, tools=tools)
    assert tokenizer.prompt(TALK[:2]) and tokenizer.template.renderer.worker.process is process


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"
            "{% endfor %}",
            "processor time",
        ),
        ("{{ 9 ** (9 ** 9) }}", "processor time"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without an end"),
        ("{% if 1 %}" * 1500 + "{% endif %}" * 1500, "nested too deeply"),
        ("{{ " + "1 + " * 3000 + "1 }}", "nested too deeply"),
        ("{{ 'a' * 10 ** 10 }}", "needs more than 1024 MB"),
        ("{{ 'a' * 10 ** 7 }}", "makes 10000000 characters"),
        ("{% for i in range(1000000) %}{% endfor %}", "[Rr]ange too big"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% include 'renderer.py' %}", "no loader"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("line\n{% if %}", "line 2: "),
        ("{{ '\\ud800' }}", "surrogates not allowed"),
        ("{{ messages | nothing }}", "No filter named 'nothing'"),
    ],
)
def test_hostile_and_broken_templates_are_refused(template, words):
    renderer = Renderer(template, "model", seconds=0.5)
    for _ in range(2):  # and again: a process that was ended is replaced
        with pytest.raises(InputError, match=f"^model: the chat template .*{words}"):
            renderer({"messages": TALK})


def test_a_template_that_is_too_large_is_refused():
    with pytest.raises(InputError, match=f"has {LARGEST + 1} characters"):
        Renderer("a" * (LARGEST + 1), "model")


def test_renderers_of_one_template_share_a_process_that_ends_with_the_last():
    renderer, other = Renderer("{{ messages | length }}", "model"), Renderer("{{ messages | length }}", "other")
    assert renderer({"messages": TALK}) == other({"messages": TALK}) == ["5"]
    process = renderer.worker.process
    assert other.worker.process is process
    del renderer
    assert process.poll() is None
    assert pickle.loads(pickle.dumps(other)).worker is other.worker
    del other
    assert process.poll() is not None


def test_its_packages_are_found_where_this_process_finds_them(tmp_path, monkeypatch):
    """In a directory that PYTHONPATH names, or a user's own; a module in the current directory is none of them."""
    for place, text in (("packages", "found"), ("here", "not this one")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "only_there.py").write_text(f"print({text!r})")
        (tmp_path / place / "json.py").write_text("raise ImportError('a directory of packages hides none of Python's')")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    (tmp_path / "start.py").write_text("import json, only_there, sys; print(sys.argv[1:])")
    command = file_program(tmp_path / "start.py", "one", "two")
    done = subprocess.run(command, cwd=tmp_path / "here", capture_output=True, text=True)
    assert done.stdout == "found\n['one', 'two']\n", done.stderr


def test_templates_are_rendered_where_the_user_bounds_memory_further():
    """No process may raise its hard limit: the program ended, and the template was blamed for it."""
    command = ["sh", "-c", 'ulimit -v 800000 && exec "$@"', "sh", *file_program(Path(renderer.__file__))]
    first = {"template": "{{ 'a' * n }}", "marks": ["<", ">"], "longest": 10, "seconds": 5}
    lines = json.dumps(first) + "\n" + json.dumps([{"n": 3}, {"n": 10**10}]) + "\n"
    done = subprocess.run(command, input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"text": "aaa"}, {"error": "it needs more than 781 MB"}]


def test_a_process_that_fails_is_not_said_to_take_too_long(monkeypatch):
    renderer = Renderer("{{ 1 }}", "model")
    failing = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr("model_zoo.tokenizers.template_process.file_program", lambda path: failing)
    for command, why in ((failing, "ended with exit code 3"), (["/no/program"], "could not be started .*no/program")):
        failing[:] = command
        with pytest.raises(InputError, match=f"^model: the chat template was not rendered: its process {why}"):
            renderer({"messages": TALK})


def test_an_interrupted_answer_is_not_taken_for_the_next(monkeypatch):
    renderer = Renderer("{{ messages[0].content }}", "model")
    renderer({"messages": TALK})

    class Interrupted:
        def readline(self):
            raise KeyboardInterrupt

        def close(self):
            pass

    monkeypatch.setattr(renderer.worker.process, "stdout", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        renderer({"messages": TALK})
    assert renderer({"messages": TALK[1:]}) == [TALK[1]["content"]]
