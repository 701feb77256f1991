"""A job by its YAML file: a recipe, or a MindFormers file as it is.

    python run_mindformer.py --config run_llama_7b_lora.yaml --run_mode finetune --train_dataset_dir ./data \
        --load_checkpoint ./llama-7b --remote_save_url file:///mnt/results
"""

import argparse

from pet.compat.command_line import add_switch, place_or_switch, read, script, settings
from pet.compat.mindformers import Trainer
from pet.compat.modelarts import Upload, expand
from pet.compat.yaml_files import run_mode_of


def main() -> None:
    """Reads the file, lets the command line have the last word, and runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    modes = ["train", "finetune", "eval", "predict"]
    parser.add_argument("--run_mode", choices=modes, help="default: what the file says, or finetune")
    parser.add_argument("--train_dataset_dir", "--train_dataset", "--train_data")
    parser.add_argument("--eval_dataset_dir", "--eval_dataset", "--eval_data")
    parser.add_argument("--predict_data", nargs="+", help="texts, or a file with one on each line")
    parser.add_argument("--load_checkpoint", help="a checkpoint, adapter or run directory, or MindFormers .ckpt")
    parser.add_argument("--output_dir")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--batch_size", type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int)
    parser.add_argument("--num_samples", type=int, help="read so many rows at most")
    parser.add_argument("--src_strategy_path_or_dir", help="how --load_checkpoint, a folder of ranks, is divided")
    parser.add_argument("--remote_save_url", help="file:///directory or obs://bucket/directory")
    parser.add_argument("--options", nargs="+", default=[], metavar="KEY=VALUE", help="dotted keys of the file")
    add_switch(parser, "do_eval", "measure while training")
    add_switch(parser, "do_sample", "draw the tokens of an answer")
    parser.add_argument(
        "--resume_training", nargs="?", const=True, type=place_or_switch, help="True, or the run's place"
    )
    add_switch(parser, "only_save_strategy", "write the strategy files of the layout, and end")
    add_switch(parser, "profile", "record where the time of a few steps goes")
    add_switch(parser, "use_parallel", "be one of the processes that pet launch started")
    options = read(parser, dotted=True)
    given = {
        "output_dir": options.output_dir,
        "seed": options.seed,
        "num_train_epochs": options.epochs,
        "batch_size": options.batch_size,
        "gradient_accumulation_steps": options.gradient_accumulation_steps,
        "num_samples": options.num_samples,
        "profile": options.profile,
        "only_save_strategy": options.only_save_strategy,
        "use_parallel": options.use_parallel,
    }
    mode = options.run_mode or run_mode_of(options.config) or "finetune"
    upload = Upload(options.remote_save_url) if options.remote_save_url else None
    changes = settings(options.options)
    changes |= {"remote_save_url": None} if upload else {}
    changes |= (
        {"src_strategy_path_or_dir": options.src_strategy_path_or_dir} if options.src_strategy_path_or_dir else {}
    )
    trainer = Trainer(
        recipe=options.config,
        args={name: value for name, value in given.items() if value is not None},
        train_dataset=options.train_dataset_dir and expand(options.train_dataset_dir),
        eval_dataset=options.eval_dataset_dir and expand(options.eval_dataset_dir),
        do_eval=options.do_eval,
        load_checkpoint=options.load_checkpoint and expand(options.load_checkpoint),
        callbacks=[upload] if upload else [],
        options=changes,
    )
    if mode == "eval":
        print(trainer.evaluate())
    elif mode == "predict":
        generation = {} if options.do_sample is None else {"do_sample": options.do_sample}
        print(trainer.predict(input_data=options.predict_data, **generation))
    elif mode == "train":
        trainer.train(resume=options.resume_training)
    else:
        trainer.finetune(resume=options.resume_training)


if __name__ == "__main__":
    script(main)
