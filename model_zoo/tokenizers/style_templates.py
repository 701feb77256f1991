"""The built-in prompt styles as chat templates, for programs that know no styles: transformers, vLLM, llama.cpp.

A model that was tuned with a style and leaves without a template gets prompts of another form there (llama.cpp takes
ChatML's). Styles whose prompts are no text (ChatGLM's) and the plain one have no template.
"""

from __future__ import annotations

import re

from model_zoo.tokenizers.base import Tokenizer
from model_zoo.tokenizers.prompts import STYLES, Form

_MESSAGES = """\
{{- BEGINS -}}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}{{ ANSWER }}
{%- elif message['content'] or message['role'] != 'system' -%}{{ QUESTION }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ OPENS }}{%- endif -%}
"""
# a system text, where it is not empty, goes in front of the first question
_QUESTIONS = """\
{{- BEGINS -}}
{%- set first = namespace(text='') -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}{%- set first.text = SYSTEM if message['content'] else '' -%}
{%- elif message['role'] == 'user' -%}{{ QUESTION }}{%- set first.text = '' -%}
{%- else -%}{{ ANSWER }}{%- endif -%}
{%- endfor -%}
"""


def _template(form: Form) -> str:
    """A form as a chat template. The end of an answer is left out where the next question begins with it."""
    content = "message['content']" + " | trim" * form.strips
    names = {"BOS": "BOS", "EOS": "eos_token", "ROLE": "message['role']"}

    def expression(text: str, inner: str = content) -> str:
        pieces = filter(None, re.split(r"(BOS|EOS|ROLE|\{\})", text))
        return " + ".join({"{}": inner, **names}.get(piece) or f"'{piece}'".replace("\n", "\\n") for piece in pieces)

    ends = "" if form.question.replace("ROLE", "user").startswith(form.ends) else form.ends
    values = {
        "BEGINS": expression(form.begins) or "''",
        "SYSTEM": expression(form.system or ""),
        "QUESTION": expression(form.question, content if form.system is None else f"first.text + {content}"),
        "ANSWER": expression(form.opens + form.answer + ends + form.between),
        "OPENS": expression(form.opens),
    }
    skeleton = _MESSAGES if form.system is None else _QUESTIONS
    return re.sub("|".join(values), lambda found: values[found[0]], skeleton)


STYLE_TEMPLATES = {
    name: _template(style.form) for name, style in STYLES.items() if isinstance(style.form, Form) and name != "plain"
}
"""{name of a style: its template}; BOS stands for the token before a text, where the tokenizer puts one."""


def template_of(tokenizer: Tokenizer) -> str:
    """The chat template that gives other programs the prompts of this tokenizer: its own, or that of its style.

    Returns:
        a Jinja text; empty where there is none.
    """
    if tokenizer.template is not None or tokenizer.prompt_style not in STYLE_TEMPLATES:
        return tokenizer.chat_template
    begins = tokenizer.bos_token_id in tokenizer.around[0]
    return STYLE_TEMPLATES[tokenizer.prompt_style].replace("BOS", "bos_token" if begins else "''")
