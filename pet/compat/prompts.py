"""Prompts that job files of LLaMA-Factory and axolotl name, as tables of their parts, and their chat templates: what a
file says is what is learnt, whatever template the base's tokenizer has. Those of most bases have none."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace as but

_CONVERSATION = """\
NEEDS
{%- set own = namespace(system=DEFAULT, answered=false) -%}
{%- if tools -%}{{ raise_exception('it has no place for tools') }}{%- endif -%}
OPENING
{%- for message in messages -%}
{%- set said = message['content']TRIM -%}
{%- if message['role'] == 'system' -%}{%- set own.system = SYSTEM_SAID -%}
{%- elif message['role'] == 'user' -%}QUESTION{%- set own.system = '' -%}
{%- elif message['role'] == 'assistant' -%}{%- set own.answered = true -%}BARE{{ cut }}OUTSIDE
{%- generation -%}ANSWER{%- endgeneration -%}BEHIND
{%- else -%}{{ raise_exception('it has no place for a message from ' + message['role']) }}
{%- endif -%}
{%- endfor -%}
BEGUN"""
_BARE = """\
{%- if WHERE -%}{%- set kept = namespace(text='', open='') -%}
{%- for piece in said.split(FIRST) -%}
{%- if loop.first -%}{%- set kept.text = piece -%}
{%- elif LAST in piece -%}{%- set kept.text = kept.text + piece.split(LAST, 1)[1] -%}{%- set kept.open = '' -%}
{%- else -%}{%- set kept.open = kept.open + FIRST + piece -%}
{%- endif -%}
{%- endfor -%}{%- set said = (kept.text + kept.open).lstrip('\\n') -%}{%- endif -%}"""
_NAMES = {
    "said": "{{ said }}",
    "system": "{{ own.system }}",
    "bos": "{{ bos_token }}{{ cut }}",
    "eos": "{{ eos_token }}{{ cut }}",
    "cut": "{{ cut }}",
}
OPENAI = "detailed thinking off"
"""What LLaMA-Factory says first of rows of ``formatting: openai`` that say neither this nor the opposite."""


@dataclass(frozen=True)
class Prompt:
    """How a conversation is written. Texts have names of `_NAMES` in braces.

    Attributes:
        question, system, opening: texts; what an opening says stands first.
        answer: what is learnt of an answer.
        end: the token that ends each answer, where the job file may say whether it is learnt.
        behind: follows each answer and is not learnt.
        default: the system text where there is none.
        needs: tokens without which no base can be trained so, with spaces between.
        fused: the system text stands within the first question.
        thought: what an answer without a thought begins with: how a thought begins, and how it ends.
        one_end: the tokenizer's end token stands behind the last answer alone, and is what is learnt behind all.
        whole: a conversation is read as one text, not each part by itself.
        strips: blanks around what is said are left out.
    """

    question: str
    answer: str = "{said}{eos}"
    system: str = "{system}"
    opening: str = ""
    default: str = ""
    end: str = ""
    behind: str = ""
    needs: str = ""
    fused: bool = False
    thought: tuple[str, str] = ("", "")
    one_end: bool = False
    whole: bool = False
    strips: bool = False

    def jinja(
        self,
        *,
        thinking: bool | None = True,
        last_thought: bool = False,
        openai: bool = False,
        ends: str | None = None,
    ) -> str:
        """The chat template.

        Args:
            thinking: whether an empty thought is learnt; False also leaves out those of the data.
            last_thought: earlier answers are written without theirs.
            openai: system texts are those of `OPENAI`.
            ends: a condition in Jinja, where ``end`` is learnt; by default everywhere.
        """
        between = "{%- if own.system -%}" + _as_jinja(self.system + "{cut}" * (not self.fused)) + "{%- endif -%}"
        question = _as_jinja(self.question)
        question = question.replace("{{ said }}", between + "{{ said }}") if self.fused else between + question
        later = "{%- if own.answered -%}{{ ends }}{%- endif -%}" if self.one_end else ""
        last = "{{ cut }}{{ eos_token if loop.last else '' }}" if self.one_end else ""
        end = _as_jinja(self.end)
        told = [f"{{%- if {test} -%}}{end}{{%- endif -%}}" for test in (ends, f"not ({ends})")] if ends else [end, ""]
        both = f"said if 'detailed thinking on' in said or '{OPENAI}' in said else said + '\\n{OPENAI}'"
        thoughts = self._thoughts(thinking, last_thought)
        parts = {
            **thoughts,
            "QUESTION": "{{ cut }}" + later + question,
            "SYSTEM_SAID": f"({both}) if said else own.system" if openai else "said or own.system",
            "ANSWER": thoughts["INSIDE"] + "{{ cut }}" + _as_jinja(self.answer) + last + told[0],
            "BEHIND": told[1] + _as_jinja(self.behind),
            "OPENING": _as_jinja(self.opening),
            "DEFAULT": json.dumps(OPENAI if openai else self.default),
            "TRIM": "|trim" * self.strips,
            "NEEDS": f"{{#- needs {self.needs} -#}}" if self.needs else "",
        }
        text = re.sub("|".join(parts), lambda found: parts[found[0]], _CONVERSATION)
        return (text.replace("{{ cut }}", "") if self.whole else text).lstrip()

    def _thoughts(self, thinking: bool | None, last_thought: bool) -> dict[str, str]:
        first, last = map(json.dumps, self.thought)
        if not any(self.thought):
            return dict.fromkeys(("BARE", "OUTSIDE", "INSIDE", "BEGUN"), "")
        without = "true" if thinking is False else "not loop.last" if last_thought else "false"
        lacks = f"{json.dumps(self.thought[0].strip())} in said or {json.dumps(self.thought[1].strip())} in said"
        lacks += " or not loop.last" * last_thought
        empty = f"{{{{ '' if {lacks} else {first} + {last} }}}}{{{{ cut }}}}"
        bare = _BARE.replace("WHERE", without).replace("FIRST", first).replace("LAST", last)
        asked = f"{{%- if add_generation_prompt -%}}{{{{ cut }}}}{{{{ {first} + {last} }}}}{{%- endif -%}}"
        return {
            "BARE": "" if without == "false" else bare,
            "OUTSIDE": "" if thinking else empty,
            "INSIDE": "{{ cut }}" + empty if thinking else "",
            "BEGUN": "" if thinking else asked,
        }


def _as_jinja(text: str) -> str:
    pieces = enumerate(re.split(r"\{(\w+)\}", text))
    return "".join(_NAMES[piece] if odd % 2 else f"{{{{ {json.dumps(piece)} }}}}" for odd, piece in pieces if piece)


_IM, _NOTHING = "<|im_end|>", ("<think>\n", "\n</think>\n\n")
_CHATML = Prompt(
    "<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n",
    "{said}<|im_end|>\n",
    "<|im_start|>system\n{system}<|im_end|>\n",
    needs=_IM,
)
_LLAMA3 = Prompt(
    "<|start_header_id|>user<|end_header_id|>\n\n{said}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "{said}<|eot_id|>",
    "<|start_header_id|>system<|end_header_id|>\n\n{system}<|eot_id|>",
    "{bos}",
    needs="<|eot_id|>",
)
_GEMMA = Prompt(
    "<start_of_turn>user\n{said}<end_of_turn>\n<start_of_turn>model\n",
    "{said}<end_of_turn>\n",
    "{system}\n\n",
    "{bos}",
    needs="<end_of_turn>",
    fused=True,
)
_GLM4 = Prompt(
    "<|user|>\n{said}<|assistant|>",
    "\n{said}",
    "<|system|>\n{system}",
    "[gMASK]<sop>",
    needs="<|user|>",
    one_end=True,
)
_LLAMA2 = Prompt("{bos}[INST] {said} [/INST]", system="<<SYS>>\n{system}\n<</SYS>>\n\n", fused=True)
_MISTRAL = Prompt("[INST] {said}[/INST]", " {said}{eos}", "{system}\n\n", "{bos}", fused=True)
_MINISTRAL = but(_MISTRAL, question="[INST]{said}[/INST]", answer="{said}{eos}")
_DEEPSEEK3 = Prompt("<｜User｜>{said}<｜Assistant｜>", opening="{bos}")
_QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
_TASK = "Below is an instruction that describes a task{}. Write a response that appropriately completes the request."
_FURTHER = ", paired with an input that provides further context"
_REFUSES = (
    "and you only answer questions related to computer science. For politically sensitive questions, security and "
)
_REFUSES += "privacy issues, and other non-computer science questions, you will refuse to answer.\n"

LLAMA_FACTORY = {
    "default": Prompt(
        "Human: {said}{eos}\nAssistant:",
        "{said}{eos}\n",
        "System: {system}{eos}\n",
    ),
    "empty": Prompt("{said}", "{said}"),
    "fewshot": Prompt("{said}", "{said}\n\n", one_end=True),
    "alpaca": Prompt(
        "### Instruction:\n{said}\n\n### Response:\n", "{said}{eos}\n\n", default=_TASK.format("") + "\n\n"
    ),
    "vicuna": Prompt(
        "USER: {said} ASSISTANT:",
        default="A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
        "detailed, and polite answers to the user's questions.",
    ),
    "zephyr": Prompt(
        "<|user|>\n{said}{eos}<|assistant|>\n",
        system="<|system|>\n{system}{eos}",
        default="You are Zephyr, a helpful assistant.",
    ),
    "openchat": Prompt("GPT4 Correct User: {said}{eos}GPT4 Correct Assistant:", opening="{bos}"),
    "openchat-3.6": but(
        _LLAMA3,
        question=_LLAMA3.question.replace("user", "GPT4 Correct User").replace("assistant", "GPT4 Correct Assistant"),
        answer="{said}{eos}",
        system="{system}",
    ),
    "breeze": Prompt("[INST] {said} [/INST] ", "{said}", opening="{bos}", one_end=True),
    "solar": Prompt("### User:\n{said}\n\n### Assistant:\n", "{said}", "### System:\n{system}\n\n", one_end=True),
    "xuanyuan": Prompt(
        "Human: {said} Assistant:",
        default="以下是用户和人工智能助手之间的对话。用户以Human开头，人工智能助手以Assistant开头，会对人类提出的问题给出"
        "有帮助、高质量、详细和礼貌的回答，并且总是拒绝参与与不道德、不安全、有争议、政治敏感等相关的话题、问题和指示。\n",
    ),
    "deepseek": Prompt("User: {said}\n\nAssistant:", system="{system}\n\n", opening="{bos}"),
    "deepseekcoder": Prompt(
        "### Instruction:\n{said}\n### Response:",
        "\n{said}\n<|EOT|>\n",
        opening="{bos}",
        default="You are an AI programming assistant, utilizing the DeepSeek Coder model, developed by DeepSeek "
        f"Company, {_REFUSES}",
    ),
    "deepseek3": _DEEPSEEK3,
    "deepseekr1": but(_DEEPSEEK3, thought=_NOTHING),
    "seed_coder": Prompt(
        "{bos}user\n{said}{eos}{bos}assistant\n",
        system="{bos}system\n{system}{eos}",
        default="You are an AI programming assistant, utilizing the Seed-Coder model, developed by ByteDance Seed, "
        f"{_REFUSES}\n",
    ),
    "llama2": _LLAMA2,
    "llama2_zh": but(_LLAMA2, default="You are a helpful assistant. 你是一个乐于助人的助手。"),
    "llama3": _LLAMA3,
    "mistral": _MISTRAL,
    **dict.fromkeys(("ministral", "ministral3"), _MINISTRAL),
    "mistral_small": but(_MINISTRAL, system="[SYSTEM_PROMPT]{system}[/SYSTEM_PROMPT]", fused=False),
    **dict.fromkeys(("qwen3_nothink", "smollm", "yi"), _CHATML),
    "chatml": but(_CHATML, needs="<|im_end|> <|im_start|>"),
    "chatml_de": but(
        _CHATML,
        needs="<|im_end|> <|im_start|>",
        default="Du bist ein freundlicher und hilfsbereiter KI-Assistent.",
    ),
    "qwen": but(_CHATML, default=_QWEN),
    "qwen3": but(_CHATML, thought=_NOTHING),
    "opencoder": but(_CHATML, default="You are OpenCoder, created by OpenCoder Team."),
    "sailor": but(
        _CHATML,
        question="<|im_start|>question\n{said}<|im_end|>\n<|im_start|>answer\n",
        default="You are an AI assistant named Sailor created by Sea AI Lab. Your answer should be friendly, unbiased, "
        "faithful, informative and detailed.",
    ),
    "smollm2": but(_CHATML, default="You are a helpful AI assistant named SmolLM, trained by Hugging Face."),
    **dict.fromkeys(("gemma", "gemma3"), _GEMMA),
    "gemma2": but(_GEMMA, one_end=True),
    "glm4": _GLM4,
    "glmz1": but(_GLM4, thought=_NOTHING),
    "chatglm3": Prompt(
        "<|user|>{cut}\n{cut}{said}{cut}<|assistant|>",
        "\n{cut}{said}",
        "<|system|>{cut}\n{cut}{system}",
        "[gMASK]sop",
        needs="[gMASK] sop <|user|> <|assistant|> <|system|>",
        one_end=True,
    ),
}
"""LLaMA-Factory's name of a template -> its prompt, whose ids and labels are its own; what follows an answer's end is
learnt there, and in ``empty`` no token ends an answer."""

AXOLOTL = {
    "chatml": but(_CHATML, answer="{said}", end=_IM, behind="\n", needs="", whole=True),
    "llama3": but(_LLAMA3, answer="{said}", end="<|eot_id|>", needs="", whole=True, strips=True),
    "gemma3": but(_GEMMA, answer="{said}", end="<end_of_turn>", behind="\n", needs="", whole=True, strips=True),
}
AXOLOTL["qwen_25"] = but(AXOLOTL["chatml"], default=_QWEN)
"""axolotl's ``chat_template`` -> prompt."""

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
