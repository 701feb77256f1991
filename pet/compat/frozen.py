"""Which weights a job file trains where it freezes the others, by the names and the layers of its base."""

from __future__ import annotations

import re
from typing import Any

from adapters.patterns import names_like
from model_zoo.counting import parameter_shapes, sizes
from model_zoo.errors import InputError
from pet.compat.job_files import called, listed
from pet.names import model_config
from pet.recipe.translation import Translation, is_off

KEYS = ("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules")
LAST = 2
"""Layers that LLaMA-Factory trains unless the file says how many."""


def fit_frozen(t: Translation, base: Any) -> None:
    """Puts the weights that are trained; with ``use_llama_pro`` and an adapter, the layers that it goes to.

    Args:
        base: what ``model.path`` will be.
    """
    values = t.values
    freezes = values.get("finetuning_type") == "freeze"
    patterns = None if t.get("adapter.method") != "none" else values.get("unfrozen_parameters")
    name = "finetuning_type" if freezes else "use_llama_pro" if not is_off(values.get("use_llama_pro")) else ""
    name = name or ("unfrozen_parameters" if not is_off(patterns) else "")
    if not name or not isinstance(base, str):
        return
    try:
        config = model_config(base)
        names, count = list(parameter_shapes(config)), sizes(config).layers
    except InputError as error:
        return t.refuse(name, f"goes by the layers of the base: {error}")
    with t.reading(name, {key: values[key] for key in (*KEYS, "unfrozen_parameters") if values.get(key) is not None}):
        if name == "unfrozen_parameters":
            return t.put("adapter.trained", _unfrozen(t, patterns, names))
        layers = _layers(t, values, count)
        if not freezes:
            return t.put("adapter.layers", layers)
        modules, extra = (listed(values.get(key) or []) for key in KEYS[1:])
        chosen = [
            f"*.{layer}.{'' if module == 'all' else module}*" for module in modules or ["all"] for layer in layers
        ]
        t.put("adapter.trained", [*chosen, *(f"*{module}*" for module in extra)])


def _layers(t: Translation, values: Any, count: int) -> list[int]:
    """LLaMA-Factory's: the last ones, the first ones of a negative number, or the last of each of so many blocks."""
    given = values.get(KEYS[0])
    wanted = LAST if given is None else int(given)
    if is_off(values.get("use_llama_pro")):
        return list(range(max(0, count - wanted), count) if wanted > 0 else range(min(-wanted, count)))
    if wanted < 1 or count % wanted:
        t.refuse(KEYS[0], f"{wanted}: the base has {count} layers, which use_llama_pro divides into so many blocks")
        return []
    return list(range(count // wanted - 1, count, count // wanted))


def _unfrozen(t: Translation, patterns: Any, names: list[str]) -> list[str]:
    """axolotl's: expressions for the beginning of a name, in which a dot is one. Those that match nothing are passed
    over, if others do."""
    chosen, idle = [], []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if re.search(r"\[\d*:\d*\]$", pattern):
            t.refuse("unfrozen_parameters", f"{pattern}: a weight is trained as a whole; leave out the rows")
            continue
        ways = [_expression(way) for way in called(pattern.replace(r"\.", "."))]
        found = next((way for way in ways if names_like(way, names)), None)
        (idle if found is None else chosen).append(found or pattern)
    for pattern in idle if chosen else ():
        t.ignore(pattern, "the base has no such weights, and axolotl passes over them")
    if idle and not chosen:
        t.refuse("unfrozen_parameters", f"{', '.join(idle)}: the base has no such weights")
    return chosen


def _expression(pattern: str) -> str:
    return "re:" + re.sub(r"\.(?!\+)", r"\.", pattern) + ".*"
