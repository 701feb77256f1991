"""The data sets of axolotl's job files: their files, parts, formats, columns and prompts.

Its types for preferences write a question and its answers as texts, which TRL reads with the tokenizer's opening token
in front and its end token behind an answer that does not end so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_zoo.errors import InputError
from pet.compat import job_files as jobs
from pet.compat.contradictions import OF_A_DATA_SET, refuse_contradictions
from pet.compat.lacking_tokens import lacking, new_tokens, refuse_lacking
from pet.compat.prompts import ALPACA, AXOLOTL, of_turns
from pet.compat.translation import same
from pet.data.finding import find_files
from pet.data.messages import FLAGS, SAID_BY
from pet.data.prompt import Prompt
from pet.data.readers import read_records
from pet.data.records import Problems
from pet.recipe.translation import Translation, is_off

FORMATS = {
    **dict.fromkeys(ALPACA, "alpaca"),
    "completion": "text",
    "sharegpt": "sharegpt",
    "chat_template": "chat",
    "pretrain": "text",
    "input_output": "segments",
    "None": "tokens",
}
"""A data set's ``type`` up to its first dot or colon -> ``data.format``."""
ENTRY = {
    "field": "text",
    "text_column": "text",
    "field_messages": "messages",
    "field_instruction": "prompt",
    "field_input": "input",
    "field_output": "answer",
    "field_system": "system",
    "field_tools": "tools",
    # read beside this table, or found by the reader itself
    **same(None, "path type data_files ds_type name split train_on_split shards revision trust_remote_code"),
    **same(None, "message_field_role message_field_content message_property_mappings roles preprocess_shards"),
    **same(None, "field_human field_model conversation chat_template chat_template_jinja drop_system_message"),
    **same(None, "roles_to_train train_on_eos train_on_eot message_field_training"),
}
"""Keys of a data set's entry -> the role of the column that they name."""
RANKING = {"field_chosen": "chosen", "field_rejected": "rejected", "field_prompt": "prompt"}
RANKING |= {"field_completion": "answer", "field_label": "label"}
STYLES = {"icr": "input", "intel": "question", "prompt_pairs": "prompt", "ultra": "prompt", "argilla": "instruction"}
"""Of ``chatml`` and ``llama3``: ``chatml.intel`` has its question in this column."""
EITHER = {"prompt": "prompt input question instruction"}
EITHER |= {role: f"{role} {role}_response" for role in ("chosen", "rejected")}
"""Of their style ``default``: the columns of which the first that rows have is read."""
WRITTEN = ("chatml", "llama3")
"""Types that write a question and its answers as texts."""
OF_SCORES = "bradley_terry.chat_template"
"""A reward model's type that is written by a chat template."""
PREPARED = ("None", "passthrough")
"""Types that leave rows as they are, for TRL."""
RANKED_TYPES = [f"{kind}.{style}" for kind in WRITTEN for style in ("default", "argilla_chat", *STYLES)]
RANKED_TYPES += ["chat_template.argilla", "chat_template.argilla_chat", "chat_template.default", *PREPARED]
RANKED_TYPES += ["chat_template", *WRITTEN, "bradley_terry"]
ALREADY = Prompt("{said}", "{said}", "", whole=True)
"""Of rows whose texts are prompts already."""
OF_THE_FILE = ("chat_template", OF_SCORES, *PREPARED)
"""Types whose prompt is the file's ``chat_template`` where they name none; rows of tokens have no prompt."""
TEXTS = ("template", "template_without_input")
MESSAGES_ALONE = ("dpo", "hinge", "ipo", "robust", "simpo")
"""Objectives for which chat templates read no column of system texts."""


def datasets(t: Translation, name: str, value: Any) -> None:
    """A list of data sets, to train or to evaluate on."""
    key, ranked = "data.eval" if name == "test_datasets" else "data.train", t.get("train.objective")
    known, roles = RANKED_TYPES if ranked else list(FORMATS), {**ENTRY, **(RANKING if ranked else {})}
    found, parts = [], []
    _check(value)
    for entry in value:
        refuse_contradictions(t, entry, OF_A_DATA_SET, f"{name}.")
        given = entry.get("type")
        whole, _, style = (str(given) if not ranked or given != OF_SCORES else "chat_template").partition(":")
        kind, _, variant = whole.partition(".")
        files = entry.get("data_files") or entry.get("path")
        files = [files] if isinstance(files, str) else list(files)
        if isinstance(given, Mapping):  # a prompt of the file's own
            entry = {**entry, **{k: v for k, v in given.items() if k.startswith("field_")}}
            kind = "None" if ranked else "alpaca"
            prompt = own_texts(t, f"{name}.type", given, ranked) if ranked else _own_prompt(t, f"{name}.type", given)
        elif not ranked and given in ALPACA:
            kind, (turns, called) = "alpaca", ALPACA[given]
            prompt = {**dict(zip(TEXTS, turns, strict=True)), "columns": dict(called)}
        elif (whole if ranked and kind != "bradley_terry" else kind) not in known or style:
            t.lack(key, f"{name}.type", f"{given!r} is not supported; known: {', '.join(known)}")
            prompt = {}
        else:
            prompt = ranked and plain_texts(kind, variant, ranked, first_row(files[0]))
            prompt = prompt or {"template": _prompt(t, name, {**entry, "type": kind}, kind)}
        if kind == "sharegpt" and not prompt.get("template"):  # chat templates have no place for it
            prompt["system"] = t.values.get("default_system_message")
        for field, there in entry.items():
            if field not in roles and there:
                t.refuse(f"{name}.{field}", f"{there!r} is not supported")
        columns: dict[str, str] = dict(prompt.pop("columns", None) or {})
        columns |= {roles[field]: there for field, there in entry.items() if roles.get(field) and there}
        if kind == "chat_template" and t.get("train.objective") in MESSAGES_ALONE:
            columns.setdefault("system", "")
        words = _messages(t, name, entry, columns) if kind in ("chat_template", "sharegpt") else {}
        parts += [jobs.part(t, key, name, entry)] * len(files)
        if len(files) > 1 and parts[-1] != ":":
            t.lack(key, f"{name}.split", f"{entry['split']!r} of several files; one file with these rows is needed")
        how = {"format": FORMATS.get(kind, "auto"), "columns": columns, "roles": words, **prompt}
        how["too_long"] = "cut" if how["format"] == "text" else None  # which is divided, and nothing of it is left out
        found += [{"path": file, **how} for file in files]
    jobs.put_data(t, key, name, found)
    jobs.put_parts(t, "data.rows" if key == "data.train" else "data.eval_rows", parts)


def _check(value: Any) -> None:
    """Raises ValueError for what is no list of data sets, or has another kind of value in one."""
    entries = value if isinstance(value, (list, tuple)) else [None]
    if not all(isinstance(one, Mapping) and (one.get("path") or one.get("data_files")) for one in entries):
        raise ValueError("a list of data sets was expected, each with its path")
    for entry in entries:
        for key in ("roles", "message_property_mappings"):
            if not isinstance(entry.get(key) or {}, Mapping):
                raise ValueError(f"{key}: a mapping was expected")
        own = entry.get("type")
        if isinstance(own, Mapping) and not all(isinstance(one, (str, type(None))) for one in own.values()):
            raise ValueError("type: texts were expected")


def _messages(t: Translation, name: str, entry: Mapping[str, Any], columns: dict[str, str]) -> dict[str, str]:
    """The words for roles in a data set's messages; what parts of a message are called goes to ``columns``."""
    called = {key: entry.get(f"message_field_{key}") for key in ("role", "content")}
    called |= entry.get("message_property_mappings") or {}
    for key, there in called.items():
        usual = next((names for names in SAID_BY if key in names), (key,))
        if key in ("role", "content") and there and there not in usual:
            columns[key] = there
        elif there and there not in usual:
            t.refuse(f"{name}.message_property_mappings", f"{key}: {there}: it has to be called {key} in the data")
    for field, known in (("message_field_training", FLAGS), ("roles_to_train", (["assistant"], ["gpt"]))):
        if entry.get(field) is not None and entry[field] not in known:
            t.refuse(f"{name}.{field}", f"{entry[field]!r} is not supported; known: {', '.join(map(str, known))}")
    whole = str(entry.get("type")).startswith("sharegpt")  # which learns headings, too, and system texts
    if t.values.get("train_on_inputs") is True and t.get("train.objective", "sft") == "sft" and not whole:
        t.refuse(
            "train_on_inputs", "of messages what all say is learnt there, and here every token: data.train_on: all"
        )
    words = {word: role for role, words in (entry.get("roles") or {}).items() for word in jobs.listed(words)}
    words |= {entry[key]: who for key, who in (("field_human", "user"), ("field_model", "assistant")) if entry.get(key)}
    if not is_off(entry.get("drop_system_message")):
        words = {"system": "", **{word: "" if role == "system" else role for word, role in words.items()}}
        columns["system"] = ""
    return words


def _prompt(t: Translation, name: str, entry: Mapping[str, Any], kind: str) -> str | None:
    """A data set's chat template; none where the tokenizer's own is meant."""
    of_file = t.values if kind == "chat_template" or (kind in PREPARED and t.get("train.objective")) else {}
    for given in (entry, of_file):
        if given.get("chat_template_jinja") and given.get("chat_template") in (None, "jinja"):
            return given["chat_template_jinja"]
        if given.get("chat_template"):
            break
    top = of_file.get("chat_template")
    named = entry.get("chat_template") or entry.get("conversation") or top or kind
    told = t.values.get("default_system_message") if t.values.get("chat_template") == named else None
    if kind == "sharegpt" and (text := of_turns(named, told)):
        return text
    text = chat_template(t, named, entry)
    if text is None and named not in (kind, top) and jobs.without_template(t):
        t.refuse(f"{name}: the prompt {named}", jobs.NO_TEMPLATE)
    elif (text is None and named not in (kind, top)) or named == "sharegpt":
        t.ignore(f"{name}: the prompt {named}", "the prompt is that of the model's own tokenizer, or data.template")
    elif text is None and not {entry.get("train_on_eos"), entry.get("train_on_eot")} <= {None, "turn"}:
        t.refuse(f"{name}.train_on_eos", "with the model's own prompt the end of an answer is learnt")
    return text


def chat_template(t: Translation, named: Any, entry: Mapping[str, Any]) -> str | None:
    """The text of a chat template by axolotl's name, if it is here. Of preferences each end is learnt; else the end of
    an answer is where it is the tokenizer's end token, or a token that the file says to end turns."""
    name = str(named)
    if name.startswith(jobs.FALLBACK) and jobs.without_template(t):
        name = name.removeprefix(jobs.FALLBACK)
    prompt, objective = AXOLOTL.get(name), t.get("train.objective")
    if prompt is None or (objective and prompt.headed):
        return None
    if objective:
        return written(prompt, objective, entry.get("type", "chat_template"))
    said, turns = (t.values.get(key) or {} for key in ("special_tokens", "eot_tokens"))
    eos = said.get("eos_token") if isinstance(said, Mapping) else None
    if prompt.end in turns or eos == prompt.end:
        prompt = replace(prompt, needs=prompt.end)
    of_eos = entry.get("train_on_eos") or "turn"
    of_eot = entry.get("train_on_eot") or of_eos
    if unknown := [learnt for learnt in (of_eos, of_eot) if learnt not in ENDS]:
        t.refuse("train_on_eos", f"{unknown[0]!r} is not supported; known: {', '.join(ENDS)}")
        of_eos = of_eot = "turn"
    is_eos = str(eos == prompt.end).lower() if eos else f"eos_token == '{prompt.end}'"
    is_eot = str(prompt.end in turns).lower() if turns else is_eos
    if of_eot == of_eos:
        return prompt.jinja(ends=ENDS[of_eos].format("true" if "true" in (is_eos, is_eot) else is_eos))
    return prompt.jinja(ends=f"{ENDS[of_eos].format(is_eos)} or {ENDS[of_eot].format(is_eot)}")


ENDS = {"turn": "{}", "last": "loop.last and {}", "none": "false"}
"""``train_on_eos`` and ``train_on_eot`` -> where the end of an answer is learnt, if at all: a token that is the
tokenizer's end token goes by the first, one of ``eot_tokens`` by the second, and that is both by either."""


def _own_prompt(t: Translation, name: str, given: Mapping[str, Any]) -> dict[str, str | None]:
    """The file's own prompt of rows with an input and of those without, and its text for rows without a system."""
    before = given.get("system_format") or "{system}"
    default = None if given.get("field_system") else given.get("system_prompt")  # which is for rows without the column
    if before != "{system}" and not default:
        t.refuse(name, "system_format without system_prompt: data.template has the same text for rows without a system")
    turns = given.get("format") or "{instruction} {input} ", given.get("no_input_format") or "{instruction} "
    if given.get("field_instruction") == (given.get("field_input") or "input"):  # then every row has an input, the same
        turns = (turns[0].replace("{input}", "{instruction}"),) * 2
    texts = [before + turn.replace("{instruction}", "{prompt}") for turn in turns]
    return {TEXTS[0]: texts[0], TEXTS[1]: texts[1] if texts[1] != texts[0] else None, "system": default or None}


def texts(t: Translation, name: str, value: Any) -> None:
    """Plain text, which is read as it is needed; one data set may stand by itself."""
    every = [value] if isinstance(value, (str, Mapping)) else value
    every = [{"path": entry} if isinstance(entry, str) else entry for entry in every]
    datasets(t, name, [{**entry, "type": entry.get("type") or "pretrain"} for entry in every])
    t.put("data.streaming", True)


def special_tokens(t: Translation, name: str, value: Any) -> None:
    """Tokens for roles. Where the base lies here, its own count: others that begin or end texts would change these, but
    for the end that a chat template writes itself."""
    own, entries = jobs.tokenizer_of(t), t.values.get("datasets") or [{}]
    chats = not t.get("train.objective") and all(str(one.get("type")).startswith("chat_template") for one in entries)

    def kept(role: str, word: Any) -> bool:
        if role in ("pad_token", "unk_token") or word is None or own is None:
            return role == "pad_token" or word in (None, *jobs.OWN_TOKENS)
        if role in ("bos_token", "eos_token"):
            return getattr(own, role) in (None, word) or (role == "eos_token" and chats and not lacking(t, [word]))
        return not lacking(t, jobs.listed(word))

    changed = {role: word for role, word in value.items() if not kept(role, word)}
    roles = {role[:3]: word for role, word in changed.items() if role in ("bos_token", "eos_token")}
    others = [word for role, words in changed.items() if role[:3] not in roles for word in jobs.listed(words)]
    if changed:
        refuse_lacking(t, name, others, roles)
    else:
        t.ignore(name, "the tokenizer keeps its own; padding is masked, whatever token it is")


def tokens(t: Translation, name: str, value: Any) -> None:
    """New tokens; before 0.2 what is now ``special_tokens``."""
    if isinstance(value, Mapping):
        special_tokens(t, name, value)
    else:
        new_tokens(plain=True)(t, name, value)


def ends_of_turns(t: Translation, name: str, value: Any) -> None:
    if others := lacking(t, [word for word in jobs.listed(value) if word not in jobs.OWN_TOKENS]):
        t.refuse(name, f"{', '.join(others)}: turns end as in the model's own prompt")
    elif not t.get("data.template"):
        t.ignore(name, "an answer is learnt with the token that ends it")


def written(prompt: Prompt, objective: str, kind: str) -> str:
    """A prompt's chat template for an objective and a kind of data set. What follows an answer is learnt where TRL or
    the type has the whole conversation's text; scores are of any conversation."""
    if objective != "reward" and (kind in PREPARED or objective == "orpo"):
        prompt = replace(prompt, end=prompt.end + prompt.behind, behind="")
    opening = "bos" if objective in ("orpo", "simpo") else "opening"
    return prompt.jinja(ranked=None if kind in PREPARED or objective == "reward" else opening)


def plain_texts(kind: str, style: str, objective: str, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """How rows are read of types that write texts; None for those that read messages. ``row``: the first one."""
    if kind in PREPARED:
        return None if isinstance(row.get("prompt", row.get("chosen")), list) else as_texts(ALREADY, objective, {})
    if kind not in WRITTEN or objective == "reward":
        return None
    columns: dict[str, str] = {"prompt": STYLES[style]} if style in STYLES else {"system": ""}
    if style in ("", "default"):
        first = {role: [name for name in names.split() if name in row] for role, names in EITHER.items()}
        columns = {role: names[0] for role, names in first.items() if names}
    return as_texts(replace(AXOLOTL[kind], strips=False), objective, columns)


def as_texts(prompt: Prompt, objective: str, columns: Mapping[str, str]) -> dict[str, Any]:
    """A prompt, and the columns of its rows, whose questions have no further input."""
    own = {"input": ""} if columns.get("prompt") != "input" else {}
    return {"template": written(prompt, objective, ""), "columns": {**own, **columns}}


def own_texts(t: Translation, name: str, given: Mapping[str, Any], objective: str) -> dict[str, Any]:
    """The file's own formats."""
    said = ["completion"] if objective == "kto" else ["chosen", "rejected"]
    answer, *others = [(given.get(f"{one}_format") or f"{{{one}}}").replace(f"{{{one}}}", "{said}") for one in said]
    if others not in ([], [answer]):
        t.refuse(name, "chosen_format and rejected_format: both answers are written in one form here")
    question = (given.get("prompt_format") or "{prompt}").replace("{prompt}", "{said}")
    if question.endswith(" "):  # which tokenizers put in front of the next word
        question, answer = question[:-1], " " + answer
    return as_texts(Prompt(question, answer, "", whole=True), objective, {})


def first_row(file: Any) -> dict[str, Any]:
    """The columns of a file's first row; none where it cannot be read, which is said where it is used."""
    with contextlib.suppress(InputError, StopIteration):
        return next(read_records(find_files([file])[0], Problems())).columns
    return {}
