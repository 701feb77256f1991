"""Prompts that job files of LLaMA-Factory and axolotl name, as tables of their parts: what a file says is what is
learnt, whatever template the base's tokenizer has. Those of most bases have none."""

from __future__ import annotations

from dataclasses import replace as but

from pet.compat.tool_formats import TOOL_FORMATS
from pet.data.prompt import Prompt

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
    "deepseek": Prompt("User: {said}\n\nAssistant:", system="{system}\n\n", opening="{bos}"),
    "deepseekcoder": Prompt(
        "### Instruction:\n{said}\n### Response:",
        "\n{said}\n<|EOT|>\n",
        opening="{bos}",
        default="You are an AI programming assistant, utilizing the DeepSeek Coder model, developed by DeepSeek "
        "Company, and you only answer questions related to computer science. For politically sensitive questions, "
        "security and privacy issues, and other non-computer science questions, you will refuse to answer.\n",
    ),
    "deepseek3": _DEEPSEEK3,
    "deepseekr1": but(_DEEPSEEK3, thought=_NOTHING),
    "llama2": _LLAMA2,
    "llama2_zh": but(_LLAMA2, default="You are a helpful assistant. 你是一个乐于助人的助手。"),
    "llama3": _LLAMA3,
    "mistral": _MISTRAL,
    **dict.fromkeys(("ministral", "ministral3"), _MINISTRAL),
    "mistral_small": but(_MINISTRAL, system="[SYSTEM_PROMPT]{system}[/SYSTEM_PROMPT]", fused=False),
    **dict.fromkeys(("qwen3_nothink", "smollm", "yi"), _CHATML),
    "chatml": but(_CHATML, needs="<|im_end|> <|im_start|>"),
    "qwen": but(_CHATML, default=_QWEN),
    "qwen3": but(_CHATML, thought=_NOTHING),
    "opencoder": but(_CHATML, default="You are OpenCoder, created by OpenCoder Team."),
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


def _with_tools(names: str, form: str, result: str, calling: str = "") -> None:
    for name in names.split():
        LLAMA_FACTORY[name] = but(LLAMA_FACTORY[name], tools=TOOL_FORMATS[form], result=result, calling=calling)


_IPYTHON = _LLAMA3.question.replace("user", "ipython")
_with_tools(" ".join(LLAMA_FACTORY), "default", "")
_with_tools("llama3", "llama3", _IPYTHON)
_with_tools(
    "qwen qwen3 qwen3_nothink", "qwen", _CHATML.question.replace("{said}", "<tool_response>\n{said}\n</tool_response>")
)
_with_tools("chatml opencoder", "default", _CHATML.question.replace("user", "tool"))
_with_tools("gemma gemma2 gemma3", "default", _GEMMA.question.replace("user", "tool"))
_RESULT = '[TOOL_RESULTS]{"content": {said}}[/TOOL_RESULTS]'
_with_tools("mistral", "mistral", _RESULT.replace("]{", "] {", 1), "[TOOL_CALLS] {said}{eos}")
_with_tools("ministral ministral3 mistral_small", "mistral", _RESULT, "[TOOL_CALLS]{said}{eos}")
_with_tools("glm4 glmz1", "glm4", "<|observation|>\n{said}<|assistant|>", "{said}")
_with_tools("chatglm3", "glm4", "<|observation|>{cut}\n{cut}{said}{cut}<|assistant|>", "{said}")

AXOLOTL = {
    "chatml": but(_CHATML, answer="{said}", end=_IM, behind="\n", needs="", whole=True),
    "llama3": but(_LLAMA3, answer="{said}", end="<|eot_id|>", needs="", whole=True, strips=True),
    "gemma3": but(_GEMMA, answer="{said}", end="<end_of_turn>", behind="\n", needs="", whole=True, strips=True),
}
AXOLOTL["qwen_25"] = but(AXOLOTL["chatml"], default=_QWEN)
AXOLOTL["qwen3"] = but(AXOLOTL["chatml"], thought=_NOTHING, headed=True)
"""axolotl's ``chat_template`` -> prompt."""


def of_turns(name: str, system: str | None) -> str | None:
    """The chat template of an axolotl ``sharegpt`` (up to 0.4) with the ``conversation`` chatml or llama3, else None.
    All behind an answer's heading is learnt, and the tokenizer's end token follows unless it ends the answer already;
    ``system`` is the text for rows without one, None for axolotl's."""
    if name not in ("chatml", "llama3"):
        return None
    prompt = AXOLOTL[name]
    heading = prompt.question.rstrip()
    answer = prompt.question.removeprefix(heading) + prompt.answer + prompt.end + prompt.behind
    told = but(prompt, question=heading, answer=answer + "{eos}", end="", behind="", opening="{opening}")
    text = but(told, default=system or "You are a helpful assistant.").jinja()
    return text.replace("{{ eos_token }}", f"{{{{ '' if eos_token == '{prompt.end}' else eos_token }}}}")


_TURNS = {
    "instruct": (
        "{}\n\n",
        "### Instruction:\n{prompt}\n\n### Input:\n{input}\n\n### Response:\n",
        "### Instruction:\n{prompt}\n\n### Response:\n",
    ),
    "chat": ("SYSTEM: {}\n", "USER: {prompt}\n{input}\nASSISTANT:", "USER: {prompt}\nASSISTANT:"),
    "chatml": (
        "<|im_start|>system\n{}<|im_end|>\n",
        "<|im_start|>user\n{prompt}\n{input}<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n",
    ),
    "phi": (
        "<|system|>\n{}<|end|>\n",
        "<|user|>\n{prompt}<|end|>{input}<|assistant|>",
        "<|user|>\n{prompt}<|end|>\n<|assistant|>\n",
    ),
}
"""axolotl's styles of alpaca: a system text, a question with an input, and one without."""
_CONCISE = (
    "Below is an instruction from a USER that describes a task{}. The ASSISTANT writes a response that {} completes "
    "the request.\n\n"
)


def _alpaca(style: str, *systems: str) -> tuple[str, ...]:
    """The texts before an answer, of rows with an input and of those without, by the system texts of both."""
    system, *turns = _TURNS[style]
    told = systems or (_TASK.format(_FURTHER), _TASK.format(""))
    return tuple((system.replace("{}", text) if text else "") + turn for text, turn in zip(told, turns, strict=True))


ALPACA = {
    **{f"alpaca:{style}": (_alpaca(style), {}) for style in _TURNS},
    "alpaca": (_alpaca("instruct"), {}),
    "alpaca_instruct.load": (_alpaca("instruct"), {}),
    "alpaca_instruct.load_no_prompt": (_alpaca("instruct", "", ""), {}),
    "alpaca_chat.load": (_alpaca("chat"), {}),
    "alpaca_chat.load_no_prompt": (_alpaca("chat", "", ""), {}),
    "gpteacher": (_alpaca("instruct"), {"answer": "response"}),
    "oasst": (_alpaca("instruct"), {"prompt": "INSTRUCTION", "answer": "RESPONSE", "input": ""}),
}
_CONCISELY = _alpaca(
    "chat", _CONCISE.format(_FURTHER, "concisely and appropriately"), _CONCISE.format("", "appropriately and concisely")
)
ALPACA |= {
    "alpaca_chat.load_concise": (_CONCISELY, {}),
    "alpaca_chat.load_qa": (_CONCISELY, {"prompt": "question", "answer": "answer", "input": ""}),
    "alpaca_chat.load_camel_ai": (_CONCISELY, {"prompt": "message_1", "answer": "message_2", "input": ""}),
}
"""axolotl's types of data with a question and an answer: the texts before the answer, and what the columns are called
where these are not alpaca's."""
