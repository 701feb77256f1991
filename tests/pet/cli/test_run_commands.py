"""The commands of a run, on a model of a few thousand weights: what they print, write and refuse."""

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from run_directories import QUESTIONS, content

import pet
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, write_file
from pet.cli.main import main


def test_the_run_directory(here):
    run = here / "output" / "job"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 3
    assert summary["after"]["loss"] < summary["before"]["loss"]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {entry.name for entry in (run / "adapter").iterdir()}


def test_callbacks_are_told_of_the_end_when_everything_is_written(here):
    seen = json.loads((here / "seen-job.json").read_text())
    wanted = {"summary.json", "loss.png", "metrics.jsonl", "recipe.yaml", "adapter/adapter_model.safetensors"}
    assert {*wanted, "checkpoints/step-000003/state.json"} <= set(seen["there"])
    assert seen["summary"] == json.loads((here / "output" / "job" / "summary.json").read_text())


def test_a_context_smaller_than_the_default_answer(here, capsys, caplog, monkeypatch):
    """The base's context is 64, as is the limit of answers in evaluations."""
    (here / "long.jsonl").write_text(json.dumps({"prompt": "word " * 80, "completion": "no"}) + "\n" + QUESTIONS[0])
    words = ["generation.max_new_tokens=null", "data={eval: long.jsonl, max_length: 32, train_on: all}"]
    words += ["eval.metrics=[loss, exact_match]"]
    assert main(["evaluate", "output/job", "--base", *words]) == 0
    assert "exact match" in capsys.readouterr().out
    assert "1 of 2 questions are not asked: they fill the model's context of 64 tokens" in caplog.text
    assert "has room for" in caplog.text and "generation.max_new_tokens (64)" in caplog.text
    monkeypatch.setattr("sys.stdin", io.StringIO("What is 1?\n"))
    assert main(["chat", "--model", "base", "--max-new-tokens", "64"]) == 0
    captured = capsys.readouterr()
    assert "answers have at most 32 tokens, not 64" in captured.out and not captured.err


def test_answers_without_a_limit_go_on_to_their_end(here, capsys, monkeypatch):
    pipe = pet.pipeline(model="base", chat=True)
    prompt = pipe.tokenizer.prompt([{"role": "user", "content": "What is 1?"}])
    free = pipe.model.generate([prompt], max_new_tokens=None)[0]
    assert len(free) == 64
    shutil.copytree(here / "base", here / "ending")
    (here / "ending" / "generation_config.json").write_text(json.dumps({"eos_token_id": int(free[len(prompt)])}))
    for name, expected in (("base", pipe("What is 1?")[0]["text_generation_text"][0].strip()), ("ending", "")):
        assert main(["predict", "--model", name, "--input", "What is 1?"]) == 0
        assert capsys.readouterr().out == expected + "\n"
        monkeypatch.setattr("sys.stdin", io.StringIO("What is 1?\n"))
        assert main(["chat", "--model", name]) == 0
        said = capsys.readouterr().out
        assert expected in said
        assert ("(the answer ends here: the model's context is full)" in said) == (name == "base")


def test_a_run_that_fails_says_where_and_callbacks_find_what_there_is(here, capsys, pictures):
    words = ["train.learning_rate=1e30", "train.clip_norm=null", "train.save_every=1", "eval.before=false"]
    with pictures():
        assert main(["finetune", "job.yaml", *words, "output.dir=failed", "--force"]) == 1
    error = capsys.readouterr().err
    assert "step 2: the loss is nan; samples of this step: " in error and "data.jsonl:" in error
    assert "the last good checkpoint is" in error and "failed/checkpoints/step-000001" in error
    assert "Traceback" not in error
    seen = json.loads((here / "seen-failed.json").read_text())
    assert {"metrics.jsonl", "loss.png", "recipe.yaml", "checkpoints/step-000001/state.json"} <= set(seen["there"])
    assert "summary.json" not in seen["there"] and "the loss is nan" in seen["summary"]["error"]


def test_a_batch_beyond_the_memory_is_refused_before_anything_is_compiled(here, capsys, monkeypatch):
    monkeypatch.setattr("pet.planning.room.machine_memory", lambda: 1e4)
    assert main(["finetune", "job.yaml", "output.dir=too_large", "train.batch_size=16"]) == 2
    error = capsys.readouterr().err
    assert re.search(r"train.batch_size=16: train.batch_size: a step of 16 rows of 32 tokens needs [\d.]+ GB", error)
    assert "lower train.batch_size" in error and "data.max_length, or set train.recompute: true" in error
    assert not (here / "too_large").exists()


def test_an_allocation_that_fails_says_what_to_lower(here, capsys, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("Memory isn't enough: 12345 bytes\n- C++ Call Stack")

    monkeypatch.setattr("pet.train.step.TrainStep.__call__", fail)
    assert main(["finetune", "job.yaml", "output.dir=no_memory", "eval.before=false"]) == 1
    error = capsys.readouterr().err
    assert "step 1: no memory could be had (Memory isn't enough: 12345 bytes); lower train.batch_size (4;" in error
    assert "data.max_length, or set train.recompute: true" in error
    monkeypatch.setattr("pet.train.evaluate.LossEvaluation.__call__", fail)
    assert main(["finetune", "job.yaml", "output.dir=no_memory", "--force"]) == 1
    assert "the evaluation: no memory could be had (Memory isn't enough: 12345 bytes); lower eval.batch_size (4)" in (
        capsys.readouterr().err
    )


def test_a_full_disk_ends_the_run_with_the_file_and_the_remedy(here, capsys, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("model_zoo.checkpoint.safetensors_io.write_stream", full)
    assert main(["finetune", "job.yaml", "output.dir=full", "eval.before=false"]) == 1
    error = capsys.readouterr().err
    assert re.search(r"full/checkpoints/step-000003/adapter/adapter_model.safetensors: cannot be written: the", error)
    assert re.search(r"[\d.]+ MB are free, [\d.]+ MB are needed; free some space", error) and "Traceback" not in error


def test_a_resume_that_is_refused_writes_nothing(copied, capsys):
    before = content(copied)
    assert main(["finetune", "job.yaml", "--resume", "adapter.rank=2"]) == 2
    assert "has shape" in capsys.readouterr().err
    assert content(copied) == before


def test_a_resume_on_other_data_or_another_base_is_refused_until_accepted(copied, capsys, caplog):
    (copied / "data.jsonl").write_text("\n".join(QUESTIONS[:-1]) + "\n")
    with SafetensorsFile(copied / "base" / "model.safetensors") as file:
        tensors = {name: file.read(name) * 1.5 for name in file.tensors}
    write_file(copied / "base" / "model.safetensors", tensors, {"format": "pt"})
    before = content(copied)
    assert main(["finetune", "job.yaml", "--resume"]) == 2
    error = capsys.readouterr().err
    assert "data.train: data.jsonl has another content since this run began" in error
    assert "data.eval: data.jsonl has another content" in error and "model.path: base has another content" in error
    assert "train.accept_changes=true" in error
    assert content(copied) == before
    assert main(["finetune", "job.yaml", "--resume", "train.accept_changes=true", "train.steps=4"]) == 0
    assert "data.train: data.jsonl has another content since this run began: it continues, but not" in caplog.text
    assert re.search(r"steps +4 \(.*\), [1-3] of them done\n", capsys.readouterr().out)
    assert "accept_changes: false" in (copied / "output" / "job" / "recipe.yaml").read_text()


@pytest.mark.slow
def test_signals_have_exit_codes_of_their_own_and_leave_what_a_resume_needs(here, quick_runs):
    """In processes of their own: there the command line receives them whatever handler MindSpore has installed."""
    words = [sys.executable, "-m", "pet", "finetune", "job.yaml", "output.dir=signalled", "eval.before=false"]

    def run(at, number, *more):
        sent = f"callbacks=[{{name: 'signaller:Signaller', args: {{at: {at}, number: {int(number)}}}}}]"
        return subprocess.run([*words, sent, *more], capture_output=True, text=True, encoding="utf-8")

    for step, number, more in ((1, signal.SIGINT, "--force"), (2, signal.SIGHUP, "--resume")):
        done = run(step, number, more)
        assert done.returncode == 128 + number, done.stderr
        assert f"stopped by a signal after step {step}; go on with --resume" in done.stdout
        assert f"{number.name}: ending after this step, with everything saved" in done.stderr
        assert "Traceback" not in done.stderr and not (here / "rank_0").exists()
    steps = [path.name for path in sorted((here / "signalled" / "checkpoints").iterdir())]
    assert steps == ["step-000001", "step-000002"]
    lines = [json.loads(line) for line in (here / "signalled" / "metrics.jsonl").read_text().splitlines()]
    whole = [json.loads(line) for line in (here / "output" / "job" / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [line["loss"] for line in whole[:2]]


@pytest.mark.parametrize(("code", "said"), [(137, True), (124, True), (1, True), (130, False), (2, False), (0, False)])
def test_a_job_whose_workers_cannot_say_it_names_its_last_checkpoint(tmp_path, monkeypatch, capsys, code, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pet.launching.relaunch.relaunch", lambda *_: code)
    words = ["finetune", "glm_lora", "parallel.data=2", "output.dir=run", "--resume"]
    for step in (2, 10):
        assert main(words) == code
        expected = "step-000002; go on with --resume" if step > 2 else "there is no checkpoint yet to go on from"
        assert (expected in (told := capsys.readouterr().err)) == said == bool(told)
        (tmp_path / f"run/checkpoints/step-{step:06}").mkdir(parents=True)


def test_the_result_is_the_best_step_where_that_is_asked_for(here, capsys):
    words = ["eval.every_steps=1", "eval.load_best_model_at_end=true", "eval.metrics=[loss, exact_match]"]
    words += ["eval.generate=ends", "eval.generated_samples=2", "train.learning_rate=0.5", "train.schedule=constant"]
    assert main(["finetune", "job.yaml", *words, "output.dir=best_run", "--force"]) == 0
    run = here / "best_run"
    summary = json.loads((run / "summary.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = min(lines, key=lambda line: line["eval_loss"])
    assert summary["weights_step"] == summary["best"]["step"] == best["step"] < summary["steps"] == 3
    assert summary["after"]["loss"] == best["eval_loss"]
    assert ["eval_exact_match" in line for line in lines] == [False, False, True], "in between nothing is written"
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert [(one["step"], one["prompt"]) for one in samples] == [(0, "What is 0?"), (3, "What is 0?")]
    assert {"answer", "reference", "where"} <= samples[0].keys()
    assert "exact_match" in summary["after"] and "exact_match" in summary["before"]
    file = "adapter/adapter_model.safetensors"
    assert (run / file).read_bytes() == (run / "checkpoints" / f"step-{best['step']:06d}" / file).read_bytes()
    assert f"was at step {best['step']}: adapter/ holds its weights" in capsys.readouterr().out


def test_another_run_there_is_refused(here, capsys):
    before = (here / "output" / "job" / "summary.json").read_bytes()
    assert main(["finetune", "job.yaml", "train.steps=9"]) == 2
    error = capsys.readouterr().err
    assert "holds another run" in error
    assert "--resume" in error
    assert (here / "output" / "job" / "summary.json").read_bytes() == before


def test_evaluate_gives_the_runs_own_numbers(here, capsys):
    assert main(["evaluate", "output/job", "--output", "numbers.json"]) == 0
    assert "held-out loss" in capsys.readouterr().out
    summary = json.loads((here / "output" / "job" / "summary.json").read_text())
    assert json.loads((here / "numbers.json").read_text()) == summary["after"]
    assert main(["evaluate", "job.yaml", "--base", "--output", "numbers.json"]) == 0
    assert json.loads((here / "numbers.json").read_text()) == summary["before"]


def test_evaluate_on_another_base_where_that_is_asked_for(here, tmp_path, tiny_gpt, capsys):
    words = ["evaluate", "output/job", "--adapter", "output/job/adapter", "--model", str(tiny_gpt(tmp_path / "other"))]
    assert main(words) == 2
    assert "made on another base" in capsys.readouterr().err
    assert main([*words, "--no-strict"]) == 0
    assert "held-out loss" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.slow
def test_evaluate_divided_among_two_processes(here, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    assert main(["evaluate", "output/job", "parallel.tensor=2", "--output", "two.json"]) == 0
    summary = json.loads((here / "output" / "job" / "summary.json").read_text())
    assert json.loads((here / "two.json").read_text()) == pytest.approx(summary["after"], rel=1e-5)
    assert main(["evaluate", "output/job", "parallel.pipeline=2", "parallel.micro_batches=2"]) == 2
    assert "pet evaluate has no pipeline" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["finetune", "job.yaml", "data.train=null"], "this command needs it"),
        (["finetune", "job.yaml", "output.dir=new", "adapter.targets=[q_prj]"], "q_prj"),
        (["finetune", "job.yaml", "output.dir=new", "model.from_scratch=true"], "random weights"),
        (["finetune", "job.yaml", "output.dir=data.jsonl"], "is a file"),
        (["train", "job.yaml", "output.dir=new"], "pet train trains every weight"),
        (["finetune", "job.yaml", "output.dir=new", "callbacks=[cvs]"], "did you mean 'csv'"),
        *(
            ([command, "job.yaml", "output.dir=new", f"callbacks=[{entry}]"], words)
            for command in ("finetune", "validate")
            for entry, words in [
                ('{name: "os:system", args: {command: "touch called"}}', "'os:system' is no callback"),
                ('{name: "subprocess:Popen", args: {args: [touch, called]}}', "'subprocess:Popen' is no callback"),
                ('{name: "watcher:Watcher", args: {speed: 3}}', "'speed'"),
                ('"watcher:Watchr"', "did you mean"),
            ]
        ),
        (["finetune", "job.yaml", "output.dir=new", "data.train=broken.jsonl"], "broken.jsonl"),
        (["evaluate", "job.yaml", "output.dir=new"], "what is to be measured?"),
        (["evaluate", "output"], "no run directory"),
        (["evaluate", "output/job", "--output", "output"], "--output output: is a directory, expected a file"),
        (["predict", "--model", "base"], "nothing is asked"),
        (["predict", "--input", "x"], "no model"),
        (["predict", "--model", "base", "--input", "x", "--top-p", "2"], "--top-p 2"),
        (["predict", "--model", "base", "--input", "x", "--file", "nowhere.jsonl"], "nowhere.jsonl"),
        (["predict", "--model", "base", "--adapter", "base", "--input", "x"], "adapter_config.json"),
        (["predict", "--run", "base", "--input", "x"], "no run directory"),
        (["predict", "--model", "base", "--input", "x", "--template", "nothing"], "prompt"),
        (["merge", "base", "--base", "base", "--output", "m2"], "adapter_config.json"),
        (["merge", "output/job/adapter", "--base", "base", "--output", "m2", "--weights", "a"], "numbers with commas"),
        (["merge", "output/job/adapter", "--base", "base", "--output", "m2", "--dtype", "int8"], "int8"),
        (["info", "output"], "is no model"),
        (["export", "base", "--output", "m2"], "a run or adapter directory was expected"),
        (["export", "output/job", "--output", "m2", "--dtype", "float16"], "no effect without --merged"),
        (
            ["predict", "--model", "base", "--input", "x", "--template", "Q: {prompt}", "--thinking"],
            "has no such switch",
        ),
        (["predict", "--model", "base", "--input", "x", "--template", "Q: {prompt}", "--system", "S"], "no {system}"),
        (
            ["predict", "--model", "base", "--input", "x", "--no-strict"],
            "--no-strict: has no effect without an adapter",
        ),
        (["predict", "--model", "llama_tiny", "--input", "x", "--no-thinking"], "chat template has no place for it"),
        (["evaluate", "output/job", "--base", "--no-strict"], "--no-strict: has no effect without"),
        (["evaluate", "output/job", "--base", "--model", "base"], "--base and --model: give one of them"),
        (
            ["quantize", "base", "--type", "int8", "--block", "128", "--output", "m2"],
            "--block: has no effect with int8",
        ),
        (["export", "base", "--format", "gguf", "--dequantize", "--output", "m2"], "--dequantize: has no effect where"),
        (["export", "base", "--format", "gguf", "--base", "base", "--output", "m2"], "--base: has no effect on a"),
        (["info", "output/job/adapter", "rank=4"], "KEY=VALUE: has no effect on a run or an adapter"),
        (["info", "output/job", "--length", "64"], "--length: has no effect on a run or an adapter"),
        (["recipes", "show", "job.yaml", "--force"], "--force: has no effect on show"),
        (["data", "job.yaml", "--split", "tset"], "did you mean 'test'"),
        (["data", "job.yaml", "--split", "test"], "this command needs it"),
        (["data", "job.yaml", "--samples", "-1"], "--samples -1: expected 0 or more"),
        (
            ["data", "job.yaml", "--split", "eval", "data.eval=null", "eval={every_epochs: null, before: false}"],
            "there is neither data.eval nor data.eval_fraction",
        ),
        (["export", "output/job", "--output", "m2", "--best", "--step", "2"], "--best and --step: give one of them"),
        (["export", "output/job", "--output", "m2", "--merged", "--format", "gguf"], "give one of them"),
        (["export", "output/job", "--output", "m2", "--format", "ggfu"], "did you mean 'gguf'"),
        (["export", "output/job/adapter", "--output", "m2", "--step", "2"], "and has no steps to choose from"),
        (["export", "base", "--output", "m2", "--format", "gguf-lora"], "base: is a model, so there is no adapter"),
        (["info", "base", "--double"], "--double has no effect without --quantization"),
        (["info", "base", "a.b=3"], "'a.b=3': expected a setting of the method"),
        (["predict", "--model", "base", "--input", "x", "--batch-size", "0"], "--batch-size 0: expected 1 or more"),
        (["predict", "--model", "base", "--file", "empty.txt"], "nothing is asked"),
        (["validate", "output/job/adapter"], "holds no recipes"),
        (["doctor", "--only", "speed"], "--only belongs to --full"),
        (["doctor", "--full", "--quick"], "--quick does not go with --full"),
        (["doctor", "--full", "--device", "GPU"], "--device GPU: MindSpore's device here is"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(here, capsys, arguments, words):
    (here / "broken.jsonl").write_text('{"prompt": "a", "completion": "b"}\n{"prompt": \n')
    (here / "empty.txt").write_text("\n")
    before = sorted(str(path) for path in here.rglob("*"))
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert sorted(str(path) for path in here.rglob("*")) == before


def test_what_is_no_callback_is_never_called(here):
    assert main(["finetune", "job.yaml", "output.dir=new", 'callbacks=[{name: "os:mkdir", args: {path: called}}]']) == 2
    assert not (here / "called").exists()


def test_info_and_data(here, capsys):
    assert main(["info", "output/job/adapter", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["method"], facts["r"]) == ("adapter", "LORA", 8)
    assert main(["info", "output/job", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3
    assert main(["info", "base", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"] == 2
    assert main(["data", "job.yaml", "--samples", "1"]) == 0
    text = capsys.readouterr().out
    assert "12 samples from 12 rows" in text
    assert "[[" in text, "what is learnt is marked"
    (here / "asked.jsonl").write_text('{"ask": "Who?", "reply": "Ada."}\n' * 5)
    words = ["data.eval=asked.jsonl", "data.eval_columns={prompt: ask, answer: reply}", "data.max_samples=2"]
    assert main(["data", "job.yaml", "--split", "eval", *words]) == 0
    assert "5 samples from 5 rows" in capsys.readouterr().out
    assert main(["data", "job.yaml", "--split", "test", *words, "data.test=asked.jsonl"]) == 0
    assert "5 samples from 5 rows" in capsys.readouterr().out


def test_info_of_many_targets(tmp_path, capsys):
    paths = [f"model.layers.{layer}.self_attn.{name}" for layer in range(6) for name in ("q_proj", "v_proj")]
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "target_modules": paths}))
    assert main(["info", str(tmp_path)]) == 0
    assert "  q_proj, v_proj (12 cells)\n" in capsys.readouterr().out
    assert main(["info", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target_modules"] == paths


def test_going_on_from_a_saved_adapter(here, capsys):
    words = ["finetune", "job.yaml", "adapter.load=output/job/adapter", "train.steps=1", "output.dir=more", "--force"]
    assert main([*words, "adapter.rank=4"]) == 2
    error = capsys.readouterr().err
    assert "adapter.rank: 4, but the adapter in adapter.load has 8" in error
    assert main([*words, "adapter={method: ia3, load: output/job/adapter}"]) == 2
    assert "holds lora, adapter.method is ia3" in capsys.readouterr().err
    assert main([*words, "adapter.targets=[all-linear]"]) == 2
    assert "is one of these, but not of the adapter in adapter.load" in capsys.readouterr().err
    assert not (here / "more").exists()
    assert main([*words, "adapter.alpha=4", "adapter.targets=[re:.*c_attn]", "adapter.layers=0-"]) == 0
    assert json.loads((here / "more/adapter/adapter_config.json").read_text())["lora_alpha"] == 4
    capsys.readouterr()
    assert main(words) == 0
    first, second = (json.loads((here / name / "summary.json").read_text()) for name in ("output/job", "more"))
    assert second["before"]["loss"] == pytest.approx(first["after"]["loss"], abs=1e-6)


def test_a_prefix_from_the_keys_of_a_text(here, capsys):
    words = ["finetune", "job.yaml", "train.steps=1", "output.dir=prefix", "--force", "eval.shown_samples=0"]
    assert main([*words, "adapter={method: prefix, length: 4, init_text: What is it}"]) == 0
    capsys.readouterr()
    config = json.loads((here / "prefix" / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["num_virtual_tokens"]) == ("PREFIX_TUNING", 4)
