"""MindFormers' high-level API on several processes.

    pet launch -n 4 -- python distribute_task.py --model_type llama_tiny --train_dataset ./finetune \
        --pet_method lora --run_mode finetune --use_parallel True \
        --data_parallel 1 --model_parallel 2 --pipeline_parallel 2 --micro_size 2

or, with MindFormers' shell wrapper: bash run_distribute_single_node.sh "python distribute_task.py …" "" [0,4] 4
"""

from standalone_task import make_parser, make_trainer, run

from pet.compat.command_line import add_switch, read, script
from pet.compat.mindformers import ContextConfig, ParallelContextConfig, init_context

LAYOUT = ("data_parallel", "model_parallel", "pipeline_parallel", "micro_size")


def main() -> None:
    """Joins the job, divides the work, and does what --run_mode says."""
    parser = make_parser()
    add_switch(parser, "use_parallel", "be one of the processes that pet launch started", default=False)
    for name in LAYOUT:
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--parallel_mode", default="SEMI_AUTO_PARALLEL")
    add_switch(parser, "optimizer_shard", "divide the optimizer's state over the copies", default=False)
    options = read(parser)
    rank, size = init_context(
        use_parallel=options.use_parallel,
        context_config=ContextConfig(mode=0),
        parallel_config=ParallelContextConfig(parallel_mode=options.parallel_mode),
    )
    print(f"process {rank} of {size}")
    trainer = make_trainer(options, use_parallel=options.use_parallel)
    trainer.set_parallel_config(
        data_parallel=options.data_parallel,
        model_parallel=options.model_parallel,
        pipeline_stage=options.pipeline_parallel,
        micro_batch_num=options.micro_size,
        optimizer_shard=options.optimizer_shard,
    )
    run(trainer, options)


if __name__ == "__main__":
    script(main)
