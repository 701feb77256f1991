"""Which tokens of a conversation that a template has written are learnt."""

from __future__ import annotations

import pytest
from templates import CALLS, CHATML, FORGETS, MARKED, TALK, TOOLS, learnt

from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer


def test_what_a_template_writes_last_into_answers_ends_them(made):
    tokenizer = AutoTokenizer.from_pretrained(made("", ("<|endoftext|>", "<end>"), "<|endoftext|>"))
    text = "{% for m in messages %}{% generation %}{{ m.content + '<end>\n' }}{% endgeneration %}{% endfor %}"
    ends = [tokenizer.token_to_id(name) for name in ("<|endoftext|>", "<end>")]
    assert tokenizer.with_chat_template(text, "own").eos_token_ids == ends
    assert tokenizer.eos_token_ids == ends[:1]


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["chatml", "marked"])
def test_labels_are_the_answers_with_their_ends(made, template):
    ours = AutoTokenizer.from_pretrained(made(template))
    assert learnt(ours, TALK) == "|It is here, at No. 12.<|im_end|>| There.<|im_end|>|"
    assert learnt(ours, TALK, train_on="last") == "| There.<|im_end|>|"
    assert all(ours.example(TALK, train_on="all")[1])
    ids, trained = ours.example(TALK)
    assert ids[: trained.index(True)] == ours.prompt(TALK[:2]), "what is learnt continues the prompt"


def test_an_answer_of_weight_0_is_no_label(made):
    first = next(number for number, message in enumerate(TALK) if message["role"] == "assistant")
    talk = [{**message, "weight": 0} if number == first else message for number, message in enumerate(TALK)]
    templated = [AutoTokenizer.from_pretrained(made(template)) for template in (CHATML, MARKED)]
    styled = AutoTokenizer.from_pretrained(made(CHATML), prompt_style="chatml")
    for ours in (*templated, styled):
        assert learnt(ours, talk).startswith("| There.<|im_end|>")  # the template writes a newline behind it
        assert ours.example(talk)[0] == ours.example(TALK)[0]
        ids, trained = ours.example(talk, train_on="all")
        assert 0 < sum(trained) < len(ids)


def test_calls_of_tools_are_learnt_and_their_results_are_not(made):
    ours = AutoTokenizer.from_pretrained(made(CHATML))
    call = '<tool_call>\n{"name": "find", "arguments": {"what": "店"}}\n</tool_call><|im_end|>'
    assert learnt(ours, CALLS, tools=TOOLS) == f"|{call}|At No. 12.<|im_end|>|"
    assert '"finds <shops>"' in ours.decode(ours.example(CALLS, tools=TOOLS)[0])


def test_an_end_that_opens_the_next_turn_is_learnt(made):
    controls = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>")
    template = (
        "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    templated = AutoTokenizer.from_pretrained(made(template, controls, "<|endoftext|>"))
    styled = AutoTokenizer.from_pretrained(made(template, controls, "<|endoftext|>"), prompt_style="glm4")
    for answer in (" There.", "There.\n"):  # an answer's own blanks at its end are a part of it
        talk = [*TALK[:-1], {"role": "assistant", "content": answer}]
        assert templated.example(talk) == styled.example(talk)
    assert templated.prompt(TALK[:-1]) == styled.prompt(TALK[:-1])
    apart = template.replace("{{ m.content }}", "{{ m.content }}\n\n")  # blanks of the template's are none of it
    assert learnt(AutoTokenizer.from_pretrained(made(apart, controls)), TALK).endswith("\n There.<|user|>")


CALLED = "{{ m.tool_calls[0].function.name }}({{ m.tool_calls[0].function.arguments }})"
FORMS = {
    "null": ("{{ m.content or '' }}" + CALLED, "find({'what': '店'})"),
    "empty": ("{{ m.content }}" + CALLED, "find({'what': '店'})"),
    "answered": ("{{ m.content if loop.last else m.content.split('.')[0] }}" + CALLED, "find({'what': '店'})"),
    "json": ("{% if m.content is none %}{{ m.tool_calls[0].function.name + m.tool_calls[0].function.arguments }}"
    "{% else %}{{ m.content }}{% endif %}", 'find{"what": "店"}'),
    "marked as safe": ("{% set given = m.tool_calls[0].function.arguments %}"
    "{% if given is not string %}{% set given = given | tojson | safe %}{% endif %}"
    """{{ '{"' + m.tool_calls[0].function.name + '": ' + given + '}' }}""", '{"find": {"what": "店"}}'),
    "always safe": ("""{{ '{"' + m.tool_calls[0].function.name + '": ' """
    "+ (m.tool_calls[0].function.arguments | tojson | safe) }}", '{&#34;find&#34;: {"what": "店"}'),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_calls_are_given_as_the_template_reads_them(made, form):
    """Without words: null, or nothing; arguments as an object or, as DeepSeek-R1's wants them, as JSON, also where an
    object becomes a text that is safe in HTML, which takes what stands beside it for one that is not."""
    answer, expected = FORMS[form]
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}" + answer + "{% else %}{{ m.content }}"
        "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert (
        learnt(AutoTokenizer.from_pretrained(made(template)), CALLS) == f"|{expected}<|im_end|>|At No. 12.<|im_end|>|"
    )


@pytest.mark.parametrize("refused", ["", "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"])
def test_a_template_that_leaves_calls_out_is_refused(made, refused):
    """Also one that refuses the tools of which a conversation tells nothing."""
    ours = AutoTokenizer.from_pretrained(
        made(refused + FORGETS.replace("message.content.split", "(message.content or '').split"))
    )
    for read in (ours.example, lambda messages: ours.prompt(messages[:3])):
        with pytest.raises(InputError, match=r"leaves calls of tools \(tool_calls\) out; .*data.template"):
            read(CALLS)


def test_calls_in_steps_are_learnt_where_only_the_last_answer_has_a_thought(made):
    """As Qwen3's, which puts an empty thought into the last message only."""
    thinks = CHATML.replace(
        "{{- '<|im_start|>assistant\n' + (message.content",
        "{{- '<|im_start|>assistant\n' + ('<think></think>' if loop.last else '') + (message.content",
    )
    ours = AutoTokenizer.from_pretrained(made(thinks))
    call = '<tool_call>\n{"name": "find", "arguments": {"what": "店"}}\n</tool_call><|im_end|>'
    assert learnt(ours, CALLS) == f"|{call}|At No. 12.<|im_end|>|"
    forgets = thinks.replace("(message.content or '')", "(message.reasoning_content if loop.last else '')")
    said = [{**m, "reasoning_content": "a shop"} if m.get("tool_calls") else m for m in CALLS]
    with pytest.raises(InputError, match="use train_on: last"):
        AutoTokenizer.from_pretrained(made(forgets)).example(said)


def test_thinking_that_earlier_turns_lose_is_an_error_that_says_what_to_do(made):
    ours = AutoTokenizer.from_pretrained(made(FORGETS))
    talk = [{**m, "content": f"<think>\nhm\n</think>{m['content']}"} if m["role"] == "assistant" else m for m in TALK]
    with pytest.raises(InputError, match=r"message 3 is written otherwise .* use train_on: last"):
        ours.example(talk)
    assert learnt(ours, talk, train_on="last") == "|<think>\nhm\n</think> There.<|im_end|>|"


def test_a_thought_that_only_the_last_answer_has_is_learnt_with_it(made):
    thinks = FORGETS.replace(
        "+ text", "+ ('<think></think>' if loop.last and message.role == 'assistant' else '') + text"
    )
    ours = AutoTokenizer.from_pretrained(made(thinks))
    assert learnt(ours, TALK) == "|It is here, at No. 12.<|im_end|>|<think></think> There.<|im_end|>|"


R1 = FORGETS.replace("message.content if loop.last else ", "").replace(
    "assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif"
)
"""As DeepSeek-R1's, whose finished conversations have no thoughts."""


def goes_on(tokenizer, messages, **options):
    """Whether what is learnt of the last answer continues the very ids of its prompt."""
    ids, trained = tokenizer.example(messages, train_on="last")
    return ids[: trained.index(True)] == tokenizer.prompt(messages[:-1], **options)


@pytest.mark.parametrize(
    ("answer", "labels"),
    [
        ({"content": "<think>\nhm\n</think>\n\nThere."}, "hm\n</think>\n\nThere."),
        ({"content": "There.", "reasoning_content": "hm\n"}, "hm\n</think>\n\nThere."),
        ({"content": "There."}, "\n</think>\n\nThere."),
    ],
    ids=["thought", "reasoning", "none"],
)
def test_a_prompt_that_opens_a_thought_goes_on_as_the_data_does(made, answer, labels):
    ours = AutoTokenizer.from_pretrained(made(R1))
    talk = [*TALK[:-1], {"role": "assistant", **answer}]
    assert learnt(ours, talk, train_on="last") == f"|{labels}<|im_end|>"
    assert goes_on(ours, talk)
    with pytest.raises(
        InputError, match=r"prompt of message 3 ends with '<think>\\n', which the .* use train_on: last"
    ):
        ours.example(talk)


@pytest.mark.parametrize(
    ("prompt", "empty", "labels"),
    [
        ("<think>", "</think>", "</think>There.<|im_end|>"),
        ("<think>\n", "<think></think>", "</think>There.<|im_end|>"),
        ("<think></think>", "</think>", "There.<|im_end|>"),
        ("<think>\n</think>\n", "", "There.<|im_end|>"),
    ],
)
def test_an_empty_thought_is_written_as_the_template_writes_it(made, prompt, empty, labels):
    """In prompts otherwise than in finished conversations: GLM-4.7, Nemotron 3, DeepSeek-V3.2, QwQ."""
    thinks = R1.replace("<think>\n", prompt).replace(
        "+ text", f"+ ('{empty}' if message.role == 'assistant' else '') + text | trim"
    )
    ours = AutoTokenizer.from_pretrained(made(thinks))
    assert learnt(ours, TALK, train_on="last") == f"|{labels}"
    assert goes_on(ours, TALK)


def test_a_thought_behind_an_empty_one_is_an_error_that_says_what_to_do(made):
    ours = AutoTokenizer.from_pretrained(made(R1.replace("<think>\n", "<think></think>")))
    for answer in ({"content": "<think>\nhm\n</think>There."}, {"content": "There.", "reasoning_content": "hm"}):
        with pytest.raises(
            InputError, match=r"ends with the empty thought '<think></think>', but .*data.enable_thinking: true"
        ):
            ours.example([*TALK[:2], {"role": "assistant", **answer}])


def test_a_system_text_that_moves_to_the_last_question_stands_there_in_the_example(made):
    """As in Mistral's third tokenizer, whose finished conversations leave it out."""
    moves = CHATML.replace(
        "+ message['content'] +",
        "+ (messages[0].content if loop.last and message.role == 'user' else '') + message['content'] +",
    ).replace("{%- for message in messages %}", "{%- for message in messages[1:] %}")
    ours = AutoTokenizer.from_pretrained(made(moves))
    assert learnt(ours, TALK, train_on="last") == "|There.<|im_end|>"
    assert goes_on(ours, TALK)
    assert ours.decode(ours.example(TALK, train_on="last")[0]).count("Be  kind.你好") == 1
    with pytest.raises(InputError, match=r"prompt of message 3 .*use train_on: last"):
        ours.example(TALK)


def test_a_template_without_a_prefix_is_an_error_that_says_what_to_do(made):
    opens = FORGETS.replace("assistant\n' }}{% endif", "assistant\nHere is what I think: ' }}{% endif")
    wanted = (
        r"ends with 'Here is what I think: ', .* mark the answers in a template of your own with \{% generation %\}"
    )
    with pytest.raises(InputError, match=wanted):
        AutoTokenizer.from_pretrained(made(opens)).example(TALK[:3])
