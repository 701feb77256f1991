"""Answers as they come: streamers, stop strings."""

import threading

import pytest
from mindspore import Tensor
from waiting import HANGING
from written_letters import NEW, Letters

import pet
from model_zoo.errors import InputError
from model_zoo.generation import TextIteratorStreamer, TextStreamer


def test_streamers_give_the_answer_as_it_comes(small, capsys):
    model, prompt = small
    expected = Letters().decode(model.generate(prompt[:1], max_new_tokens=6)[0, prompt.shape[1] :])
    model.generate(prompt[:1], max_new_tokens=6, streamer=TextStreamer(Letters()))
    assert capsys.readouterr().out == expected + "\n"
    streamer = TextIteratorStreamer(Letters(), timeout=HANGING)
    thread = threading.Thread(
        target=model.generate, args=(prompt[:1],), kwargs={"max_new_tokens": 6, "streamer": streamer}
    )
    thread.start()
    pieces = list(streamer)
    thread.join()
    assert len(pieces) == 6 and "".join(pieces) == expected


def test_a_streamer_ends_with_its_answer_however_that_ends(small):
    """A reader in another thread waited for ever, and the next prompt was printed as an answer."""
    model, prompt = small

    class Stopping(TextIteratorStreamer):
        left = 3

        def put(self, ids):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            super().put(ids)

    expected = model.generate(prompt[:1], max_new_tokens=4)
    streamer = Stopping(Letters(), timeout=HANGING)
    with pytest.raises(KeyboardInterrupt):
        model.generate(prompt[:1], max_new_tokens=4, streamer=streamer)
    with pytest.raises(InputError, match="ended with an error: KeyboardInterrupt"):
        list(streamer)
    model.generate(prompt[:1], max_new_tokens=4, streamer=streamer)
    assert "".join(streamer) == Letters().decode(expected[0, prompt.shape[1] :])
    with pytest.raises(InputError, match="max_new_tokens leaves 0"):
        model.generate(prompt[:1], max_new_tokens=0, streamer=streamer)
    with pytest.raises(InputError, match="max_new_tokens leaves 0"):
        list(streamer)


def test_an_answer_within_another_leaves_that_alone(small):
    """Of as many tokens, so that one cache would do for either."""
    model, prompt = small

    class Asking:
        found = None

        def put(self, ids):
            if self.found is None and len(ids) == 1:
                self.found = model.generate(prompt[1:2], max_new_tokens=6, eos_token_id=None)

        def end(self):
            pass

    one, other = (model.generate(prompt[i : i + 1], max_new_tokens=6, eos_token_id=None) for i in range(2))
    asking = Asking()
    assert (model.generate(prompt[:1], max_new_tokens=6, eos_token_id=None, streamer=asking) == one).all()
    assert (asking.found == other).all() and (one[0, -6:] != other[0, -6:]).any()


def test_a_streamer_that_changes_the_model_is_an_error(small):
    """Programs would go on with the adapters that they know, and read weights where these no longer are."""
    model, prompt = small
    head, answers = model.transformer.wte.weight, []

    class Changing:
        def __init__(self, change):
            self.change, self.left = change, 3

        def put(self, ids):
            self.left -= 1
            if not self.left:
                self.change()

        def end(self):
            answers.append("whole")

    with pytest.raises(InputError, match="streamer gave the model other weights or adapters"):
        model.generate(prompt[:1], streamer=Changing(lambda: head.set_data(Tensor(head.asnumpy().copy()))))
    with pytest.raises(InputError, match="streamer gave the model other weights or adapters"):
        model.generate(prompt[:1], streamer=Changing(lambda: pet.apply_lora(model, rank=2)))
    pet.delete_adapter(model, "default")
    assert not answers


def test_stop_strings(small):
    model, prompt = small
    free = model.generate(prompt[:1], max_new_tokens=NEW)
    text = Letters().decode(free[0, prompt.shape[1] :])
    stop = text[3:5]
    with pytest.raises(InputError, match="stop_strings: an empty text stands in every answer"):
        model.generate(prompt[:1], stop_strings=["x", ""], tokenizer=Letters())
    ids = model.generate(prompt[:1], max_new_tokens=NEW, stop_strings=stop, tokenizer=Letters())
    assert Letters().decode(ids[0, prompt.shape[1] :]) == text[: text.index(stop) + 2]
    across = Letters().decode([*prompt[0, -2:], free[0, prompt.shape[1]]])  # it begins in the prompt
    ids = model.generate(prompt[:1], max_new_tokens=NEW, stop_strings=across, tokenizer=Letters())
    assert ids.shape[1] == prompt.shape[1] + 1
    beams = {"num_beams": 3, "max_new_tokens": NEW, "eos_token_id": None}
    text = Letters().decode(model.generate(prompt[:1], **beams)[0, prompt.shape[1] :])
    ids = model.generate(prompt[:1], stop_strings=[text[3:5]], tokenizer=Letters(), length_penalty=-9.0, **beams)
    found = Letters().decode(ids[0, prompt.shape[1] :])
    assert found.endswith(text[3:5]) and len(found) < NEW
