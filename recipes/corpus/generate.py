"""Writes the pre-training corpus, the tuning data and the format examples, the same bytes for the same seed.

python recipes/corpus/generate.py                # into recipes/data, as they are bundled
python recipes/corpus/generate.py --output /tmp/data --seed 7 --rows 2000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import corpus
import formats
import preferences
from formats import jsonl

SEED = 20240
ROWS = 16000
HELD_OUT_ROWS = 400


def files(seed: int = SEED, rows: int = ROWS) -> dict[str, str]:
    """Path below the output directory -> text, of everything that is bundled."""
    conversations = corpus.pretraining(seed, rows + HELD_OUT_ROWS)
    lines = [{"messages": conversation} for conversation in conversations]
    result = {"pretrain/train.jsonl": jsonl(lines[:rows]), "pretrain/held_out.jsonl": jsonl(lines[rows:])}
    for name, part in corpus.tuning(seed).items():
        result[f"adgen/{name}.jsonl"] = jsonl(part)
    for name, part in preferences.pairs(seed).items():
        result[f"preferences/{name}.jsonl"] = jsonl(part)
        result[f"preferences/{name}_labelled.jsonl"] = jsonl(preferences.labelled(part))
    result.update(formats.files(seed))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parent.parent / "data"
    parser.add_argument("--output", type=Path, default=default, help="directory to write to (default: recipes/data)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rows", type=int, default=ROWS, help="conversations in the pre-training corpus")
    arguments = parser.parse_args()
    for name, text in files(arguments.seed, arguments.rows).items():
        path = arguments.output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        print(f"{path}: {len(text.encode())} bytes")


if __name__ == "__main__":
    main()
