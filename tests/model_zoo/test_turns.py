"""Models from several threads, in forked processes, and copied."""

import copy
import os
import pickle
import threading

import numpy as np
import pytest

from model_zoo import turns
from model_zoo.auto import AutoModel
from model_zoo.errors import InputError

PROMPTS = [np.array([[1, 5 + row, 6, 7 + row]]) for row in range(4)]
WAYS = {
    "forward": lambda model, ids: model(ids).asnumpy(),
    "cached": lambda model, ids: model.generate(ids, max_new_tokens=12, eos_token_id=None),
    "plain": lambda model, ids: model.generate(ids, max_new_tokens=4, eos_token_id=None, use_cache=False),
}


@pytest.fixture(scope="module")
def model(fixtures):
    return AutoModel.from_pretrained(fixtures / "llama_gqa")


def test_threads_get_what_each_gets_alone(model):
    alone = {(way, row): WAYS[way](model, PROMPTS[row]) for way in WAYS for row in range(4)}
    found = []

    def ask(row):
        found.extend((way, row, WAYS[way](model, PROMPTS[row])) for way in [*WAYS, *WAYS])

    threads = [threading.Thread(target=ask, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 24
    assert all(np.array_equal(alone[way, row], answer) for way, row, answer in found)


def test_only_one_thread_runs_and_that_one_again():
    held, order = threading.Event(), []

    @turns.in_turn
    def run(name):
        order.append(name)
        if name == "first":
            held.set()
            run("within")
            order.append("first ends")

    other = threading.Thread(target=lambda: (held.wait(), run("second")))
    other.start()
    run("first")
    other.join()
    assert order == ["first", "within", "first ends", "second"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_model_in_a_process_that_was_forked_later_is_an_error(model):
    model(PROMPTS[0])
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            model.generate(PROMPTS[0])
        except InputError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        assert "before this process was forked" in answer.read()
    os.waitpid(child, 0)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_model_is_not_copied(model, make):
    with pytest.raises(InputError, match=r"cannot be copied or pickled.*pet\.AutoModel\.from_pretrained"):
        make(model)
