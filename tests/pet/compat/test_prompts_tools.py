"""Tools in prompts that job files name."""

from __future__ import annotations

import json
import re

import pytest
from written_prompts import HEAD, IM, IM_SYSTEM, LLAMA3, said, written

from model_zoo.errors import InputError
from pet.compat.prompts import AXOLOTL, LLAMA_FACTORY

FUNCTION = {"name": "w", "parameters": {"type": "object", "properties": {"p": {"type": "string", "enum": ["a", "b"]}}}}
FUNCTION["parameters"]["required"] = ["p"]
IN_A_LINE = json.dumps({"type": "function", "function": FUNCTION})
CALLS = [{"function": {"name": "w", "arguments": {"p": "é"}}}, {"function": {"name": "v", "arguments": {}}}]
# what LLaMA-Factory writes before the first answer and of tools within, of one call and of two, behind these, of the
# answer R of a tool, and of the last answer
OF_TOOLS = {
    "yi": (
        IM_SYSTEM.format("S{}") + IM.format("A"),
        "You have access to the following tools:\n> Tool Name: w\nTool Description: \nTool Args:\n"
        "  - p (string, required): , should be one of [a, b]\n\nUse the following format if using a tool:\n```\n"
        "Action: tool name (one of [w])\nAction Input: the input to the tool, in a JSON format representing the kwargs "
        '(e.g. ```{"input": "hello world", "num_beams": 5}```)\n```\n',
        'Action: w\nAction Input: {"p": "é"}',
        'Action: w\nAction Input: {"p": "é"}\nAction: v\nAction Input: {}',
        IM.format("R"),
        "<|im_end|>\n",
        "B<|im_end|>\n",
    ),
    "llama3": (
        "^" + HEAD.format("system") + "S{}<|eot_id|>" + LLAMA3.format("A"),
        "Cutting Knowledge Date: December 2023\nToday Date: TODAY\n\nYou have access to the following functions. To "
        "call a function, please respond with JSON for a function call. Respond in the format "
        '{"name": function name, "parameters": dictionary of argument name and its value}. Do not use variables.\n\n'
        + json.dumps(json.loads(IN_A_LINE), indent=4)
        + "\n\n",
        '{"name": "w", "parameters": {"p": "é"}}',
        '[{"name": "w", "parameters": {"p": "é"}}, {"name": "v", "parameters": {}}]',
        LLAMA3.replace("user", "ipython").format("R"),
        "<|eot_id|>",
        "B<|eot_id|>",
    ),
    "qwen": (
        IM_SYSTEM.format("S{}") + IM.format("A"),
        "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
        f"function signatures within <tools></tools> XML tags:\n<tools>\n{IN_A_LINE}\n</tools>\n\nFor each function "
        "call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
        '<tool_call>\n{"name": "w", "arguments": {"p": "é"}}\n</tool_call>',
        '<tool_call>\n{"name": "w", "arguments": {"p": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "v", "arguments": {}}\n</tool_call>',
        IM.format("<tool_response>\nR\n</tool_response>"),
        "<|im_end|>\n",
        "B<|im_end|>\n",
    ),
    "mistral": (
        "^[INST] S{}\n\nA[/INST]",
        f"[AVAILABLE_TOOLS] [{IN_A_LINE}][/AVAILABLE_TOOLS]",
        '[TOOL_CALLS] [{"name": "w", "arguments": {"p": "é"}}]',
        '[TOOL_CALLS] [{"name": "w", "arguments": {"p": "é"}}, {"name": "v", "arguments": {}}]',
        '[TOOL_RESULTS] {"content": R}[/TOOL_RESULTS]',
        "$",
        " B$",
    ),
    "glm4": (
        "[gMASK]<sop><|system|>\nS{}<|user|>\nA<|assistant|>",
        "你是一个名为 ChatGLM 的人工智能助手。你是基于智谱 AI 公司训练的语言模型 GLM-4 模型开发的，你的任务是针对"
        f"用户的问题和要求提供适当的答复和支持。\n\n# 可用工具\n\n## w\n\n{json.dumps(FUNCTION, indent=4)}\n"
        "在调用上述函数时，请使用 Json 格式表示调用的参数。",
        'w\n{"p": "é"}',
        None,
        "<|observation|>\nR<|assistant|>",
        "",
        "\nB$",
    ),
}


@pytest.mark.parametrize("name", OF_TOOLS)
def test_tools_in_prompts_of_llama_factory(encoder, name):
    """GPT-2's vocabulary cuts characters, so texts are compared, of all and of what is learnt."""
    first, listed, one, two, result, end, last = (
        text and re.sub(r"[$^]", "<|endoftext|>", text) for text in OF_TOOLS[name]
    )
    made = encoder(LLAMA_FACTORY[name]).tokenizer
    for calls, text in ((CALLS[:1], one), (CALLS, two)):
        talk = [*said("SA"), {"role": "assistant", "content": "", "tool_calls": calls}]
        talk += [{"role": "tool", "content": "R"}, *said("B")]
        if text is None:
            with pytest.raises(InputError, match="calls one function at a time"):
                made.example(talk, tools=[json.loads(IN_A_LINE)])
            continue
        ids, learnt = made.example(talk, tools=[json.loads(IN_A_LINE)])
        found = re.sub("Today Date: .*", "Today Date: TODAY", made.decode(ids, skip_special_tokens=False))
        assert found == first.format(listed) + text + end + result + last
        marked = [one for one, mark in zip(ids, learnt, strict=True) if mark == 1]
        assert made.decode(marked, skip_special_tokens=False) == text + end + last


def test_answers_of_several_tools_are_one(encoder):
    talk = [*said("A"), {"role": "assistant", "content": "", "tool_calls": CALLS}]
    talk += [{"role": "tool", "content": text} for text in "RT"] + said("B")
    both = "<tool_response>\nR\n</tool_response>\n<tool_response>\nT\n</tool_response>"
    assert both in written(encoder(LLAMA_FACTORY["qwen"]), talk)


def test_axolotls_prompts_have_no_place_for_tools(encoder):
    with pytest.raises(InputError, match="it has no place for tools"):
        encoder(AXOLOTL["chatml"]).tokenizer.example(said("AB"), tools=[{"type": "function"}])
