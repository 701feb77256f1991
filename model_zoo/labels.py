"""What the numbers of a head mean that judges a whole text, and how config.json says it. Without MindSpore.

Hugging Face's ``…ForSequenceClassification`` have such a head, ``score``, in the place of the language model's: one
number per label at the last token of a text. A reward model's gives one number.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from model_zoo.atomic import json_value
from model_zoo.errors import InputError, nearest, shown

SCORE = "score"
"""The head's cell."""
CLASSIFIER = "ForSequenceClassification"
"""How the names of such architectures end."""
SINGLE, REGRESSION, MULTI = PROBLEMS = ("single_label_classification", "regression", "multi_label_classification")
"""What ``problem_type`` may be."""
OTHERWISE = {"Gemma3ForCausalLM": f"Gemma3Text{CLASSIFIER}"}
"""Architectures whose classifier is not called after them."""
LABEL_FIELDS = ("num_labels", "id2label", "label2id", "problem_type")
"""What config.json says of them."""


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of a head.

    Attributes:
        names: one for each of its numbers.
        problem: one of `PROBLEMS`: of the labels one is right, or each may be; or the numbers are what is measured.
            None where nobody says it.
    """

    names: tuple[str, ...]
    problem: str | None = None

    @classmethod
    def plain(cls, count: int) -> Labels:
        """So many labels of which nothing is known."""
        return cls(tuple(f"LABEL_{number}" for number in range(count)))

    @classmethod
    def said(cls, values: Mapping[str, Any]) -> Labels | None:
        """Those of ``id2label`` (or ``num_labels``) and ``problem_type``; None where neither of the first is there.

        Raises:
            InputError: values that make no sense.
        """
        given, count, problem = values.get("id2label"), values.get("num_labels"), values.get("problem_type")
        if not given and count is None:
            return None
        if count is not None and (type(count) is not int or not 0 < count < 1 << 20):
            raise InputError(f"config.json: num_labels is {shown(count)}; a number of labels was expected")
        if problem not in (None, *PROBLEMS):
            raise InputError(f"config.json: problem_type is {shown(problem)}; expected {', '.join(PROBLEMS)}")
        if not given:
            return dataclasses.replace(cls.plain(count), problem=problem)
        names = {str(key): str(name) for key, name in given.items()} if isinstance(given, Mapping) else {}
        order = [str(number) for number in range(len(names))]
        if not names or {*names} != {*order}:
            raise InputError(f"config.json: id2label is {shown(given)}; names by the numbers from 0 were expected")
        return cls(tuple(names[number] for number in order), problem)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Labels | None:
        """Those of a classifier's config.json, which leaves out two without names; None of any other."""
        return cls.said({"num_labels": 2, **values}) if is_classifier(values) else None

    @property
    def kind(self) -> str:
        """`problem`, or what transformers takes it for: one number is a value."""
        return self.problem or (REGRESSION if len(self.names) == 1 else SINGLE)

    def written(self) -> dict[str, Any]:
        """For config.json."""
        numbered = {str(number): name for number, name in enumerate(self.names)}
        found = {"id2label": numbered, "label2id": {name: int(number) for number, name in numbered.items()}}
        return found if self.problem is None else {**found, "problem_type": self.problem}

    @classmethod
    def read(cls, text: str | None, rows: int) -> Labels:
        """Those that the file of an adapter says, `written` as JSON; of a head with so many rows that says nothing
        plain ones.

        Raises:
            InputError: it is none, or not as long.
        """
        try:
            found = (cls.said(json_value(text)) if text else None) or cls.plain(rows)
        except (ValueError, AttributeError) as error:
            raise InputError(f"labels {shown(text)} are not understood: {error}") from None
        if len(found.names) != rows:
            raise InputError(f"labels {shown(text)} are {len(found.names)}; the head has {rows} rows")
        return found

    @property
    def are_named(self) -> bool:
        """Whether they have names of their own."""
        return self.names != self.plain(len(self.names)).names

    def targets(self, label: Any) -> list[float]:
        """What the numbers are to be for a label of the data.

        Args:
            label: a name or a number; a value; of several labels a list of these, or one of 0 and 1 for each label.

        Raises:
            InputError: it is none of these.
        """
        count = len(self.names)
        if self.kind == REGRESSION:
            values = label if isinstance(label, list) else [label]
            try:
                found = [float(value) for value in values]
            except (TypeError, ValueError):
                found = []
            if len(found) != count or not all(map(math.isfinite, found)):
                raise InputError(f"label {shown(label)}: expected {'a number' if count == 1 else f'{count} numbers'}")
            return found
        if self.kind == MULTI:
            if not isinstance(label, list):
                raise InputError(f"label {shown(label)}: a list of labels was expected")
            if len(label) == count and all(value in (0, 1) for value in label):
                return [float(value) for value in label]
            chosen = {self.number(one) for one in label}
        else:
            chosen = {self.number(label)}
        return [float(number in chosen) for number in range(count)]

    def number(self, label: Any) -> int:
        """The place of a label: by its name, or its number."""
        if str(label) in self.names and not isinstance(label, (list, dict)):
            return self.names.index(str(label))
        number = int(label) if re.fullmatch(r"\d{1,9}", str(label)) or isinstance(label, bool) else -1
        if not 0 <= number < len(self.names):
            known = ", ".join(map(repr, self.names[:8])) + (" …" if len(self.names) > 8 else "")
            raise InputError(
                f"label {shown(label)} is none of {len(self.names)}: {known}{nearest(str(label), self.names)}"
            )
        return number


def labels_for(said: Sequence[Any], values: Mapping[str, Any], known: Labels | None = None) -> Labels:
    """The labels of a head that learns data: the model's, or as far as nobody has named them, the data's in order.

    Args:
        said: what the data says of its texts, each once; empty where that is not known beforehand.
        values: the language model's config.json, in which a user may name them.
        known: those of the head that the model has.

    Raises:
        InputError: nobody says which there are.
    """
    if known is None and (known := Labels.said(values)) is not None and not known.are_named:
        known = Labels.said({**values, "id2label": None})  # older files have such names without a meaning
    if known is None and not said:
        raise InputError("no label of the data is known beforehand; say them by model.config: {id2label: {0: …}}")
    lists = [one for one in said if isinstance(one, list)]
    every = {each for one in said for each in (one if isinstance(one, list) else [one])}
    problem = known.problem if known is not None else values.get("problem_type")
    if problem is None and said:
        measured = any(isinstance(each, float) for each in every)
        if lists and (every <= {0, 1} or not measured):
            problem = MULTI
        else:
            problem = REGRESSION if measured or (known is not None and len(known.names) == 1) else SINGLE
    marks = problem == MULTI and every <= {0, 1} and len({len(one) for one in lists}) == 1
    if problem == REGRESSION or marks:
        found = Labels.plain(len(lists[0]) if lists else 1)
    elif all(isinstance(each, int) for each in every) and min(every, default=0) == 0:
        found = Labels.plain(int(max(every, default=0)) + 1)
    else:
        found = Labels(tuple(str(each) for each in sorted(every, key=lambda each: (isinstance(each, str), each))))
    if known is not None and (known.are_named or len(known.names) != len(found.names)):
        found = known
    return Labels(found.names, problem)


def is_classifier(values: Mapping[str, Any]) -> bool:
    """Whether a config.json's dictionary is of a model with such a head."""
    named = values.get("architectures")
    return isinstance(named, list) and any(str(name).endswith(CLASSIFIER) for name in named)


def as_classifier(values: Mapping[str, Any], labels: Labels, architecture: str) -> dict[str, Any]:
    """A config.json's dictionary with such a head in the place of the language model's.

    Args:
        architecture: what transformers calls the language model.

    Raises:
        InputError: transformers has no such model of it.
    """
    name = OTHERWISE.get(architecture) or re.sub("(ForCausalLM|LMHeadModel)$", CLASSIFIER, architecture)
    if not name.endswith(CLASSIFIER):
        raise InputError(f"{architecture}: transformers has no {CLASSIFIER} of it, so that its head has no place")
    return {**values, "architectures": [name], **labels.written()}
