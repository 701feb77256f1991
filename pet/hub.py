"""Models by their names on a hub: ``Qwen/Qwen3-0.6B``, with ``@revision`` behind it where it is not the newest; and
directories that are put there.

By ``huggingface_hub``, or for names that begin with ``modelscope:`` by ``modelscope``. What is on this machine already
is used without asking the network. Only weights, configuration and tokenizer files are fetched, and no code; the
weights as PyTorch's files (`model_zoo.checkpoint.pickled`) where there are no safetensors.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from model_zoo import progress
from model_zoo.checkpoint.directory import FORMS, find_weights, holds_weights
from model_zoo.errors import InputError, first_line
from pet.installation import needed

TEMPLATES = "additional_chat_templates"
FILES = (
    *(*FORMS[0][1:], "config.json", "generation_config.json"),
    *("tokenizer*", "vocab.json", "merges.txt", "*.model", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template*", f"{TEMPLATES}/*.jinja", "*LICENSE*", "NOTICE*"),
)
OLDER = (*FILES, *FORMS[1][1:])
"""The same of a model that has no safetensors."""
BELOW = (*(f"{TEMPLATES[:place]}[!{letter}]*/*" for place, letter in enumerate(TEMPLATES)), "consolidated*")
"""Directories in a repository hold other formats. What is ignored wins over what is allowed: so all whose names differ
from that of the further chat templates in some place. Mistral's consolidated.safetensors has all weights once more."""
PACKAGES = {"huggingface": "huggingface_hub", "modelscope": "modelscope"}
_NAME = re.compile(r"(?:(huggingface|modelscope):)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubName(NamedTuple):
    """A name taken apart.

    Attributes:
        hub: ``huggingface`` or ``modelscope``.
        model: ``owner/name``.
        revision: a branch, a tag or a commit; None for the newest.
    """

    hub: str
    model: str
    revision: str | None

    def pinned(self, revision: str) -> str:
        """The name with another revision."""
        return f"{'' if self.hub == 'huggingface' else self.hub + ':'}{self.model}@{revision}"


def hub_name(text: str, directory: str | Path = ".") -> HubName | None:
    """The parts of a hub's name; None for what is, or may be meant as, a path.

    Args:
        text: ``owner/name``, with what may stand around it.
        directory: what a relative path is relative to: where `owner` is a directory in it, the text is a path.
    """
    match = _NAME.fullmatch(text)
    if match is None or (match[1] is None and (text[0] in ".~" or Path(directory, text.partition("/")[0]).exists())):
        return None
    return HubName(match[1] or "huggingface", match[2], match[3])


def fetch(name: HubName, only_config: bool = False, fresh: bool = False) -> tuple[Path, str]:
    """The directory of a model's files, and the revision that they are of.

    Args:
        only_config: config.json is enough.
        fresh: ask the hub for the newest, also where some revision is here.

    Raises:
        InputError: the package is missing; there is no such model, or no network; or it has no weights.
    """
    package = needed(PACKAGES[name.hub], name.hub, f"model {name.model!r}: is no directory here; fetching it")
    options = {"ignore_patterns": list(BELOW)}

    # modelscope warns of every trial without a network; the error says it once
    logging.getLogger("modelscope_hub").setLevel(logging.ERROR)

    def ask(local: bool) -> Path:
        for files in [["config.json"]] if only_config else [[*FILES], [*OLDER]]:
            options.update(revision=name.revision, local_files_only=local, allow_patterns=files)
            with progress.pausing():
                found = Path(package.snapshot_download(name.model, **options))
            if holds_weights(found):
                break
        if not (found / "config.json").is_file():
            raise InputError(f"model {name.model!r}: holds no config.json")
        if not only_config:
            find_weights(found)
        return found

    directory = None
    with suppress(Exception):  # of many classes; that it is not here, or not whole, is no fault
        directory = None if fresh else ask(local=True)
    if directory is None:
        try:
            directory = ask(local=False)
        except InputError as error:
            raise InputError(f"model {name.model!r} of {name.hub}: {error}") from None
        except Exception as error:
            raise InputError(
                f"model {name.model!r}: no such directory here, and not to be had from {name.hub}: {_reason(error)}; "
                "without a network, give the directory of its files"
            ) from None
    return directory, directory.name if _COMMIT.fullmatch(directory.name) else name.revision or "master"


def bare(text: str) -> str:
    """What a model is called by others: a hub's name without hub and revision, anything else as it is."""
    name = hub_name(text)
    return name.model if name is not None else text


class Repository:
    """A repository of this account's on Hugging Face's hub, to upload to. Whose account it is, ``HF_TOKEN``
    or ``hf auth login`` says.

    Args:
        name: ``owner/name``, or ``name`` for the account's own.
        private: whether nobody else sees it, where it is made here. Default: as the account has it.

    Attributes:
        name: ``owner/name`` once it is made.

    Raises:
        InputError: no such name, or huggingface_hub is not installed.
    """

    def __init__(self, name: str, private: bool | None = None):
        self.name, self.private = name, private
        if not _REPOSITORY.fullmatch(name):
            told = f"hub {name!r}: is no name of a repository on Hugging Face's hub; owner/name was expected"
            there = "; modelscope upload OWNER/NAME DIR puts a directory on ModelScope"
            raise InputError(told + (there if name.startswith("modelscope:") else ""))
        self.api = needed(PACKAGES["huggingface"], "huggingface", f"hub {name!r}: uploading").HfApi()

    def make(self) -> None:
        """Makes it, unless it is there. Raises InputError: it cannot be made."""
        with self._told("cannot be made", "; HF_TOKEN or hf auth login says whose account it is"):
            self.name = self.api.create_repo(self.name, private=self.private, exist_ok=True).repo_id

    def fill(self, source: str | Path, message: str) -> str:
        """Uploads a file, or what lies in a directory, as one commit; returns its address. Raises InputError: that
        fails."""
        how = {"repo_id": self.name, "commit_message": message}
        with self._told("the upload failed"):
            if Path(source).is_file():
                return str(self.api.upload_file(path_or_fileobj=source, path_in_repo=Path(source).name, **how))
            return str(self.api.upload_folder(folder_path=source, **how))

    @contextmanager
    def _told(self, what: str, hint: str = "") -> Iterator[None]:
        try:
            with progress.pausing():
                yield
        except Exception as error:  # of many classes
            raise InputError(f"hub {self.name!r}: {what}: {_reason(error)}{hint}") from None


def _reason(error: Exception) -> str:
    reason = first_line(error)
    return reason if len(reason) <= 200 else f"{reason[:200]}…"
