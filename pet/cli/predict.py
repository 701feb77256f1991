"""``pet predict``: answers to questions given on the command line or in files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from pet.cli.chat_session import ChatSession, add_chat_session, make_chat_session, not_text
from pet.cli.parser import Parser, check_output_file

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


def _questions(options: Any, session: ChatSession) -> list[Any]:
    """What is asked, in order: the texts of --input, then the rows of --file."""
    from pet.data.load import Question, load_questions

    def question(text: str, where: str) -> Question:
        return Question(session.prompt([{"role": "user", "content": text}]), text, "", where)

    found = [question(text, "--input") for text in options.input or []]
    for name in options.file or []:
        if name == "-":
            try:
                lines = sys.stdin.read().split("\n")
            except UnicodeDecodeError as error:
                raise not_text(error) from None
            found += [question(line, f"stdin:{number}") for number, line in enumerate(lines, 1) if line.strip()]
        elif name.endswith(".txt") and Path(name).is_file():
            try:
                lines = Path(name).read_text("utf-8-sig").split("\n")
            except UnicodeDecodeError:
                raise InputError(f"--file {name}: not UTF-8 text") from None
            found += [question(line, f"{name}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
        else:
            found += load_questions(name, session.tokenizer, settings=session.settings)
    if not found:
        raise InputError("nothing is asked: give --input TEXT, or --file with questions in it")
    return found


def main(arguments: Sequence[str]) -> int:
    """Answer, and print or write the answers."""
    parser = Parser("pet predict", "Answer questions with a model.", EXAMPLES)
    parser.add_argument("--input", action="append", metavar="TEXT", help="a question; may be repeated")
    parser.add_argument(
        "--file", action="append", help="questions: .txt (one a line), any data file of a recipe, or - for stdin"
    )
    parser.add_argument("--output", metavar="FILE", help="write JSONL there instead of printing")
    parser.add_argument("--json", action="store_true", help="print JSONL: question, answer, reference, place")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="batch size (default 16)")
    add_chat_session(parser)
    options = parser.read(arguments)
    if not options.input and not options.file:
        raise InputError("nothing is asked: give --input TEXT, or --file with questions in it")
    if options.batch_size < 1:
        raise InputError(f"--batch-size {options.batch_size}: expected 1 or more")
    check_output_file(options.output)
    session = make_chat_session(options)
    questions = _questions(options, session)
    from pet.train.evaluate import Answers

    seed = session.generation.seed or 0
    answers = Answers(
        session.model, session.tokenizer, questions, session.generation, batch_size=options.batch_size, seed=seed
    )()
    if not options.output and not options.json:
        print("\n".join(answer.answer for answer in answers))
        return 0
    rows = []
    for answer in answers:
        row = {"prompt": answer.prompt, "answer": answer.answer, "where": answer.where}
        if answer.reference:
            row["reference"] = answer.reference
        rows.append(json.dumps(row, ensure_ascii=False))
    if options.output:
        from pet.files import write_text

        write_text(options.output, "\n".join(rows) + "\n")
        print(f"{len(rows)} answers in {options.output}")
    else:
        print("\n".join(rows))
    return 0
