"""A step of DPO against two supervised steps over the same tokens, and against TRL with PEFT on torch.

    python benchmarks/preferences.py [--seconds 8] [--rounds 2]

The model is `small` of cases.py with LoRA on all linear layers; a batch is 4 pairs whose answers have 128 tokens each
with their question, so 1024 tokens. `supervised` is two steps, of the chosen and of the rejected answers' rows; `whole`
is one step over all of these rows, whose memory DPO's is to be compared with. DPO has the reference's log-probabilities
beforehand, here and in TRL. `shared` is DPO with each question (32 tokens) computed once for both of its answers, in
rows as long as that needs; `dpo` computes it twice. Sides in ``-bf16`` have bf16 products here, and TRL's ``bf16``;
on a processor without such products this library refuses them, and torch takes a minute for a step, so that they are
left out with the reason.
Every side is a process of its own; the rounds take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
from cases import LLAMA_ALL, MODELS

PAIRS, LENGTH, QUESTION, RATE = 4, 128, 32, 1e-4
SIDES = ("dpo", "shared", "supervised", "whole", "trl", "dpo-bf16", "shared-bf16", "trl-bf16")
TRL = ("trl", "trl-bf16")
RATIOS = {"dpo": ("shared", "supervised", "whole", *TRL), "shared": ("supervised", "whole", *TRL)}
RATIOS |= {"dpo-bf16": TRL, "shared-bf16": TRL}


def pairs() -> list[list[list[int]]]:
    """Chosen and rejected ids of each pair, after the same question."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(PAIRS):
        question = random.integers(10, 400, QUESTION).tolist()
        found.append([question + random.integers(10, 400, LENGTH - QUESTION).tolist() for _ in range(2)])
    return found


def ours(side: str, precision: str) -> Callable[[], None]:
    """One step of DPO, or the supervised ones, of this library."""
    import pet
    from pet.data.dataset import TokenDataset
    from pet.data.loader import Loader
    from pet.data.settings import DataSettings
    from pet.train.trainer import Trainer

    model = pet.AutoModel.from_config({**MODELS["small"], "max_position_embeddings": 2 * LENGTH}, seed=0)
    pet.apply_lora(model, targets=list(LLAMA_ALL))
    marks = [False] * QUESTION + [True] * (LENGTH - QUESTION)
    dpo, shared = side in ("dpo", "shared"), side == "shared"
    rows_of = {"packing": "buckets" if shared else "none", "share_question": shared}
    kept = DataSettings(**rows_of, max_length=LENGTH, shuffle=False, cache_dir=tempfile.mkdtemp())
    how = {
        "objective": "dpo" if dpo else "causal",
        "steps": 10**6,
        "learning_rate": RATE,
        "schedule": "constant",
        "warmup": 0,
        "precision": precision,
    }
    together = [[ids for pair in pairs() for ids in pair]]
    rows = list(zip(*pairs(), strict=True)) if side == "supervised" else together
    loaders = []
    for documents in rows:
        data = TokenDataset.from_samples([(ids, marks) for ids in documents])
        data.documents = 2 if dpo else 1
        loaders.append(Loader(data, len(documents) // data.documents, kept))
    trainer = Trainer(model, loaders[0], **how)
    model.set_train(True)
    model.set_fast(True)
    batches = [next(iter(loader.batches(0))) for loader in loaders]

    def step() -> None:
        for batch in batches:
            trainer.one_step([batch])

    return step


def trl(low: bool) -> Callable[[], None]:
    """One step of TRL's DPOTrainer. ``low``: in bf16."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import DPOConfig, DPOTrainer

    from pet.names import bundled_models

    class Tokenised(DPOTrainer):
        def _prepare_dataset(self, dataset, *_):
            return dataset

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**MODELS["small"], "max_position_embeddings": 2 * LENGTH}))
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=list(LLAMA_ALL), task_type="CAUSAL_LM"))
    settings = DPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=PAIRS,
        max_steps=1,
        learning_rate=RATE,
        report_to=[],
        save_strategy="no",
        bf16=low,
        max_length=None,
        gradient_checkpointing=False,
        use_cpu=True,
        disable_tqdm=True,
        precompute_ref_log_probs=True,
    )
    rows = [
        {"prompt_ids": one[:QUESTION], "chosen_ids": one[QUESTION:], "rejected_ids": other[QUESTION:]}
        for one, other in pairs()
    ]
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    trainer = Tokenised(model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    trainer.train()  # sets the optimizer up
    batch = next(iter(trainer.get_train_dataloader()))
    model.train()

    def step() -> None:
        trainer.optimizer.zero_grad()
        trainer.training_step(model, batch)
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        trainer.optimizer.step()

    return step


def refused(kind: str, low: str) -> str:
    """Why a side cannot run on this machine, or is not worth it, or ""."""
    if low:
        from model_zoo.engine import no_bf16

        if reason := no_bf16():
            return reason
    if kind == "trl":
        try:
            from trl import DPOTrainer  # noqa: F401
        except (ImportError, RuntimeError) as error:
            return f"TRL cannot be imported: {str(error).splitlines()[0]}"
    return ""


def side(name: str, seconds: float) -> None:
    """Prints the times of a side's step, the median and the least (which other programs disturb least), and its peak
    memory; or why this machine cannot run it."""
    kind, _, low = name.partition("-")
    if reason := refused(kind, low):
        print(json.dumps({"refused": reason}))
        return
    with contextlib.redirect_stdout(sys.stderr):
        step = trl(bool(low)) if kind == "trl" else ours(kind, low or "fp32")
        for _ in range(2):
            step()
        times, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps(
            {"median": float(np.median(times)), "least": min(times), "steps": len(times), "peak_mb": round(peak)}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", choices=SIDES, help="run this side alone, in this process")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if options.side:
        return side(options.side, options.seconds)
    found: dict[str, list[dict]] = {name: [] for name in SIDES}
    for _ in range(options.rounds):
        for name in list(found):
            command = [sys.executable, __file__, "--side", name, "--seconds", str(options.seconds)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr[-2000:])
            answer = json.loads(done.stdout.splitlines()[-1])
            print(name, answer, flush=True)
            if "refused" in answer:
                del found[name]
            else:
                found[name].append(answer)
    for one, peers in RATIOS.items():
        for peer in [peer for peer in peers if {one, peer} <= found.keys()]:
            for key in ("median", "least", "peak_mb"):
                ratios = [mine[key] / theirs[key] for mine, theirs in zip(found[one], found[peer], strict=True)]
                print(f"{one} / {peer}, {key}: {np.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
    return None


if __name__ == "__main__":
    main()
