"""LLaMA-Factory's list of data sets: their files, formats, columns and tags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_json
from model_zoo.errors import InputError
from pet.compat import job_files as jobs
from pet.data.messages import SAID_BY
from pet.recipe.translation import Translation

RANKING = {"chosen": "chosen", "rejected": "rejected", "kto_tag": "label"}
BESIDE = ("input", "history", "system", "tools")
"""Roles of columns that an objective which reads rows itself would recognise."""
COLUMNS = {
    "alpaca": {"prompt": "prompt", "query": "input", "response": "answer", "history": "history"},
    "sharegpt": {"messages": "messages"},
}
COLUMNS = {form: {**columns, "system": "system", "tools": "tools"} for form, columns in COLUMNS.items()}
"""Roles of a data set's columns by LLaMA-Factory's names, for each formatting."""
UNREAD = ("images", "videos", "audios", *RANKING)
"""Columns that are read there and cannot be here, unless the objective has them."""
OF_TEXTS = {"prompt": "text", "query": "input"}
"""The same in stage pt, which takes the question of a row as its text."""
NAMED = {
    "alpaca": {"prompt": "instruction", "query": "input", "response": "output"},
    "sharegpt": {"messages": "conversations"},
}
"""The columns of a data set whose entry names none."""
ENTRY = {"file_name", "formatting", "columns", "tags", "ranking", "split", "num_samples", "subset", "folder"}
ENTRY |= {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name", "file_sha1"}
"""What a data set's entry may say, by all releases."""
TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
TAGS |= {"observation_tag": "tool", "function_tag": "function_call", "system_tag": "system"}
"""What a data set's entry calls the parts of a message, and its roles."""


def dataset(t: Translation, key: str, said: str, home: Path, name: str, prompts: dict) -> dict[str, Any]:
    """A data set, by LLaMA-Factory's list of them in ``home`` or as a path; ``key`` and ``said`` are the recipe's name
    and LLaMA-Factory's; without ``prompts`` a row is one text."""
    texts = not prompts
    index = home / "dataset_info.json"
    try:
        entry = read_json(index).get(name) if index.is_file() else None
    except InputError as error:
        t.refuse("dataset_dir", str(error))
        return {"path": name}
    if not isinstance(entry, Mapping):
        return {"path": name if Path(name).exists() else str(home / name), **prompts.get(False, {})}
    if jobs.part(t, key, name, entry) != ":":
        t.lack(key, f"{name}.split", f"{entry['split']!r} takes a part of the rows; a file with these alone is needed")
    path = str(home / entry["file_name"]) if "file_name" in entry else name
    form = str(entry.get("formatting", "alpaca"))
    kind = form.replace("openai", "sharegpt")
    if kind not in (COLUMNS if not texts else ("alpaca",)):
        t.lack(key, said, f"{name}: its formatting {kind!r} is not supported" + " in stage: pt" * texts)
        return {"path": path}
    for other in entry.keys() - ENTRY:
        t.ignore(f"{name}.{other}", "LLaMA-Factory reads no such key of a data set")
    columns = {role: column for role, column in (entry.get("columns") or NAMED[kind]).items() if column}
    if texts:
        columns = {role: column for role, column in columns.items() if role not in ("response", "system", "tools")}
    if kind == "alpaca" and "query" in columns and "prompt" not in columns:  # which is then the whole question
        columns["prompt"] = columns.pop("query")
    roles = OF_TEXTS if texts else {**COLUMNS[kind], **(RANKING if t.get("train.objective") else {})}
    tags = {tag: word for tag, word in (entry.get("tags") or {}).items() if word}
    if beyond := [role for role in columns if role not in roles and role in UNREAD]:
        t.lack(key, said, f"{name}: {', '.join(beyond)}: such data cannot be read")
    for other in [role for role in columns if role not in (*roles, *UNREAD)] + [tag for tag in tags if tag not in TAGS]:
        t.ignore(f"{name}.{other}", f"LLaMA-Factory reads no such column or tag of {form} data")
    given = {roles[role]: column for role, column in columns.items() if role in roles}  # auto reads these alone
    if t.get("train.objective"):
        given |= {role: "" for role in BESIDE if role not in given}
    given |= {names[0]: word for names in SAID_BY if (word := tags.get(f"{names[0]}_tag")) and word not in names}
    words = {word: TAGS[tag] for tag, word in tags.items() if tag in TAGS and TAGS[tag] not in ("role", "content")}
    return {"path": path, "columns": given, "roles": words, **prompts.get(form == "openai", {})}
