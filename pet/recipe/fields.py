"""What every section of a recipe is built from: a strict base class and the few types that sections share."""

from __future__ import annotations

import re
import types
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator

from model_zoo.errors import shown
from model_zoo.settings import single


class Section(BaseModel):
    """A group of settings. Unknown keys are refused and types are not guessed: ``"8"`` is no number."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, validate_assignment=True, protected_namespaces=()
    )

    @field_validator("*")
    @classmethod
    def of_ordinary_size(cls, value: Any, info: Any) -> Any:
        """What is within its bounds has to be there as the float32 that takes part, too, and whole numbers in 64
        bits, which arrays and loops count by."""
        for number in value if isinstance(value, list) else [value]:
            if type(number) is int and not -(1 << 63) <= number < 1 << 63:
                raise ValueError(f"expected a whole number of ordinary size (64 bits); got {shown(number)}")
        if (number := single(value)) != value:
            try:
                cls.__pydantic_validator__.validate_assignment(cls.model_construct(), info.field_name, number)
            except ValueError:
                raise ValueError(f"{shown(value)} is {shown(number)} in float32, which is out of bounds") from None
        return value


class PathKind:
    """Marks a field that holds a path, and says what a relative one is relative to.

    ``"recipe"``: the directory of the recipe file, so that a recipe and its data travel together.
    ``"here"``: the current directory, for what a run writes.
    ``"model"``: a bundled or preset name, or else a directory beside the recipe.
    ``"template"``: a text, but for a Jinja file's name, which is relative to the recipe's directory.
    ``"reference"``: one of `REFERENCES`, or else a directory beside the recipe.
    A path given on the command line is always relative to the current directory. ``${NAME}`` is replaced by the
    environment variable and ``~`` by the home directory.
    """

    def __init__(self, relative_to: str):
        self.relative_to = relative_to


def is_template_file(template: str | None) -> bool:
    """Whether ``data.template`` names a file and is no text itself."""
    return template is not None and template.endswith((".jinja", ".jinja2", ".j2")) and "\n" not in template


def is_jinja(template: str | None) -> bool:
    """Whether ``data.template`` is a chat template, in a file or as it stands, and no text with names in braces."""
    return template is not None and (is_template_file(template) or "{%" in template)


def alone(what: str, *kinds: type) -> BeforeValidator:
    """A value of one of these kinds is a list of itself, and any other that is no list is refused: `what` says what was
    expected. True and false are no numbers."""

    def listed(value: Any) -> Any:
        if isinstance(value, list):
            return value
        if isinstance(value, kinds) and not isinstance(value, bool):
            return [value]
        raise ValueError(f"expected {what}; got {shown(value)}")

    return BeforeValidator(listed)


def _one_or_many(item: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [item, {"type": "array", "items": item}]}


def _matching(pattern: str) -> dict[str, Any]:
    """The JSON schema of a text in which a pattern is found."""
    return {"type": "string", "minLength": 1, "pattern": pattern}


class TextsToo:
    """Says in the JSON schema of a list that an entry may be a text, and stand by itself."""

    def __get_pydantic_json_schema__(self, core: Any, schema_of: Any) -> dict[str, Any]:
        return _one_or_many({"anyOf": [{"type": "string"}, schema_of(core)["items"]]})


PLAIN = r"A-Za-z0-9._-"
"""What the name of a run may have of ASCII, as a directory on every system; letters of other scripts beside."""
NAME_LETTERS, NAME_BYTES = 128, 200
"""Of a run's name: systems allow 255 bytes for a directory, and what is being written beside it has a longer name."""


def run_name(text: str) -> str:
    """A text as the name of a run: what that may not have is a line below, and what is too long is cut."""
    name = re.sub(rf"(?![{PLAIN}])[\x00-\x7f]", "_", text)[:NAME_LETTERS]
    while _bytes_of(name) > NAME_BYTES:
        name = name[:-1]
    return name


def _bytes_of(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))


def _no_place(name: str) -> str:
    if not name.strip("."):
        raise ValueError("a name was expected; this is a place")
    if (size := _bytes_of(name)) > NAME_BYTES:
        raise ValueError(f"{size} bytes of UTF-8; a directory's name has room for {NAME_BYTES}")
    return name


RunName = Annotated[
    str,
    Field(min_length=1, max_length=NAME_LETTERS, pattern=rf"^([{PLAIN}]|[^\x00-\x7f])+$"),
    AfterValidator(_no_place),
]
RecipePath = Annotated[str, PathKind("recipe"), Field(min_length=1)]
HerePath = Annotated[str, PathKind("here"), Field(min_length=1)]
WITH_PROMPT = _matching(r"\{prompt\}")
# a text with {prompt}, a chat template, its file, or what the environment says
_TEMPLATE = _matching(WITH_PROMPT["pattern"] + r"|\{%|\.(jinja2?|j2)$|\$\{")
TemplatePath = Annotated[str, PathKind("template"), Field(min_length=1), WithJsonSchema(_TEMPLATE)]
REFERENCES = PRECOMPUTE, ADAPTERS_OFF = ("precompute", "adapters_off")
ReferencePath = Annotated[str, PathKind("reference"), Field(min_length=1)]
ModelPath = Annotated[str, PathKind("model"), Field(min_length=1)]
# "q_proj" means ["q_proj"]
Names = Annotated[list[str], alone("a text or a list of texts", str), WithJsonSchema(_one_or_many({"type": "string"}))]


PART = r"(\d+|\d\d?%|100%)?:(\d+|\d\d?%|100%)?"


def _part(value: Any) -> Any:
    """``80%:`` is a mapping in YAML where no quotes are around it."""
    return f"{next(iter(value))}:" if isinstance(value, dict) and [*value.values()] == [None] else value


def _check_parts(value: list[str]) -> list[str]:
    for entry in value:
        if not re.fullmatch(PART, entry):
            raise ValueError(f"{entry!r} is no part of a file's rows; write :1000, :5%, 80%: or 100:200")
    return value


_OPEN_PART = {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 1}
_PART = {"anyOf": [_matching(f"^{PART}$"), _OPEN_PART]}
Parts = Annotated[
    list[Annotated[str, BeforeValidator(_part)]],
    alone("a part as :1000, or a list of them", str, dict),
    AfterValidator(_check_parts),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [_PART, {"type": "array", "items": _PART, "minItems": 1}]}),
]


def _check_layers(value: list[int | str]) -> list[int | str]:
    for entry in value:
        if isinstance(entry, str):
            first, _, last = entry.partition("-")
            whole = first.isdigit() and (not last or (last.isdigit() and int(first) <= int(last)))
            if not whole:
                raise ValueError(f"{entry!r} is no layer index or range; write 3, 0-7 or 20-")
        elif isinstance(entry, bool) or not isinstance(entry, int):
            raise ValueError(f"{entry!r} is no layer index or range; write 3, 0-7 or 20-")
        elif entry < 0:
            raise ValueError(f"{entry} is negative; layers are counted from 0")
    return value


_LAYER_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d+(-\d*)?$"}]}
Layers = Annotated[
    list[Any],
    alone("a layer as 3, 0-7 or 20-, or a list of them", str, int),
    AfterValidator(_check_layers),
    WithJsonSchema(_one_or_many(_LAYER_SCHEMA)),
]


def every(value: Any) -> Any:
    """True is every one, 2 every second one. pydantic would name the alternatives as if they were keys."""
    if not isinstance(value, int) or (value < 2 and not isinstance(value, bool)):
        raise ValueError(f"expected true, false or a whole number of at least 2; got {shown(value)}")
    return value


def _steps_or_share(value: float) -> float | int:
    if value >= 1:
        if value != int(value):
            raise ValueError(f"{value} is neither a whole number of steps nor a share below 1")
        return int(value)
    return value


# 100 is a hundred steps, 0.03 is three percent of all steps.
_STEPS, _SHARE = {"type": "integer", "minimum": 1}, {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
_MORE = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
StepsOrShare = Annotated[
    float, Field(ge=0), AfterValidator(_steps_or_share), WithJsonSchema({"anyOf": [_SHARE, _STEPS]})
]
Interval = Annotated[float, Field(gt=0), AfterValidator(_steps_or_share), WithJsonSchema({"anyOf": [_MORE, _STEPS]})]

FACTS = ("ge", "gt", "le", "lt", "min_length")
# What may be written shorter, or only in part, in a recipe.
IN_RECIPES = {
    list[str] | str | None: Names | None,
    list[str] | None: Names | None,
    list[int | str] | int | str | None: Layers | None,
    list[int] | dict[str, list[int]] | None: list[int] | None,
}


def _correct(check):
    """A validator of pydantic's out of a method's own check."""

    def validator(value: Any) -> Any:
        if (wrong := check(value)) is not None:
            raise ValueError(wrong)
        return value

    return AfterValidator(validator)


def setting_field(hint: Any, field) -> tuple[Any, Any]:
    """A setting (`model_zoo.settings`) as pydantic declares it."""
    facts, default = dict(field.metadata), {"default": field.default}
    bounds = {name: facts[name] for name in FACTS if name in facts}
    hint = IN_RECIPES.get(hint, hint)
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    mapping = next((kind for kind in kinds if get_origin(kind) is dict), None)
    if mapping is not None:  # nothing said is an empty one
        key, value = get_args(mapping)
        hint, default, bounds = dict[key, Annotated[value, Field(**bounds)]], {"default_factory": dict}, {}
    if "choices" in facts:
        hint = Literal[facts["choices"]]
    if "check" in facts:
        hint = Annotated[hint, _correct(facts["check"])]
    return hint, Field(**default, **bounds, description=facts["description"])
