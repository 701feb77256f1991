"""Beam search: the `num_beams` most probable continuations are kept at every step, or drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from model_zoo.generation.choose import check_left
from model_zoo.generation.processors import Step, log_softmax

NEVER = -1e9  # of beams that do not count: below all others, and above tokens that are left out


def beam_search(
    decoder,
    ids,
    mask,
    choice,
    *,
    new_tokens: int,
    eos: list[int],
    pad: int,
    returned: int = 1,
    generator: np.random.Generator | None = None,
    stopped: Callable[[np.ndarray], bool] | None = None,
) -> np.ndarray:
    """The best continuations of every row.

    A finished hypothesis scores its log-probability over ``length ** length_penalty`` (Wu et al. 2016, without the
    constants, as Hugging Face does). A row stops when no running beam can beat its finished ones.

    Args:
        decoder: for ``B·beams`` rows.
        ids, mask: the prompt, ``(B, S)``.
        choice: `Choice`: how scores are processed, and the settings of beams.
        returned: how many continuations of a row.
        generator: of the draw, where ``do_sample`` says so.
        stopped: whether a prompt and its answer are at their end, whatever the last token is.

    Returns:
        ``(B·returned, new_tokens)`` or shorter, padded with `pad`.
    """
    settings, (rows, prompt) = choice.settings, ids.shape
    beams, penalty, early = (settings[name] for name in ("num_beams", "length_penalty", "early_stopping"))
    candidates_kept = max(2, 1 + len(eos)) * beams
    wide_ids, wide_mask = np.repeat(ids, beams, 0), np.repeat(mask, beams, 0)
    totals = np.full((rows, beams), NEVER)
    totals[:, 0] = 0.0  # at first all beams of a row are alike: count one
    finished: list[list[tuple[float, np.ndarray]]] = [[] for _ in range(rows)]
    done = np.zeros(rows, bool)
    logits = decoder.start(wide_ids, wide_mask)
    for new in range(new_tokens):
        step = Step(wide_ids, wide_mask, new, new_tokens - new, eos, (len(eos) or 1) + 1)
        scores = choice.scores(log_softmax(logits), step)
        vocabulary = scores.shape[1]
        candidates = (totals.reshape(-1, 1) + scores).reshape(rows, beams * vocabulary)
        check_left(candidates, ~done)
        # drawn without replacement: the largest of the values with Gumbel's noise on them (Kool et al. 2019)
        drawn = candidates + generator.gumbel(size=candidates.shape) if settings.do_sample else candidates
        order = highest(drawn, candidates_kept)
        parents, tokens = np.tile(np.arange(beams), (rows, 1)), np.full((rows, beams), pad)
        for row in np.flatnonzero(~done):
            running = []
            for rank, flat in enumerate(order[row]):
                parent, token = divmod(int(flat), vocabulary)
                value, place = candidates[row, flat], row * beams + parent
                before, real = wide_ids[place, prompt:], wide_mask[place] != 0
                ended = token in eos or new + 1 == new_tokens
                ended = ended or (stopped and stopped(np.append(wide_ids[place, real], token)))
                if not ended:
                    running.append((value, parent, token))
                elif rank < beams:  # only an end among the best counts as finished
                    finished[row].append((value / (new + 1) ** penalty, np.append(before, token)))
            running = sorted(running, key=lambda item: -item[0])[:beams]
            finished[row] = sorted(finished[row], key=lambda item: -item[0])[:beams]
            totals[row] = NEVER
            for beam, (value, parent, token) in enumerate(running):
                totals[row, beam], parents[row, beam], tokens[row, beam] = value, parent, token
            longest = new_tokens if early == "never" and penalty > 0 else new + 1
            full = len(finished[row]) == beams
            hopeless = full and finished[row][-1][0] >= totals[row].max() / longest**penalty
            done[row] = not running or hopeless or (full and early is True)
        if done.all():
            break
        chosen = (parents + np.arange(rows)[:, None] * beams).reshape(-1)
        wide_ids = np.concatenate([wide_ids[chosen], tokens.reshape(-1, 1)], 1)
        wide_mask = np.concatenate([wide_mask[chosen], np.ones((rows * beams, 1), wide_mask.dtype)], 1)
        decoder.reorder(chosen)
        logits = decoder.step(tokens.reshape(-1))
    best = [answer for row in finished for _, answer in row[:returned]]
    longest = max(len(answer) for answer in best)
    return np.array([np.append(answer, np.full(longest - len(answer), pad)) for answer in best]).astype(np.int64)


def highest(values: np.ndarray, count: int) -> list[np.ndarray]:
    """Of each row of values ``(B, N)`` the places of the `count` highest, the highest first; of equal ones the first.
    All of them are never sorted: with a large vocabulary that takes longer than a small model's token."""
    count = min(count, values.shape[1])
    bounds = np.partition(values, -count, 1)[:, -count]
    found = []
    for row, bound in zip(values, bounds, strict=True):
        places = np.flatnonzero(row >= bound)
        found.append(places[np.argsort(-row[places], kind="stable")[:count]])
    return found
