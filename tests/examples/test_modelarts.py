"""A ModelArts job: paths from the environment, a MindFormers file, the results in a mounted store."""

from __future__ import annotations

import json

from waiting import HANGING

import pet


def test_a_job_with_a_store(base, tmp_path, run, losses):
    (tmp_path / "job.yaml").write_text(
        f"run_mode: finetune\nload_checkpoint: {base}\ntrainer: {{type: CausalLanguageModelingTrainer}}\n"
        "runner_config: {epochs: 3, batch_size: 4, sink_mode: True}\n"
        "optimizer: {type: FP32StateAdamWeightDecay, learning_rate: 1.e-2}\n"
        "model: {model_config: {type: GPT2Config, seq_length: 48, pet_config: {pet_type: lora, lora_rank: 4}}}\n"
        "callbacks: [{type: MFLossMonitor}, {type: CheckpointMonitor, prefix: gpt, save_checkpoint_steps: 5}]\n"
    )
    store = tmp_path / "mount" / "results"
    # MindSpore itself reads this one; what it writes belongs to the job's output
    common = {"dump_mode": 0, "path": str(tmp_path / "dump"), "net_name": "net", "iteration": "0", "input_output": 1}
    common |= {"op_debug_mode": 0, "saved_data": "tensor", "kernels": [], "support_device": [0]}
    (tmp_path / "dump.json").write_text(
        json.dumps({"common_dump_settings": common, "e2e_dump_settings": {"enable": True, "trans_flag": False}})
    )
    run(
        "python", "run_mindformer.py", "--config", "job.yaml", "--train_dataset_dir", "${MA_MOUNT_PATH}/data.jsonl",
        "--remote_save_url", f"file://{store}", "--output_dir", "run", "--run_mode", "finetune",
        MA_MOUNT_PATH=str(base), MINDSPORE_DUMP_CONFIG=str(tmp_path / "dump.json"), timeout=HANGING,
    )  # fmt: skip
    found = losses(store)
    assert found == losses(tmp_path / "run")
    assert found[-1] < found[0]
    assert json.loads((store / "summary.json").read_text())["steps"] == len(found)
    assert (store / "checkpoints/gpt-step-000005/state.json").is_file()
    dumped = [path.relative_to(tmp_path) for path in (tmp_path / "dump").rglob("*") if path.is_file()]
    assert dumped
    assert [path for path in dumped if not (store / path).is_file()] == []
    model = pet.AutoModel.from_pretrained(str(base))
    pet.load_adapter(model, store / "adapter")
    assert pet.list_adapters(model) == ["default"]
