"""Random answers that are compared."""

from __future__ import annotations

import numpy as np

from pet.data.dataset import TokenDataset

VOCABULARY = 11


def pairs_of(seed: int, count: int):
    """Random pairs as documents (ids, trained), each pair's answers after the same question."""
    random, documents = np.random.default_rng(seed), []
    for _ in range(count):
        question = random.integers(0, VOCABULARY, random.integers(1, 4)).tolist()
        for _ in range(2):
            answer = random.integers(0, VOCABULARY, random.integers(1, 5)).tolist()
            documents.append((question + answer, [False] * len(question) + [True] * len(answer)))
    return documents


def dataset(documents, together: int = 2, said=None) -> TokenDataset:
    found = TokenDataset.from_samples(documents, said)
    found.documents = together
    return found
