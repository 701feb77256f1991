"""What predict and chat answer by a run, and what they keep."""

import io
import json
import shutil
import signal

import pytest

from model_zoo.errors import InputError
from model_zoo.generation.streamers import TextStreamer
from pet.cli.chat import Conversation
from pet.cli.chat_session import _generation, add_chat_session, make_chat_session
from pet.cli.main import main
from pet.cli.parser import Parser
from pet.data import load_questions
from pet.recipe.training import Generation
from pet.train.evaluate import Answers


def _lines(capsys) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_merged_and_adapter_answer_alike(here, capsys):
    shutil.rmtree(here / "merged", ignore_errors=True)
    assert main(["merge", "output/job/adapter", "--base", "base", "--output", "merged"]) == 0
    assert "tensors merged" in capsys.readouterr().out
    answers = []
    for words in (
        ["--model", "merged"],
        ["--model", "base", "--adapter", "output/job/adapter"],
        ["--adapter", "output/job/adapter"],
        ["--run", "output/job"],
    ):
        assert main(["predict", *words, "--input", "What is 3?", "--max-new-tokens", "6"]) == 0
        answers.append(_lines(capsys))
    assert answers[0] == answers[1] == answers[2] == answers[3]
    config = json.loads((here / "output" / "job" / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(here / "base")
    assert main(["merge", "output/job/adapter", "--base", "base", "--output", "merged"]) == 2
    assert "--force" in capsys.readouterr().err


def test_an_adapter_whose_base_is_gone_or_another(here, capsys):
    shutil.rmtree(here / "moved", ignore_errors=True)
    shutil.copytree(here / "output" / "job" / "adapter", here / "moved")
    file = here / "moved" / "adapter_config.json"
    for base, words in (
        ("nowhere", "its base is not here, give it by --model (model 'nowhere'"),
        (None, "names no base; give it by --model"),
        ([[]], "names no base; give it by --model"),
        ("gpt_tiny", "made on another base, gpt_tiny (fingerprint "),
    ):
        file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base}))
        assert main(["predict", "--adapter", "moved", "--input", "x"]) == 2
        said = capsys.readouterr().err
        assert words in said and len(said.splitlines()) <= 2
    assert main(["merge", "output/job", "--output", "plain"]) == 2
    assert "output/job: is a run directory; its adapter is output/job/adapter" in capsys.readouterr().err


def test_options_of_generation_are_written_as_in_a_recipe():
    parser = Parser("pet predict", "", [])
    add_chat_session(parser)
    words = [
        "--no-repeat-ngram-size",
        "3",
        "--suppress-tokens",
        "[1, 2]",
        "--min-p",
        "5e-2",
        "--early-stopping",
        "never",
    ]
    written = _generation(parser.read(words), None)
    assert {name: value for name, value in written.choosing().items() if value is not None} == {
        "do_sample": True,
        "no_repeat_ngram_size": 3,
        "suppress_tokens": [1, 2],
        "min_p": 0.05,
        "early_stopping": "never",
    }
    run = Generation(no_repeat_ngram_size=4, num_beams=2)
    assert _generation(parser.read(["--num-beams", "1"]), run) == Generation(no_repeat_ngram_size=4, num_beams=1)
    with pytest.raises(InputError, match=r"--bad-words-ids.* should be a valid list"):
        _generation(parser.read(["--bad-words-ids", "[5]"]), None)
    with pytest.raises(InputError, match=r"--stop .* at least 1 character"):
        _generation(parser.read(["--stop", ""]), None)


def test_predict_a_file(here, capsys):
    assert main(["predict", "--run", "output/job", "--file", "data.jsonl", "--output", "answers.jsonl"]) == 0
    rows = [json.loads(line) for line in (here / "answers.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == [f"What is {number}?" for number in range(12)]
    assert rows[3]["reference"] == "It is 3."
    assert rows[3]["where"].endswith("data.jsonl:4")
    capsys.readouterr()
    (here / "questions.txt").write_text("What is 5?\n\nWhat is 6?\n")
    assert main(["predict", "--run", "output/job", "--file", "questions.txt", "--json"]) == 0
    printed = [json.loads(line) for line in _lines(capsys)]
    assert [row["where"] for row in printed] == ["questions.txt:1", "questions.txt:3"]
    assert printed[0]["answer"] == rows[5]["answer"], "in a batch or not, the answer is the same"
    (here / "questions.txt").write_text("What is\u20285?\rWhat is 6?\r")
    assert main(["predict", "--run", "output/job", "--file", "questions.txt", "--json"]) == 0
    printed = capsys.readouterr().out.rstrip("\n").split("\n")
    assert [json.loads(line)["prompt"] for line in printed] == ["What is\u20285?", "What is 6?"]


def test_what_is_answered_is_kept_when_a_command_ends_before_its_time(copied, capsys, caplog, monkeypatch):
    write, left = Answers.write, [6]

    def failing(self, *given):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("the machine is gone")
        return write(self, *given)

    monkeypatch.setattr(Answers, "write", failing)
    asked = ["predict", "--run", "output/job", "--file", "data.jsonl", "--batch-size", "1"]
    assert main([*asked, "--output", "kept.jsonl"]) == 1
    assert "kept.jsonl.part: the 4 answers until then" in caplog.text
    part = (copied / "kept.jsonl.part").read_text()
    assert not (copied / "kept.jsonl").exists()
    left[0] = 6
    capsys.readouterr()
    assert main([*asked, "--json"]) == 1
    assert capsys.readouterr().out == part and part.count("\n") == 4
    left[0] = 12
    assert main([*asked, "--output", "kept.jsonl"]) == 0
    whole = (copied / "kept.jsonl").read_text()
    assert whole.startswith(part) and whole.count("\n") == 12
    assert not (copied / "kept.jsonl.part").exists()


def test_a_run_that_has_not_come_to_its_end_answers_nothing(copied, capsys):
    """The base without its adapter did, without a word."""
    asked = ["--run", "output/job", "--input", "What is 3?", "--max-new-tokens", "2"]
    (copied / "output/job/adapter").rename(copied / "adapter")
    for command in (["predict", *asked], ["chat", *asked[:2]], ["evaluate", "output/job"]):
        assert main(command) == 2
        assert "output/job: holds neither adapter/ nor model/; the run has not" in capsys.readouterr().err
    for given in (["--model", "base"], ["--adapter", "adapter"]):
        assert main(["predict", *asked, *given]) == 0


def test_a_run_of_every_weight_answers_by_its_model(copied, capsys):
    assert main(["finetune", "job.yaml", "adapter={method: none}", "output.dir=whole"]) == 0
    asked, found = ["predict", "--input", "What is 3?", "--max-new-tokens", "4"], []
    for source in (["--run", "whole"], ["--model", "whole/model"], ["--model", "base"]):
        capsys.readouterr()
        assert main([*asked, *source]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] != found[2]


def test_all_questions_of_a_file_are_answered_however_many_rows_were_learnt(copied):
    path = copied / "output" / "job" / "recipe.yaml"
    path.write_text(path.read_text().replace("max_samples: null", "max_samples: 5"))
    assert main(["predict", "--run", "output/job", "--file", "data.jsonl", "--output", "answers.jsonl"]) == 0
    assert len((copied / "answers.jsonl").read_text().splitlines()) == 12


def test_an_empty_system_message_is_one_as_it_is_in_training(here, tmp_path):
    """Templates have a text of their own where there is none."""
    template = (
        "{% if messages[0].role != 'system' %}Default {% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    row = tmp_path / "asked.jsonl"
    row.write_text('{"prompt": "What?"}')
    for system, expected in (([], "Default What?"), (["--system", ""], "What?"), (["--system", "S "], "S What?")):
        parser = Parser("pet predict", "", "")
        add_chat_session(parser)
        session = make_chat_session(parser.parse_args(["--model", "base", "--template", template, *system]))
        asked = session.prompt([{"role": "user", "content": "What?"}])
        (of_file,) = load_questions(row, session.tokenizer, settings=session.settings)
        assert session.tokenizer.decode(asked) == expected and asked == of_file.prompt_ids


def test_chat_keeps_turns_and_switches(here, capsys, monkeypatch):
    script = ["What is 1?", "/base", "/adapter", "/adapter nowhere", "/adapter output/job/adapter", "/bse", "/reset"]
    script += ["/base", "/quit", "never asked"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(script)))
    assert main(["chat", "--run", "output/job"]) == 0
    captured = capsys.readouterr()
    assert "default (active)" in captured.out
    assert "(active: adapter)" in captured.out
    assert "(nowhere: neither an adapter's name nor a directory" in captured.err
    assert "did you mean '/base'" in captured.err
    assert "(there is no question yet)" in captured.err


class Terminal(io.StringIO):
    """Lines as they are typed."""

    def isatty(self) -> bool:
        return True

    def readline(self, *_) -> str:
        if (line := super().readline()) == "Ctrl-C\n":
            raise KeyboardInterrupt
        return line


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_stops_an_answer_and_pressed_twice_or_without_one_ends_the_chat(here, capsys, monkeypatch, presses):
    def put_and_press(streamer, ids):
        put(streamer, ids)
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)

    put = TextStreamer.put
    monkeypatch.setattr(TextStreamer, "put", put_and_press)
    lines = ["/help", "/system Be brief.", "/system", "/base", "", "What is 1?", "/base", "Ctrl-C", "What is 2?"]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(lines)))
    assert main(["chat", "--model", "base", "--min-new-tokens", "4"]) == 130
    out, err = capsys.readouterr()
    assert "/system TEXT    set the system message" in out
    assert "(system message set; new conversation)\n> (no system message; new conversation)\n> " in out
    assert err.startswith("(there is no question yet)\n") and err.endswith("pet chat: interrupted\n")
    assert (" … (stopped)\n> " in out, "there is no adapter: the base itself" in err) == ((presses == 1,) * 2)


@pytest.mark.parametrize("beams", ["1", "2"])
def test_chat_ends_in_front_of_a_stop_text_as_predict_does(capsys, monkeypatch, beams):
    """Streamed, of what begins a stop text nothing is written; kept is the same."""
    question, options = "Who made this lamp?", ["--model", "llama_tiny", "--max-new-tokens", "12", "--num-beams", beams]
    asked, kept = ["predict", *options, "--input", question], []
    assert main(asked) == 0
    whole = capsys.readouterr().out.strip()
    stop = ["--stop", whole[5:12], "--stop", whole + "!"]
    assert main([*asked, *stop]) == 0
    wanted = capsys.readouterr().out.strip()
    assert wanted and whole == wanted + whole[len(wanted) :] and len(wanted) <= 5
    write = Conversation.write
    monkeypatch.setattr(Conversation, "write", lambda *given: kept.append(write(*given)) or kept[-1])
    for stops, answer in ((stop, wanted), (stop[2:], whole)):
        monkeypatch.setattr("sys.stdin", io.StringIO(question))
        assert main(["chat", *options, *stops]) == 0
        assert capsys.readouterr().out.strip() == kept.pop() == answer


def test_a_stop_text_may_begin_with_an_answers_first_space(capsys, monkeypatch):
    """Which sentencepiece leaves out of an answer by itself."""
    options, question = ["--model", "llama_tiny", "--max-new-tokens", "8"], "Say hello."

    def answers(*stops):
        monkeypatch.setattr("sys.stdin", io.StringIO(question))
        for command in (["chat"], ["predict", "--input", question]):
            assert main([*command, *options, *stops]) == 0
            yield capsys.readouterr().out.strip()

    free, again = answers()
    assert free == again and [*answers("--stop", f" {free[:3]}")] == ["", ""]


def test_chat_refuses_a_system_message_that_the_template_has_no_place_for(here, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("/system Be brief.\n/quit\n"))
    assert main(["chat", "--model", "base", "--template", "Q: {prompt} A:"]) == 0
    captured = capsys.readouterr()
    assert "the text has no {system}" in captured.err and "system message set" not in captured.out
    shutil.copytree(here / "base", here / "templated")
    file = here / "templated" / "chat_template.jinja"
    file.write_text("{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}{% endfor %}")
    monkeypatch.setattr("sys.stdin", io.StringIO("/system Be brief.\n/quit\n"))
    assert main(["chat", "--model", "templated"]) == 0
    captured = capsys.readouterr()
    assert "/system: has no effect: the chat template has no place" in captured.err and not captured.out


def test_chat_forgets_the_oldest_turns_when_the_context_is_full(here, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("word " * 20 + "\n" + "word " * 20 + "\n" + "long " * 80 + "\n"))
    assert main(["chat", "--model", "base", "--max-new-tokens", "4"]) == 0
    captured = capsys.readouterr()
    assert "the oldest turn is dropped" in captured.out
    assert "and there is room for 60" in captured.err
