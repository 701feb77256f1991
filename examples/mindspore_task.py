"""MindsporeTrainer's way: a task with hooks.

python mindspore_task.py --task_name questions --do_train --do_eval --output_dir run --train_batch_size 4
"""

import pet
from pet.compat.command_line import script


@pet.register_task(name="questions", desc="questions about numbers")
class Questions(pet.Task):
    """Tunes a base by LoRA on files."""

    def add_arguments(self, parser):
        parser.add_argument("--base", default="glm_tiny")
        parser.add_argument("--lora_rank", type=int, default=4)

    def get_model(self, args):
        model, _ = pet.build_transformer_model(args.base)
        return pet.apply_lora(model, rank=args.lora_rank)

    def get_tokenizer(self, args):
        return pet.AutoTokenizer.from_pretrained(args.base)

    def train_data(self, args):
        return f"{args.data_dir}/data.jsonl"

    def eval_data(self, args):
        return f"{args.data_dir}/held_out.jsonl"

    def get_eval_fn(self, args):
        return lambda model, measured: measured["accuracy"]

    def test_data(self, args):
        return ["What is 3?", "What is 4?"]

    def get_pred_fn(self, args):
        def predict(model, texts, args):
            for answer in pet.pipeline("text_generation", model=model, tokenizer=args.tokenizer)(
                texts, max_new_tokens=4
            ):
                print("answer:", answer["text_generation_text"][0])

        return predict


def main() -> None:
    """Does what the command line says."""
    pet.launch()


if __name__ == "__main__":
    script(main)
