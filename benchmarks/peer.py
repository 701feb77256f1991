"""The peer: Hugging Face transformers and peft on torch. Run by `compare.py` as a process of its own.

Reads one JSON command per line and answers with one JSON line each; see `worker.serve`.
"""

from __future__ import annotations

import sys

import torch
from cases import CASES, LEARNING_RATE, NEW_TOKENS, documents, token_batch
from peft import PeftModel
from transformers import AutoModelForCausalLM
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


class Peer:
    """Model, optimizer and data of one case."""

    def __init__(self, name: str, base: str, adapter: str):
        self.case = CASES[name]
        self.model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        if adapter:
            self.model = PeftModel.from_pretrained(self.model, adapter, is_trainable=True)
        self.tokens = torch.tensor(token_batch(self.case), dtype=torch.long)
        if self.case.kind != "decode":
            weights = [weight for weight in self.model.parameters() if weight.requires_grad]
            self.optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, weight_decay=0.0)
            self.model.train()

    def update(self, batch) -> float:
        loss = self.model(**batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def run(self, count: int) -> dict:
        """`count` steps, passes over the documents, or generations."""
        if self.case.kind == "train":
            batch = {"input_ids": self.tokens, "labels": self.tokens}
            return {"losses": [self.update(batch) for _ in range(count)]}
        if self.case.kind == "packed":
            rows = documents(self.case)
            losses = []
            for _ in range(count):
                for first in range(0, len(rows), self.case.batch):
                    losses.append(self.update(padded(rows[first : first + self.case.batch])))
            return {
                "useful_tokens": count * sum(len(ids) for ids, _ in rows),
                "finite": all(loss == loss for loss in losses),
            }
        self.model.eval()
        with torch.no_grad():
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
    serve(Peer(*sys.argv[1:4]).run)
