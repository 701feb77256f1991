"""Chat formats: how messages become control tokens and text, and which tokens of a finished conversation are labels.

A style renders a conversation into parts. Text parts are encoded one by one, so a control token can only come from a
token part, whatever a user wrote. What a style renders for ``example`` begins with what it renders for ``prompt`` on
the messages before the last answer: the model is trained on the very ids it later continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_zoo.errors import InputError, check_one_of, nearest
from model_zoo.tokenizers.conversations import check_each, check_end

ROLES = ("system", "user", "assistant")
TRAIN_ON = ("answers", "last", "all")
# Beside each token of a sample stands its mark: 0 where nothing is learnt, 1 where the label is the token itself, and
# ~label, which is below 0, where it is another one: an end that is not written, or what a row of ids says.


@dataclass(frozen=True)
class Part:
    """A piece of a rendered conversation.

    Attributes:
        kind: ``"text"``, ``"token"`` (``text`` names a control token), ``"bos"`` or ``"eos"``.
        text: What to encode, or the control token's name.
        answer: The number of the answer whose label this part is (its text and its end token), or None.
        spans: Answers inside a longer text: (first character, one past the last, number of the answer).
        after_space: The text follows a space, or, where one is put before every text, is what follows of another one.
        further: The text is not the first one, and read as transformers reads one behind a control token.
        ended: The number of the answer that ends, unwritten, where this part begins.
    """

    kind: str
    text: str = ""
    answer: int | None = None
    spans: tuple[tuple[int, int, int], ...] = ()
    after_space: bool = False
    further: bool = False
    ended: int | None = None


@dataclass(frozen=True)
class Conversation:
    """Checked messages: an optional system text, then turns of (question, answer); an open last answer is None."""

    system: str | None
    turns: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Form:
    """A chat format as texts, in which control tokens stand by their names.

    ``{}`` is where a message's content goes, ROLE its role, and BOS and EOS are the tokenizer's own tokens.

    Attributes:
        question: A question, and where there is no `system` any other message but an answer.
        answer: An answer. A space in front is left out where the tokenizer puts one before every text.
        ends: What ends an answer. Where questions begin with the same, it is there once.
        begins: What stands before everything.
        opens: What stands before an answer, whoever writes it.
        between: What stands behind the end of an answer that another question follows.
        system: A system text in front of the first question's; None where it is a message like a question.
        strips: Whether blanks around contents are left out.
    """

    question: str
    answer: str
    ends: str
    begins: str = ""
    opens: str = ""
    between: str = ""
    system: str | None = None
    strips: bool = False


@dataclass(frozen=True)
class PromptStyle:
    """One chat format.

    Attributes:
        form: Its texts, or what renders a conversation that no such texts make.
        tokens: Control tokens that the tokenizer must have.
        stops: Control tokens that end an answer, beside the tokenizer's own end token.
        two_way: The context is read in both directions (ChatGLM-6B): only the last answer can be a label, because a
            token of the context sees its own successor.
    """

    form: Form | Callable[[Conversation], Iterator[Part]]
    tokens: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    two_way: bool = False

    def render(self, talk: Conversation) -> Iterator[Part]:
        """The parts of a conversation."""
        return self._written(self.form, talk) if isinstance(self.form, Form) else self.form(talk)

    def _written(self, form: Form, talk: Conversation) -> Iterator[Part]:
        said = str.strip if form.strips else str
        first = talk.system if form.system is not None else None
        yield from self._parts(form.begins)
        if talk.system and form.system is None:
            yield from self._parts(form.question.replace("ROLE", "system"), said(talk.system))
        asked = form.question.replace("ROLE", "user")
        for number, (question, answer) in enumerate(talk.turns):
            before = form.system.replace("{}", said(first)) if first and number == 0 else ""
            yield from self._parts(asked.removeprefix(form.ends) if number else asked, before + said(question))
            yield from self._parts(form.opens)
            if answer is not None:
                yield from self._parts(form.answer + form.ends, said(answer), number)
                if number + 1 < len(talk.turns):
                    yield from self._parts(form.between)

    def _parts(self, form: str, content: str = "", answer: int | None = None) -> Iterator[Part]:
        for piece in re.split("|".join(["(BOS|EOS", *map(re.escape, self.tokens)]) + ")", form):
            if piece in ("BOS", "EOS"):
                yield Part(piece.lower(), answer=answer)
            elif piece in self.tokens:
                yield token(piece, answer)
            elif piece:
                spaced = answer is not None and piece.startswith(" ")
                yield text(piece[spaced:].replace("{}", content), answer, after_space=spaced)


def text(value: str, answer: int | None = None, **more) -> Part:
    return Part("text", value, answer, **more)


def token(name: str, answer: int | None = None) -> Part:
    return Part("token", name, answer)


def _with_system(system: str | None, number: int, question: str) -> str:
    """Formats without a place for a system text put it in front of the first question."""
    return f"{system}\n{question}" if system and number == 0 else question


def _chatglm(talk: Conversation) -> Iterator[Part]:
    """One turn: the bare question. Several: ``[Round 0]\\n问：…\\n答：…\\n`` from 0.

    Then ``[gMASK]<sop>``, the answer and ``<eop>``.
    """
    *history, (question, answer) = [
        (_with_system(talk.system, number, question), answer) for number, (question, answer) in enumerate(talk.turns)
    ]
    if history:
        rounds = [f"[Round {number}]\n问：{asked}\n答：{said}\n" for number, (asked, said) in enumerate(history)]
        question = "".join(rounds) + f"[Round {len(history)}]\n问：{question}\n答："
    yield text(question)
    yield token("[gMASK]")
    yield token("<sop>")
    if answer is not None:
        yield text(answer, len(history))
        yield token("<eop>", len(history))


def _chatglm2(talk: Conversation) -> Iterator[Part]:
    """``[gMASK] sop``, then one text of ``[Round 1]\\n\\n问：…\\n\\n答：…\\n\\n``; the last answer ends with ``</s>``.

    Earlier answers are part of that text and carry no end token, so only their own characters are labels.
    """
    written, spans = "", []
    for number, (question, answer) in enumerate(talk.turns):
        question = _with_system(talk.system, number, question)
        written += f"[Round {number + 1}]\n\n问：{question}\n\n答："
        if number + 1 < len(talk.turns):
            spans.append((len(written), len(written) + len(answer), number))
            written += f"{answer}\n\n"
    yield token("[gMASK]")
    yield token("sop")
    yield text(written, spans=tuple(spans))
    last = len(talk.turns) - 1
    if talk.turns[last][1] is not None:
        yield text(talk.turns[last][1], last)
        yield Part("eos", answer=last)


def _chatglm3(talk: Conversation) -> Iterator[Part]:
    """``[gMASK] sop``, per message ``<|role|>``, a newline (after empty metadata) and the text, encoded one by one.

    The model writes the newline after ``<|assistant|>`` itself, so it is a label. An answer ends at the next role
    token, the last one at ``</s>``.
    """
    yield token("[gMASK]")
    yield token("sop")
    if talk.system:
        yield token("<|system|>")
        yield text("\n")
        yield text(talk.system)
    for number, (question, answer) in enumerate(talk.turns):
        yield token("<|user|>", number - 1 if number else None)
        yield text("\n")
        yield text(question)
        yield token("<|assistant|>")
        if answer is not None:
            yield text("\n", number)
            yield text(answer, number)
    if answer is not None:
        yield Part("eos", answer=number)


def joined(messages: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
    """A prompt of ChatGLM3 or GLM-4 behind its first tokens as its own tokenizer makes it: messages in any order, each
    with its metadata and its tools.

    Raises:
        InputError: an unknown role.
    """
    for message in messages:
        check_one_of("role", message["role"], [name.strip("<|>") for name in _ROLE_TOKENS])
        tools = message["role"] == "system" and "tools" in message
        yield token(f"<|{message['role']}|>")
        yield text(f"{message.get('metadata', '')}\n")
        yield text(
            message["content"] + ("\n" + json.dumps(message["tools"], indent=4, ensure_ascii=False) if tools else "")
        )
    yield token("<|assistant|>")


_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
_JOINT = "{}\n\n"
_LLAMA3_TOKENS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_ROLE_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_ROLE_STOPS = ("<|user|>", "<|observation|>")

STYLES: dict[str, PromptStyle] = {
    # verbatim: a space or newline between question and answer is the data's own choice
    "plain": PromptStyle(Form("{}", "{}", "EOS", "BOS", system=_JOINT)),
    "llama2": PromptStyle(
        Form("BOS[INST] {} [/INST]", " {} ", "EOS", system="<<SYS>>\n{}\n<</SYS>>\n\n", strips=True)  # as Meta does
    ),
    "llama3": PromptStyle(
        Form(
            _HEADER.format("ROLE") + "{}<|eot_id|>",
            "{}",
            "<|eot_id|>",
            "BOS",
            _HEADER.format("assistant"),
            strips=True,
        ),
        _LLAMA3_TOKENS,
        ("<|eot_id|>", "<|eom_id|>"),
    ),
    "mistral": PromptStyle(Form("[INST] {} [/INST]", " {}", "EOS", "BOS", system=_JOINT)),
    # from Mistral's third tokenizer on
    "mistral_tokens": PromptStyle(Form("[INST]{}[/INST]", "{}", "EOS", "BOS", system=_JOINT), ("[INST]", "[/INST]")),
    # Qwen's; no system text is invented where none is given
    "chatml": PromptStyle(
        Form("<|im_start|>ROLE\n{}<|im_end|>\n", "{}", "<|im_end|>", opens="<|im_start|>assistant\n", between="\n"),
        ("<|im_start|>", "<|im_end|>"),
        ("<|im_end|>",),
    ),
    "chatglm": PromptStyle(_chatglm, ("[gMASK]", "<sop>", "<eop>"), two_way=True),
    "chatglm2": PromptStyle(_chatglm2, ("[gMASK]", "sop")),
    "chatglm3": PromptStyle(_chatglm3, ("[gMASK]", "sop", *_ROLE_TOKENS), _ROLE_STOPS),
    # the model writes the newline after <|assistant|> itself, so it is a label; there is no other end of a turn
    "glm4": PromptStyle(
        Form("<|ROLE|>\n{}", "\n{}", "<|user|>", "[gMASK]<sop>", "<|assistant|>"),
        ("[gMASK]", "<sop>", *_ROLE_TOKENS),
        _ROLE_STOPS,
    ),
}


def recognise_style(template: str, special_tokens: dict[str, int]) -> str | None:
    """The style that control tokens or a chat template give away; None where neither says anything known."""
    if "<|start_header_id|>" in special_tokens:
        return "llama3"
    if "<|im_start|>" in special_tokens:
        return "chatml"
    if "<<SYS>>" in template:
        return "llama2"
    if "[INST]" in template:
        return "mistral_tokens" if "[INST]" in special_tokens else "mistral"
    return None


def check_style(name: str, special_tokens: dict[str, int], source: str) -> str:
    """The name itself, if such a style exists and the tokenizer has its control tokens."""
    if name not in STYLES:
        raise InputError(f"{source}: unknown prompt_style {name!r}{nearest(name, STYLES)}")
    missing = [needed for needed in STYLES[name].tokens if needed not in special_tokens]
    if missing:
        raise InputError(
            f"{source}: prompt style {name!r} needs the control tokens {', '.join(missing)}, not found here"
        )
    return name


def labels(
    answers: Sequence[int | None],
    messages: Sequence[Mapping],
    train_on: str,
    ended: Mapping[int, int] | None = None,
    end: int | None = None,
) -> list[int]:
    """Which tokens of an example are labels: the mark of each.

    Args:
        answers: for each token the number of the answer that it belongs to, or None.
        messages: the conversation; an answer with ``"weight": 0`` is no label, whatever `train_on` says.
        train_on: one of `TRAIN_ON`.
        ended: the tokens at which an answer ends unwritten, with its number; where it is learnt the label is `end`.
    """
    last = max((answer for answer in answers if answer is not None), default=None)
    given = [message for message in messages if message["role"] == "assistant"]
    unlearnt = {number for number, message in enumerate(given) if message.get("weight") == 0}
    learnt = {"all": {*answers}, "answers": {*answers} - {None}, "last": {last} - {None}}[train_on] - unlearnt
    found = [answer in learnt for answer in answers]
    for place, answer in (ended or {}).items():
        found[place] = ~end if answer in learnt else found[place]
    return found


def check_messages(messages, answered: bool) -> Conversation:
    """Checks and sorts messages into a :class:`Conversation`.

    Args:
        messages: ``[{"role": "system"|"user"|"assistant", "content": str}, …]``: at most one system message, first;
            then user and assistant in turn.
        answered: Whether the last message must be the assistant's (an example) or the user's (a prompt).

    Raises:
        InputError: On an empty list, an unknown role, content that is no text, or a wrong order.
    """
    system, questions, answers = None, [], []
    for index, message in enumerate(messages := check_each(messages)):
        if message.get("tool_calls"):
            raise InputError(f"messages[{index}]: prompt styles have no place for tool_calls; templates have")
        role, content = message["role"], message["content"]
        if role not in ROLES:
            raise InputError(f"messages[{index}]: unknown role {role!r}{nearest(role, ROLES)}")
        if role == "system":
            if index:
                raise InputError(f"messages[{index}]: a system message can only come first")
            system = content
            continue
        expected = "user" if len(questions) == len(answers) else "assistant"
        if role != expected:
            raise InputError(f"messages[{index}]: wrong order, expected the role {expected!r} here, found {role!r}")
        (questions if role == "user" else answers).append(content)
    if not questions:
        raise InputError("messages: there is no user message")
    check_end(messages, answered)
    padded = answers if answered else [*answers, None]
    return Conversation(system, tuple(zip(questions, padded, strict=True)))
