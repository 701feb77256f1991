"""A model's own chat template: Jinja out of its files, rendered under limits, as the parts that a prompt style gives.

What the template writes becomes control tokens where it names them; what the messages say stays text, whatever it is.
Answers to learn are between ``{% generation %}`` and ``{% endgeneration %}`` where the template has them; otherwise
they are found by rendering the conversation up to each answer, without it and with it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from model_zoo.errors import InputError
from model_zoo.tokenizers.conversations import CALL_FORMS, Joined, as_called, check_told, check_turns, in_parts
from model_zoo.tokenizers.prompts import Part
from model_zoo.tokenizers.special import Places
from model_zoo.tokenizers.template_process import worker_of
from model_zoo.tokenizers.thoughts import alike, continued, lacks_thought, why_not

LARGEST = 1 << 20
"""Characters of a template; published ones have a few thousand."""
LONGEST = 1 << 22
"""Characters of a rendered conversation."""
SECONDS = 5.0
"""Processor time of rendering one conversation, which takes about a millisecond."""
# Characters that no text has: one is put into control tokens' names within messages, two enclose answers, and what is
# behind the last two, which a template may write as {{ cut }} and {{ ends }}, is read as a text of its own. Behind {{
# ends }} the answer before it ends unwritten: the label of the next token is the tokenizer's end token.
INSIDE, OPENING, CLOSING, CUT, ENDS = (chr(0x10FFF0 + number) for number in range(5))
MARKS = re.compile(f"[{INSIDE}{OPENING}{CLOSING}{CUT}{ENDS}]")
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}(.*?)\{%-?\s*endgeneration\s*-?%\}", re.DOTALL)

SAID = "content", "reasoning_content"
"""What an answer says besides calls of tools."""
PROBE = "asked_for_a_call", "name_of_a_call", "key_of_a_call", "callcall1"
"""A question, a function's name and argument for a trial, and an id as long as Mistral's templates want it."""
CALLED = {"type": "function", "id": PROBE[3], "function": {"name": PROBE[1], "arguments": {PROBE[2]: 1}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALLED]}
ANSWERED = {"role": "tool", "content": "1", "name": PROBE[1], "tool_call_id": PROBE[3]}
"""A call for a trial, and its result."""
EACH = "first_of_two_parts", "second_of_two_parts"
"""A content in parts, for a trial."""
TOOL = {"name": PROBE[1], "description": PROBE[1], "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": TOOL}
ESCAPED = "&#34;"
"""What Jinja makes of a quotation mark in a text that stands beside one that a template marks as safe."""
MARKED = "\u25a0 by which an answer is found \u25a0"
"""In place of an answer, for a trial."""

Messages = Sequence[Mapping[str, Any]]


class Renderer:
    """One template in a process of its own, started when first needed.

    Renderers of the same template share the process; it ends with the last of them.
    """

    def __init__(self, text: str, source: str, seconds: float = SECONDS):
        if len(text) > LARGEST:
            raise InputError(f"{source}: the chat template has {len(text)} characters; at most {LARGEST} are taken")
        self.text, self.source, self.seconds = text, source, seconds
        first = {"template": text, "marks": [OPENING, CLOSING], "longest": LONGEST, "seconds": seconds}
        self.worker = worker_of(first)

    def __getstate__(self) -> tuple[str, str, float]:
        return self.text, self.source, self.seconds

    def __setstate__(self, state: tuple[str, str, float]) -> None:
        self.__init__(*state)

    def __call__(self, *values: Mapping[str, Any]) -> list[str]:
        """The texts of the template with each of these variables.

        Raises:
            InputError: the template is wrong, refuses the conversation, or goes beyond a limit.
        """
        return [self.text_of(answer, given) for answer, given in zip(self.answers(values), values, strict=True)]

    def first_of(self, *values: Mapping[str, Any]) -> tuple[str, list[str | None]]:
        """The first text, and the others, None for each that the template refuses: one slow message for all."""
        first, *others = self.answers(values)
        return self.text_of(first, values[0]), [answer.get("text") for answer in others]

    def text_of(self, answer: Mapping[str, str], given: Mapping[str, Any]) -> str:
        """The text of an answer to these variables; the errors are those of a call."""
        if "error" in answer:
            lacks = given.get("tools", ()) is None and "NoneType" in answer["error"] and "tools" in self.text
            hint = "; it may be a template for conversations with tools, which this one has not" if lacks else ""
            raise InputError(
                f"{self.source}: the chat template cannot render this conversation: {answer['error']}{hint}"
            )
        return answer["text"]

    def answers(self, values: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
        """For each of these variables its ``text``, or the ``error``."""
        try:
            return self.worker.ask(values)
        except (OSError, ValueError):
            raise InputError(f"{self.source}: the chat template was not rendered: {self.worker.ended}") from None
        except TypeError as error:
            raise InputError(f"messages, tools: JSON was expected, of a tool its schema: {error}") from None


class ChatTemplate:
    """A chat template for one tokenizer.

    Args:
        text: the template.
        source: the tokenizer's file or directory, for messages.
        controls: the control tokens, as `special.added_tokens` gives them.
        stops: those that end an answer, the usual one first.
        variables: names of single tokens for the template (``bos_token`` …).
        adds_space: whether the tokenizer puts a space before every text, so that a text can only be cut at a space.

    Attributes:
        empty_thoughts: examples so far whose prompt opens a thought and whose data has none.
        each: whether it writes each part of a role's contents, of the roles that were asked for so far.
        ends: the control tokens that the template itself writes last in the answers that it marks.
    """

    def __init__(
        self,
        text: str,
        source: str,
        controls: Iterable[Mapping[str, Any]],
        stops: Iterable[str],
        variables: Mapping[str, str],
        adds_space: bool = False,
    ):
        self.renderer, self.empty_thoughts = Renderer(text, source), 0
        self.each: dict[str, bool] = {}
        self.source, self.stops, self.variables, self.adds_space = source, list(stops), dict(variables), adds_space
        self.marks_answers = _GENERATION.search(text) is not None
        self.places = Places(controls)
        self.control = self.places.pattern
        self.ends = [named[-1] for block in _GENERATION.findall(text) if (named := self.control.findall(block))]

    def prompt(self, messages: Messages, options: Mapping[str, Any]) -> Iterator[Part]:
        """The parts of a conversation that the model is to answer.

        Args:
            messages: role and content each; ``tool_calls`` and whatever else the template reads.
            options: further variables: ``tools``, ``enable_thinking``.
        """
        messages = check_turns(messages, answered=False)
        (text,) = self.renderer(self._values(messages, options, True))
        check_told(messages, text, self.source)
        return self.parts(text)

    def example(self, messages: Messages, options: Mapping[str, Any], train_on: str) -> Iterator[Part]:
        """The parts of a finished conversation, with the numbers of its answers.

        Raises:
            InputError: the template does not show which part of the text is an answer.
        """
        messages = check_turns(messages, answered=True)
        if self.marks_answers:
            text, spans = _marked(self.renderer(self._values(messages, options, False))[0])
        else:
            text, spans = self._compared(messages, options, train_on)
        check_told(messages, text, self.source)
        if self.marks_answers:
            return self.parts(text, spans)
        start, end = spans[-1]
        if not self.stops or text[end:].strip() or text[start:end].endswith(tuple(self.stops)):
            return self.parts(text, spans)
        # GLM-4's answer ends where the next turn begins; blanks behind it are its own, or the template's
        said = self.guarded(messages[-1].get("content") or "")
        end = len(text) if said and text.endswith(said) else end
        parts = self.parts(text[:end], [*spans[:-1], (start, end)])
        return itertools.chain(parts, [Part("token", self.stops[0], len(spans) - 1)])

    def _compared(self, messages: Messages, options: Mapping[str, Any], train_on: str) -> tuple[str, list]:
        """The text, and where its answers are, by the conversation up to each of them."""
        places = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        wanted = places[-1:] if train_on == "last" else places
        values = [self._values(messages, options, False)]
        for place in wanted:
            values.append(self._values(messages[:place], options, True))
            if place + 1 < len(messages):
                values.append(self._values(messages[: place + 1], options, False))
        text, others = self.renderer.first_of(*values)
        others = others if len(others) % 2 == 0 else [*others, text]  # up to the last answer it is all of it
        spans: list[tuple[int, int]] = [(0, 0)] * (len(places) - len(wanted))
        for place, before, after in zip(wanted, others[::2], others[1::2], strict=True):
            if before is None or after is None:  # a beginning that is no conversation by itself
                spans.append(self._framed(messages, options, place, text))
                continue
            start, end = len(before), len(after.rstrip())
            if text.startswith(before) and not text.startswith(after.rstrip()):
                # Qwen3's writes an empty thought only into the last answer: the answer itself is there all the same
                own, kept = after[start:], after.startswith(before)
                own = own[: next((found.start() for found in self.control.finditer(own)), len(own))].rstrip()
                end = next((found.start() for found in self.control.finditer(text, start)), len(text))
                said = (messages[place].get(key) or "" for key in SAID)
                kept = kept and own.endswith(text[start:end].strip())
                kept = kept and all(self.guarded(one).strip() in text[start:end] for one in said)
            else:
                kept = text.startswith(before)
            if not kept:
                answer, is_last = self.guarded(messages[place]), place == places[-1]
                if is_last and (whole := continued(text, before, answer, self.control, self.stops)) is not None:
                    self.empty_thoughts += lacks_thought(before, answer)
                    end = self._end_of(whole, start, len(whole.rstrip()))
                    return whole[:end], [*spans, (start, end)]
                raise InputError(
                    f"{self.source}: the chat template does not show which part of a conversation is an answer: "
                    + why_not(place + 1, is_last, text, before, after, answer, self.control)
                )
            spans.append((start, self._end_of(text, start, end)))
        return text, spans

    def _framed(self, messages: Messages, options: Mapping[str, Any], place: int, text: str) -> tuple[int, int]:
        """Where an answer is by what changes in the text with its content."""
        said = messages[place]
        start, end = 0, len(text)
        if not said.get("tool_calls") and not said.get("reasoning_content"):
            changed = [*messages[:place], {**said, "content": MARKED}, *messages[place + 1 :]]
            (other,) = self.renderer(self._values(changed, options, False))
            start, end = alike(text, other), len(text) - alike(text[::-1], other[::-1])
        if text[start:end].strip() != self.guarded(said.get("content") or "").strip():
            raise InputError(
                f"{self.source}: the chat template refuses the conversation up to message {place + 1}, so that it does "
                "not show where this answer is; use train_on: last"
            )
        return start, self._end_of(text, start, end)

    def _end_of(self, text: str, start: int, end: int) -> int:
        """Where an answer ends: behind the token that ends it, which may open the next turn (GLM-4)."""
        stops = [found for found in self.control.finditer(text, start) if found[0] in self.stops]
        within = [found.end() for found in stops if found.end() <= end]
        if within:
            return within[-1]
        return stops[0].end() if stops and not text[end : stops[0].start()].strip() else end

    def _values(self, messages: Messages, options: Mapping[str, Any], open_answer: bool) -> dict[str, Any]:
        given = {"tools": None, "documents": None, **{key: one for key, one in options.items() if one is not None}}
        given["tools"] = given["tools"] or next((one["tools"] for one in messages if one.get("tools")), None)
        called = any(message.get("tool_calls") for message in messages)
        spoken = [as_called(message, *self.call_form) for message in messages] if called else messages
        # gpt-oss's reads a thought by another name
        spoken = [{**one, "thinking": one[SAID[1]]} if one.get(SAID[1]) else one for one in spoken]
        said = self.guarded({"messages": self._written(spoken), **given})
        return {**self.variables, "cut": CUT, "ends": ENDS, **said, "add_generation_prompt": open_answer}

    def _written(self, messages: Messages) -> Messages:
        if self.reads_parts:
            return in_parts(messages)
        given = (isinstance(one.get("content"), Joined) and self._writes_each(one["role"]) for one in messages)
        return [in_parts([one])[0] if each else one for one, each in zip(messages, given, strict=True)]

    def _writes_each(self, role: str) -> bool:
        """Whether the template writes each part of this role's contents, as transformers gives it these. Others fail,
        leave them out, or write them as a list in quotation marks; they are given one text."""
        if role not in self.each:
            question, apart = {"role": "user", "content": PROBE[0]}, in_parts([{"role": role, "content": Joined(EACH)}])
            talk = [question, *apart] if role in ("assistant", "tool") else apart
            if role == "tool":
                with contextlib.suppress(InputError):  # it has no calls
                    talk = [question, as_called(CALLED, *self.call_form), {**ANSWERED, **apart[0]}]
            talk += [] if role in ("user", "assistant", "tool") else [question]
            values = {**self.variables, "tools": None, "documents": None, "add_generation_prompt": False}
            text = self.renderer.answers([{**values, "messages": talk}])[0].get("text", "")
            quoted = any(mark + EACH[0] + mark in text for mark in "'\"")
            self.each[role] = not quoted and all(part in text for part in EACH)
        return self.each[role]

    @functools.cached_property
    def reads_parts(self) -> bool:
        """Whether the template leaves out a content that is a text, and writes it in parts (LLaVA's, Idefics3's)."""
        values = {**self.variables, "tools": None, "documents": None, "add_generation_prompt": True}
        asked = [{"role": "user", "content": PROBE[0]}]
        as_text, as_parts = self.renderer.answers([{**values, "messages": one} for one in (asked, in_parts(asked))])
        return PROBE[0] not in as_text.get("text", "") and PROBE[0] in as_parts.get("text", "")

    @functools.cached_property
    def left_out(self) -> list[str]:
        """What of a conversation the template does not write: ``tools``, ``tools within`` (those of a message),
        ``system``, ``thought``, ``enable_thinking``."""
        asked, answer = {"role": "user", "content": PROBE[0]}, {"role": "assistant", "content": PROBE[0]}
        trials = {
            "tools": ([asked, answer], {"tools": [TOOL]}),
            "tools within": ([{"role": "system", "content": "", "tools": [TOOL]}, asked, answer], {}),
            "system": ([{"role": "system", "content": PROBE[1]}, asked, answer], {}),
            "thought": ([asked, {**answer, "reasoning_content": PROBE[1]}], {}),
        }
        found, counted = [], self.empty_thoughts
        for what, (messages, options) in trials.items():
            with contextlib.suppress(InputError):  # the conversation itself says what is wrong
                if PROBE[1] not in "".join(part.text for part in self.example(messages, options, "last")):
                    found.append(what)
        self.empty_thoughts = counted
        with contextlib.suppress(InputError):
            switched = (self.prompt([asked], {"enable_thinking": on}) for on in (True, False))
            found += ["enable_thinking"] if list(next(switched)) == list(next(switched)) else []
        return found

    @functools.cached_property
    def call_form(self) -> tuple[str | None, bool]:
        """The first of `CALL_FORMS` in which the template writes a call whole.

        Raises:
            InputError: it leaves calls out in each of them.
        """
        question, name, key, _ = PROBE
        values = {**self.variables, "documents": None, "add_generation_prompt": False}
        answered, escaped = False, None
        # QwQ's reads a call that is answered otherwise; some refuse tools, and not their calls
        for given, after, form in itertools.product([[TOOL], None], [[ANSWERED], []], CALL_FORMS):
            messages = [{"role": "user", "content": question}, as_called(CALLED, *form), *after]
            try:
                (text,) = self.renderer({**values, "tools": given, "messages": self._written(messages)})
            except InputError:
                continue  # the conversation itself says what is wrong, where each form fails
            written, answered = text.partition(question)[2], True
            if name in written and key in written and "None" not in written and r"\"" not in written:
                if ESCAPED not in written:
                    return form
                escaped = escaped or form
        if escaped is not None:
            return escaped
        if answered:
            raise InputError(
                f"{self.source}: the chat template leaves calls of tools (tool_calls) out; give one that writes them "
                "(data.template: FILE.jinja)"
            )
        return CALL_FORMS[0]

    def guarded(self, value: Any) -> Any:
        """The same with a mark inside each control token's name, and without marks that were there."""
        if isinstance(value, str):
            return self.control.sub(lambda found: f"{found[0][0]}{INSIDE}{found[0][1:]}", MARKS.sub("", value))
        if isinstance(value, Mapping):
            return {key: self.guarded(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.guarded(one) for one in value]
        return value

    def parts(self, text: str, spans: Sequence[tuple[int, int]] = ()) -> Iterator[Part]:
        """A rendered text as control tokens and the texts between them, cut where answers begin and end."""
        for place, stop, found in self.places.split(text):
            yield from self._texts(text, place, stop, spans)
            if found is not None:
                ended = _ended_at(text, found.start() - 1, spans)
                yield Part("token", found[0], _answer_at(found.start(), spans), ended=ended)

    def _texts(self, text: str, start: int, stop: int, spans: Sequence[tuple[int, int]]) -> Iterator[Part]:
        borders = {border for span in spans for border in span if start < border < stop}
        # the model writes an answer on its own, but what follows is read as one text with it
        starts = sorted({first for first, _ in spans} & borders)
        cuts = {border for border in starts if not self.adds_space or text[border] == " "}
        cuts = sorted(cuts | {place for place in range(start + 1, stop) if text[place] in (CUT, ENDS)})
        for first, last in zip([start, *cuts], [*cuts, stop], strict=True):
            piece, own = MARKS.sub("", text[first:last]), text[first:last].startswith((CUT, ENDS))
            if not piece:
                continue
            answer, inner = _answer_at(first, spans), ()
            if any(first < border < last for border in borders):
                answer, inner = None, tuple(self._within(text, first, last, spans))
            after = self.adds_space and first > start and not own
            yield Part("text", piece, answer, inner, after, first > 0 and not own, _ended_at(text, first, spans))

    def _within(self, text: str, first: int, last: int, spans: Sequence[tuple[int, int]]) -> Iterator[tuple]:
        """The answers in a piece of the text, by the places that they have without marks."""
        for number, (start, end) in enumerate(spans):
            start, end = max(start, first), min(end, last)
            if start < end:
                before = len(MARKS.sub("", text[first:start]))
                yield before, before + len(MARKS.sub("", text[start:end])), number


def _answer_at(place: int, spans: Sequence[tuple[int, int]]) -> int | None:
    return next((number for number, (start, end) in enumerate(spans) if start <= place < end), None)


def _ended_at(text: str, place: int, spans: Sequence[tuple[int, int]]) -> int | None:
    """The last answer before a mark `ENDS` at this place."""
    return sum(start < place for start, _ in spans) - 1 if spans and text[place : place + 1] == ENDS else None


def _marked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without the marks of answers, and where these are."""
    pieces, spans, length, start = [], [], 0, 0
    for piece in re.split(f"([{OPENING}{CLOSING}])", text):
        if piece == OPENING:
            start = length
        elif piece == CLOSING:
            spans.append((start, length))
        else:
            pieces.append(piece)
            length += len(piece)
    return "".join(pieces), spans
