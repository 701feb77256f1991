"""How LLaMA-Factory's prompts write tools and calls of them, by its ``tool_format``, as pieces of a chat template.

Of each tool its function is read (``function``), of a call its name and arguments.
"""

from __future__ import annotations

import json


def _text(text: str) -> str:
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}"


def _each(before: str, tool: str, behind: str = "") -> str:
    """A text, each tool, and another text."""
    function = "{%- set function = tool['function'] or tool -%}"
    return _text(before) + "{%- for tool in tools -%}" + function + tool + "{%- endfor -%}" + _text(behind)


def _calls(call: str, between: str = "") -> str:
    """Each call."""
    last = f"{{%- if not loop.last -%}}{_text(between)}{{%- endif -%}}" if between else ""
    return (
        "{%- for call in message['tool_calls'] -%}{%- set call = call['function'] -%}" + call + last + "{%- endfor -%}"
    )


_WHOLE = "{'type': 'function', 'function': function}"
_NAMED = "{{ {'name': call['name'], 'ARGUMENTS': call['arguments']}|tojson }}"
_ARGUMENTS = "{{ call['arguments']|tojson }}"
_PARAMETER = """\
{{ '  - ' ~ name ~ ' (' ~ (one['type'] or '') ~ (', required' if name in (function['parameters']['required'] or []) \
else '') ~ '): ' ~ (one['description'] or '') }}
{{- ', should be one of [' ~ one['enum']|join(', ') ~ ']' if one['enum'] else '' }}
{{- ', where each item should be ' ~ (one['items']['type'] or '') if one['items'] is mapping else '' }}{{ '\\n' }}"""
_PARAMETERS = (
    "{%- for name, one in function['parameters']['properties'].items() -%}" + _PARAMETER + "{%- endfor -%}{{ '\\n' }}"
)
_XML = "<tools></tools> XML tags:\n<tools>"
_IN_A_LIST = "{%- if message['tool_calls']|length > 1 -%}{{ SIGN }}{%- endif -%}"

TOOL_FORMATS = {
    "default": (
        _each(
            "You have access to the following tools:\n",
            "{{ '> Tool Name: ' ~ function['name'] ~ '\\nTool Description: ' ~ (function['description'] or '') }}"
            "{{ '\\nTool Args:\\n' }}" + _PARAMETERS,
            "Use the following format if using a tool:\n```\nAction: tool name (one of [",
        )
        + "{%- for tool in tools -%}{{ ', ' * (not loop.first) ~ (tool['function'] or tool)['name'] }}{%- endfor -%}"
        + _text(
            "])\nAction Input: the input to the tool, in a JSON format representing the kwargs "
            '(e.g. ```{"input": "hello world", "num_beams": 5}```)\n```\n'
        ),
        _calls("{{ 'Action: ' ~ call['name'] ~ '\\nAction Input: ' }}" + _ARGUMENTS, "\n"),
    ),
    "glm4": (
        _each(
            "你是一个名为 ChatGLM 的人工智能助手。你是基于智谱 AI 公司训练的语言模型 GLM-4 模型开发的，"
            "你的任务是针对用户的问题和要求提供适当的答复和支持。\n\n# 可用工具",
            "{{ '\\n\\n## ' ~ function['name'] ~ '\\n\\n' ~ function|tojson(indent=4) }}"
            + _text("\n在调用上述函数时，请使用 Json 格式表示调用的参数。"),
        ),
        "{%- if message['tool_calls']|length > 1 -%}{{ raise_exception('GLM-4 calls one function at a time') }}"
        "{%- endif -%}" + _calls("{{ call['name'] ~ '\\n' }}" + _ARGUMENTS),
    ),
    "llama3": (
        "{{ 'Cutting Knowledge Date: December 2023\\nToday Date: ' ~ strftime_now('%d %b %Y') ~ '\\n\\n' }}"
        + _each(
            "You have access to the following functions. To call a function, please respond with JSON for a function "
            'call. Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
            "value}. Do not use variables.\n\n",
            "{{ " + _WHOLE + "|tojson(indent=4) ~ '\\n\\n' }}",
        ),
        _IN_A_LIST.replace("SIGN", "'['")
        + _calls(_NAMED.replace("ARGUMENTS", "parameters"), ", ")
        + _IN_A_LIST.replace("SIGN", "']'"),
    ),
    "mistral": (
        "{{ '[AVAILABLE_TOOLS] [' }}{%- for tool in tools -%}{%- set function = tool['function'] or tool -%}"
        "{{ " + _WHOLE + "|tojson ~ ('' if loop.last else ', ') }}{%- endfor -%}{{ '][/AVAILABLE_TOOLS]' }}",
        "{{ '[' }}" + _calls(_NAMED.replace("ARGUMENTS", "arguments"), ", ") + "{{ ']' }}",
    ),
    "qwen": (
        _each(
            "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            f"You are provided with function signatures within {_XML}",
            "{{ '\\n' ~ " + _WHOLE + "|tojson }}",
            "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
            '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
            "<args-json-object>}\n</tool_call>",
        ),
        _calls("{{ '<tool_call>\\n' }}" + _NAMED.replace("ARGUMENTS", "arguments") + "{{ '\\n</tool_call>' }}", "\n"),
    ),
}
"""``tool_format`` -> the list of tools, which stands behind the system text, and the calls of an answer."""
