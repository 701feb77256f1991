"""Whether bf16's losses follow float32's: `python benchmarks/agreement.py [case] [--steps 50]`.

Both start from the same weights and LoRA, and see the same new batch in every step: text in which a token follows from
the one before by a fixed table, but for one in ten. The curve is void as a proof where the loss does not fall.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from cases import CASES, MODELS
from mine import Mine

HERE = Path(__file__).parent
WORDS = 50
"""How many different tokens there are, so that all of them are met in some steps."""


def batches(case, steps: int) -> list[np.ndarray]:
    """Token matrices ``(batch, length)``."""
    generator = np.random.default_rng(3)
    words = generator.choice(np.arange(3, MODELS[case.model]["vocab_size"]), WORDS, replace=False)
    follows, found = generator.permutation(WORDS), []
    for _ in range(steps):
        rows = generator.integers(0, WORDS, (case.batch, case.length))
        chance = generator.uniform(size=rows.shape) < 0.1
        for column in range(1, case.length):
            rows[:, column] = np.where(chance[:, column], rows[:, column], follows[rows[:, column - 1]])
        found.append(words[rows].astype(np.int32))
    return found


def curve(name: str, directory: Path, precision: str, steps: int) -> np.ndarray:
    """The loss of each step."""
    adapter = directory / "adapter"
    run = Mine(name, str(directory / "base"), str(adapter) if adapter.exists() else "", precision)
    first = run.batches[0]
    return np.array(
        [run.update({**first, "input_ids": tokens, "labels": tokens}) for tokens in batches(run.case, steps)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="?", default="small", choices=[n for n, c in CASES.items() if c.kind == "train"])
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, "prepare.py", options.case, directory], cwd=HERE, check=True)
        single, low = (curve(options.case, Path(directory), one, options.steps) for one in ("fp32", "bf16"))
    apart = np.abs(low / single - 1)
    print(f"{options.case}, {options.steps} steps: float32 {single[0]:.3f} → {single[-1]:.3f}")
    print(f"bf16 is off by at most {apart.max():.2%} (median {np.median(apart):.2%}), at the end {apart[-1]:.2%}")


if __name__ == "__main__":
    main()
