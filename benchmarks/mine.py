"""This library's side of a comparison. Run by `compare.py` as a process of its own."""

from __future__ import annotations

import sys

import numpy as np
from cases import CASES, LEARNING_RATE, NEW_TOKENS, documents, token_batch
from worker import serve

import pet
from model_zoo.engine import product_rates
from model_zoo.quantization.plan import Quantization


def packed(rows, length):
    """Documents packed first-fit-decreasing into rows of one length, as the trainer does it."""
    from pet.data.packing import collate, first_fit_decreasing

    bins = first_fit_decreasing([len(ids) for ids, _ in rows], length)
    return collate([[rows[int(i)] for i in members] for members in bins], length)


class Mine:
    """Model, step and data of one case, its products in this precision."""

    def __init__(self, name: str, base: str, adapter: str, precision: str):
        self.case, self.precision = CASES[name], precision
        quantization = Quantization("nf4") if self.case.nf4 else None
        frozen = not self.case.nf4 and (self.case.kind == "decode" or self.case.targets)
        narrow = precision == "bf16" and frozen  # what is multiplied in 16 bits may lie in them
        source, dtype = (f"{base}-bf16", {"dtype": "auto"}) if narrow else (base, {})
        self.model = pet.AutoModel.from_pretrained(source, quantization=quantization, **dtype)
        if adapter:
            pet.load_adapter(self.model, adapter)
            for parameter in self.model.get_parameters():
                parameter.requires_grad = ".lora_" in parameter.name
        self.tokens = token_batch(self.case)
        self.steps = 0
        if self.case.kind != "decode":
            self.prepare()

    def prepare(self) -> None:
        from pet.train.objectives.causal import CausalLM
        from pet.train.optimizers import AdamW
        from pet.train.precision import set_precision
        from pet.train.segments import make_segments
        from pet.train.step import TrainStep

        parameters = [parameter for parameter in self.model.get_parameters() if parameter.requires_grad]
        optimizer = AdamW(make_segments(parameters, learning_rate=LEARNING_RATE, apart=AdamW.moves_in_place()))
        set_precision(self.model, self.precision)
        self.model.set_train(True)
        self.model.set_fast(True)
        self.step = TrainStep(self.model, optimizer, CausalLM())
        if self.case.kind == "train":
            index = np.zeros_like(self.tokens) + np.arange(self.case.length, dtype=np.int32)
            batch = {"input_ids": self.tokens, "labels": self.tokens, "position_ids": index}
            self.batches = [{**batch, "start": np.zeros_like(index), "end": index + 1}]
        else:
            every = documents(self.case)
            whole = packed(every, self.case.length)
            rows = len(whole["input_ids"])
            some = max(1, round(rows * self.case.batch / len(every)))
            self.batches = [{key: value[i : i + some] for key, value in whole.items()} for i in range(0, rows, some)]

    def update(self, batch) -> float:
        result = self.step([batch], self.steps, LEARNING_RATE)
        self.steps += 1
        return result.loss

    def run(self, count: int) -> dict:
        """`count` steps, passes over the documents, or generations; of 0, the rates of products."""
        if count == 0:
            return {"rates": product_rates()}
        if self.case.kind == "train":
            return {"losses": [self.update(self.batches[0]) for _ in range(count)]}
        if self.case.kind == "packed":
            losses = [self.update(batch) for _ in range(count) for batch in self.batches]
            useful = sum(len(ids) for ids, _ in documents(self.case))
            return {"useful_tokens": count * useful, "finite": all(loss == loss for loss in losses)}
        for _ in range(count):
            out = self.model.generate(self.tokens, max_new_tokens=NEW_TOKENS, eos_token_id=None)
        return {"ids": np.asarray(out).tolist()}


if __name__ == "__main__":
    serve(Mine(*sys.argv[1:5]).run)
