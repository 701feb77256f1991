"""``pet predict``: answers to questions given on the command line or in files."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_text, sync, written_through
from model_zoo.errors import InputError
from model_zoo.unwritable import explained
from pet.cli.chat_session import GENERATION, ChatSession, add_chat_session, make_chat_session, not_text, read
from pet.cli.output import check_output_file, sole_writer
from pet.cli.parser import Parser
from pet.files import append_text, json_text, write_text

log = logging.getLogger("pet")
BATCHES = 4
"""So many batches are answered together, by length, before their answers are given out."""

EXAMPLES = [
    ('pet predict --model merged --input "类型#裤*版型#宽松"', "one answer, from a plain checkpoint"),
    ('pet predict --model glm_tiny --adapter output/glm_lora/adapter --input "…"', "from a base with an adapter"),
    ('pet predict --run output/glm_lora --input "…" --input "…"', "from a run: its model, adapter and prompts"),
    ("pet predict --run output/glm_lora --file questions.txt --output answers.jsonl", "a file, in batches, as JSONL"),
    (
        'pet predict --model glm_tiny --input "Once" --temperature 0.8 --top-p 0.9 --seed 1',
        "sampled, reproducibly",
    ),
]


def _given(options: Any) -> Iterator[tuple[str, str | None]]:
    """What is asked, in order: (text, its place) of --input, of stdin and of files with a text a line, and (file, None)
    for those with rows."""
    for text in options.input or []:
        yield text, "--input"
    for name in options.file or []:
        lines = name.endswith(".txt") and Path(name).is_file()
        if name != "-" and not lines:
            yield name, None
            continue
        try:
            read = read_text(name, "--file with a question a line") if lines else sys.stdin.read()
        except UnicodeDecodeError as error:
            raise not_text(error) from None
        place = name if lines else "stdin"
        yield from ((line, f"{place}:{number}") for number, line in enumerate(read.split("\n"), 1) if line.strip())


def _answers(options: Any, session: ChatSession) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each answer, and its row for JSONL."""
    from pet.data.load import Question, load_questions
    from pet.train.evaluate import Answers

    questions: list[Any] = []
    for text, where in _given(options):
        if where is None:
            questions += load_questions(text, session.tokenizer, settings=session.settings)
        else:
            questions.append(Question(session.prompt([{"role": "user", "content": text}]), text, "", where))
    how = {"batch_size": options.batch_size, "seed": session.generation.seed or 0}
    answers = Answers(session.model, session.tokenizer, questions, session.generation, **how)
    for one in answers.by_blocks(BATCHES):
        reference = {"reference": one.reference} if one.reference else {}
        yield one.answer, {"prompt": one.prompt, "answer": one.answer, "where": one.where, **reference}


def _labels(options: Any, session: ChatSession) -> Iterator[tuple[str, dict[str, Any]]]:
    """The label of each text by a model that judges them, and its row for JSONL."""
    from pet.data.classified import asked
    from pet.data.formats import read_rows
    from pet.data.row import Row
    from pet.text_classification import TextClassification

    judge, rows = TextClassification(session.model, session.tokenizer), []
    how = {**session.settings.reading, "conversations": asked, "answers": False}
    for text, where in _given(options):
        rows += read_rows(text, **how) if where is None else [Row(Path(where), 0, text=text)]
    of_texts = iter(judge.tokens([(row.text, row.text_pair) for row in rows if not row.tokens]))
    ids = [row.tokens[0] if row.tokens else next(of_texts) for row in rows]
    for first in range(0, len(rows), options.batch_size):
        part = slice(first, first + options.batch_size)
        for row, labels in zip(rows[part], judge.judged(ids[part]), strict=True):
            chosen = judge.chosen(labels)
            texts = {name: getattr(row, name) for name in ("text", "text_pair") if getattr(row, name) is not None}
            scores = {one["label"]: one["score"] for one in labels}
            reference = {} if row.label is None else {"reference": row.label}
            where = row.where if row.line else str(row.path)
            yield (
                ", ".join(map(str, chosen)) if isinstance(chosen, list) else str(chosen),
                {**texts, "label": chosen, "scores": scores, "where": where, **reference},
            )


def main(arguments: Sequence[str]) -> int:
    """Answer, and print or write the answers."""
    parser = Parser("pet predict", "Answer questions with a model.", EXAMPLES)
    parser.add_argument("--input", action="append", metavar="TEXT", help="a question; may be repeated")
    parser.add_argument(
        "--file", action="append", help="questions: .txt (one a line), any data file of a recipe, or - for stdin"
    )
    parser.add_argument("--output", metavar="FILE", help="write JSONL there instead of printing")
    parser.add_argument(
        "--json", action="store_true", help="print JSONL: question, answer, reference, place; or text, label, scores"
    )
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="batch size (default 16)")
    add_chat_session(parser)
    options = read(parser, arguments)
    if not options.input and not options.file:
        raise InputError("nothing is asked: give --input TEXT, or --file with questions in it")
    if options.batch_size < 1:
        raise InputError(f"--batch-size {options.batch_size}: expected 1 or more")
    check_output_file(options.output)
    with sole_writer(options.output) if options.output else contextlib.nullcontext():
        session = make_chat_session(options)
        if session.model.scoring:
            written = ("system", "template", "thinking", "sample", "stop", *GENERATION)
            parser.idle(options, "with a model that judges texts and writes no answers", *written)
        found = (_labels if session.model.scoring else _answers)(options, session)
        lines = (json_text(row) if options.json or options.output else text for text, row in found)
        count = _keep(lines, options.output) if options.output else _print(lines)
    if not count:
        raise InputError("nothing is asked: give --input TEXT, or --file with questions in it")
    if options.output:
        print(f"{count} answers in {options.output}")
    return 0


def _print(lines: Iterable[str]) -> int:
    """Prints lines as they come; returns how many."""
    count = 0
    for line in lines:
        print(line, flush=True)
        count += 1
    return count


def _keep(lines: Iterable[str], output: str) -> int:
    """Writes lines as they come into ``output.part``, which is called ``output`` once it is whole; returns how many. So
    a command that is ended loses no answers that it had."""
    part, count = Path(f"{output}.part"), 0
    if written_through(output):
        whole = list(lines)
        write_text(output, "".join(f"{line}\n" for line in whole))
        return len(whole)
    try:
        for count, line in enumerate(lines, 1):
            if count == 1:
                write_text(part, "")
            append_text(part, f"{line}\n")
    except BaseException:
        if count:
            log.warning("%s: the %d answers until then", part, count)
        raise
    if count:
        with explained(output):
            sync(part)
            os.replace(part, output)
            sync(part.parent)
    return count
