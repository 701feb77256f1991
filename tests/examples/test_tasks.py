"""MindFormers' task scripts: every run mode, one process and several."""

from __future__ import annotations

import ast
import json

import numpy as np
import pytest

import pet

SIZES = ["--num_train_epochs", 4, "--batch_size", 4, "--learning_rate", 0.01, "--seq_length", 48, "--warmup_steps", 1]


def held_out_perplexity(base, adapter) -> float:
    """By NumPy, from logits and the tokenizer alone."""
    model, tokenizer = pet.AutoModel.from_pretrained(str(base)), pet.AutoTokenizer.from_pretrained(str(base))
    pet.load_adapter(model, adapter)
    total, count = 0.0, 0
    for line in (base / "held_out.jsonl").read_text().splitlines():
        row = json.loads(line)
        talk = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["completion"]}]
        ids, trained = map(np.asarray, tokenizer.example(talk))
        logits = model(ids[None].astype(np.int32)).asnumpy()[0].astype(np.float64)
        logs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        logs -= logits.max(-1, keepdims=True)
        chosen = logs[np.arange(len(ids) - 1), ids[1:]][trained[1:]]
        total, count = total - chosen.sum(), count + len(chosen)
    return float(np.exp(total / count))


def test_one_process_finetune_eval_predict(base, tmp_path, run, losses):
    common = ["--model_type", base, "--pet_method", "lora", "--task", "text_generation"]
    result = run(
        "python", "standalone_task.py", *common, "--run_mode", "finetune", "--train_dataset", base / "data.jsonl",
        *SIZES, "--output_dir", "output", "--enable_graph_kernel", "True",
    )  # fmt: skip
    assert "without meaning here: --enable_graph_kernel" in result.stderr
    found = losses(tmp_path / "output")
    assert found[-1] < found[0]
    said = run(
        "python", "standalone_task.py", *common, "--run_mode", "eval", "--eval_dataset", base / "held_out.jsonl",
        "--seq_length", 48, "--load_checkpoint", "output",
    ).stdout  # fmt: skip
    numbers = ast.literal_eval(said.strip().splitlines()[-1])
    assert numbers["perplexity"] == pytest.approx(held_out_perplexity(base, tmp_path / "output/adapter"), rel=1e-4)
    said = run(
        "python", "standalone_task.py", *common, "--run_mode", "predict", "--predict_data", "hello!",
        "--load_checkpoint", "output", "--max_length", 12,
    ).stdout  # fmt: skip
    (answer,) = ast.literal_eval(said.strip().splitlines()[-1])
    assert answer["text_generation_text"][0].startswith("hello!")


def test_two_processes_by_the_shell_wrapper(base, tmp_path, run, losses):
    command = (
        f"python {__file__.rsplit('/tests/', 1)[0]}/examples/distribute_task.py --model_type {base} --pet_method lora "
        f"--run_mode finetune --train_dataset {base}/data.jsonl --use_parallel True --data_parallel 2 "
        + " ".join(map(str, SIZES)).replace("--batch_size 4", "--batch_size 2")
    )
    # tests share their machine: a worker that waits for a turn does not hang
    run("bash", "run_distribute_single_node.sh", command, "", "[0,2]", 2, PET_LAUNCH_OPTIONS="--hang-timeout 120")
    assert (tmp_path / "output/log/rank_1/worker.log").is_file()
    assert "process 1 of 2" in (tmp_path / "output/log/rank_1/worker.log").read_text()
    two = losses(tmp_path / "output")
    assert two[-1] < two[0]
    # two rows on each of two processes are the four rows of one
    run(
        "python", "distribute_task.py", "--model_type", base, "--pet_method", "lora", "--run_mode", "finetune",
        "--train_dataset", base / "data.jsonl", *SIZES, "--output_dir", "one",
    )  # fmt: skip
    assert two == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_unknown_arguments_are_errors(base, run):
    result = run("python", "standalone_task.py", "--model_type", base, "--learning_rat", 0.1, "--nonsense", code=2)
    assert "nonsense" in result.stderr
    result = run("bash", "run_distribute_single_node.sh", "true", code=2)
    assert "usage" in result.stderr
