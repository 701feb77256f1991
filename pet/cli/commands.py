"""The table of commands. Its modules are imported only when their command runs: ``pet --help`` must be quick."""

from __future__ import annotations

from collections.abc import Sequence

# name → (module, what `pet --help` says of it)
COMMANDS: dict[str, tuple[str, str]] = {
    "finetune": ("pet.cli.finetune", "fine-tune a model with a recipe; evaluates before and after"),
    "train": ("pet.cli.train", "train all weights with a recipe, optionally from scratch"),
    "evaluate": ("pet.cli.evaluate", "evaluate a model on a recipe's held-out data"),
    "predict": ("pet.cli.predict", "answer questions from the command line or a file"),
    "chat": ("pet.cli.chat", "chat with a model on the terminal"),
    "merge": ("pet.cli.merge", "write a plain checkpoint with adapters merged in"),
    "add-tokens": ("pet.cli.add_tokens", "write a checkpoint whose tokenizer has further tokens"),
    "quantize": ("pet.cli.quantize", "write a checkpoint in 8 or 4 bits"),
    "export": ("pet.cli.export", "export a run's adapter or merged model for sharing"),
    "download": ("pet.cli.download", "download a model from Hugging Face or ModelScope"),
    "convert": ("pet.cli.convert", "MindFormers .ckpt files to Hugging Face directories, and back"),
    "transform": ("pet.cli.transform", "convert a sharded checkpoint to another layout, or to a whole one"),
    "info": ("pet.cli.info", "show the contents of a model, adapter or run directory"),
    "plan": ("pet.cli.plan", "list the parallel layouts that fit a cluster, with memory and time estimates"),
    "data": ("pet.cli.data", "show a recipe's data as the model gets it: tokens, labels, lengths, padding"),
    "recipes": ("pet.cli.recipes", "list, show or copy the bundled recipes; write the JSON schema"),
    "validate": ("pet.cli.validate", "check recipes without running them"),
    "launch": ("pet.cli.launch", "start a command in several processes, on one or more machines"),
    "doctor": ("pet.cli.doctor", "check device, versions, memory and known incompatibilities"),
}

PROGRAMS = {
    "axolotl": {"train": "finetune", "merge-lora": "merge", "inference": "chat", "preprocess": "data"}
    | {"evaluate": "evaluate"},
    "llamafactory-cli": {"train": "finetune", "export": "merge", "chat": "chat", "eval": "evaluate"},
}
"""Other systems' programs, and what does here what their commands do with a job file."""


def called_elsewhere(words: Sequence[str]) -> str | None:
    """The command here for another system's: with its program's name in front, or without where we have none of it."""
    theirs = PROGRAMS.get("llamafactory-cli" if words[0] == "lmf" else words[0])
    if theirs is None:
        return next((commands[words[0]] for commands in PROGRAMS.values() if words[0] in commands), None)
    return theirs.get(words[1] if len(words) > 1 else "train")
