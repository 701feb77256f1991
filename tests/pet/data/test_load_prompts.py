"""Rows as prompts: templates, thoughts, roles and control tokens."""

import pytest
from letter_samples import CHAT, letters_of, spelled

from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.data import (
    load_dataset,
    load_questions,
)
from pet.data.template import chat_template
from pet.names import bundled_models


def test_a_text_without_a_place_for_what_rows_say(write, settings, letters, caplog):
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "b", "system": "s"}]
    rows += [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "t"}]}]
    paths = write("rows.jsonl", rows[:2]), write("thought.jsonl", rows[2:])
    found = load_dataset(paths, letters, settings=settings(template="{prompt}?"))
    assert [text for text, _ in spelled(found)] == ["<a?b>"] * 3
    system, thought = (line.getMessage() for line in caplog.records)
    assert "the system message, for which data.template has no {system}, is not read in 1 of 3 rows" in system
    assert "the thought, for which data.template has no place, is not read in 1 of 3 rows (the first:" in thought
    caplog.clear()
    places = {"template": "{prompt}?", "template_without_input": "{system}{prompt}"}
    load_dataset(paths[0], letters, settings=settings(template="{system}{prompt}?"))
    load_dataset(paths[0], letters, settings=settings(**places))
    assert not caplog.records
    call = {"type": "function", "function": {"name": "find", "arguments": {}}}
    for row in (
        {"prompt": "a", "completion": "b", "tools": [call]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]},
    ):
        with pytest.raises(InputError, match=r"tools.jsonl:1: tools or calls of them, but data.template has no place"):
            load_dataset(write("tools.jsonl", [row]), letters, settings=settings(template="{prompt}?"))


def test_what_a_chat_template_leaves_out_is_told(write, settings, caplog):
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    answer = {"role": "assistant", "content": "b", "thinking": "t"}
    row = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, answer]}
    path = write("rows.jsonl", [{**row, "tools": [{"name": "find"}]}])
    text = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    for template, told in {
        text: ["the list of tools", "the thought"],
        text.replace("{{ m.content", "{{ m.thinking }}{{ tools }}{{ m.content"): [],
        text.replace("in messages", "in messages[1:]"): ["the list of tools", "the system message", "the thought"],
    }.items():
        caplog.clear()
        load_dataset(path, tokenizer, settings=settings(template=template))
        assert [line.getMessage().partition(": ")[2] for line in caplog.records] == [
            f"{what}, for which the chat template has no place, is not read in 1 of 1 rows (the first: {path}:1)"
            for what in told
        ]


def test_a_switch_that_a_chat_template_has_not_is_told(write, settings, caplog):
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    rows = [
        {"prompt": "a", "completion": "b", "chat_template_kwargs": {"enable_thinking": own}} for own in (None, True)
    ]
    for switch, number in ((None, 1), (False, 2)):
        caplog.clear()
        chosen = settings(template="{% for m in messages %}{{ m.content }}</s>{% endfor %}", enable_thinking=switch)
        load_dataset(write("rows.jsonl", rows), tokenizer, settings=chosen)
        assert f"enable_thinking, for which the chat template has no place, is not read in {number} of 2" in caplog.text


def test_a_prompt_form_has_no_place_for_thoughts(write, settings, letters, caplog):
    answer = {"role": "assistant", "content": "b", "reasoning_content": "t"}
    load_dataset(
        write("rows.jsonl", [{"messages": [{"role": "user", "content": "a"}, answer]}]), letters, settings=settings()
    )
    assert "the thought, for which the prompt form has no place, is not read in 1 of 1 rows" in caplog.text


def test_a_template(write, letters, settings):
    rows = [
        {"instruction": "a{input}", "input": "b", "output": "c{x}", "system": "s"},
        {"instruction": "d", "output": "e"},
    ]
    path = write("rows.jsonl", rows)
    found = spelled(load_dataset(path, letters, settings=settings(template="{system}{{{prompt}}}/{input}=")))
    assert found == [("<s{a{input}}/b=c{x}>", "c{x}>"), ("<{d}/=e>", "e>")]
    for template, message in {
        "{promt}": "did you mean 'prompt'",
        "{prompt": "expected '}'",
        "{prompt.__class__}": "is not known",
        "{prompt!r}": "only the name",
        "answer:": "does not hold {prompt}",
    }.items():
        with pytest.raises(InputError) as caught:
            load_dataset(path, letters, settings=settings(template=template))
        assert message in str(caught.value)
    with pytest.raises(InputError, match=r"chat\.jsonl:1: several questions"):
        load_dataset(write("chat.jsonl", CHAT), letters, settings=settings(template="{prompt}"))


THINKS = """\
{%- for message in messages %}{{ message.role + '\n' + message.content.split('</think>')[-1] }}
{{- eos_token if message.role == 'assistant' else '\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant\n<think>\n' }}{% endif %}
"""


def test_answers_without_the_thought_of_their_prompt_are_said(write, tmp_path, settings, caplog):
    (tmp_path / "thinks.jinja").write_text(THINKS)
    answers = ["There.", "<think>\nhm\n</think>\n\nThere.", "Here."]
    path = write("rows.jsonl", [{"prompt": "Where?", "completion": answer} for answer in answers])
    own = settings(template=str(tmp_path / "thinks.jinja"), deduplicate=False)
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    dataset = load_dataset(path, tokenizer, settings=own)
    assert dataset.counts.empty_thoughts == 2
    said = "2 answers have no thought, which the prompt of the chat template opens: they are learnt behind an empty one"
    assert f"{path}: {said}" in [record.message for record in caplog.records]
    learnt = [tokenizer.decode(dataset[number][0][dataset[number][1]]) for number in range(3)]
    assert [text.count("</think>") for text in learnt] == [1, 1, 1]


def test_a_byte_order_mark_is_no_part_of_a_chat_template(tmp_path):
    """As of rows and of recipes; it stood in front of every prompt."""
    text = "{% for one in messages %}{{ one.content }}{% endfor %}"
    (path := tmp_path / "own.jinja").write_text(text, encoding="utf-8-sig")
    assert chat_template(str(path)) == (text, str(path))


def test_the_order_of_roles_is_a_chat_template_s_matter(write, fixtures, letters, settings):
    """Of a file, and of the tokenizer itself; not of one in a recipe, as those of other programs are."""
    template = "{% for one in messages %}{{ one.role }}: {{ one.content }}{% endfor %}"
    marked = template.replace("{{ one.content }}", "{% generation %}{{ one.content }}{% endgeneration %}")
    turns = [{"role": role, "content": role[0]} for role in ("developer", "assistant", "user", "user", "assistant")]
    path, file = write("a.jsonl", [{"messages": turns}]), write("own.jinja", marked)
    base = AutoTokenizer.from_pretrained(fixtures / "tok_gpt2")
    tokenizer = base.with_chat_template(marked, "own")
    for given, own in ((tokenizer, {}), (base, {"template": str(file)}), (tokenizer, {"streaming": True})):
        dataset = load_dataset(path, given, settings=settings(train_on="answers", **own), progress=False)
        ids, _ = (dataset.window(0) if own.get("streaming") else dataset)[0]
        assert base.decode(ids) == "developer: dassistant: auser: uuser: uassistant: a"
    for given, own in ((letters, {}), (base, {"template": f"{marked} "})):
        with pytest.raises(
            InputError, match=r"message 1 is from 'developer', for which .* data.roles: \{developer: system\}"
        ):
            load_dataset(path, given, settings=settings(**own), progress=False)


def test_rows_without_an_input_have_a_template_of_their_own(write, letters, settings):
    path = write("rows.jsonl", [{"instruction": "q", "input": more, "output": "a"} for more in ("i", "")])
    dataset = load_dataset(
        path, letters, settings=settings(template="{prompt}+{input}=", template_without_input="{prompt}=")
    )
    assert [text for text, _ in spelled(dataset)] == ["<q+i=a>", "<q=a>"]


def test_a_template_needs_questions(write, letters, settings):
    with pytest.raises(InputError, match=r"text\.jsonl:1: no question and answer, which data\.template needs"):
        load_dataset(write("text.jsonl", [{"text": "a"}]), letters, settings=settings(template="{prompt}"))


def test_the_question_of_an_alpaca_row_holds_its_input(write, letters, settings):
    path = write("rows.jsonl", [{"instruction": "a", "input": "b", "output": "c"}])
    (question,) = load_questions(path, letters, settings=settings())
    assert question.prompt == "a\nb" and letters_of(question.prompt_ids) == "<a\nb|"
    asked = [
        load_questions(path, letters, settings=settings(template=one)) for one in ("{prompt}?", "{prompt}, {input}?")
    ]
    assert [letters_of(one.prompt_ids) for (one,) in asked] == ["<a\nb?", "<a, b?"], "without a place of its own, too"


TEMPLATE = """\
{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}
{% for m in messages %}
<|{{ m.role }}|>{{ m.content }}{% if m.role == 'assistant' %}<|endoftext|>{% endif %}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% if enable_thinking == false %}ok {% endif %}{% endif %}
"""


@pytest.mark.parametrize(("thinking", "opening"), [(None, ""), (False, "ok ")])
def test_a_jinja_file_makes_prompts_and_samples(write, tmp_path, settings, thinking, opening):
    from pet.names import bundled_models

    def text(ids):
        return tokenizer.decode(ids, skip_special_tokens=False)

    (tmp_path / "own.jinja").write_text(TEMPLATE)
    talk = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "ok This."}]
    path = write("rows.jsonl", [{"messages": talk, "tools": [{"name": "find"}]}])
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["glm4_tiny"])
    chosen = settings(template=str(tmp_path / "own.jinja"), enable_thinking=thinking)
    (question,) = load_questions(path, tokenizer, settings=chosen)
    assert text(question.prompt_ids) == f"find <|user|>What?<|assistant|>{opening}"
    ids, trained = load_dataset(path, tokenizer, settings=chosen)[0]
    assert text(ids[trained]) == "ok This.<|endoftext|>".removeprefix(opening)
    said = [{"messages": talk, "chat_template_kwargs": {"enable_thinking": own}} for own in (False, True, None)]
    prompts = [text(one.prompt_ids) for one in load_questions(write("own.jsonl", said), tokenizer, settings=chosen)]
    assert [one.rpartition("<|assistant|>")[2] for one in prompts] == ["ok ", "", opening], "a row's own goes first"
    (tmp_path / "own.jinja").write_text(TEMPLATE.replace("{{ tool.function.name }}", "{{ tool.function.name * 2 }}"))
    again, _ = load_dataset(path, tokenizer, settings=chosen)[0]
    assert text(again).startswith("findfind <|user|>"), "the file's text decides, not its name"


@pytest.mark.parametrize("family", ["llama_tiny", "gpt_tiny"])
@pytest.mark.parametrize("template", ["<s>[INST] {prompt} [/INST]", "a {prompt}</s>", "{prompt}<|endoftext|>{input}:"])
def test_control_tokens_of_a_template_are_such(write, settings, family, template):
    """As transformers reads the same text; what a row says of them stays text, and is noted."""
    reference = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(bundled_models()[family])
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()[family])
    more = "x" * template.count("{input}")
    path = write("rows.jsonl", [{"instruction": "Hi there", "input": more, "output": "you"}])
    dataset = load_dataset(path, tokenizer, settings=settings(template=template, max_length=64))
    ids, trained = dataset[0]
    expected = reference(template.replace("{prompt}", "Hi there").replace("{input}", "x")).input_ids
    if not template.endswith("</s>"):  # GPT-2's puts it behind a text as well
        expected = expected[: len(expected) - (expected[-1] == reference.eos_token_id)]
    assert ids[: len(expected)].tolist() == expected and not trained[: len(expected)].any()


def test_control_tokens_in_what_is_said_stay_text_and_are_noted(write, settings, caplog):
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    path = write("rows.jsonl", [{"instruction": "a", "output": f"b{end}"} for end in ("</s>", "", "</s>")])
    dataset = load_dataset(path, tokenizer, settings=settings(template="<s>{prompt}", max_length=64))
    assert dataset[0][0].tolist().count(tokenizer.eos_token_id) == 1
    texts = write("texts.jsonl", [{"text": "[INST] a [/INST] b </s><s>"}])
    load_dataset(texts, tokenizer, settings=settings(format="text", max_length=64))
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "</s> in what is said, which stays text, as a control token is not read in 2 of 3 rows" in said
    assert "</s>, <s> in what is said" in said
