"""MindsporeTrainer's names, under its module paths too: a task with hooks, run by ``launch()``.

from pet.compat.mindspore_trainer.apps.tasks import Task, register_task

@register_task(name="questions", desc="…")
class Questions(Task):
    def get_model(self): …
    def train_data(self, **kwargs): …

launch()          # python task.py --task_name questions --do_train --do_eval --output_dir run
"""

from pet.compat.paths import modules_of
from pet.lazy import names_of, stub_table

_DATA, _LAUNCH, _MODEL, _TASK = (f"{__name__}.{name}" for name in ("dataset", "running", "model", "tasks"))
_TASKS = {_TASK: ("EvalData", "Task", "TransformerTask", "find_task", "register_task")}
_SETS = {_DATA: ("ExampleInstance", "ExampleSet", "create_dynamic_dataset")}
_BUILD = {_MODEL: ("build_transformer_model",)}

_RUN = {_LAUNCH: ("launch", "make_parser", "make_recipe")}

__getattr__, __dir__ = names_of(__name__, lambda: stub_table(__file__))
__modules__ = modules_of(
    {
        **dict.fromkeys(("apps.tasks", "task", "task.task", "task.task_registry"), _TASKS),
        **dict.fromkeys(("data", "data.example", "data.dynamic_dataset"), _SETS),
        "launcher": _RUN,
        "modeling": _BUILD,
        "optims": {"mindspore.nn": ("AdamWeightDecay", "Lamb", "Momentum", "SGD")},
        "utils.metrics": {"mindspore.train": ("Accuracy", "F1", "Loss", "Metric", "Perplexity", "Precision", "Recall")},
    }
)
