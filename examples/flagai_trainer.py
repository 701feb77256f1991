"""FlagAI's way: a trainer with a forward_step of its own, over an indexable dataset with a collate_fn.

python flagai_trainer.py --model glm_tiny --save_dir run
pet launch -n 2 -- python flagai_trainer.py --env_type pytorchDDP --batch_size 2
"""

import argparse

import numpy as np
from mindspore import ops

import pet
from pet.compat.command_line import script
from pet.compat.flagai import Trainer

LENGTH = 32


class Questions:
    """Indexable, of dictionaries."""

    def __init__(self, tokenizer, count: int):
        self.tokenizer, self.count = tokenizer, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        talk = [{"role": "user", "content": f"What is {index}?"}, {"role": "assistant", "content": f"It is {index}."}]
        ids, trained = self.tokenizer.example(talk)
        labels = [token if learn else -100 for token, learn in zip(ids, trained, strict=True)]
        return {"input_ids": ids[:LENGTH], "labels": labels[:LENGTH]}


def collate(samples):
    """Rows of one length."""
    ids, labels = np.zeros((len(samples), LENGTH), np.int32), np.full((len(samples), LENGTH), -100, np.int32)
    mask = np.zeros_like(ids)
    for row, sample in enumerate(samples):
        size = len(sample["input_ids"])
        ids[row, :size], labels[row, :size], mask[row, :size] = sample["input_ids"], sample["labels"], 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


class MyTrainer(Trainer):
    """Computes the loss itself."""

    def forward_step(self, data, model, mems):
        hidden = model.hidden_states(data["input_ids"], data["position_ids"], data["start"], data["end"], None)
        logits = model.head(hidden).reshape(data["input_ids"].shape + (-1,))
        vocabulary = logits.shape[-1]
        loss = ops.cross_entropy(
            logits[:, :-1].reshape(-1, vocabulary), data["labels"][:, 1:].reshape(-1), ignore_index=-100
        )
        return {"loss": loss}


def main() -> None:
    """Tunes by LoRA."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="glm_tiny")
    parser.add_argument("--save_dir", default="run")
    parser.add_argument("--env_type", default="pytorch")
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--epochs", type=float, default=3)
    options = parser.parse_args()
    model = pet.apply_lora(pet.AutoModel.from_pretrained(options.model), rank=4)
    tokenizer = pet.AutoTokenizer.from_pretrained(options.model)
    trainer = MyTrainer(
        env_type=options.env_type,
        epochs=options.epochs,
        batch_size=options.batch_size,
        lr=1e-2,
        eval_interval=4,
        log_interval=1,
        save_dir=options.save_dir,
    )
    data = Questions(tokenizer, 12)
    trainer.train(model, train_dataset=data, valid_dataset=data, collate_fn=collate)


if __name__ == "__main__":
    script(main)
