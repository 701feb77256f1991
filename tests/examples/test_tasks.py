"""MindFormers' task scripts: every run mode, one process and several."""

from __future__ import annotations

import ast
import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from waiting import HANGING

import pet
from model_zoo.checkpoint.safetensors_io import read_file

sys.path.insert(0, str(Path(__file__).parent))

from runs import SIZES, arguments

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def held_out_perplexity(base, numpy_loss, asked):
    """Of an adapter on the base, or of other weights: by NumPy, from logits and the tokenizer alone."""
    tokenizer = pet.AutoTokenizer.from_pretrained(str(base))
    rows = [json.loads(line) for line in (base / "held_out.jsonl").read_text().splitlines()]

    def measure(adapter=None, weights=base) -> float:
        model = pet.AutoModel.from_pretrained(str(weights))
        if adapter is not None:
            pet.load_adapter(model, adapter)
        return float(np.exp(numpy_loss(model, asked(tokenizer, rows))))

    return measure


def test_one_process_finetune_eval_predict(base, tmp_path, run, inside, losses, held_out_perplexity):
    common = ["--model_type", base, "--pet_method", "lora", "--task", "text_generation"]
    result = run(
        "python", "standalone_task.py", *common, "--run_mode", "finetune", "--train_dataset", base / "data.jsonl",
        *SIZES, "--output_dir", "output", "--enable_graph_kernel", "True",
    )  # fmt: skip
    assert ": ignored: --enable_graph_kernel" in result.stderr
    found = losses(tmp_path / "output")
    assert found[-1] < found[0]
    evaluation = [*common, "--run_mode", "eval", "--eval_dataset", base / "held_out.jsonl", "--seq_length", 48]
    said = inside("standalone_task.py", *evaluation, "--load_checkpoint", "output")
    numbers = ast.literal_eval(said.strip().splitlines()[-1])
    assert numbers["perplexity"] == pytest.approx(held_out_perplexity(tmp_path / "output/adapter"), rel=1e-4)
    said = inside(
        "standalone_task.py", *common, "--run_mode", "predict", "--predict_data", "hello!",
        "--load_checkpoint", "output", "--max_length", 12,
    )  # fmt: skip
    (answer,) = ast.literal_eval(said.strip().splitlines()[-1])
    assert answer["text_generation_text"][0].startswith("hello!")
    # the same run's adapter by way of MindFormers' file: of another base's name, and of weights alone
    from pet.compat.ckpt.doors import to_file

    to_file(base, tmp_path / "weights.ckpt")
    said = inside("standalone_task.py", *evaluation, "--load_checkpoint", "weights.ckpt")
    numbers = ast.literal_eval(said.strip().splitlines()[-1])
    assert numbers["perplexity"] == pytest.approx(held_out_perplexity(), rel=1e-4)


JOB = """
output_dir: ./run
load_checkpoint: {base}
trainer: {{type: CausalLanguageModelingTrainer}}
runner_config: {{epochs: 1, batch_size: 4, sink_mode: True}}
optimizer: {{type: FP32StateAdamWeightDecay, learning_rate: 1.e-3}}
model:
  model_config: {{type: GPT2Config, seq_length: 48, do_sample: False, top_k: 3, max_decode_length: 10}}
train_dataset: {{data_loader: {{dataset_dir: {base}/data.jsonl}}}}
eval_dataset: {{data_loader: {{dataset_dir: {base}/held_out.jsonl}}}}
do_eval: False
callbacks: [{{type: CheckpointMonitor, save_checkpoint_steps: 2}}]
"""


def test_run_mindformer_trains_resumes_measures_and_predicts(base, tmp_path, inside, losses, held_out_perplexity):
    (tmp_path / "job.yaml").write_text(JOB.format(base=base))
    common = ["run_mindformer.py", "--config", "job.yaml"]
    inside(*common, "--run_mode", "train")
    first = losses(tmp_path / "run")
    assert [path.name for path in sorted((tmp_path / "run/checkpoints").iterdir())] == ["step-000002", "step-000004"]
    more = ["--do_eval", "True", "--eval_dataset_dir", base / "held_out.jsonl", "--profile", "True", "--batch_size", 4]
    inside(*common, "--run_mode", "train", "--resume_training", "True", "--epochs", 2, *more)
    whole = losses(tmp_path / "run")
    after = json.loads((tmp_path / "run/summary.json").read_text())["after"]
    assert after["perplexity"] == pytest.approx(held_out_perplexity(weights=tmp_path / "run/model"), rel=1e-4)
    assert list((tmp_path / "run").rglob("*prof*"))
    assert whole[:4] == first
    assert len(whole) == 8
    assert whole[-1] < whole[0]
    said = inside(*common, "--run_mode", "eval", "--load_checkpoint", "run")
    numbers = ast.literal_eval(said.strip().splitlines()[-1])
    assert numbers["perplexity"] == pytest.approx(held_out_perplexity(weights=tmp_path / "run/model"), rel=1e-4)
    said = inside(*common, "--run_mode", "predict", "--load_checkpoint", "run", "--predict_data", "What is 3?")
    (answer,) = ast.literal_eval(said.strip().splitlines()[-1])
    # greedy, ten tokens in all: the file's settings of generation, not the library's
    model, tokenizer = pet.AutoModel.from_pretrained(tmp_path / "run/model"), pet.AutoTokenizer.from_pretrained(base)
    ids = [token for token in tokenizer.encode("What is 3?") if token != tokenizer.eos_token_id]
    expected = model.generate([ids], max_length=10, use_cache=False)[0].tolist()
    ends = [place for place, token in enumerate(expected[len(ids) :]) if token == tokenizer.eos_token_id]
    kept = expected[: len(ids) + ends[0]] if ends else expected
    assert answer["text_generation_text"] == [tokenizer.decode(kept)]
    assert "nothing was trained" in inside(*common, "--only_save_strategy", "True")
    assert [path.name for path in (tmp_path / "run/strategy").iterdir()] == ["ckpt_strategy_rank_0.json"]


# The same as the task script's run, with the layers divided.
DIVIDED = """
run_mode: finetune
load_checkpoint: {base}
runner_config: {{epochs: 2, batch_size: 4}}
lr_schedule: {{type: CosineWithWarmUpLR, learning_rate: 1.e-2, warmup_steps: 1, total_steps: -1}}
parallel_config: {{data_parallel: 1, model_parallel: 2, pipeline_stage: 1}}
use_parallel: True
model:
  model_config: {{type: GPT2Config, seq_length: 48, pet_config: {{pet_type: lora, lora_rank: 8, lora_dropout: 0}}}}
"""

# Each worker joins the job once, and runs one example after another.
DRIVER = """
import importlib, sys
sys.path[:0] = [{examples!r}, {tests!r}]
from pet.cli.imports import import_quickly
import_quickly()
from pet.parallel.join import join, leave
join()
for script, *words in {runs!r}:
    sys.argv = [script, *words]
    print("run", words[-1], flush=True)
    importlib.import_module(script.removesuffix(".py")).main()
leave(0)
"""


@pytest.mark.full
@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(base, tmp_path, run, alone, losses, held_out_perplexity):
    """Data parallel with the optimizer divided, and pipeline parallel by distribute_task.py, which also measures and
    predicts; tensor parallel by run_mindformer.py; data parallel by FlagAI's trainer and by a MindsporeTrainer task;
    all in one job, started by the shell wrapper."""
    (tmp_path / "job.yaml").write_text(DIVIDED.format(base=base))
    task = [*arguments("task", base), "--use_parallel", "True"]
    runs = [
        [*arguments("train", base), "--use_parallel", "True", "--data_parallel", 2, "--optimizer_shard", "True"]
        + ["--batch_size", 2, "--output_dir", "train"],
        [
            "run_mindformer.py",
            "--config",
            "job.yaml",
            "--use_parallel",
            "True",
            "--train_dataset_dir",
            base / "data.jsonl",
        ]
        + ["--remote_save_url", f"file://{tmp_path}/store", "--output_dir", "tensor"],
        [*task, "--pipeline_parallel", 2, "--micro_size", 2, "--batch_size", 2, "--output_dir", "pipeline"],
        [*arguments("flagai", base), "--env_type", "pytorchDDP", "--batch_size", 2, "--save_dir", "flagai"],
        [*arguments("mindspore", base), "--distribute", "--train_batch_size", 2, "--output_dir", "mindspore"],
    ]
    asks = ["distribute_task.py", "--model_type", base, "--load_checkpoint", "tensor", "--use_parallel", "True"]
    asks += ["--pet_method", "lora", "--model_parallel", 2, "--seq_length", 48]
    measure = [*asks, "--run_mode", "eval", "--eval_dataset", base / "held_out.jsonl"]
    predict = [*asks, "--run_mode", "predict", "--predict_data", "What is 3?", "--max_length", 12]
    everything = [[str(word) for word in words] for words in [*runs, measure, predict]]
    script = tmp_path / "driver.txt"  # the fixture takes words that end in .py for examples
    script.write_text(DRIVER.format(examples=str(EXAMPLES), tests=str(Path(__file__).parent), runs=everything))
    # tests share their machine: a worker that waits for a turn does not hang
    options = {"PET_LAUNCH_OPTIONS": "--hang-timeout 120"}
    run("bash", "run_distribute_single_node.sh", f"python {script}", "", "[0,2]", 2, timeout=HANGING, **options)
    said = (tmp_path / "output/log/rank_1/mindformer.log").read_text()
    assert "process 1 of 2" in said
    found = [ast.literal_eval(line) for line in said.splitlines() if line.startswith(("{", "[{"))]
    measured, (answer,) = found[-2:]
    assert measured["perplexity"] == pytest.approx(held_out_perplexity(tmp_path / "tensor/adapter"), rel=1e-4)
    one = losses(alone("task")[0])
    assert one[-1] < one[0]
    # two rows on each of two processes are the four rows of one
    for name in ("train", "flagai", "mindspore"):
        assert losses(tmp_path / name) == pytest.approx(losses(alone(name)[0]), rel=1e-4)
    assert losses(tmp_path / "tensor") == losses(tmp_path / "store") == pytest.approx(one, rel=1e-4)
    assert losses(tmp_path / "pipeline") == pytest.approx(one, rel=1e-4)
    names = ("tensor", "pipeline", "flagai", "mindspore")
    adapters = [read_file(tmp_path / name / "adapter/adapter_model.safetensors") for name in names]
    assert [sorted(adapter) for adapter in adapters] == [sorted(adapters[0])] * len(names)
    model, tokenizer = pet.AutoModel.from_pretrained(str(base)), pet.AutoTokenizer.from_pretrained(str(base))
    pet.load_adapter(model, tmp_path / "tensor/adapter")
    assert answer == pet.pipeline("text_generation", model=model, tokenizer=tokenizer)("What is 3?", max_length=12)[0]
    # every weight was trained, from those of the base, and what was written is a plain checkpoint
    trained, start = (read_file(place / "model.safetensors") for place in (tmp_path / "train/model", base))
    assert sorted(trained) == sorted(start)
    assert all(np.abs(trained[name] - start[name]).max() > 0 for name in start)


PROBE = """
import os, pathlib, time
print(*(os.environ[name] for name in ("RANK_ID", "RANK_SIZE", "DEVICE_ID")), flush=True)
if os.environ.get("FAIL") == os.environ["RANK_ID"]:
    logs = pathlib.Path("{logs}")
    while not all(log.read_text() for log in logs.glob("rank_*/mindformer.log")):
        time.sleep(0.01)  # a worker that fails ends the others, whatever they have said
    raise SystemExit(3)
"""


def test_shell_wrappers_of_one_machine_and_of_two(tmp_path, run):
    """Half-open ranges of devices, a rank table that gives them other numbers, logs by rank, and the exit code."""
    logs = tmp_path / "output/log"
    (tmp_path / "probe.txt").write_text(PROBE.format(logs=logs))
    devices = [{"device_id": str(7 - rank), "rank_id": str(rank)} for rank in range(2)]
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"server_list": [{"server_id": "127.0.0.1", "device": devices}]}))

    def said():
        found = sorted(logs.glob("rank_*/mindformer.log"))
        return [(log.parent.name, log.read_text().split()) for log in found]

    one = ["bash", "run_distribute_single_node.sh", "python probe.txt"]
    run(*one, "", "[4,6]", 2)
    assert said() == [("rank_0", ["0", "2", "4"]), ("rank_1", ["1", "2", "5"])]
    run(*one, table, "[0,2]", 2, FAIL="1", code=3)
    assert said() == [("rank_0", ["0", "2", "7"]), ("rank_1", ["1", "2", "6"])]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def machine(span):
        words = ["bash", "run_distribute_multi_node.sh", "python probe.txt", "", span, 4]
        run(
            *words,
            timeout=HANGING,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            PET_LAUNCH_SECRET="of all the machines",
        )

    with ThreadPoolExecutor() as machines:
        list(machines.map(machine, ["[0,2]", "[2,4]"]))
    assert said() == [(f"rank_{rank}", [str(rank), "4", str(rank % 2)]) for rank in range(4)]


def test_unknown_arguments_are_errors(base, run):
    result = run("python", "standalone_task.py", "--model_type", base, "--learning_rat", 0.1, "--nonsense", code=2)
    assert "--nonsense: is not known" in result.stderr
    assert "--learning_rat: is not known (did you mean 'learning_rate'" in result.stderr
    result = run("bash", "run_distribute_single_node.sh", "true", code=2)
    assert "usage" in result.stderr
