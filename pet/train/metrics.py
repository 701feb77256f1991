"""Metrics of written answers: ROUGE, BLEU, exact match. All in 0 … 1, higher is better.

ROUGE (Lin 2004) and BLEU (Papineni et al. 2002) come from ``rouge-score`` and ``sacrebleu``; ours is the cutting into
tokens, because neither package's default knows that Chinese has no spaces.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence

from model_zoo import progress
from pet.installation import needed

# A character of Chinese, Japanese or Korean, or of a script without spaces (Thai, Lao, Burmese, Khmer), is a token of
# its own; letters and digits form words; both with their marks (Hindi's vowels, Thai's tones). The rest is dropped.
_ALONE = "㐀-䶿一-鿿豈-﫿぀-ヿㇰ-ㇿ가-힯𠀀-𯨟\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of words and single characters, without and with punctuation."""
    marks = "".join(filter(lambda one: unicodedata.category(one)[0] == "M", map(chr, range(1 << 17))))
    words = f"[{_ALONE}][{marks}]*|(?:[^\\W_{_ALONE}][{marks}]*)+"
    return re.compile(words), re.compile(f"{words}|[^\\w\\s]|_")


def tokens(text: str) -> list[str]:
    """Lower-case words and single CJK characters, without punctuation: ``"Die 天气 is好"`` → die 天 气 is 好."""
    return _patterns()[0].findall(unicodedata.normalize("NFKC", text).lower())


class Tokenizer:
    """What rouge-score asks for."""

    def tokenize(self, text: str) -> list[str]:
        return tokens(text)


def need(package: str, metric: str):
    """The package, or an error that says how to get it."""
    return needed(package, "report", f"eval.metrics: {metric}")


def check_available(metrics: Sequence[str]) -> None:
    """Raises InputError before a run starts, where a metric's package is missing."""
    for metric in metrics:
        if metric.startswith("rouge"):
            need("rouge_score.rouge_scorer", metric)
        elif metric == "bleu":
            need("sacrebleu.metrics", metric)


def rouge(answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Mean F-measures of ROUGE-1, ROUGE-2 and ROUGE-L over the pairs."""
    kinds = {"rouge1": "rouge_1", "rouge2": "rouge_2", "rougeL": "rouge_l"}
    scorer = need("rouge_score.rouge_scorer", "rouge").RougeScorer(list(kinds), tokenizer=Tokenizer())
    sums = dict.fromkeys(kinds.values(), 0.0)
    for answer, reference in zip(answers, references, strict=True):
        progress.tick()
        scores = scorer.score(reference, answer)
        for theirs, ours in kinds.items():
            sums[ours] += scores[theirs].fmeasure
    return {name: value / max(1, len(answers)) for name, value in sums.items()}


def bleu(answers: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU-4 over words and single CJK characters, smoothed as sacrebleu does by default."""
    if not answers:
        return 0.0
    # the text is cut here, so that sacrebleu has only to split at spaces, and not to warn of such a text
    scorer = need("sacrebleu.metrics", "bleu").BLEU(tokenize="none", effective_order=False, force=True)
    score = scorer.corpus_score([spaced(a) for a in answers], [[spaced(r) for r in references]])
    return min(1.0, score.score / 100.0)


def spaced(text: str) -> str:
    """The text with its words, CJK characters and punctuation marks divided by single spaces."""
    text = unicodedata.normalize("NFKC", text)
    return " ".join(_patterns()[1].findall(text))


def exact_match(answers: Sequence[str], references: Sequence[str]) -> float:
    """Share of the answers that are the reference, apart from spaces around them."""
    hits = sum(answer.strip() == reference.strip() for answer, reference in zip(answers, references, strict=True))
    return hits / max(1, len(answers))


def score(metrics: Sequence[str], answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The wanted ones of `GENERATED`. Raises InputError: a package is missing."""
    found: dict[str, float] = {}
    if any(metric.startswith("rouge") for metric in metrics):
        found.update(rouge(answers, references))
    if "bleu" in metrics:
        found["bleu"] = bleu(answers, references)
    if "exact_match" in metrics:
        found["exact_match"] = exact_match(answers, references)
    return {metric: found[metric] for metric in metrics if metric in found}
