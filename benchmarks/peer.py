"""The peer: Hugging Face transformers and peft on torch. Run by `compare.py` as a process of its own.

Reads one JSON command per line and answers with one JSON line each; see `worker.serve`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

import torch
from cases import CASES, LEARNING_RATE, NEW_TOKENS, bins, documents, token_batch
from peft import PeftModel, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from worker import serve


def padded(rows):
    """Documents padded to the longest: ids, mask, labels."""
    width = max(len(row) for row, _ in rows)
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for index, (row, answer) in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row, dtype=torch.long)
        labels[index, : len(row)] = torch.where(torch.tensor(answer), ids[index, : len(row)], -100)
        mask[index, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def packed(rows, length):
    """Documents one behind the other in a row, which positions that begin anew keep apart: ids, positions, labels."""
    ids = torch.zeros((1, length), dtype=torch.long)
    positions, labels, at = torch.arange(length)[None].clone(), torch.full_like(ids, -100), 0
    for row, answer in rows:
        part = slice(at, at + len(row))
        ids[0, part], positions[0, part] = torch.tensor(row, dtype=torch.long), torch.arange(len(row))
        labels[0, part] = torch.where(torch.tensor(answer), ids[0, part], -100)
        labels[0, at] = -100  # else the document in front would predict it
        at += len(row)
    positions[0, at:] = torch.arange(length - at)
    return {"input_ids": ids, "position_ids": positions, "labels": labels}


def product_rates() -> dict[str, float]:
    """GFLOP/s of torch's products in both precisions."""
    rates = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        left, right, best = torch.ones(1024, 1024, dtype=dtype), torch.ones(2752, 1024, dtype=dtype), float("inf")
        for _ in range(20):
            begin = time.perf_counter()
            torch.nn.functional.linear(left, right)
            best = min(best, time.perf_counter() - begin)
        rates[name] = 2 * 1024 * 1024 * 2752 / best / 1e9
    return rates


class Peer:
    """Model, optimizer and data of one case.

    Args:
        options: of `sides.Side`: ``autocast``, ``compile``, ``packed``, and ``weights``, the type of the base's.
    """

    def __init__(self, name: str, base: str, adapter: str, options: dict):
        self.case, self.options = CASES[name], options
        settings = {"dtype": getattr(torch, options.get("weights", "float32"))}
        if self.case.nf4:
            kind = torch.bfloat16 if options.get("autocast") else torch.float32
            settings["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=kind
            )
        self.model = AutoModelForCausalLM.from_pretrained(base, **settings)
        if self.case.nf4:
            self.model = prepare_model_for_kbit_training(self.model, use_gradient_checkpointing=False)
        if adapter:
            self.model = PeftModel.from_pretrained(self.model, adapter, is_trainable=True)
        self.tokens = torch.tensor(token_batch(self.case), dtype=torch.long)
        if self.case.kind != "decode":
            weights = [weight for weight in self.model.parameters() if weight.requires_grad]
            self.optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, weight_decay=0.0)
            self.model.train()
        if options.get("compile"):
            self.model = torch.compile(self.model)

    def precision(self):
        """In what the forward pass runs."""
        return torch.autocast("cpu", torch.bfloat16) if self.options.get("autocast") else contextlib.nullcontext()

    def batches(self) -> list[dict]:
        """Of one pass over the documents, about as many of them in each."""
        rows = documents(self.case)
        if not self.options.get("packed"):
            return [padded(rows[first : first + self.case.batch]) for first in range(0, len(rows), self.case.batch)]
        members = bins([len(ids) for ids, _ in rows], self.case.length)
        whole = [packed([rows[i] for i in some], self.case.length) for some in members]
        some = max(1, round(len(whole) * self.case.batch / len(rows)))
        parts = [whole[first : first + some] for first in range(0, len(whole), some)]
        return [{key: torch.cat([row[key] for row in part]) for key in part[0]} for part in parts]

    def update(self, batch) -> float:
        with self.precision():
            loss = self.model(**batch, use_cache=False).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def run(self, count: int) -> dict:
        """`count` steps, passes over the documents, or generations; of 0, the rates of products."""
        if count == 0:
            return {"rates": product_rates()}
        if self.case.kind == "train":
            batch = {"input_ids": self.tokens, "labels": self.tokens}
            return {"losses": [self.update(batch) for _ in range(count)]}
        if self.case.kind == "packed":
            losses = [self.update(batch) for _ in range(count) for batch in self.batches()]
            return {
                "useful_tokens": count * sum(len(ids) for ids, _ in documents(self.case)),
                "finite": all(loss == loss for loss in losses),
            }
        self.model.eval()
        with torch.no_grad(), self.precision():
            for _ in range(count):
                out = self.model.generate(
                    self.tokens,
                    attention_mask=torch.ones_like(self.tokens),
                    max_new_tokens=NEW_TOKENS,
                    min_new_tokens=NEW_TOKENS,
                    do_sample=False,
                    pad_token_id=0,
                )
        return {"ids": out.tolist()}


if __name__ == "__main__":
    serve(Peer(*sys.argv[1:4], json.loads(sys.argv[4])).run)
