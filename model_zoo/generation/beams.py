"""Beam search: the `beams` most probable continuations are kept at every step."""

from __future__ import annotations

import numpy as np


def beam_search(decoder, ids, mask, choice, *, beams: int, new_tokens: int, eos, pad: int, length_penalty: float):
    """The best continuation of every row.

    A finished hypothesis scores its log-probability over ``length ** length_penalty`` (Wu et al. 2016, without the
    constants, as Hugging Face does). A row stops when no running beam can beat its finished ones.

    Args:
        decoder: for ``B·beams`` rows.
        ids, mask: the prompt, ``(B, S)``.
        choice: penalties that apply to the scores.

    Returns:
        ``(B, new_tokens)`` or shorter, padded with `pad`.
    """
    rows, prompt = ids.shape
    wide_ids, wide_mask = np.repeat(ids, beams, 0), np.repeat(mask, beams, 0)
    totals = np.full((rows, beams), -np.inf)
    totals[:, 0] = 0.0  # at first all beams of a row are alike: count one
    finished: list[list[tuple[float, np.ndarray]]] = [[] for _ in range(rows)]
    done = [False] * rows
    logits = decoder.start(wide_ids, wide_mask)
    for new in range(new_tokens):
        scores = choice.scores(log_softmax(logits), wide_ids, wide_mask, new, eos)
        vocabulary = scores.shape[1]
        candidates = (totals.reshape(-1, 1) + scores).reshape(rows, beams * vocabulary)
        order = np.argsort(-candidates, 1, kind="stable")[:, : (1 + len(eos)) * beams]
        parents, tokens = np.zeros((rows, beams), np.int64), np.full((rows, beams), pad)
        next_totals = np.full((rows, beams), -np.inf)
        for row in range(rows):
            if done[row]:
                parents[row] = np.arange(beams)
                continue
            place = 0
            for rank, flat in enumerate(order[row]):
                parent, token = divmod(int(flat), vocabulary)
                value = candidates[row, flat]
                if token in eos:
                    if rank < beams:  # only an end among the best counts as finished
                        text = np.append(wide_ids[row * beams + parent, prompt:], token)
                        finished[row].append((value / (new + 1) ** length_penalty, text))
                    continue
                parents[row, place], tokens[row, place], next_totals[row, place] = parent, token, value
                place += 1
                if place == beams:
                    break
            finished[row] = sorted(finished[row], key=lambda item: -item[0])[:beams]
            if len(finished[row]) == beams:
                best_possible = next_totals[row].max() / (new + 1) ** length_penalty
                done[row] = finished[row][-1][0] >= best_possible
        totals = next_totals
        chosen = (parents + np.arange(rows)[:, None] * beams).reshape(-1)
        wide_ids = np.concatenate([wide_ids[chosen], tokens.reshape(-1, 1)], 1)
        wide_mask = np.concatenate([wide_mask[chosen], np.ones((rows * beams, 1), wide_mask.dtype)], 1)
        if all(done) or new + 1 == new_tokens:
            break
        decoder.reorder(chosen)
        logits = decoder.step(tokens.reshape(-1))
    best = []
    for row in range(rows):
        if not done[row]:
            length = wide_ids.shape[1] - prompt
            for beam in range(beams):
                text = wide_ids[row * beams + beam, prompt:]
                finished[row].append((totals[row, beam] / length**length_penalty, text))
        best.append(max(finished[row], key=lambda item: item[0])[1])
    longest = max(len(text) for text in best)
    return np.array([np.append(text, np.full(longest - len(text), pad)) for text in best]).astype(np.int64)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities in float64."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
