"""Chat templates and conversations."""

from __future__ import annotations

from itertools import groupby

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant\n' + (message.content or '') }}
        {%- for call in message.tool_calls %}
            {{- '<tool_call>\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
            {{- '\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}
"""
MARKED = """\
{% for message in messages %}
{% if message['role'] == 'assistant' %}
<|im_start|>assistant
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}

{% else %}
<|im_start|>{{ message['role'] + '\n' + message['content'] }}<|im_end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
"""
FORGETS = """\
{%- for message in messages %}
    {%- set text = message.content if loop.last else message.content.split('</think>')[-1] %}
    {{- '<|im_start|>' + message.role + '\n' + text + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
TALK = [
    {"role": "system", "content": "Be  kind."},
    {"role": "user", "content": "Where is the shop?\n"},
    {"role": "assistant", "content": "It is here, at No. 12."},
    {"role": "user", "content": "你好 and now 2026?"},
    {"role": "assistant", "content": " There."},
]
TOOLS = [{"type": "function", "function": {"name": "find", "description": "finds <shops>", "parameters": {}}}]
CALLS = [
    {"role": "user", "content": "Find a shop."},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "find", "arguments": {"what": "店"}}}],
    },
    {"role": "tool", "content": '{"place": 12}'},
    {"role": "assistant", "content": "At No. 12."},
]


def learnt(tokenizer, messages, **options):
    """The text of the labels, a bar between runs of them."""
    ids, trained = tokenizer.example(messages, **options)
    runs = groupby(zip(ids, trained, strict=True), key=lambda pair: pair[1])
    return "".join(
        tokenizer.decode([number for number, _ in run], skip_special_tokens=False) if label else "|"
        for label, run in runs
    )
