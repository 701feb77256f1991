"""Prompts that job files of LLaMA-Factory and axolotl name, as chat templates: what a file says is what is learnt,
whatever template the base's tokenizer has. Those of most bases have none."""

from __future__ import annotations

import json
import re

_CONVERSATION = """\
{%- set own = namespace(system=DEFAULT) -%}
{%- set thought = '<think>\\n\\n</think>\\n\\n' -%}
{%- set bare = THINKS and enable_thinking is false -%}
{%- if tools -%}{{ raise_exception('it has no place for tools') }}{%- endif -%}
OPENING
{%- for message in messages -%}
{%- set said = message['content']TRIM -%}
{%- if message['role'] == 'system' -%}{%- set own.system = said or own.system -%}
{%- elif message['role'] == 'user' -%}QUESTION{%- set own.system = '' -%}
{%- elif message['role'] == 'assistant' -%}
{%- if bare -%}{{ cut }}{{ thought }}{%- set said = said.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}
{% generation %}ANSWER{% endgeneration %}BEHIND
{%- else -%}{{ raise_exception('it has no place for a message from ' + message['role']) }}
{%- endif -%}
{%- endfor -%}
{%- if bare and add_generation_prompt -%}{{ cut }}{{ thought }}{%- endif -%}
"""
_NAMES = {
    "said": "{{ said }}",
    "system": "{{ own.system }}",
    "first": "{%- if own.system -%}SYSTEM{%- endif -%}",
    "thought": "{{ '' if bare or '<think>' in said or '</think>' in said else thought }}{{ cut }}",
    "bos_token": "{{ bos_token }}{{ cut }}",
    "eos_token": "{{ eos_token }}{{ cut }}",
    "last": "{{ eos_token if loop.last else '' }}",
    "cut": "{{ cut }}",
}


def _prompt(
    question: str,
    answer: str = "{said}{eos_token}",
    behind: str = "",
    system: str = "{system}",
    opening: str = "",
    default: str = "",
    whole: bool = False,
    strips: bool = False,
) -> str:
    """The chat template of a prompt.

    Args:
        question, answer, system, opening: texts with names of `_NAMES` in braces; ``{first}`` in a question is where a
            system text goes, ``{thought}`` in an answer an empty thought where it has none.
        behind: follows each answer and is not learnt.
        default: the system text where there is none.
        whole: a conversation is read as one text, not each text by itself.
        strips: blanks around what is said are left out.
    """
    question = "{cut}" + (question.replace("{first}", "{first}{cut}") if question.startswith("{first}") else question)
    written = {"QUESTION": question, "ANSWER": "{cut}" + answer, "BEHIND": behind, "OPENING": opening, "SYSTEM": system}
    parts = {name: _as_jinja(text) for name, text in written.items()}
    parts |= {"DEFAULT": json.dumps(default), "TRIM": "|trim" * strips, "THINKS": str("{thought}" in answer).lower()}
    text = _CONVERSATION
    for name, part in parts.items():
        text = text.replace(name, part)
    return text.replace("{{ cut }}", "") if whole else text


def _as_jinja(text: str) -> str:
    pieces = enumerate(re.split(r"\{(\w+)\}", text))
    return "".join(_NAMES[piece] if odd % 2 else f"{{{{ {json.dumps(piece)} }}}}" for odd, piece in pieces if piece)


_CHATML = {
    "question": "{first}<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n",
    "system": "<|im_start|>system\n{system}<|im_end|>\n",
}
_LLAMA3 = {
    "question": "{first}<|start_header_id|>user<|end_header_id|>\n\n{said}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "answer": "{said}<|eot_id|>",
    "system": "<|start_header_id|>system<|end_header_id|>\n\n{system}<|eot_id|>",
    "opening": "{bos_token}",
}
_GEMMA = {
    "question": "<start_of_turn>user\n{first}{said}<end_of_turn>\n<start_of_turn>model\n",
    "system": "{system}\n\n",
    "opening": "{bos_token}",
}
_MISTRAL = {"system": "{system}\n\n", "opening": "{bos_token}"}
_QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
_LF_CHATML, _LF_GEMMA = (
    _prompt(**_CHATML, answer="{said}<|im_end|>\n"),
    _prompt(**_GEMMA, answer="{said}<end_of_turn>\n"),
)

_TASK = "Below is an instruction that describes a task{}. Write a response that appropriately completes the request."
_FURTHER = ", paired with an input that provides further context"

LLAMA_FACTORY = {
    "default": _prompt(
        "{first}Human: {said}{eos_token}\nAssistant:",
        "{said}{eos_token}\n",
        system="System: {system}{eos_token}\n",
    ),
    "empty": _prompt("{first}{said}", "{said}"),
    "alpaca": _prompt(
        "{first}### Instruction:\n{said}\n\n### Response:\n",
        "{said}{eos_token}\n\n",
        default=_TASK.format("") + "\n\n",
    ),
    "vicuna": _prompt(
        "{first}USER: {said} ASSISTANT:",
        default="A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
        "detailed, and polite answers to the user's questions.",
    ),
    "zephyr": _prompt(
        "{first}<|user|>\n{said}{eos_token}<|assistant|>\n",
        system="<|system|>\n{system}{eos_token}",
        default="You are Zephyr, a helpful assistant.",
    ),
    "deepseek": _prompt("{first}User: {said}\n\nAssistant:", system="{system}\n\n", opening="{bos_token}"),
    "llama2": _prompt("{bos_token}[INST] {first}{said} [/INST]", system="<<SYS>>\n{system}\n<</SYS>>\n\n"),
    "llama3": _prompt(**_LLAMA3),
    "mistral": _prompt("[INST] {first}{said}[/INST]", " {said}{eos_token}", **_MISTRAL),
    "ministral": _prompt("[INST]{first}{said}[/INST]", **_MISTRAL),
    "mistral_small": _prompt(
        "{first}[INST]{said}[/INST]", system="[SYSTEM_PROMPT]{system}[/SYSTEM_PROMPT]", opening="{bos_token}"
    ),
    **dict.fromkeys(("chatml", "qwen3_nothink", "smollm", "yi"), _LF_CHATML),
    "qwen": _prompt(**_CHATML, answer="{said}<|im_end|>\n", default=_QWEN),
    "qwen3": _prompt(**_CHATML, answer="{thought}{said}<|im_end|>\n"),
    "smollm2": _prompt(
        **_CHATML,
        answer="{said}<|im_end|>\n",
        default="You are a helpful AI assistant named SmolLM, trained by Hugging Face.",
    ),
    **dict.fromkeys(("gemma", "gemma3"), _LF_GEMMA),
    "gemma2": _prompt(**_GEMMA, answer="{said}<end_of_turn>\n{last}"),
}
"""LLaMA-Factory's name of a template -> chat template, whose ids and labels are its own; what follows an answer's end
is learnt there, and in ``empty`` no token ends an answer."""

AXOLOTL = {
    "chatml": _prompt(**_CHATML, answer="{said}<|im_end|>", behind="\n", whole=True),
    "qwen_25": _prompt(**_CHATML, answer="{said}<|im_end|>", behind="\n", default=_QWEN, whole=True),
    "llama3": _prompt(**_LLAMA3, whole=True, strips=True),
    "gemma3": _prompt(**_GEMMA, answer="{said}<end_of_turn>", behind="\n", whole=True, strips=True),
}
"""axolotl's ``chat_template`` -> chat template."""

ALPACA = {
    "instruct": tuple(
        f"{_TASK.format(more)}\n\n### Instruction:\n{{prompt}}\n\n{field}### Response:\n"
        for more, field in ((_FURTHER, "### Input:\n{input}\n\n"), ("", ""))
    ),
    "chat": tuple(
        f"SYSTEM: {_TASK.format(more)}\nUSER: {{prompt}}\n{field}ASSISTANT:"
        for more, field in ((_FURTHER, "{input}\n"), ("", ""))
    ),
}
"""Of axolotl's data of ``type: alpaca``, by what follows that and a colon: the text before an answer, of rows with an
input and of those without."""
