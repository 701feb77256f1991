"""LLaMA-Factory's prompts that belong to no model, as chat templates. A base is tuned by them that has no prompt of its
own, or in another one's place."""

from __future__ import annotations

import json

_CONVERSATION = """\
{%- set default = [{'role': 'system', 'content': DEFAULT}] -%}
{%- for message in (messages if messages[0]['role'] == 'system' else default + messages) -%}
{%- set said = message['content'] -%}
{%- if message['role'] == 'system' -%}{%- if said -%}{{ SYSTEM }}{%- endif -%}
{%- elif message['role'] == 'user' -%}{{ QUESTION }}
{%- elif message['role'] == 'assistant' -%}{% generation %}{{ ANSWER }}{% endgeneration %}{{ BEHIND }}
{%- else -%}{{ raise_exception('it has no place for a message from ' + message['role']) }}
{%- endif -%}
{%- endfor -%}
"""


def _prompt(question: str, answer: str = "said + eos_token", behind: str = "", system: str = "said", default: str = ""):
    """The chat template of a prompt. ``question``, ``answer`` and ``system`` are Jinja's expressions of what is said;
    ``behind`` follows each answer and is not learnt, ``default`` is what is said first where nothing is."""
    parts = {"QUESTION": question, "ANSWER": answer, "SYSTEM": system}
    parts |= {"BEHIND": json.dumps(behind), "DEFAULT": json.dumps(default)}
    text = _CONVERSATION
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


PROMPTS = {
    "default": _prompt(
        "'Human: ' + said + eos_token + '\\nAssistant:'", behind="\n", system="'System: ' + said + eos_token + '\\n'"
    ),
    "empty": _prompt("said", answer="said"),
    "alpaca": _prompt(
        "'### Instruction:\\n' + said + '\\n\\n### Response:\\n'",
        behind="\n\n",
        default="Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request.\n\n",
    ),
    "vicuna": _prompt(
        "'USER: ' + said + ' ASSISTANT:'",
        default="A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
        "detailed, and polite answers to the user's questions.",
    ),
}
"""{LLaMA-Factory's name: chat template}; in ``empty`` no token ends an answer."""
