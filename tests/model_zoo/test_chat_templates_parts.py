"""Roles, and contents in parts, as each template wants them."""

from __future__ import annotations

import pickle

import pytest
from templates import CALLS, CHATML, MARKED, TALK, learnt

from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from model_zoo.tokenizers.conversations import with_texts


def told(*roles):
    return [{"role": role, "content": f"{role} said {number}."} for number, role in enumerate(roles)]


LOOKS_AT_THE_FIRST = "{%- if messages[0]['role'] == 'tool' %}{{ raise_exception('no') }}{% endif %}\n" + CHATML
ORDERS = [
    ("assistant", "user", "assistant"),
    ("system", "assistant", "user", "user", "assistant", "assistant"),
    ("user", "system", "assistant", "developer", "user", "assistant"),
]


@pytest.mark.parametrize("template", [CHATML, MARKED, LOOKS_AT_THE_FIRST], ids=["chatml", "marked", "first"])
@pytest.mark.parametrize("roles", ORDERS, ids=" ".join)
def test_the_order_of_roles_is_the_template_s_own_matter(made, template, roles):
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(made(template))
    ours, messages = AutoTokenizer.from_pretrained(made(template)), told(*roles)
    ids, _ = ours.example(messages)
    assert ids == theirs.apply_chat_template(messages, return_dict=False)[: len(ids)]
    said = [one["content"] + "<|im_end|>" for one in messages if one["role"] == "assistant"]
    assert learnt(ours, messages).strip("|") == "|".join(said)
    assert learnt(ours, messages, train_on="last").strip("|") == said[-1]
    for count in range(1, len(messages)):
        if messages[count]["role"] == "assistant" and messages[count - 1]["role"] != "assistant":
            asked = messages[:count]
            expected = theirs.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
            assert ours.prompt(asked) == expected


def test_a_beginning_that_is_no_conversation_by_itself(made):
    """A greeting that only shows where it is by its content; with its thought it does not."""
    ours = AutoTokenizer.from_pretrained(
        made(LOOKS_AT_THE_FIRST.replace("message['content'] +", "'- ' + message.content +"))
    )
    messages = told("assistant", "user", "assistant")
    assert learnt(ours, messages) == "|assistant said 0.<|im_end|>|- assistant said 2.<|im_end|>|"
    with pytest.raises(InputError, match=r"refuses the conversation up to message 1, .* train_on: last"):
        ours.example([{**messages[0], "reasoning_content": "a"}, *messages[1:]])


def test_messages_that_a_template_leaves_out_are_an_error(made):
    template = (
        "{%- for message in messages if message.role != 'developer' %}"
        + CHATML.split("{%- for message in messages %}")[1]
    )
    ours = AutoTokenizer.from_pretrained(made(template))
    for call, roles in ((ours.prompt, ("developer", "user")), (ours.example, ("developer", "user", "assistant"))):
        with pytest.raises(
            InputError, match=r"leaves messages from 'developer' out; .*data.roles: \{developer: system\}"
        ):
            call(told(*roles))
    assert ours.prompt([{"role": "developer", "content": " "}, *told("user")]) == ours.prompt(told("user"))


def test_contents_in_parts_are_one_text(made):
    ours = AutoTokenizer.from_pretrained(made(CHATML))
    apart = [{"role": "user", "content": [{"type": "text", "text": "Where is"}, {"text": " it?"}]}]
    assert ours.prompt(apart) == ours.prompt([{"role": "user", "content": "Where is it?"}])
    plain = AutoTokenizer.from_pretrained(made(CHATML), "chatml")
    assert plain.prompt(apart) == ours.prompt(apart)
    for part, found in (({"type": "image", "url": "a.png"}, "image"), ("a", "str"), ({"type": "text"}, "text")):
        with pytest.raises(InputError, match=rf"messages\[0\]: 'content' must be text or parts .* found '{found}'"):
            ours.prompt([{"role": "user", "content": [part]}])


EACH = "{% for part in m.content if part.type is defined %}{{ part.text }}{% endfor %}"


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        ("{{ m.content[0].text }}", ""),
        (EACH, ""),
        (EACH, "{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}"),
    ],
    ids=["fails", "writes none", "with calls"],
)
def test_a_template_that_reads_parts_alone_is_given_parts(made, parts, calls):
    """As of models that also take images: given a text, it fails or writes none of it."""
    template = "{% for m in messages %}{{ '<|im_start|>' + m.role + ': ' }}" + parts + calls + "<|im_end|>{% endfor %}"
    template += "{% if add_generation_prompt %}{{ '<|im_start|>assistant: ' }}{% endif %}"
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(made(template))
    ours = AutoTokenizer.from_pretrained(made(template))
    for messages in (TALK[:2], TALK[:-1], *([CALLS[:3]] if calls else [])):
        apart = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in messages]
        expected = theirs.apply_chat_template(apart, add_generation_prompt=True, return_dict=False)
        assert ours.prompt(messages) == ours.prompt(apart) == expected
    as_text = AutoTokenizer.from_pretrained(made(template.replace(parts, "{{ m.content }}")))
    assert learnt(ours, TALK) == learnt(as_text, TALK)


TEXT = "{% if m.content is string %}{{ m.content }}{% else %}"
BY_LINES = TEXT + "{{ m.content | map(attribute='text') | join('\\n') }}{% endif %}"
TRIMMED = TEXT.replace("content }", "content | trim }")
TRIMMED += "{% for part in m.content %}{{ part.text | trim }}{% endfor %}{% endif %}"


@pytest.mark.parametrize(
    ("content", "each"),
    [
        (BY_LINES, ["user", "assistant", "tool"]),
        (TRIMMED, ["user", "assistant", "tool"]),
        (f"{{% if m.role == 'user' %}}{BY_LINES}{{% else %}}{{{{ m.content + '' }}}}{{% endif %}}", ["user"]),
        ("{{ m.content + '' }}", []),  # which fails with parts
        ("{{ m.content }}", []),  # which writes them as Python does,
        (TEXT + "{{ m.content and m.content | tojson }}{% endif %}", []),  # or as JSON
        (TEXT + "{% endif %}", []),  # or not at all
    ],
    ids=["lines", "trimmed", "lines of questions", "fails", "writes a list", "writes JSON", "leaves out"],
)
def test_a_template_that_writes_each_part_is_given_the_parts(made, content, each):
    """As transformers gives it these; to others a content in parts is one text."""
    template = "{% for m in messages %}{{ '<|im_start|>' + m.role + ': ' }}" + content
    template += "{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}<|im_end|>{% endfor %}"
    template += "{% if add_generation_prompt %}{{ '<|im_start|>assistant: ' }}{% endif %}"
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(made(template))
    ours = AutoTokenizer.from_pretrained(made(template))
    parts = [{"type": "text", "text": "Where is "}, {"type": "text", "text": " the shop?"}]
    asked = TALK[1:3] + TALK[3:4]
    talks = [(asked, number) for number in range(3)] + [(CALLS[:3], 2)]
    for talk, number in talks:
        role = talk[number]["role"]
        apart = [{**one, "content": parts} if place == number else one for place, one in enumerate(talk)]
        whole = [
            {**one, "content": "Where is  the shop?"} if place == number else one for place, one in enumerate(talk)
        ]
        given = apart if role in each else whole
        expected = theirs.apply_chat_template(given, add_generation_prompt=True, return_dict=False)
        assert ours.prompt(apart) == expected, role
        assert (ours.prompt(apart) == ours.prompt(whole)) is (role not in each), role
    answered = [asked[0], {"role": "assistant", "content": parts}]
    text = "Where is \n the shop?" if "assistant" in each and content == BY_LINES else "Where is  the shop?"
    text = "Where isthe shop?" if content == TRIMMED else text
    assert learnt(ours, answered) == f"|{text}<|im_end|>"
    (said,) = pickle.loads(pickle.dumps(with_texts(answered[1:])))  # between processes
    assert learnt(ours, [asked[0], said]) == f"|{text}<|im_end|>"
