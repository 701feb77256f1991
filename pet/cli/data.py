"""``pet data``: a recipe's data as the model gets it."""

from __future__ import annotations

from collections.abc import Sequence

from model_zoo.errors import InputError, similar
from pet.cli.parser import Parser, add_recipe

EXAMPLES = [
    ("pet data glm_lora", "three samples, learnt tokens in green; lengths; padding; what was cut or dropped"),
    ("pet data glm_lora data.max_length=64 --samples 0", "what a shorter max_length would cut"),
    ("pet data glm_lora --split eval --samples 10", "ten evaluation samples"),
]
SPLITS = ("train", "eval", "test")


def main(arguments: Sequence[str]) -> int:
    """Tokenise a split and show it."""
    parser = Parser(
        "pet data", "Show a recipe's data as the model gets it: tokens, labels, lengths, padding.", EXAMPLES
    )
    add_recipe(parser)
    parser.add_argument("--split", default="train", metavar="SPLIT", help="train (default), eval or test")
    parser.add_argument("--samples", type=int, default=3, metavar="N", help="samples shown in full (default 3)")
    options = parser.read(arguments)
    if options.split not in SPLITS:
        raise InputError(
            f"--split {options.split!r}: expected one of {', '.join(SPLITS)}{similar(options.split, SPLITS)}"
        )
    if options.samples < 0:
        raise InputError(f"--samples {options.samples}: expected 0 or more")
    from pet.compat.yaml_files import load_any

    held_out = options.split == "eval"
    recipe = load_any(options.recipe, options.overrides, needs=() if held_out else [f"data.{options.split}"])
    paths = getattr(recipe.data, options.split)
    if held_out and not paths and not recipe.data.eval_fraction:
        raise InputError(f"{recipe.where('data')}: there is neither data.eval nor data.eval_fraction")
    if recipe.model.tokenizer is None:
        raise InputError(f"{recipe.where('model.tokenizer')}: is missing; {recipe.model.path} is a size without files")
    from pet.data import load_dataset, show
    from pet.train.prepare import data_settings, held_out_settings, load_data, load_tokenizer

    tokenizer = load_tokenizer(recipe)
    train = options.split == "train"
    settings = data_settings(recipe) if train else held_out_settings(recipe)
    if options.split == "test":
        settings = held_out_settings(recipe, deduplicate=False)
        dataset = load_dataset(paths, tokenizer, settings=settings)
    else:
        if not held_out:
            recipe.data.eval = None  # only the training data is asked for
        dataset = load_data(recipe, tokenizer)[held_out]
    how = {"settings": settings}
    if settings.share_question:  # what pairs share depends on the model
        from pet.meta_model import MetaModel
        from pet.train.feed import placing

        how = placing(settings, MetaModel(recipe.model.config_json()))
    rows = recipe.train.batch_size
    rows = rows * recipe.train.accumulation if train else recipe.eval.batch_size or rows
    show(dataset, tokenizer, batch_size=rows, samples=options.samples, **how)
    return 0
