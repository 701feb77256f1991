"""The names, each with the module that has it: for editors, and for `__init__.py`, which finds them here."""

from pet.compat.mindspore_trainer.dataset import (
    ExampleInstance as ExampleInstance,
    ExampleSet as ExampleSet,
    create_dynamic_dataset as create_dynamic_dataset,
)
from pet.compat.mindspore_trainer.model import (
    build_transformer_model as build_transformer_model,
)
from pet.compat.mindspore_trainer.running import (
    launch as launch,
    make_parser as make_parser,
    make_recipe as make_recipe,
)
from pet.compat.mindspore_trainer.tasks import (
    EvalData as EvalData,
    Task as Task,
    TransformerTask as TransformerTask,
    find_task as find_task,
    register_task as register_task,
)
