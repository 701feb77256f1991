"""MindFormers' pipeline and ``predict``: the text as the tokenizer encodes it, and back with its continuation."""

from __future__ import annotations

import pytest
from waiting import HANGING

import pet
from model_zoo.errors import InputError
from pet.compat.mindformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    TextGenerationPipeline,
    TextIteratorStreamer,
    TextStreamer,
    Trainer,
    pipeline,
)

NAME = "text_generation_text"


@pytest.fixture(scope="module", params=["llama_tiny", "glm_tiny", "glm4_tiny"])
def asked(request):
    """A base whose family has a prompt, with what it writes behind the bare text."""
    model, tokenizer = AutoModel.from_pretrained(request.param), AutoTokenizer.from_pretrained(request.param)

    def whole(text, length=16):
        ids = model.generate(tokenizer(text)["input_ids"], max_length=length, do_sample=False)
        return tokenizer.decode(ids, skip_special_tokens=True)[0]

    return request.param, model, tokenizer, whole


def test_a_text_is_not_put_into_the_familys_prompt(asked, tmp_path):
    name, model, tokenizer, whole = asked
    expected = [{NAME: [whole("a red")]}]
    assert tokenizer.chats and expected[0][NAME][0].startswith("a red")
    assert pipeline("text_generation", model=model, tokenizer=tokenizer, max_length=16)("a red") == expected
    assert TextGenerationPipeline(name)({"text": "a red"}, max_length=16, do_sample=False) == expected
    assert Trainer(model=model, tokenizer=tokenizer).predict(input_data="a red", max_length=16) == expected
    assert Trainer(model=name).predict(input_data="a red", max_length=16, top_k=1) == expected
    answer = pet.pipeline(model=model, tokenizer=tokenizer, max_length=16)("a red")  # the library's own asks
    assert answer != expected
    assert pipeline(model=model, tokenizer=tokenizer, max_length=16, chat=True)("a red") == answer


def test_arguments_that_make_mindformers_model_are_noted(caplog):
    given = {"use_past": True, "seq_length": 32}
    assert pipeline(model="llama_tiny", max_length=12, **given)("a red") == pipeline(model="llama_tiny")(
        "a red", max_length=12
    )
    assert [one.message for one in caplog.records if "use_past, seq_length: keys and values" in one.message]
    made = TextGenerationPipeline(task="question_answering", model="llama_tiny", max_length=12)
    assert made("a red") == pipeline(model="llama_tiny", max_length=12)("a red")


def test_results_of_a_batch_stand_together():
    model, tokenizer = AutoModel.from_pretrained("llama_tiny"), AutoTokenizer.from_pretrained("llama_tiny")
    pipe = pipeline(model=model, tokenizer=tokenizer, max_length=12)
    texts = ["a red", "a", "b"]
    one, two, three = (entry[NAME] for entry in pipe(texts))
    assert pipe(texts, batch_size=2) == [{NAME: one + two}, {NAME: three}]
    assert pipeline(model=model, tokenizer=tokenizer, max_length=12, batch_size=3)(texts) == [{NAME: one + two + three}]
    assert Trainer(model="llama_tiny").predict(input_data=texts, max_length=12, batch_size=2) == pipe(texts, 2)
    assert [len(entry[NAME]) for entry in pipe(texts, num_return_sequences=2, num_beams=2)] == [2, 2, 2]
    for wrong in (0, "2", True):
        with pytest.raises(InputError, match="pipeline: batch_size is"):
            pipe(texts, batch_size=wrong)


def test_a_file_of_questions_that_is_no_text_is_named(tmp_path):
    (tmp_path / "asked.txt").write_bytes(b"\xff\xfe1")
    with pytest.raises(InputError, match=r"asked\.txt: not UTF-8 text, a file of questions was expected"):
        Trainer(model="llama_tiny").predict(input_data=str(tmp_path / "asked.txt"))


def test_control_tokens_around_a_text_can_be_left_out():
    model, tokenizer = AutoModel.from_pretrained("glm4_tiny"), AutoTokenizer.from_pretrained("glm4_tiny")
    pipe = pipeline(model=model, tokenizer=tokenizer)
    assert pipe.prompt("a red") == tokenizer.encode("a red")
    ids = tokenizer.encode("a red", add_special_tokens=False)
    expected = tokenizer.decode(model.generate(ids, max_new_tokens=4, do_sample=False), True)[0]
    assert pipe("a red", add_special_tokens=False, max_new_tokens=4) == [{NAME: [expected]}]
    assert pipe.prompt("a red") == tokenizer.encode("a red")
    question = pipeline(model=model, tokenizer=tokenizer, model_name="glm32k").prompt("a red")
    assert question == tokenizer.prompt([{"role": "user", "content": "a red"}])


def test_arguments_of_the_model_and_of_files(tmp_path):
    unused = {"image_processor": None, "audio_processor": None, "backend": "ms"}
    assert pipeline(model="gpt_tiny", use_past=True, seq_length=64, max_new_tokens=1, **unused)("a")
    for wrong, why in (({"backend": "mslite"}, "only 'ms' is supported"), ({"image_processor": object()}, "only text")):
        with pytest.raises(InputError, match=why):
            pipeline(model="gpt_tiny", **wrong)
    with pytest.raises(InputError, match="task 'translation' is not known"):
        pipeline("translation", model="llama_tiny")


def test_streamers_write_the_prompt_and_leave_control_tokens_out(capsys):
    model, tokenizer = AutoModel.from_pretrained("llama_tiny"), AutoTokenizer.from_pretrained("llama_tiny")
    ids = tokenizer("a red")["input_ids"]

    def written(**settings):
        model.generate(ids, max_new_tokens=3, do_sample=False, streamer=TextStreamer(tokenizer, **settings))
        return capsys.readouterr().out

    whole = model.generate(ids, max_new_tokens=3, do_sample=False)[0]
    assert written() == tokenizer.decode(whole, skip_special_tokens=True) + "\n"
    assert written(skip_special_tokens=False).startswith("<s>")
    answer = written(skip_prompt=True, skip_special_tokens=True)
    assert answer.strip() and written().endswith(answer) and not answer.startswith("a red")
    pieces = TextIteratorStreamer(tokenizer=tokenizer, skip_prompt=True, timeout=HANGING, skip_special_tokens=True)
    model.generate(ids, max_new_tokens=3, do_sample=False, streamer=pieces)
    assert "".join(pieces) + "\n" == answer


def test_what_counts_in_a_draw_alone_may_be_anything_without_one(caplog):
    """``do_sample`` is taken by its truth, as there."""
    model, tokenizer = AutoModel.from_pretrained("llama_tiny"), AutoTokenizer.from_pretrained("llama_tiny")
    ids = tokenizer("a red")["input_ids"]
    expected = model.generate(ids, max_new_tokens=6, do_sample=False).tolist()
    assert model.generate(ids, max_new_tokens=6, do_sample=False, top_p=3, top_k=0.65).tolist() == expected
    assert model.generate(ids, max_new_tokens=6, do_sample=0).tolist() == expected
    assert "top_k=0.65 has no effect without do_sample=True" in caplog.text
    drawn = model.generate(ids, max_new_tokens=6, do_sample=True, seed=3).tolist()
    assert model.generate(ids, max_new_tokens=6, do_sample=20, seed=3).tolist() == drawn
    beams = model.generate(ids, max_new_tokens=6, num_beams=3, do_sample=False).tolist()
    assert model.generate(ids, max_new_tokens=6, num_beams=3, do_sample=True, temperature=9.0, seed=3).tolist() == beams
    with pytest.raises(InputError, match=r"top_k is 0\.7"):
        model.generate(ids, max_new_tokens=6, do_sample=True, top_k=0.7)
    with pytest.raises(InputError, match="do_sample is 'yes'"):
        model.generate(ids, max_new_tokens=6, do_sample="yes")


def test_settings_of_generation_as_an_object():
    model, tokenizer = AutoModel.from_pretrained("llama_tiny"), AutoTokenizer.from_pretrained("llama_tiny")
    ids = tokenizer("a red")["input_ids"]
    expected = model.generate(ids, max_length=12, do_sample=False).tolist()
    config = GenerationConfig(max_decode_length=12)
    assert (config.max_length, config.do_sample, config.top_k, config.num_beams) == (12, False, 50, 1)
    assert model.generate(ids, generation_config=config).tolist() == expected
    assert model.generate(ids, config).tolist() == expected
    assert model.generate(ids, config, max_length=8).tolist() == [expected[0][:8]]
    assert config.update(max_length=8, other=1) == {"other": 1}
    assert GenerationConfig.from_dict(config.to_dict()).max_length == 8
    idle = {"bos_token_id": 1, "use_past": True, "_from_model_config": True}
    assert model.generate(ids, generation_config=GenerationConfig(max_length=12, **idle)).tolist() == expected
    assert model.generate(ids, max_length=12, do_sample=False, **idle).tolist() == expected
    found = pipeline(model=model, tokenizer=tokenizer)("a red", max_length=12, do_sample=False, **idle)
    assert found[0]["text_generation_text"] == [tokenizer.decode(expected[0], skip_special_tokens=True)]
    said = AutoConfig.from_pretrained("llama_tiny")
    said.max_decode_length, said.top_k = 30, 3
    found = GenerationConfig.from_model_config(said)
    assert (found.max_length, found.top_k, found.top_p) == (30, 3, 1.0)
    with pytest.raises(InputError, match=r"GenerationConfig: max_lenght: is not known \(did you mean 'max_length'"):
        GenerationConfig(max_lenght=3)
    with pytest.raises(InputError, match=r"encoder_repetition_penalty: 2: only 1\.0 is supported"):
        GenerationConfig(encoder_repetition_penalty=2)
    with pytest.raises(InputError, match="return_dict_in_generate has no counterpart: ids are given"):
        model.generate(ids, max_length=8, return_dict_in_generate=True)


def test_rows_go_on_where_nothing_says_a_length():
    sizes = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "vocab_size": 40, "seq_length": 24}

    def length(model, *arguments, **settings):
        return len(model.generate([5, 6, 7], *arguments, eos_token_id=None, **settings)[0])

    model = LlamaForCausalLM(LlamaConfig(**sizes))
    assert length(model) == 24  # not the 16 new ones of a model of model_zoo
    assert (length(model, max_new_tokens=2), length(model, GenerationConfig())) == (5, 20)
    model.generation_config = {"max_new_tokens": 4}  # of the file beside the weights
    assert length(model) == 7
    assert length(LlamaForCausalLM(LlamaConfig(**sizes, max_decode_length=9))) == 9


def test_what_was_tuned_on_questions_is_asked_in_their_prompt(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Who?", "completion": "Me."}\n' * 2)
    given = {"num_train_epochs": 1, "batch_size": 2}

    def asked(trainer, place=None):
        return trainer.predict(input_data="Who?", predict_checkpoint=place, max_new_tokens=4, top_k=1)

    by_name = Trainer(
        model="llama_tiny",
        pet_method="lora",
        args={"output_dir": str(tmp_path / "run"), **given},
        train_dataset=str(rows),
    )
    assert "[INST]" not in asked(by_name)[0]["text_generation_text"][0]
    bare = asked(by_name)
    by_name.finetune()
    expected = pet.pipeline(model="llama_tiny", adapter=tmp_path / "run/adapter")("Who?", max_new_tokens=4, top_k=1)
    assert asked(by_name) == expected != bare
    for place in ("run", "run/adapter"):
        assert asked(Trainer(model="llama_tiny"), str(tmp_path / place)) == expected
    model = pet.apply_lora(pet.AutoModel.from_pretrained("llama_tiny"), rank=2)
    arguments = {"output_dir": str(tmp_path / "object"), **given}
    by_object = Trainer(model=model, tokenizer="llama_tiny", args=arguments, train_dataset=str(rows))
    by_object.finetune()
    assert asked(by_object) == pet.pipeline(model=model, tokenizer="llama_tiny")("Who?", max_new_tokens=4, top_k=1)
    assert asked(by_object, True) == asked(by_object), "what it has tuned, said outright"
    rows.unlink()  # then nobody knows
    assert asked(by_object)[0]["text_generation_text"][0].startswith("Who?")


def test_how_mindformers_runs_a_model_is_none_of_a_calls_settings():
    ask = pipeline("text_generation", model="llama_tiny")
    assert ask("a red", max_new_tokens=2, use_past=True) == ask("a red", max_new_tokens=2)


@pytest.mark.parametrize("name", ["llama_tiny", "glm4_tiny"])
def test_a_model_is_talked_with(name):
    model, tokenizer = AutoModel.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    asked = [{"role": "user", "content": "a red shirt"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True)
    greedy = {"max_new_tokens": 4, "do_sample": False}
    text, history = model.chat(tokenizer, "a red shirt", **greedy)
    assert text == tokenizer.decode(model.generate([ids], **greedy)[0][len(ids) :], True)
    assert history == [*asked, {"role": "assistant", "content": text}]
    before = history
    further, history = model.chat(tokenizer, "and grey?", history, **greedy)
    assert history is before and len(history) == 4 and history[-1] == {"role": "assistant", "content": further}
    told = model.chat(tokenizer, "a red shirt", instruction="be short", seed=0, max_length=60)[1]
    assert [one["role"] for one in told] == ["system", "user", "assistant"]
    assert told[-1]["content"] == model.chat(tokenizer, "a red shirt", instruction="be short", seed=0, max_length=60)[0]


def test_a_pipelines_texts_may_end_at_different_places():
    model, tokenizer = AutoModel.from_pretrained("gpt_tiny"), AutoTokenizer.from_pretrained("gpt_tiny")
    texts, ids = ["a red", "a blue shirt"], tokenizer("a red", add_special_tokens=False)["input_ids"]
    pipe = pipeline(model=model, tokenizer=tokenizer, max_new_tokens=8, do_sample=False)
    end = int(model.generate([ids], max_new_tokens=8, do_sample=False)[0][len(ids) + 1])
    one, two = (pipe(text, eos_token_id=end)[0][NAME] for text in texts)
    assert one != pipe(texts[0])[0][NAME] and two == pipe(texts[1])[0][NAME]
    assert pipe(texts, eos_token_id=end, batch_size=2) == [{NAME: one + two}]


def test_each_prompt_of_a_padded_batch_has_the_whole_length(caplog):
    """``max_length`` counts a row's own tokens, and what an end token ends has no padding behind it."""
    model = AutoModel.from_pretrained("gpt_tiny")
    prompts, greedy = ([20, 30, 40], [50, 60, 70, 80, 90]), {"do_sample": False, "eos_token_id": None}
    pad = model.config.eos_token_id
    padded = [row + [pad] * (5 - len(row)) for row in prompts]
    alone = [model.generate([row], max_length=12, **greedy)[0].tolist() for row in prompts]
    assert [row.tolist() for row in model.generate(padded, max_length=12, **greedy)] == alone
    assert [len(row) for row in model.generate(padded, max_new_tokens=2, **greedy)] == [5, 7]
    ends = {"do_sample": False, "eos_token_id": [alone[0][5]]}
    expected = [row[: row.index(ends["eos_token_id"][0], 3) + 1] if row is alone[0] else row for row in alone]
    assert ends["eos_token_id"][0] not in alone[1][5:]
    assert [row.tolist() for row in model.generate(padded, max_length=12, **ends)] == expected
    both = model.generate([prompts[0], prompts[1][:3]], max_length=12, **ends)  # of one length
    assert both[0].tolist() == expected[0]
    with caplog.at_level("WARNING", "pet"):
        found = [
            model.generate([prompts[0]], **{limit: model.room - 1 + more}, **greedy)[0].tolist()
            for limit, more in (("max_length", 9), ("max_new_tokens", 0))
        ]
    assert len(found[0]) == model.room and found[0] == found[1]
    for limit, cut in (("max_length", model.room), ("max_new_tokens", model.room - 3)):
        assert f"generate: {limit} is {cut}, all that the context holds" in caplog.text
