"""A seeded generator of wrong inputs: recipes, overrides, arguments, data, tokenizers, checkpoints, adapters and runs.

`cases` gives the same ones for the same seed. Each is a change to a copy of good files and the command that then meets
them. A change may leave the input valid, by chance; most do not.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pet.cli import commands

HALF = "\ud800"  # of a surrogate pair: JSON can say it, no file or terminal can take it
LONG = "n" * 100_000
NUMBERS = [0, 1, -1, 2.5, 1e308, -1e-308, float("nan"), float("inf"), 10**30, 2**24 + 1]
TEXTS = [
    "",
    " ",
    "\x00",
    "\x1b[31m",
    HALF,
    LONG,
    "(a+)+$",
    "\u202e",
    *["x", "7", "../../x", "~", "/", "[", "漢字", "1e5", "true", "null"],
]
NESTED = [[], [[]], [None], ["x"], [0], [-1, 3], {}, {"a": 1}, {"": {}}, {HALF: 1}, ["a"] * 3000]
STRANGE = [None, True, False, *NUMBERS, *TEXTS, *NESTED]
YAML_WORDS = """~ -1 0 1e400 .nan true [] {} [[1]] 'x' x "\\ud800" 3.7 *nothing | 'unfinished [ 0x 漢字 ${NO_SUCH}
/dev/zero / . ../nowhere a\\0b % @ ` 1_000 on {a:1}"""
YAML_VALUES = YAML_WORDS.split()
YAML_VALUES += ["", "\t", "&a [*a]", "!!python/object:os.system x", "{a: 1}", "x" * 70_000, "[" * 400, "9" * 500]
OPTIONS = """- -- -x --no-such-option --json --force nowhere copy run base job.yaml /dev/null /dev/zero /dev . .. 漢字
a=b
train.steps=x gpt_tiny llama_7b glm_lora --output --base --model --batch=-1 --length=x --rank=0 --adapter --dtype=int7
--top-p=2 --temperature=nan --max-new-tokens=-3 --seed=x --step=1 --devices=0 --method=lora"""
WORDS = OPTIONS.split()
WORDS += ["", " ", LONG, "\udcff"]
COMMANDS = [*commands.COMMANDS, "fintune", "-h-", "no-such-command", "", LONG, "\udcff"]
ROWS = {
    "adgen": {"content": "a b", "summary": "c"},
    "alpaca": {"instruction": "a", "input": "b", "output": "c"},
    "prompt_completion": {"prompt": "a", "completion": "b"},
    "chat": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    "sharegpt": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "text": {"text": "a b c"},
    "tokens": {"input_ids": [3, 4, 5], "labels": [-100, 4, 5]},
}
TOKENIZERS = ("gpt_tiny", "llama_tiny", "glm_tiny", "glm4_tiny")


@dataclass
class Case:
    """One wrong input.

    Attributes:
        group: what is wrong: ``recipes``, ``data``, …
        name: what was done, to find it again.
        arguments: the command line, in a directory with the changed files.
        change: does it; the directory ``copy`` in the working directory holds a copy of `source` before.
        source: which good directory is copied, if any.
    """

    group: str
    name: str
    arguments: list[str]
    change: Callable[[], object] = field(default=lambda: None)
    source: str | None = None


def put(value, path, strange):
    """The nested value with something else at a place."""
    if not path:
        return strange
    whole = part = copy.deepcopy(value)
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = strange
    return whole


def places(value, path=()) -> Iterator[tuple]:
    """Every place in a nested value, as a path of keys."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def as_json(value) -> bytes:
    return json.dumps(value).encode()


class Generator:
    """Draws wrong inputs of one kind after the other."""

    def __init__(self, home: Path, seed: int):
        self.home, self.random = home, random.Random(seed)

    def pick(self, choices):
        return self.random.choice(choices)

    # Changes of one file ----------------------------------------------------------------------------------------------

    def bytes_of(self, content: bytes) -> tuple[str, bytes]:
        """Damage that any file can take."""
        at = self.random.randrange(len(content) or 1)
        flipped = bytearray(content)
        for _ in range(self.random.choice((1, 3, 20))):
            if flipped:
                flipped[self.random.randrange(len(flipped))] ^= 1 << self.random.randrange(8)
        choices = {
            "empty": b"",
            f"cut at {at}": content[:at],
            f"begins at {at}": content[at:],
            f"flipped bits near {at}": bytes(flipped),
            "rubbish": self.random.randbytes(300),
            "another beginning": b"\xff" * 16 + content[16:],
            "a NUL": content[:at] + b"\x00" + content[at:],
            "twice": content * 2,
            "UTF-16": content.decode("latin-1").encode("utf-16"),
            "a mark in front": b"\xef\xbb\xbf" + content,
            "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "deep": b"[" * 100_000,
            "deep objects": b'{"a":' * 50_000,
            "one long line": b"x" * 1_000_000,
        }
        name = self.pick(sorted(choices))
        return name, choices[name]

    def json_of(self, content: bytes) -> tuple[str, bytes]:
        """A configuration with something else in it."""
        value = json.loads(content)
        path = self.place(value)
        kind = self.random.randrange(8)
        if kind == 0 and path:
            part = changed = copy.deepcopy(value)
            for key in path[:-1]:
                part = part[key]
            del part[path[-1]]
            return f"without {path}", as_json(changed)
        if kind == 1:
            return "a strange key", as_json({**value, self.pick(["", HALF, LONG, "a.b", "\x00"]): self.pick(STRANGE)})
        if kind == 2:
            strange = self.pick(STRANGE)
            return f"is {strange!r}"[:60], as_json(strange)
        strange = self.pick(STRANGE)
        return f"{path} = {strange!r}"[:90], as_json(put(value, path, strange))

    def place(self, value) -> tuple:
        """A place in a nested value; the outer ones, which are fewer, are as likely as the inner ones."""
        path = ()
        while isinstance(value, (dict, list)) and value and (not path or self.random.random() < 0.75):
            key = self.pick(list(value) if isinstance(value, dict) else range(len(value)))
            path, value = (*path, key), value[key]
        return path

    def safetensors_of(self, content: bytes) -> tuple[str, bytes]:
        """A header that says something else of the same data."""
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        what, changed = self.json_of(json.dumps(header).encode())
        length = len(changed) if self.random.random() < 0.8 else self.pick([0, 1, len(changed) - 1, 2**40, 2**63])
        return f"header {what}", length.to_bytes(8, "little") + changed + content[8 + size :]

    def file_change(self, path: Path) -> tuple[str, Callable[[Path], object]]:
        """(name, function that does it to the copy of this file)."""
        content = path.read_bytes()
        kind = self.random.random()
        if kind < 0.12:
            what = self.pick(["gone", "a directory", "a pipe", "a dead link", "a loop of links"])
            return what, lambda file: no_file(file, what)
        if kind < 0.75 and path.suffix == ".json":
            what, changed = self.json_of(content)
        elif kind < 0.75 and path.suffix == ".safetensors":
            what, changed = self.safetensors_of(content)
        else:
            what, changed = self.bytes_of(content)
        return what, lambda file: file.write_bytes(changed)

    def in_directory(self, group: str, source: str, commands: list[list[str]], wanted=lambda path: True) -> Case:
        """A change of one file of a directory's copy, and a command that reads it."""
        files = sorted(path for path in (self.home / source).rglob("*") if path.is_file() and wanted(path))
        path = self.pick(files)
        inside = path.relative_to(self.home / source)
        what, change = self.file_change(path)
        return Case(
            group, f"{source}/{inside}: {what}", self.pick(commands), lambda: change(Path("copy", inside)), source
        )

    # Kinds ------------------------------------------------------------------------------------------------------------

    def recipes(self) -> Case:
        lines = (self.home / "job.yaml").read_text().splitlines()
        at = self.random.randrange(len(lines))
        line, kind = lines[at], self.random.randrange(9)
        if kind == 0:
            what, text = self.bytes_of("\n".join(lines).encode())
        else:
            key = line.partition(":")[0]
            changed = {
                1: [],
                2: [line, line],
                3: [" " + line],
                4: ["\t" + line.strip()],
                5: [line.replace(key, key[:-1], 1)],
                6: [key + "x" * self.pick([1, 70_000]) + ": 1"],
            }.get(kind, [f"{key}: {self.pick(YAML_VALUES)}"])
            what = f"line {at + 1}: {changed!r}"[:90]
            text = "\n".join([*lines[:at], *changed, *lines[at + 1 :]]).encode()
        command = self.pick([["validate"], ["validate"], ["data"], ["finetune"], ["evaluate"], ["train"]])
        return Case("recipes", what, [*command, "wrong.yaml"], lambda: Path("wrong.yaml").write_bytes(text))

    def overrides(self) -> Case:
        from pet.recipe.keys import walk

        keys = sorted({".".join(path) for path, *_ in walk()})
        key, value = self.pick(keys), self.pick(YAML_VALUES)
        word = self.pick(
            [f"{key}={value}"] * 6 + [f"{key[:-1]}={value}", f"{key}.x={value}", key, f"--{key}={value}", "=", "a=b=c"]
        )
        command = self.pick([["validate", "job.yaml"], ["data", "job.yaml", "--samples", "0"]])
        return Case("overrides", word[:90], [*command, word])

    def arguments(self) -> Case:
        command = self.pick(COMMANDS)
        words = [self.pick(WORDS) for _ in range(self.random.randrange(4))]
        if command in ("finetune", "train", "evaluate", "predict"):  # a good one among these would run for minutes
            words = [word for word in words if word not in ("glm_lora", "gpt_tiny")] + ["--no-such-option"]
        if command == "launch":
            words = self.pick(
                [["-n", "0"], ["-n", "x"], ["-n", "2"], [], ["-n", "1", "--", "no_such_program_here"], ["--"]]
            )
        if command == "doctor":
            words = [*words, "--quick", "--no-such-option"]
        return Case("arguments", " ".join([command, *words])[:90], [command, *words])

    def data(self) -> Case:
        name = self.pick(sorted(ROWS))
        row = ROWS[name]
        path = self.pick(list(places(row)))
        ending = self.pick(["jsonl", "jsonl", "json", "csv", "tsv", "txt"])
        strange = put(row, path, self.pick(STRANGE))
        rows = [row, strange, row] if self.random.random() < 0.7 else [strange]
        if ending == "json":
            text = as_json(rows)
        elif ending == "jsonl":
            text = b"".join(as_json(one) + b"\n" for one in rows)
        else:
            flat = [list(one.values()) if isinstance(one, dict) else [one] for one in rows]
            mark = "\t" if ending == "tsv" else ","
            text = "\n".join([mark.join(row), *(mark.join(map(str, one)) for one in flat)]).encode("utf-8", "replace")
        what = f"{name} {path}"
        if self.random.random() < 0.4:
            damage, text = self.bytes_of(text)
            what += f", {damage}"
        file = f"rows.{ending}"
        arguments = ["data", "job.yaml", "--samples", "0", f"data.train={file}"]
        if self.random.random() < 0.3:
            arguments.append(f"data.format={name}")
        return Case("data", f"{file}: {what}"[:90], arguments, lambda: Path(file).write_bytes(text))

    def tokenizers(self) -> Case:
        source = self.pick(
            ["tokenizers/gpt_tiny", "tokenizers/llama_tiny", "tokenizers/glm_tiny", "tokenizers/glm4_tiny"]
        )
        return self.in_directory("tokenizers", source, [["data", "job.yaml", "model.path=copy", "--samples", "0"]])

    def checkpoints(self) -> Case:
        info = ["info", "copy"]
        commands = [
            info,
            [*info, "--method", "lora"],
            [*info, "--json"],
            ["merge", "adapter", "--base", "copy", "--output", "out"],
            ["plan", "copy", "--devices", "2", "--memory", "64GB"],
            ["validate", "job.yaml", "model.path=copy"],
            ["convert", "copy", "--output", "out.ckpt"],
        ]
        source = self.pick(["base", "base", "sharded", "ckpt"])
        if source == "ckpt":  # MindSpore's own format, in which published MindFormers checkpoints are
            commands = [["convert", "copy/model.ckpt", "--output", "out"]]
        return self.in_directory(
            "checkpoints",
            source,
            commands,
            lambda path: (
                path.suffix in (".ckpt", ".safetensors") or path.name in ("config.json", "model.safetensors.index.json")
            ),
        )

    def adapters(self) -> Case:
        merge = ["merge", "copy", "--output", "out"]
        commands = [["info", "copy"], merge, [*merge, "--base", "base"], [*merge, "--base", "base", "--safe"]]
        return self.in_directory("adapters", self.pick(["adapter", "prefix"]), commands)

    def runs(self) -> Case:
        export, info = ["export", "copy", "--output", "out"], ["info", "copy"]
        commands = [info, [*info, "--json"], export, [*export, "--merged"], ["predict", "--run", "copy"]]
        commands.append(["chat", "--run", "copy"])
        if self.random.random() < 0.1:  # takes seconds where nothing is wrong
            commands = [["finetune", "job.yaml", "output.dir=copy", "--resume"]]
        return self.in_directory("runs", "run", commands, lambda path: path.suffix not in (".png", ".bin"))


KINDS = ("recipes", "overrides", "arguments", "data", "tokenizers", "checkpoints", "adapters", "runs")


def cases(home: Path, count: int, seed: int = 1) -> Iterator[Case]:
    """`count` wrong inputs, of each kind in turn; `home` holds what is good."""
    generator = Generator(home, seed)
    for number in range(count):
        yield getattr(generator, KINDS[number % len(KINDS)])()


def no_file(file: Path, what: str) -> None:
    """Something else in a file's place."""
    file.unlink()
    if what == "a directory":
        file.mkdir()
    elif what == "a pipe":
        os.mkfifo(file)
    elif what == "a dead link":
        file.symlink_to("nowhere")
    elif what == "a loop of links":
        file.symlink_to(file.name)


def snapshot(directory: Path) -> dict[str, tuple]:
    """What lies in a directory: names, sizes and times. The cache of tokens may grow."""
    found = {}
    for folder, names, files in os.walk(directory):
        if Path(folder).name == "cache":
            names.clear()
            continue
        for name in [*names, *files]:
            state = os.lstat(os.path.join(folder, name))
            if name != "cache" and not os.path.isdir(os.path.join(folder, name)):
                found[os.path.join(folder, name)] = (state.st_size, state.st_mtime_ns)
            else:
                found.setdefault(os.path.join(folder, name), ())
    return found


def lay_out(home: Path, case: Case) -> None:
    """The working directory for a case: all that is good, by links, and the copy that is changed."""
    for path in Path().iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in home.iterdir():
        Path(path.name).symlink_to(path)
    if case.source:
        shutil.copytree(home / case.source, "copy")
    case.change()
