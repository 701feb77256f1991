"""The one-line pipeline: continuations and answers, alone and in batches, equal to the model's own generate."""

import io
import json
import math

import numpy as np
import pytest

import pet
from model_zoo.errors import InputError
from model_zoo.generation import TextIteratorStreamer, TextStreamer
from model_zoo.generation_settings import completes_stop
from pet.cli.chat_session import add_chat_session, make_chat_session
from pet.cli.main import main
from pet.cli.parser import Parser
from pet.recipe.loading import from_dict
from pet.recipe.training import Generation
from pet.text_generation import before, until
from pet.train.evaluate import Answers
from pet.train.prepare import attach_adapter

TEXTS = ["你好", "类型#裙*颜色#红色"]


@pytest.fixture(scope="module")
def answering():
    return pet.pipeline("text_generation", model="glm_tiny", max_new_tokens=12)


def test_answers_are_what_generate_gives(answering):
    found = answering(TEXTS)
    assert [list(entry) for entry in found] == [["text_generation_text"]] * 2
    for text, entry in zip(TEXTS, found, strict=True):
        prompt = answering.tokenizer.prompt([{"role": "user", "content": text}])
        ends = answering.tokenizer.eos_token_ids
        ids = answering.model.generate([prompt], max_new_tokens=12, eos_token_id=ends, use_cache=False)
        answer = answering.tokenizer.decode([token for token in ids[0, len(prompt) :].tolist() if token not in ends])
        assert entry["text_generation_text"] == [answer]
        assert answering(text) == [entry]
    assert found[0] != found[1]


def test_top_k_draws(answering):
    one, other = (answering(TEXTS, top_k=50, temperature=3.0, seed=seed) for seed in (1, 2))
    assert one != other
    assert answering(TEXTS, top_k=1) == answering(TEXTS)


def test_a_text_of_two_batches_has_two_draws(answering):
    size = answering.batch_size
    texts = TEXTS[:1] * (2 * size)
    found = [one["text_generation_text"] for one in answering(texts, temperature=5.0, seed=3)]
    assert found[:size] != found[size:]
    assert found == [one["text_generation_text"] for one in answering(texts, temperature=5.0, seed=3)]


def test_several_answers_to_each_text(answering):
    found = answering(["类型#裤", "类型#裙"], num_return_sequences=2, num_beams=3)
    assert [len(one["text_generation_text"]) for one in found] == [2, 2]
    assert [one["text_generation_text"][0] for one in found] == [
        one["text_generation_text"][0] for one in answering(["类型#裤", "类型#裙"], num_beams=3)
    ]


def test_a_bare_text_is_continued():
    plain = pet.pipeline(model="gpt_tiny", max_new_tokens=4)
    assert not plain.chat
    (entry,) = plain("The shop")
    ids = plain.tokenizer.encode("The shop")
    expected = plain.model.generate([ids], max_new_tokens=4, eos_token_id=plain.tokenizer.eos_token_ids)
    assert entry["text_generation_text"] == [plain.tokenizer.decode(expected[0].tolist())]
    assert entry["text_generation_text"][0].startswith("The shop")
    with pytest.raises(pet.InputError, match="an empty text"):
        plain("")


def test_the_answer_to_a_bare_text_keeps_the_space_that_it_begins_with():
    """sentencepiece leaves out the one in front of a text that is read by itself."""
    plain = pet.pipeline(model="llama_tiny", chat=False, max_new_tokens=6)
    for text in ("Where is", "The shop is"):
        ids = plain.tokenizer.encode(text)
        whole = plain.model.generate([ids], max_new_tokens=6, eos_token_id=plain.tokenizer.eos_token_ids)
        expected = plain.tokenizer.decode(whole[0].tolist())
        assert expected.startswith(f"{text} ")
        assert plain(text, temperature=None)[0]["text_generation_text"] == [expected]


def test_a_stop_text_may_be_a_control_token():
    """As in transformers; it is no part of the text that is read, so that the answer went on."""
    torch = pytest.importorskip("torch", reason="the live comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    from pet.names import find_model

    plain, base = pet.pipeline(model="llama_tiny", chat=True, eos_token_id=None), find_model("llama_tiny")
    prompt = plain.prompt("Say hello.")
    settings = {"max_new_tokens": 40, "eos_token_id": None, "stop_strings": ["</s>"], "pad_token_id": 1}
    peer = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    with torch.no_grad():
        tokenizer = transformers.AutoTokenizer.from_pretrained(base)
        expected = peer.generate(torch.tensor([prompt]), do_sample=False, tokenizer=tokenizer, **settings).numpy()
    assert expected.shape[1] < len(prompt) + 40
    assert np.array_equal(plain.model.generate([prompt], tokenizer=plain.tokenizer, **settings), expected)
    answers = Answers(plain.model, plain.tokenizer, (), Generation(max_new_tokens=40, stop=["</s>"]))
    answers.ends = [3]  # none of them comes up
    assert answers.write([prompt]) == [plain.tokenizer.decode(expected[0, len(prompt) :]).strip()]


def test_a_stop_text_may_begin_in_the_prompt():
    """Or with the space of the answer's first piece, which the answer alone would lose; it ends in the last token."""
    tokenizer = pet.AutoTokenizer.from_pretrained("llama_tiny")
    prompt, (first, *rest) = tokenizer.encode("The shop"), tokenizer.encode("is é", add_special_tokens=False)
    for stop, answer in ((" i", [first]), ("p i", [first]), ("The shop is", [first]), ("s é", [first, *rest])):
        assert until(prompt, [first, *rest], [], [stop], tokenizer) == answer
    for stop in ("shop", "The", "ée", "\n"):
        assert until(prompt, [first, *rest], [], [stop], tokenizer) == [first, *rest]
        assert not completes_stop(tokenizer, [*prompt, first], [stop])
    assert before(" is", ["p i"], "The shop") == before(" is", [" i"], "The shop") == ""
    assert before(" is so", ["s s", "shop", "o"], "The shop") == " i"


def test_what_fills_a_row_up_behind_its_stop_text_is_no_answer():
    plain, texts = pet.pipeline(model="gpt_tiny", max_new_tokens=8, eos_token_id=None), ["The shop", "A red lamp and"]
    whole = [one["text_generation_text"][0] for one in plain(texts)]
    stop = whole[0][len(texts[0]) :][:3]
    assert stop not in whole[1][len(texts[1]) :]
    (stopped,), (other,) = (one["text_generation_text"] for one in plain(texts, stop_strings=stop))
    assert stopped.count(stop) == 1 and whole[0].startswith(stopped) and other == whole[1]
    plain.batch_size = 1  # what can be read but once counts in each batch
    found = plain([texts[0], texts[0]], stop_strings=iter([stop]))
    assert [one["text_generation_text"] for one in found] == [[stopped], [stopped]]


@pytest.mark.parametrize("file", ["", [], np.ones(2)])
def test_what_no_text_can_be_written_to_is_no_file(answering, file):
    with pytest.raises(InputError, match=r"file is of the type .*, which has no write\(\)"):
        TextStreamer(answering.tokenizer, file=file)


@pytest.mark.parametrize("timeout", [-1, math.nan, 1e300])
def test_no_time_to_wait_for_is_refused(answering, timeout):
    with pytest.raises(InputError, match=r"timeout is .*; a number of at least 0 and at most"):
        TextIteratorStreamer(answering.tokenizer, timeout=timeout)


def test_a_reader_is_told_of_an_error_once_wherever_it_was():
    plain = pet.pipeline(model="gpt_tiny", max_new_tokens=3)
    streamer = TextIteratorStreamer(plain.tokenizer, timeout=0)
    default = None, -1, False, None, None, None, None, None, None, True
    for call, words in (
        (lambda: plain("", streamer=streamer), "an empty text"),
        (lambda: plain("The", top_p=-1.0, streamer=streamer), "top_p is -1"),
        (lambda: plain.model.generate([[5]], *default, streamer), "leaves -1 new tokens"),
    ):
        with pytest.raises(InputError, match=words):
            call()
        with pytest.raises(InputError, match=f"the answer ended with an error: .*{words}"):
            next(streamer)
    (answer,) = plain("The", streamer=streamer)[0].values()
    assert "The" + "".join(streamer) == answer[0]


def test_a_printed_prompt_and_its_answer_are_one_text():
    """The space between them is that of the answer's first piece (sentencepiece)."""
    plain, printed = pet.pipeline(model="llama_tiny", chat=False), io.StringIO()
    ids = plain.tokenizer.encode("The shop is")
    streamer = TextStreamer(plain.tokenizer, skip_prompt=False, file=printed)
    whole = plain.model.generate([ids], max_new_tokens=6, streamer=streamer)
    assert printed.getvalue() == plain.tokenizer.decode(whole[0]) + "\n"
    assert printed.getvalue().startswith("The shop is ")


def test_an_adapter_that_no_model_takes_is_refused_before_one_is_loaded(tmp_path, monkeypatch, capsys):
    pet.save_adapter(pet.apply_lora(pet.AutoModel.from_pretrained("llama_tiny"), rank=2), tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**settings, "lora_bias": True}))
    monkeypatch.setattr(pet.AutoModel, "from_pretrained", lambda *_: pytest.fail("a base was loaded"))
    with pytest.raises(pet.InputError, match="lora_bias is not supported: B has a bias"):
        pet.pipeline(model="llama_tiny", adapter=tmp_path)
    assert main(["predict", "--model", "llama_tiny", "--adapter", str(tmp_path), "--input", "Hi"]) == 2
    assert main(["validate", "llama_lora", f"adapter.load={tmp_path}"]) == 2
    assert capsys.readouterr().err.count("lora_bias is not supported") == 2


def test_an_answer_ends_where_transformers_ends_it():
    torch = pytest.importorskip("torch", reason="the live comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    from pet.names import find_model

    pipe = pet.pipeline(model="llama_tiny", chat=True)
    prompt = pipe.tokenizer.prompt([{"role": "user", "content": "Tell a story about a shop."}])
    peer = transformers.AutoModelForCausalLM.from_pretrained(find_model("llama_tiny")).eval()
    with torch.no_grad():
        written = peer.generate(torch.tensor([prompt]), do_sample=False, max_length=256)[0, len(prompt) :].tolist()
    assert len(written) > 16 and written[-1] == 2, "the answer is longer than the default of generate, and ends"
    expected = pipe.tokenizer.decode(written[:-1])
    assert pipe("Tell a story about a shop.")[0]["text_generation_text"] == [expected]
    short = pipe("Tell a story about a shop.", max_new_tokens=5)[0]["text_generation_text"]
    assert short == [pipe.tokenizer.decode(written[:5])]
    endless = pipe("Tell a story about a shop.", eos_token_id=None, max_new_tokens=len(written) + 8)
    assert endless[0]["text_generation_text"][0].startswith(expected)
    assert len(endless[0]["text_generation_text"][0]) > len(expected)


def test_an_adapter_changes_the_answer(answering, tmp_path):
    model = pet.apply_lora(pet.AutoModel.from_pretrained("glm_tiny"), rank=2)
    generator = np.random.default_rng(0)
    for parameter in pet.trainable_parameters(model):
        parameter.set_data(pet_tensor(generator.normal(0, 0.3, parameter.shape)))
    pet.save_adapter(model, tmp_path)
    adapted = pet.pipeline("text-generation", model="glm_tiny", adapter=tmp_path, max_new_tokens=12)
    assert adapted(TEXTS) != answering(TEXTS)
    with pet.disable_adapters(adapted.model):
        assert adapted(TEXTS) == answering(TEXTS)


def pet_tensor(values):
    import mindspore as ms

    return ms.Tensor(values.astype(np.float32))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"task": "text_generatio"}, "did you mean 'text_generation'"),
        ({"model": None}, "model is missing"),
        ({"model": "glm_tinny"}, "did you mean 'glm_tiny'"),
        ({"batch_size": 0}, "batch_size is 0; a whole number of at least 1"),
        ({"batch_size": "2"}, "batch_size is '2'; a whole number"),
        ({"chat": "yes"}, "chat is 'yes'; True or False"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(pet.InputError, match=message):
        pet.pipeline(**{"model": "glm_tiny", **arguments})


def test_an_exported_adapter_brings_its_chat_template(tmp_path, caplog):
    adapter, question = tmp_path / "adapter", [{"role": "user", "content": "Who?"}]
    model = pet.AutoModel.from_pretrained("llama_tiny")
    pet.apply_lora(model, rank=2)
    pet.save_adapter(model, adapter)
    tokenizer = pet.AutoTokenizer.from_pretrained("llama_tiny")
    tokenizer.with_chat_template("Q: {{ messages[0].content }} A:", "own").save_pretrained(adapter)
    adapted = pet.pipeline("text-generation", model="llama_tiny", adapter=adapter)
    assert adapted.prompt("Who?") == tokenizer.encode("Q: Who? A:", add_special_tokens=False)
    parser = Parser("pet predict", "", "")
    add_chat_session(parser)
    session = make_chat_session(parser.parse_args(["--model", "llama_tiny", "--adapter", str(adapter)]))
    assert session.prompt(question) == adapted.prompt("Who?")
    pet.merge_checkpoint("llama_tiny", adapter, tmp_path / "merged")
    for name, more in (("exported", []), ("whole", ["--merged"])):
        command = ["export", str(adapter), "--base", "llama_tiny", "--output", str(tmp_path / name)]
        assert main([*command, *more]) == 0
    for name in ("merged", "exported", "whole"):
        assert pet.AutoTokenizer.from_pretrained(tmp_path / name).prompt(question) == adapted.prompt("Who?")
    pet.save_adapter(model, tmp_path / "other")
    tokenizer.with_chat_template("R: {{ messages[0].content }}", "own").save_pretrained(tmp_path / "other")
    pet.merge_checkpoint("llama_tiny", [adapter, tmp_path / "other"], tmp_path / "both")
    assert "the adapters have 2 chat templates; it has that of" in caplog.text
    assert pet.AutoTokenizer.from_pretrained(tmp_path / "both").prompt(question) == tokenizer.prompt(question)
    recipe = {"model": {"path": "llama_tiny"}, "adapter": {"method": "lora", "load": str(adapter), "rank": 2}}
    attach_adapter(pet.AutoModel.from_pretrained("llama_tiny"), from_dict(recipe, check_files=False), tokenizer)
    assert "has a chat template of its own, which is not used; model.tokenizer=" in caplog.text
    own = pet.pipeline("text-generation", model="llama_tiny", adapter=adapter, tokenizer="llama_tiny")
    assert own.prompt("Who?") == tokenizer.prompt(question)


@pytest.mark.parametrize("text", [{"role": "user", "content": "x"}, [{"role": "user", "content": "x"}], [], 5])
def test_what_is_no_text_is_refused(answering, text):
    with pytest.raises(InputError, match="a text or a list of texts was expected"):
        answering(text)
