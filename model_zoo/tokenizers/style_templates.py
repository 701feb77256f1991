"""The built-in prompt styles as chat templates, for programs that know no styles: transformers, vLLM, llama.cpp.

A model that was tuned with a style and leaves without a template gets prompts of another form there (llama.cpp takes
ChatML's). Styles whose prompts are no text (ChatGLM's) and the plain one have no template.
"""

from __future__ import annotations

from model_zoo.tokenizers.base import Tokenizer

_EACH = "{%- for message in messages -%}\n"
_END = "{%- endfor -%}\n"
_OPEN = "{%- if add_generation_prompt -%}{{ @ }}{%- endif -%}\n"
# a system text goes in front of the first question
_QUESTIONS = """\
{%- set first = namespace(text='') -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}{%- set first.text = SYSTEM -%}
{%- elif message['role'] == 'user' -%}{{ QUESTION }}{%- set first.text = '' -%}
{%- else -%}{{ ANSWER }}{%- endif -%}
{%- endfor -%}
"""


def _questions(system: str, question: str, answer: str) -> str:
    return _QUESTIONS.replace("SYSTEM", system).replace("QUESTION", question).replace("ANSWER", answer)


_JOINED = "message['content'] + '\\n\\n'"
_HEADER = "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
_ASSISTANT = _HEADER.replace("message['role']", "'assistant'")

STYLE_TEMPLATES = {
    "llama2": _questions(
        "'<<SYS>>\\n' + message['content'] | trim + '\\n<</SYS>>\\n\\n'",
        "BOS + '[INST] ' + first.text + message['content'] | trim + ' [/INST]'",
        "' ' + message['content'] | trim + ' ' + eos_token",
    ),
    "mistral": "{{- BOS -}}\n"
    + _questions(
        _JOINED, "'[INST] ' + first.text + message['content'] + ' [/INST]'", "' ' + message['content'] + eos_token"
    ),
    "mistral_tokens": "{{- BOS -}}\n"
    + _questions(_JOINED, "'[INST]' + first.text + message['content'] + '[/INST]'", "message['content'] + eos_token"),
    "llama3": "{{- BOS -}}\n"
    + _EACH
    + "{{ "
    + _HEADER
    + " + message['content'] | trim + '<|eot_id|>' }}"
    + _END
    + _OPEN.replace("@", _ASSISTANT),
    "chatml": _EACH
    + "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    + _END
    + _OPEN.replace("@", "'<|im_start|>assistant\\n'"),
    "glm4": "{{- '[gMASK]<sop>' -}}\n"
    + _EACH
    + "{{ '<|' + message['role'] + '|>\\n' + message['content'] }}"
    + _END
    + _OPEN.replace("@", "'<|assistant|>'"),
}
"""{name of a style: its template}; BOS stands for the token before a text, where the tokenizer puts one."""


def template_of(tokenizer: Tokenizer) -> str:
    """The chat template that gives other programs the prompts of this tokenizer: its own, or that of its style.

    Args:
        tokenizer: of any family.

    Returns:
        a Jinja text; empty where there is none.
    """
    if tokenizer.template is not None or tokenizer.prompt_style not in STYLE_TEMPLATES:
        return tokenizer.chat_template
    begins = tokenizer.bos_token_id is not None and tokenizer.bos_token_id in tokenizer.around[0]
    return STYLE_TEMPLATES[tokenizer.prompt_style].replace("BOS", "bos_token" if begins else "''")
