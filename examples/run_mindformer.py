"""A job by its YAML file: a recipe, or a MindFormers file as it is.

    python run_mindformer.py --config run_llama_7b_lora.yaml --run_mode finetune --train_dataset_dir ./data \
        --load_checkpoint ./llama-7b --remote_save_url file:///mnt/results
"""

import argparse

from pet.compat.command_line import add_switch, read, script
from pet.compat.mindformers import Trainer
from pet.compat.modelarts import Upload, expand
from pet.compat.yaml_files import run_mode_of


def main() -> None:
    """Reads the file, lets the command line have the last word, and runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    modes = ["train", "finetune", "eval", "predict"]
    parser.add_argument("--run_mode", choices=modes, help="default: what the file says, or finetune")
    parser.add_argument("--train_dataset_dir")
    parser.add_argument("--eval_dataset_dir")
    parser.add_argument("--predict_data")
    parser.add_argument("--load_checkpoint", help="a checkpoint, adapter or run directory, or MindFormers .ckpt")
    parser.add_argument("--output_dir")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--batch_size", type=int)
    parser.add_argument("--remote_save_url", help="file:///directory or obs://bucket/directory")
    add_switch(parser, "do_eval", "measure while training")
    add_switch(parser, "resume_training", "go on with the run in --load_checkpoint, or else in the output directory")
    add_switch(parser, "only_save_strategy", "write the strategy files of the layout, and end")
    add_switch(parser, "profile", "record where the time of a few steps goes")
    add_switch(parser, "use_parallel", "be one of the processes that pet launch started")
    options = read(parser)
    given = {
        "output_dir": options.output_dir,
        "seed": options.seed,
        "num_train_epochs": options.epochs,
        "batch_size": options.batch_size,
        "profile": options.profile,
        "only_save_strategy": options.only_save_strategy,
        "use_parallel": options.use_parallel,
    }
    mode = options.run_mode or run_mode_of(options.config) or "finetune"
    upload = Upload(options.remote_save_url) if options.remote_save_url else None
    trainer = Trainer(
        recipe=options.config,
        args={name: value for name, value in given.items() if value is not None},
        train_dataset=options.train_dataset_dir and expand(options.train_dataset_dir),
        eval_dataset=options.eval_dataset_dir and expand(options.eval_dataset_dir),
        do_eval=options.do_eval,
        load_checkpoint=options.load_checkpoint and expand(options.load_checkpoint),
        callbacks=[upload] if upload else [],
    )
    if mode == "eval":
        print(trainer.evaluate())
    elif mode == "predict":
        print(trainer.predict(input_data=options.predict_data))
    elif mode == "train":
        trainer.train(resume=options.resume_training)
    else:
        trainer.finetune(resume=options.resume_training)


if __name__ == "__main__":
    script(main)
