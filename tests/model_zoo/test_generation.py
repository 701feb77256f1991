"""Generation: the reference's ids with and without the cache, padded or not; choosing, beams, streams and limits."""

import json
import shutil
import sys

import numpy as np
import pytest
from written_letters import NEW, Letters

from model_zoo.auto import AutoModel
from model_zoo.engine import available
from model_zoo.errors import InputError
from model_zoo.generation import TextStreamer, decoders
from model_zoo.generation.beams import beam_search
from model_zoo.generation.choose import Choice
from model_zoo.generation.decoders import bucket, eager_columns
from model_zoo.generation.generate import generate

FAMILIES = ["gpt2", "llama_mha", "llama_gqa", "qwen2_5", "mistral", "qwen3", "qwen3_moe"]
FAMILIES += ["gemma2", "gemma3", "glm", "glm4_0414", "chatglm1", "chatglm2"]
FREE = {"max_new_tokens": NEW, "eos_token_id": None}  # the references were written without an end


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, fixtures):
    directory = fixtures / request.param
    reference = np.load(directory / "ref.npz")
    model = AutoModel.from_pretrained(directory)
    padded = reference["gen_pad_ids"][:, :-NEW]
    if request.param == "chatglm1":
        mask = (padded != 3).astype(int)
    else:
        mask = reference["pad_attention_mask"][:, : padded.shape[1]]
    return model, reference["gen_ids"], reference["gen_pad_ids"], mask


def test_reference_ids(case):
    model, expected, expected_padded, mask = case
    prompt, padded = expected[:, :-NEW], expected_padded[:, :-NEW]
    assert np.array_equal(model.generate(prompt, **FREE), expected)
    assert np.array_equal(model.generate(padded, mask, **FREE), expected_padded)
    assert len(model.__dict__["_decoders"]) == 1  # both prompts fit the same compiled lengths
    shorter = {**FREE, "max_new_tokens": 6}
    assert np.array_equal(model.generate(prompt, use_cache=False, **shorter), expected[:, : prompt.shape[1] + 6])


def test_where_mindspore_gives_new_parameters_no_memory(fixtures, small, monkeypatch):
    """In a job with RUN_MODE=predict, and in its automatic parallel modes: programs read weights and caches there."""
    model, ids = small
    monkeypatch.setattr("mindspore.common.parameter._is_parallel_mode", lambda: True)
    other = type(model)(model.config)
    assert not any(parameter.has_init for parameter in other.get_parameters())
    assert np.array_equal(other.generate(ids, **FREE)[:, :5], ids)
    other = AutoModel.from_pretrained(fixtures / "gpt2")
    assert np.array_equal(other.generate(ids, **FREE), model.generate(ids, **FREE))


def test_padded_rows_are_what_they_are_alone(case):
    model, _, expected_padded, mask = case
    padded = expected_padded[:, :-NEW]
    for row in range(len(padded)):
        alone = padded[row : row + 1, mask[row].astype(bool)]
        ids = model.generate(alone, **FREE)
        assert np.array_equal(ids[0, alone.shape[1] :], expected_padded[row, -NEW:])


def test_sampling_is_a_function_of_the_seed(small):
    model, prompt = small
    settings = {
        "max_new_tokens": 8,
        "do_sample": True,
        "temperature": 1.5,
        "top_k": 40,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
    }
    first = model.generate(prompt, seed=1, **settings)
    assert np.array_equal(first, model.generate(prompt, seed=1, **settings))
    assert np.array_equal(first, model.generate(prompt, seed=1, use_cache=False, **settings))
    assert not np.array_equal(first, model.generate(prompt, seed=2, **settings))
    assert np.array_equal(
        model.generate(prompt, max_new_tokens=8, do_sample=True, top_k=1), model.generate(prompt, max_new_tokens=8)
    )


def test_end_tokens_pad_the_rest(small):
    model, prompt = small
    free = model.generate(prompt, max_new_tokens=NEW)
    end = int(free[0, prompt.shape[1] + 2])
    ids = model.generate(prompt, max_new_tokens=NEW, eos_token_id=[end, 0], pad_token_id=1)
    first = list(free[0, prompt.shape[1] :]).index(end)
    assert ids[0, prompt.shape[1] + first] == end
    assert (ids[0, prompt.shape[1] + first + 1 :] == 1).all()
    longer = model.generate(prompt[:1], max_new_tokens=NEW, eos_token_id=end, min_new_tokens=NEW)
    assert longer.shape[1] == prompt.shape[1] + NEW and end not in longer[0, prompt.shape[1] :]
    assert np.array_equal(model.generate(prompt, max_length=9), free[:, :9])


def with_ends(fixtures, directory, generation_config, config=()):
    """The small GPT-2 with other end tokens; None in `generation_config` leaves the file away."""
    shutil.copytree(fixtures / "gpt2", directory, ignore=shutil.ignore_patterns("*ref*", "*lora*", "*prefix*"))
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**values, **dict(config)}))
    (directory / "generation_config.json").unlink()
    if generation_config is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation_config))
    return directory


@pytest.mark.parametrize("kind", ["generation_config", "a list in generation_config", "null", "config"])
def test_the_models_own_end_against_transformers(small, fixtures, tmp_path, kind):
    torch = pytest.importorskip("torch", reason="the live comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    prompt = small[1][:1]
    free = small[0].generate(prompt, max_new_tokens=None, eos_token_id=None)
    assert free.shape[1] == 64  # None, said explicitly, goes on to the end of the context
    answer = free[0, prompt.shape[1] :].tolist()
    end, other = answer[2], answer[7]
    files = {
        "generation_config": ({"eos_token_id": end}, {"eos_token_id": other}),
        "a list in generation_config": ({"eos_token_id": [other, end]}, {}),
        "null": ({"eos_token_id": None}, {"eos_token_id": end}),
        "config": (None, {"eos_token_id": end}),
    }[kind]
    directory = with_ends(fixtures, tmp_path / "model", *files)
    peer = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    with torch.no_grad():
        expected = peer.generate(torch.tensor(prompt), do_sample=False, max_length=64).numpy()
    assert (expected.shape[1] < 64) == (kind != "null")
    model = AutoModel.from_pretrained(directory)
    for cached in (True, False):
        assert np.array_equal(model.generate(prompt, max_new_tokens=None, use_cache=cached), expected)
    assert np.array_equal(model.generate(prompt, max_new_tokens=2), free[:, : prompt.shape[1] + 2])
    assert np.array_equal(model.generate(prompt, max_new_tokens=None, eos_token_id=None), free)
    model.save_pretrained(tmp_path / "again")
    assert AutoModel.from_pretrained(tmp_path / "again").eos_token_ids == model.eos_token_ids


def test_ends_that_are_no_ids(fixtures, tmp_path):
    assert (
        AutoModel.from_pretrained(with_ends(fixtures, tmp_path / "far", {"eos_token_id": [50256]})).eos_token_ids == []
    )
    model = AutoModel.from_pretrained(with_ends(fixtures, tmp_path / "text", {"eos_token_id": "</s>"}))
    with pytest.raises(InputError, match=r"generation_config\.json: eos_token_id is '</s>'"):
        model.generate([[1, 2]])


@pytest.mark.parametrize("family, settings", [("llama_gqa", {}), ("chatglm1", {"num_beams": 2})])
def test_a_cache_that_grows_gives_the_same_ids(fixtures, monkeypatch, family, settings):
    model = AutoModel.from_pretrained(fixtures / family)
    reference = np.load(fixtures / family / "ref.npz")
    padded = reference["gen_pad_ids"][:, :-NEW]
    mask = (padded != 3).astype(int) if family == "chatglm1" else reference["pad_attention_mask"][:, : padded.shape[1]]
    settings = {"max_new_tokens": 44, "eos_token_id": None, **settings}
    expected = model.generate(padded, mask, **settings)
    whole = [decoder.length for decoder in model.__dict__.pop("_decoders").values()]
    monkeypatch.setattr(decoders, "FIRST_COLUMNS", 4)
    assert np.array_equal(model.generate(padded, mask, **settings), expected)
    grown = [decoder.length for decoder in model.__dict__["_decoders"].values()]
    assert len(whole) == 1 and len(grown) > 1 and max(grown) == whole[0]


@pytest.mark.parametrize("settings", [{}, {"do_sample": True}, {"num_beams": 2}, {"use_cache": False}])
def test_a_weight_that_is_not_a_number_is_named(fixtures, small, settings):
    import mindspore as ms

    model = AutoModel.from_pretrained(fixtures / "gpt2")
    weight = model.parameters_dict()["transformer.h.1.mlp.c_fc.weight"]
    values = weight.asnumpy().copy()
    values[3, 5] = np.nan
    weight.set_data(ms.Tensor(values))
    with pytest.raises(InputError, match=r"not finite.*transformer\.h\.1\.mlp\.c_fc\.weight holds NaN"):
        model.generate(small[1], max_new_tokens=2, **settings)


class Table:
    """A decoder over a fixed table of next-token logits: token → logits."""

    def __init__(self, table):
        self.table = table

    def start(self, ids, mask):
        return self.table[ids[:, -1]]

    def step(self, tokens):
        return self.table[tokens]

    def reorder(self, rows):
        pass


def test_beam_search_finds_what_greedy_misses():
    """Greedy takes 1 (0.6) and ends at 0.6·0.4; the beam finds 2 (0.4) and 0.4·0.9. Compared with all sequences."""
    probabilities = np.full((5, 5), 1e-9)
    probabilities[0, [1, 2]] = 0.6, 0.4
    probabilities[1, [1, 2, 3]] = 0.4, 0.3, 0.3
    probabilities[2, [3, 1]] = 0.9, 0.1
    probabilities[3, 3] = 1.0
    decoder = Table(np.log(probabilities / probabilities.sum(1, keepdims=True)))
    ids = np.array([[0]])
    for beams, answer in ((2, [2, 3]), (1, [1, 1])):
        choice = Choice(5, num_beams=beams)
        found = beam_search(decoder, ids, np.ones_like(ids), choice, new_tokens=2, eos=[], pad=4)
        assert found.tolist() == [answer]


def test_beam_search_against_transformers(small, fixtures):
    torch = pytest.importorskip("torch", reason="the live comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    model, prompt = small
    peer = transformers.AutoModelForCausalLM.from_pretrained(fixtures / "gpt2").eval()
    free = model.generate(prompt, max_new_tokens=10)
    end = int(free[0, -3])
    settings = {"max_new_tokens": 10, "num_beams": 3, "eos_token_id": end, "pad_token_id": 0, "length_penalty": 0.8}
    with torch.no_grad():
        expected = peer.generate(torch.tensor(prompt), do_sample=False, **settings).numpy()
    found = model.generate(prompt, **settings)
    assert np.array_equal(found, expected)
    assert np.array_equal(model.generate(prompt, use_cache=False, **settings), expected)


@pytest.mark.parametrize("position", [-1, 64])
def test_positions_that_the_model_has_not(small, position):
    with pytest.raises(InputError, match=f"position_ids holds {position}, but the model has positions 0 … 63"):
        small[0]([[5, 6, 7]], position_ids=[[0, 1, position]])


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"max_new_tokens": 0}, "max_new_tokens leaves 0"),
        ({"input_ids": []}, r"input_ids is empty: shape \(1, 0\)"),
        ({"input_ids": [[], []]}, r"input_ids is empty: shape \(2, 0\)"),
        ({"max_new_tokens": 100}, "beyond the context of 64"),
        ({"max_length": 3}, "max_length leaves -2"),
        ({"max_length": 9, "max_new_tokens": 3}, "give one of them"),
        ({"temperature": 0}, "temperature is 0"),
        ({"temperature": 1e-60}, "temperature is 1e-60; a number above 0 in float32 was expected"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"eos_token_id": 128}, "128 is not an id"),
        ({"stop_strings": "x"}, "need the tokenizer"),
        ({"num_return_sequences": 2}, "num_return_sequences is 2; it takes do_sample"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences is 3"),
        ({"suppress_tokens": [5, 128]}, "suppress_tokens holds 128, which is no id"),
        ({"suppress_tokens": list(range(128))}, "no token is left"),
        ({"suppress_tokens": (5, 128)}, "suppress_tokens holds 128, which is no id"),
        ({"bad_words_ids": ((5,), (128, 2))}, "bad_words_ids holds 128, which is no id"),
        ({"bad_words_ids": [5]}, "bad_words_ids is"),
        ({"early_stopping": "soon"}, "early_stopping: 'soon'; true, false or never"),
        ({"exponential_decay_length_penalty": [3]}, "exponential_decay_length_penalty: "),
        ({"exponential_decay_length_penalty": [10**400, 2.0]}, "exponential_decay_length_penalty: "),
        ({"exponential_decay_length_penalty": [3, float("nan")]}, "exponential_decay_length_penalty: "),
        ({"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size is 1.5"),
        ({"streamer": object()}, "streamer: object has no put"),
        ({"streamer": TextStreamer(Letters())}, "one row at a time"),
        ({"num_beams": 0}, "num_beams is 0; a whole number of at least 1"),
        ({"min_new_tokens": -1}, "min_new_tokens is -1"),
        ({"min_new_tokens": 20}, "min_new_tokens is 20, but there are 16 tokens at most; raise max_new_tokens"),
        ({"min_length": 30, "max_new_tokens": 4}, "min_length is 30, but there are"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "a"}, "seed is 'a'"),
        ({"pad_token_id": -5}, "pad_token_id -5 is not an id"),
        ({"attention_mask": [[2] * 5] * 2}, "attention_mask holds 2; 1 for real tokens"),
        ({"attention_mask": [[0.5] * 5] * 2}, "attention_mask holds 0.5"),
        ({"attention_mask": [[1], [1, 1]]}, "attention_mask: rows of different lengths"),
        ({"attention_mask": [[1, 1, 1, 1, 0]] * 2}, "pad on the left"),
    ],
)
def test_wrong_settings_are_named(small, settings, message):
    model, prompt = small
    with pytest.raises(InputError, match=message):
        model.generate(**{"input_ids": prompt, **settings})


def test_a_debugger_may_look_on(small):
    model, ids = small

    def look(frame, event, argument):
        return look if frame.f_locals is not None else None

    before = sys.gettrace()
    sys.settrace(look)
    try:
        looked_at = generate(model, ids, max_new_tokens=2, seed=1, do_sample=True)
    finally:
        sys.settrace(before)
    assert np.array_equal(looked_at, model.generate(ids, max_new_tokens=2, seed=1, do_sample=True))


def test_buckets_are_few_and_close():
    lengths = range(1, 5000)
    assert all(
        bucket(length) >= length and (bucket(length) <= 32 or bucket(length) < 1.5 * length) for length in lengths
    )
    assert len({bucket(length) for length in lengths}) <= 16


def test_prompts_that_are_operators_have_few_columns_of_padding():
    lengths = range(1, 5000)
    assert all(length <= eager_columns(length) <= max(length + 3, length * 9 // 8) for length in lengths)
    assert all(eager_columns(length) <= bucket(length) for length in lengths)  # for which the cache has room
    assert len({eager_columns(length) for length in lengths}) <= 70


def test_a_prompt_gives_the_same_bits_again_and_its_own_columns(case):
    model, expected, _, _ = case
    prompt = expected[:, :-NEW]
    model.set_train(False)
    decoder = decoders.CachedDecoder(model, len(prompt), bucket(prompt.shape[1]), 64)
    first, again = (decoder.start(prompt, np.ones_like(prompt)) for _ in range(2))
    assert np.array_equal(first, again)
    assert decoder.column == (prompt.shape[1] if available() else bucket(prompt.shape[1]))


@pytest.mark.skipif(not available(), reason="without a compiler there is no program")
@pytest.mark.parametrize("columns", [4, 7])  # of the first row's own; the second fills the prompt
def test_the_program_of_prompts_gives_the_operators_bits(case, columns):
    """Of so many columns that operators pad nothing."""
    model, expected, _, _ = case
    prompt, model = expected[:, : expected.shape[1] - NEW], model.set_train(False)
    mask = np.ones_like(prompt)
    mask[0, : prompt.shape[1] - columns] = 0  # padding on the left of a row
    logits = []
    for by_operators in (False, True):
        decoder = decoders.CachedDecoder(model, len(prompt), bucket(prompt.shape[1]), 64)
        assert decoder.whole_prompt is not None
        if by_operators:
            decoder.whole_prompt = None
        found = [decoder.start(prompt, mask), *(decoder.step(tokens) for tokens in expected[:, -NEW:].T[:2])]
        logits.append((np.stack(found), decoder.position))
    assert np.array_equal(logits[0][1], logits[1][1])
    assert np.array_equal(logits[0][0], logits[1][0])


def test_the_program_of_single_tokens_gives_the_graphs_bits(case):
    """The graph of a token is its oracle."""
    model, expected, _, _ = case
    prompt, answer = expected[:, :-NEW], expected[:, -NEW:].T
    model.set_train(False)

    def logits(graph: bool):
        decoder = decoders.CachedDecoder(model, len(prompt), bucket(prompt.shape[1]), 64)
        if graph:
            decoder.token = None
        found = [decoder.start(prompt, np.ones_like(prompt)), *(decoder.step(tokens) for tokens in answer[:4])]
        return decoder.token is not None, np.stack(found)

    known, ours = logits(graph=False)
    assert known == available()
    assert np.array_equal(ours, logits(graph=True)[1])
