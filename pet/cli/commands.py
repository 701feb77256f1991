"""The table of commands. Its modules are imported only when their command runs: ``pet --help`` must be quick."""

from __future__ import annotations

# name → (module, what `pet --help` says of it)
COMMANDS: dict[str, tuple[str, str]] = {
    "finetune": ("pet.cli.finetune", "tune a model by a recipe: adapter, before and after, run directory"),
    "train": ("pet.cli.train", "train every weight by a recipe, from random ones where it says so"),
    "evaluate": ("pet.cli.evaluate", "measure a model on a recipe's held-out data"),
    "predict": ("pet.cli.predict", "answer questions from the command line or a file"),
    "chat": ("pet.cli.chat", "talk with a model on the terminal"),
    "merge": ("pet.cli.merge", "write a plain checkpoint with adapters merged in"),
    "export": ("pet.cli.export", "put a run's adapter or merged model into a directory to give away"),
    "convert": ("pet.cli.convert", "MindFormers .ckpt files to Hugging Face directories, and back"),
    "transform": ("pet.cli.transform", "write a sharded checkpoint in another layout, or whole"),
    "info": ("pet.cli.info", "what a model, adapter or run directory holds"),
    "plan": ("pet.cli.plan", "which layouts of a cluster a model fits on, and what each would take"),
    "data": ("pet.cli.data", "show what the model will see of a recipe's data"),
    "recipes": ("pet.cli.recipes", "list, show or copy the bundled recipes; write the JSON schema"),
    "validate": ("pet.cli.validate", "check recipes without running them"),
    "launch": ("pet.cli.launch", "start a command in several processes, on one machine or many"),
    "doctor": ("pet.cli.doctor", "show device, versions, memory, and what is known not to work together"),
}
