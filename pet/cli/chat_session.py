"""What ``pet predict`` and ``pet chat`` share: which model speaks, and by which settings."""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_zoo.atomic import no_directory
from model_zoo.errors import InputError
from model_zoo.generation_settings import DRAWN, FIELDS
from pet.cli.parser import Parser
from pet.names import find_model, own_tokenizer

log = logging.getLogger("pet")
# option → meaning; names of the generation section, whose values are written as in a recipe
GENERATION = {
    "max_new_tokens": "tokens of an answer, at most; default: the base's own, or up to its end or that of the context",
    "seed": "random seed of sampling",
    **{name: field.metadata["description"] for name, field in FIELDS.items() if name != "do_sample"},
}


def add_chat_session(parser: Parser) -> None:
    """The options that choose a model, an adapter and the way of writing."""
    parser.add_argument("--model", help="checkpoint directory, or a bundled tiny base; default: the adapter's base")
    parser.add_argument("--adapter", metavar="DIR", help="an adapter directory in PEFT's format")
    parser.add_argument(
        "--run", metavar="DIR", help="a run directory, or a job file: its model, adapter, prompts and settings"
    )
    parser.add_argument("job", metavar="RUN", nargs="?", help="the same as --run")
    parser.add_shared("--no-strict")
    parser.add_argument("--system", help="a system message")
    parser.add_argument("--template", help="a custom prompt template with {prompt} in it, or a Jinja file's name")
    parser.add_argument(
        "--thinking", action=argparse.BooleanOptionalAction, help="the thinking switch of chat templates that have one"
    )
    parser.add_argument("--sample", action="store_true", help="sample; default: greedy decoding")
    for name, meaning in GENERATION.items():
        sampling = "; implies --sample" if name in DRAWN else ""
        help_text = meaning[0].lower() + meaning[1:].rstrip(".") + sampling
        parser.add_argument("--" + name.replace("_", "-"), metavar="VALUE", help=help_text)
    parser.add_argument("--stop", action="append", metavar="TEXT", help="stop sequence; may be repeated")


def read(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """The options; ``run`` is what either way of naming it says."""
    options = parser.read(arguments)
    if options.job and "=" in options.job and not Path(options.job).exists():
        parser.refuse(options.job)
    if options.job and options.run:
        raise InputError(f"{options.job} and --run {options.run}: give one of them")
    options.run = options.run or options.job
    return options


def not_text(error: UnicodeDecodeError) -> InputError:
    """What to say of a standard input that is in another encoding than the terminal's."""
    return InputError(f"stdin: is not {error.encoding} text; name its encoding: PYTHONIOENCODING=utf-8")


@dataclasses.dataclass
class ChatSession:
    """A model ready to write.

    Attributes:
        model, tokenizer: with the adapter on it.
        generation: a recipe's ``generation`` section.
        settings: a `DataSettings`: the template and system message of prompts.
        adapter: the name of the adapter on the model, or None.
    """

    model: Any
    tokenizer: Any
    generation: Any
    settings: Any
    adapter: str | None = None
    _encoder: Any = None

    @property
    def encoder(self) -> Any:
        """What makes prompts, of the settings as they are now."""
        from pet.data.encode import Encoder

        if self._encoder is None or self._encoder[0] is not self.settings:
            self._encoder = self.settings, Encoder(self.tokenizer, self.settings)
        return self._encoder[1]

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """The ids that the model continues. With a text as template only the last question counts."""
        from pet.data.messages import open_with
        from pet.data.row import Row

        messages = list(messages)
        open_with(messages, self.settings.system)
        if self.encoder.settings.template is not None:
            messages = [*(m for m in messages[:1] if m["role"] == "system"), messages[-1]]
        row = Row(path=Path("prompt"), line=1, messages=messages, prompt=messages[-1]["content"])
        return self.encoder.prompt(row)


def base_of(adapter: Path, option: str = "--model") -> str:
    """The base that an adapter's configuration names.

    Raises:
        InputError: it names none, or one that is not on this machine.
    """
    from adapters.methods import BY_PEFT_TYPE
    from adapters.peft_config import read_adapter_config

    base = read_adapter_config(adapter, BY_PEFT_TYPE).get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        raise InputError(f"{adapter}: its adapter_config.json names no base; give it by {option}")
    try:
        find_model(base)
    except InputError as error:
        raise InputError(f"{adapter}: its base is not here, give it by {option} ({error})") from None
    return str(base)


def _run_recipe(options: argparse.Namespace):
    from pet.compat.yaml_files import load_any
    from pet.recipe.loading import load

    directory = options.run
    if Path(directory).is_file():  # what it names need not be here where the command line has another
        own = {"model.path": options.model} if options.model else {}
        unused = ["data.train", "data.eval", *(["adapter.load"] if options.adapter else [])]
        return load_any(directory, own, check_files=False, unused=unused)
    path = Path(directory, "recipe.yaml")
    if not path.is_file():
        what = "holds no recipe.yaml, so it is no run directory" if path.parent.is_dir() else no_directory(directory)
        raise InputError(f"--run {directory}: {what}")
    return load(path, check_files=False)


def _generation(options: argparse.Namespace, section: Any) -> Any:
    """The run's or the default ``generation`` section with the command line's settings in it."""
    from pydantic import ValidationError

    from pet.recipe.overrides import parse_override
    from pet.recipe.training import Generation

    written = [f"{name}={value}" for name in GENERATION if (value := getattr(options, name)) is not None]
    parsed = [parse_override(text) for text in written]
    InputError.raise_any(f"--{problem}" for _, _, problems in parsed for problem in problems)
    given = {path[0]: value for path, value, _ in parsed}
    if options.sample or given.keys() & set(DRAWN):
        given["do_sample"] = True
    if options.stop:
        given["stop"] = options.stop
    try:
        return Generation(**{**(section.model_dump() if section is not None else {}), **given})
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise InputError.collect(
            f"--{str(one['loc'][0]).replace('_', '-')} {one['input']}: {one['msg'].lower()}" for one in problems
        ) from None


def changed(settings: Any, **changes: Any) -> Any:
    """A `DataSettings` with options of the command line. Raises InputError: the template has no place for them."""
    from pet.recipe.rules import prompts

    settings = settings.of(settings, **changes)
    options = {"enable_thinking": "thinking"}
    asked = settings.of(settings, format="auto")  # whatever rows the model has learnt
    wrong = ((options.get(name, name), why) for name, _, why in prompts(asked) if name in changes)
    InputError.raise_any(f"--{name}: {why}" for name, why in wrong)
    return settings


def make_chat_session(options: argparse.Namespace) -> ChatSession:
    """Load what the options ask for. Raises InputError: neither model, adapter nor run; or one that cannot be used."""
    from pet.compat.results import no_result, of_job, written

    recipe = _run_recipe(options) if options.run else None
    adapter = Path(options.adapter) if options.adapter else None
    name, tuned = options.model, None
    if recipe is not None:
        run = Path(options.run)
        found, tuned = of_job(recipe) if run.is_file() else written(run)
        adapter = adapter or found
        if adapter is None and tuned is None and name is None:
            if run.is_dir():
                raise no_result(run)
            log.warning("%s: no adapter of it is here, so the base itself answers", options.run)
    if recipe is None and name is None:
        if adapter is None:
            raise InputError("no model: give --model, --adapter or --run")
        name = base_of(adapter)
    if adapter is None and options.no_strict:
        raise InputError("--no-strict: has no effect without an adapter")
    generation = _generation(options, recipe.generation if recipe is not None else None)
    from adapters.saving import load_adapter
    from adapters.stored import check_loadable
    from pet.data import DataSettings

    if adapter is not None:
        check_loadable(adapter)
    settings = DataSettings.of(recipe.data if recipe is not None else None, max_samples=None)  # that is for training
    changes = {key: value for key in ("system", "template") if (value := getattr(options, key)) is not None}
    if options.thinking is not None:
        changes["enable_thinking"] = options.thinking
    settings = changed(settings, **changes)
    model, tokenizer = _of_recipe(recipe, name, tuned) if recipe is not None else _of_checkpoint(name, adapter)
    if adapter is not None:
        load_adapter(model, adapter, strict=not options.no_strict)
    session = ChatSession(model, tokenizer, generation, settings, "default" if adapter is not None else None)
    if not model.scoring:
        _check_places(options, session.encoder)
    return session


def _check_places(options: argparse.Namespace, encoder: Any) -> None:
    """Raises InputError for an option that the chat template has no place for."""
    for name, what in {"thinking": "enable_thinking", "system": "system"}.items():
        if getattr(options, name) not in (None, ""):
            check_place(f"--{name}", what, encoder)


def check_place(name: str, what: str, encoder: Any) -> None:
    """Raises InputError, in the name of what was asked for, where the chat template writes nothing of it."""
    template = getattr(encoder.tokenizer, "template", None) if encoder.settings.template is None else None
    if template is not None and what in template.left_out:
        raise InputError(f"{name}: has no effect: the chat template has no place for it")


def _of_checkpoint(name: str, adapter: Path | None) -> tuple[Any, Any]:
    """A model, and its tokenizer or the adapter's; 16-bit weights stay as they are stored, which changes no result."""
    from pet.auto import AutoModel, AutoTokenizer

    directory = own_tokenizer(adapter) or find_model(name)
    return AutoModel.from_pretrained(name, "auto"), AutoTokenizer.from_pretrained(directory)


def _of_recipe(recipe: Any, name: str | None, tuned: Path | None) -> tuple[Any, Any]:
    """A recipe's model, in the form that it was trained in, and its tokenizer; or another, or the `tuned` one."""
    from pet.train.prepare import load_model, load_tokenizer, on_checkpoint

    if name is not None:
        recipe = on_checkpoint(recipe, name)
    elif recipe.adapter.method == "none" and tuned is not None:
        recipe = on_checkpoint(recipe, tuned)
        recipe.model.tokenizer = None  # it is saved with the model
    return load_model(recipe), load_tokenizer(recipe)
