"""MindFormers' high-level API on one device: train, finetune, eval, predict.

python standalone_task.py --model_type glm_tiny --train_dataset ./finetune --pet_method lora --run_mode finetune
python standalone_task.py --model_type glm_tiny --eval_dataset ./eval --run_mode eval --load_checkpoint output
python standalone_task.py --model_type glm_tiny --run_mode predict --predict_data 'hello!'
"""

import argparse

from pet.compat.command_line import add_switch, read, script
from pet.compat.mindformers import Trainer, TrainingArguments

# command line -> TrainingArguments; what is not given stays as the library has it
ARGUMENTS = {
    "output_dir": str,
    "num_train_epochs": float,
    "max_steps": int,
    "batch_size": int,
    "learning_rate": float,
    "warmup_steps": int,
    "weight_decay": float,
    "lr_scheduler_type": str,
    "optim": str,
    "save_steps": int,
    "seed": int,
    "seq_length": int,
}


def make_parser() -> argparse.ArgumentParser:
    """The arguments of both task scripts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="text_generation")
    parser.add_argument("--model_type", default="glm_tiny", help="bundled base, checkpoint directory or preset name")
    parser.add_argument("--run_mode", default="finetune", choices=["train", "finetune", "eval", "predict"])
    parser.add_argument("--pet_method", default="", help="lora, prefix, ptuning2, adapter, …; empty: every weight")
    parser.add_argument("--train_dataset", help="a file, or a directory of files")
    parser.add_argument("--eval_dataset", help="the same, to measure on")
    parser.add_argument("--predict_data", help="a text, or a file with one on each line")
    parser.add_argument("--load_checkpoint", help="a checkpoint, adapter or run directory, or MindFormers .ckpt")
    parser.add_argument("--tokenizer", help="where the tokenizer lies, if not beside the model")
    parser.add_argument("--max_length", type=int, default=64, help="of prompt and answer, when predicting")
    add_switch(parser, "resume_training", "go on with the run in --load_checkpoint, or else in --output_dir")
    add_switch(parser, "do_eval", "measure on --eval_dataset while training")
    for name, kind in ARGUMENTS.items():
        parser.add_argument(f"--{name}", type=kind)
    return parser


def make_trainer(options: argparse.Namespace, **more) -> Trainer:
    """The trainer that the arguments describe."""
    given = {name: getattr(options, name) for name in ARGUMENTS}
    return Trainer(
        task=options.task,
        model=options.model_type,
        pet_method=options.pet_method,
        args=TrainingArguments(**given, **more),
        train_dataset=options.train_dataset,
        eval_dataset=options.eval_dataset,
        tokenizer=options.tokenizer,
        do_eval=options.do_eval,
        load_checkpoint=options.load_checkpoint,
    )


def run(trainer: Trainer, options: argparse.Namespace) -> None:
    """Does what --run_mode says."""
    if options.run_mode == "train":
        trainer.train(resume=options.resume_training)
    elif options.run_mode == "finetune":
        trainer.finetune(resume=options.resume_training)
    elif options.run_mode == "eval":
        print({name: float(f"{value:.6g}") for name, value in trainer.evaluate().items()})
    else:
        print(trainer.predict(input_data=options.predict_data, max_length=options.max_length))


def main() -> None:
    """One process."""
    options = read(make_parser())
    run(make_trainer(options), options)


if __name__ == "__main__":
    script(main)
