"""What an error message suggests for a name that is not known."""

from __future__ import annotations

import pytest

from model_zoo.errors import nearest, similar


@pytest.mark.parametrize(
    ("name", "candidates", "meant"),
    [
        ("LOAR", ["LORA", "IA3"], "LORA"),
        ("lora", ["LORA", "IA3"], "LORA"),
        ("v_porj", ["q_proj", "v_proj"], "v_proj"),
        ("max_len", ["max_length", "batch_size"], "max_length"),
        ("r", ["rank", "rows"], "rank"),
        ("lora_alpha", ["alpha", "lora_beta"], "alpha"),
        ("target_modules", ["targets", "modules_to_save"], "targets"),
        ("dora", ["rank", "use_dora"], "use_dora"),
    ],
)
def test_misspellings_and_words_of_other_libraries(name, candidates, meant):
    assert similar(name, candidates).startswith(f" (did you mean {meant!r}")
    assert nearest(name, candidates) == similar(name, candidates)


@pytest.mark.parametrize(
    ("name", "candidates"),
    [("ADALORA", ["LORA"]), ("x", ["y"]), ("r", ["rows"]), ("prefix_tuning", ["prompt", "bitfit"]), ("a", [])],
)
def test_other_names_are_no_misspellings(name, candidates):
    assert similar(name, candidates) == ""
    assert nearest(name, candidates) == (f" (there is: {', '.join(sorted(candidates))})" if candidates else "")
