"""A prompt by its parts, and the chat template that these come to (``data.template``). The prompts that job files of
other systems name are tables of such parts (`pet.compat.prompts`)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_CONVERSATION = """\
NEEDS
{%- set own = namespace(system=DEFAULT, answered=falseKEPT) -%}
{%- if tools -%}TOOLS{%- endif -%}
OPENING
{%- for message in messages -%}
{%- set said = message['content']TRIM -%}
{%- if message['role'] == 'system' -%}WHOLE{%- set own.system = SYSTEM_SAID -%}
{%- elif message['role'] == 'user' -%}TOLDQUESTION{%- set own.system = '' -%}RESULTS
{%- elif message['role'] == 'assistant' -%}{%- set own.answered = true -%}CALLSBARE{{ cut }}OUTSIDE
{%- generation -%}ANSWER{%- endgeneration -%}BEHIND
{%- else -%}{{ raise_exception('it has no place for a message from ' + message['role']) }}
{%- endif -%}
{%- endfor -%}
BEGUN"""
_NO_TOOLS = "{{ raise_exception('it has no place for tools') }}"
_RESULTS = """
{%- elif message['role'] == 'tool' -%}{%- set own.results = own.results ~ said -%}
{%- if loop.nextitem is defined and loop.nextitem['role'] == 'tool' -%}
{%- set own.results = own.results ~ '\\n</tool_response>\\n<tool_response>\\n' -%}
{%- else -%}{%- set said = own.results -%}{%- set own.results = '' -%}RESULT
{%- endif -%}"""
"""Answers of several tools in turn are one, as LLaMA-Factory joins them."""
_BARE = """\
{%- if WHERE -%}{%- set kept = namespace(text='', open='') -%}
{%- for piece in said.split(FIRST) -%}
{%- if loop.first -%}{%- set kept.text = piece -%}
{%- elif LAST in piece -%}{%- set kept.text = kept.text + piece.split(LAST, 1)[1] -%}{%- set kept.open = '' -%}
{%- else -%}{%- set kept.open = kept.open + FIRST + piece -%}
{%- endif -%}
{%- endfor -%}{%- set said = (kept.text + kept.open).lstrip('\\n') -%}{%- endif -%}"""
_HEADED = """\
{%- set own.thought = message['reasoning_content'] or '' -%}
{%- if LAST in said and not own.thought -%}
{%- set own.thought = said.split(LAST)[0].split(FIRST)[-1] -%}{%- set said = said.split(LAST)[-1].lstrip('\\n') -%}
{%- endif -%}"""
_RANKED = """\
{%- set told -%}ANSWER{%- endset -%}{{ told }}
{{- eos_token if loop.last and eos_token and not told.endswith(eos_token) else '' -}}"""
_NAMES = {
    "said": "{{ said }}",
    "system": "{{ own.system }}",
    "opening": "{{ opening }}{{ cut }}",
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
        headed: the last answer alone has a thought, and what writes it is learnt only behind its beginning; an empty
            one is not.
        one_end: the tokenizer's end token stands behind the last answer alone, and is what is learnt behind all.
        whole: a conversation is read as one text, not each part by itself.
        strips: blanks around what is said are left out, but for a system text that is fused.
        tools: the list of tools, and the calls of an answer, each a piece of a chat template; "" has no place for any.
        calling: what is learnt of an answer that calls tools; an answer by default.
        result: what a tool answers; a question by default.
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
    headed: bool = False
    one_end: bool = False
    whole: bool = False
    strips: bool = False
    tools: tuple[str, str] = ("", "")
    calling: str = ""
    result: str = ""

    def jinja(
        self,
        *,
        thinking: bool | None = True,
        last_thought: bool = False,
        as_said: bool = False,
        openai: bool = False,
        ends: str | None = None,
        ranked: str | None = None,
    ) -> str:
        """The chat template.

        Args:
            thinking: whether an empty thought is learnt; False also leaves out those of the data.
            last_thought: earlier answers are written without theirs.
            as_said: earlier answers are written as the data has them.
            openai: system texts are those of `OPENAI`.
            ends: a condition in Jinja, where ``end`` is learnt; by default everywhere.
            ranked: of answers that are compared, which TRL reads as texts: what stands first (``opening``, what the
                tokenizer puts before a text, or ``bos``); what follows that is a text of its own. The last answer ends
                with the end token, and nothing follows.
        """
        between = "{%- if own.system -%}" + _as_jinja(self.system + "{cut}" * (not self.fused)) + "{%- endif -%}"
        question = _as_jinja(self.question)
        question = question.replace("{{ said }}", between + "{{ said }}") if self.fused else between + question
        later = "{%- if own.answered -%}{{ ends }}{%- endif -%}" if self.one_end else ""
        last = "{{ cut }}{{ eos_token if loop.last else '' }}" if self.one_end else ""
        end = _as_jinja(self.end)
        told = [f"{{%- if {test} -%}}{end}{{%- endif -%}}" for test in (ends, f"not ({ends})")] if ends else [end, ""]
        both = f"said if 'detailed thinking on' in said or '{OPENAI}' in said else said + '\\n{OPENAI}'"
        thoughts = self._thoughts(thinking, last_thought, as_said)
        answer, behind = _as_jinja(self.answer) + last + told[0], told[1] + _as_jinja(self.behind)
        if self.calling:
            calling = _as_jinja(self.calling) + last
            answer = f"{{%- if message['tool_calls'] -%}}{calling}{{%- else -%}}{answer}{{%- endif -%}}"
        if ranked:
            answer = _RANKED.replace("ANSWER", answer)
            behind = "{%- if not loop.last -%}" + behind + "{%- endif -%}"
        listed, called = self.tools
        result = "{{ cut }}" + later + _as_jinja(self.result or self.question)
        tell = "{%- set own.system = own.system ~ own.tools -%}{%- set own.tools = '' -%}"
        call = f"{{%- if message['tool_calls'] -%}}{{%- set said -%}}{called}{{%- endset -%}}{{%- endif -%}}"
        parts = {
            **thoughts,
            "TOOLS": f"{{%- set own.tools -%}}{listed}{{%- endset -%}}" if listed else _NO_TOOLS,
            "TOLD": tell if listed else "",
            "CALLS": call if listed else "",
            "RESULTS": _RESULTS.replace("RESULT", result) if listed else "",
            "KEPT": ", tools='', results=''" if listed else "",
            "QUESTION": "{{ cut }}" + later + question,
            "SYSTEM_SAID": f"(said + '\\n' if tools else {both}) if said else own.system"
            if openai
            else "said or own.system",
            "ANSWER": thoughts["INSIDE"] + "{{ cut }}" + answer,
            "BEHIND": behind,
            "OPENING": "OPENING" if ranked else _as_jinja(self.opening),
            "DEFAULT": f"{json.dumps(self.default)} if tools else {json.dumps(OPENAI)}"
            if openai
            else json.dumps(self.default),
            "TRIM": "|trim" * self.strips,
            "WHOLE": "{%- set said = message['content'] -%}" * self.fused,
            "NEEDS": f"{{#- needs {self.needs} -#}}" if self.needs else "",
        }
        text = re.sub("|".join(parts), lambda found: parts[found[0]], _CONVERSATION)
        text = text.replace("{{ cut }}", "") if self.whole else text
        return (text.replace("OPENING", _as_jinja(f"{{{ranked}}}"), 1) if ranked else text).lstrip()

    def _thoughts(self, thinking: bool | None, last_thought: bool, as_said: bool) -> dict[str, str]:
        first, last = map(json.dumps, self.thought)
        if not any(self.thought):
            return dict.fromkeys(("BARE", "OUTSIDE", "INSIDE", "BEGUN"), "")
        if self.headed:
            return self._headed(first, last)
        without = "not loop.last" if last_thought else "false"
        if thinking is False:
            without = "loop.last" if as_said else "true"
        lacks = f"{json.dumps(self.thought[0].strip())} in said or {json.dumps(self.thought[1].strip())} in said"
        lacks += " or not loop.last" * (last_thought or as_said)
        empty = f"{{{{ '' if {lacks} else {first} + {last} }}}}{{{{ cut }}}}"
        bare = _BARE.replace("WHERE", without).replace("FIRST", first).replace("LAST", last)
        asked = f"{{%- if add_generation_prompt -%}}{{{{ cut }}}}{{{{ {first} + {last} }}}}{{%- endif -%}}"
        return {
            "BARE": "" if without == "false" else bare,
            "OUTSIDE": "" if thinking else empty,
            "INSIDE": "{{ cut }}" + empty if thinking else "",
            "BEGUN": "" if thinking else asked,
        }

    def _headed(self, first: str, last: str) -> dict[str, str]:
        alone = f"{{%- if loop.last -%}}{{%- set said = said.lstrip('\\n') -%}}{{{{ {first} }}}}"
        alone += f"{{%- if not own.thought -%}}{{{{ {last} }}}}{{%- endif -%}}{{%- endif -%}}"
        thought = f"{{{{ own.thought.strip('\\n') + {last} if loop.last and own.thought else '' }}}}"
        asked = (
            f"{{%- if add_generation_prompt and enable_thinking is false -%}}{{{{ {first} + {last} }}}}{{%- endif -%}}"
        )
        bare = re.sub("FIRST|LAST", lambda found: json.dumps(self.thought[found[0] == "LAST"].strip()), _HEADED)
        return {"BARE": bare, "OUTSIDE": alone, "INSIDE": thought, "BEGUN": asked}


def _as_jinja(text: str) -> str:
    pieces = enumerate(re.split(r"\{(\w+)\}", text))
    return "".join(_NAMES[piece] if odd % 2 else f"{{{{ {json.dumps(piece)} }}}}" for odd, piece in pieces if piece)
