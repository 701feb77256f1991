"""The result of a run on Hugging Face's hub."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from model_zoo.errors import InputError
from pet.hub import Repository
from pet.train.callbacks.base import Callback


class Hub(Callback):
    """Uploads a run's adapter, or the model where every weight was trained, at its end: as `pet export` writes it, with
    the tokenizer and a README.md; of a script's own objects the adapter or the model alone. A run that fails or is
    stopped uploads nothing.

    Args:
        name: of the repository, ``owner/name``, or ``name`` for the account's own. It is made before the first step,
            unless it is there, so that hours of training do not end at a wrong name.
        private: see `pet.hub.Repository`.

    Raises:
        InputError: see there; an upload that fails names the command that does it again.
    """

    needs_directory = True

    def __init__(self, name: str, private: bool | None = None):
        self.repository = Repository(name, private)

    def start(self, trainer) -> None:
        if trainer.finish is None:
            raise InputError("callbacks: hub: a trainer over batches writes no adapter or model to upload")
        self.repository.make()

    def end(self, trainer, summary) -> None:
        if "method" not in summary:  # no result was written
            return
        from pet.model_card import Source, share
        from pet.recipe.loading import load

        run = Path(trainer.directory)
        result = next((run / name for name in ("adapter", "model") if (run / name).is_dir()), None)
        if result is None:
            raise InputError("callbacks: hub: a cell of no family has neither adapter/ nor model/ to upload")
        described = (run / "recipe.yaml").is_file()  # else model and data are objects of a script
        try:
            with TemporaryDirectory() as place:
                if described:
                    recipe = load(run / "recipe.yaml", check_files=False)
                    source = Source(result, recipe.model.path, recipe.name or run.name, run, recipe)
                    share(Path(place), source)
                message = f"{run.resolve().name}: {summary['steps']} steps"
                summary["uploaded"] = self.repository.fill(place if described else result, message)
        except InputError as error:
            name = self.repository.name
            again = f"pet export {run} --output DIR --hub {name}" if described else f"hf upload {name} {result}"
            raise InputError(f"{error}; the run is whole: {again} uploads it") from None
