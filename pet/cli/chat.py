"""``pet chat``: a conversation on the terminal, streaming, with the base beside the tuned model."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from model_zoo.errors import InputError, nearest, similar
from model_zoo.generation_settings import own_limit, settled
from pet import interrupts
from pet.cli.chat_session import ChatSession, add_chat_session, changed, check_place, make_chat_session, not_text, read
from pet.cli.parser import Parser, wrapped

EXAMPLES = [
    ("pet chat --run output/glm_lora", "with a tuned model"),
    ("pet chat --model glm_tiny --adapter output/glm_lora/adapter", "the same, with base and adapter named"),
    ("pet chat --model glm_tiny --temperature 0.7 --seed 1", "with a base, sampling"),
]
HELP = """\
/base           answer the last question again, by the base without its adapter
/adapter NAME   use this adapter; a directory is loaded first; /adapter alone lists them
/system TEXT    set the system message and start a new conversation
/reset          start a new conversation
/help           list these commands
/quit           quit (or Ctrl-D)
Ctrl-C stops an answer; pressed twice, or without an answer, it quits"""
COMMANDS = ("/base", "/adapter", "/system", "/reset", "/help", "/quit", "/exit")


class AnswerEnded(Exception):
    """Ctrl-C came while an answer was written."""


class Conversation:
    """The turns so far, and who answers."""

    def __init__(self, session: ChatSession):
        self.session = session
        self.messages: list[dict[str, str]] = []
        room, wanted = session.model.room, session.generation.max_new_tokens
        if wanted is not None and wanted >= room:
            session.generation = session.generation.model_copy(update={"max_new_tokens": max(1, room // 2)})
            print(
                f"(answers have at most {session.generation.max_new_tokens} tokens, not {wanted}: the model's context "
                f"has {room})"
            )

    def context(self) -> int:
        """Tokens that a prompt may have, so that the answer still fits. Without a limit it has a quarter of the context
        at least."""
        room = self.session.model.room
        return room - (self.session.generation.max_new_tokens or max(1, room // 4))

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """The ids of a conversation; its oldest turns are left out where it has become too long.

        Raises:
            InputError: the last question alone is too long.
        """
        while len(ids := self.session.prompt(messages)) > self.context():
            if len(messages) < 3:
                raise InputError(f"the question has {len(ids)} tokens, and there is room for {self.context()}")
            messages = messages[2:]
            print("(the oldest turn is dropped: the conversation is longer than the model's context)")
        return ids

    def write(self, messages: list[dict[str, str]]) -> str:
        """Stream an answer to the terminal, and return it."""
        from model_zoo.generation.streamers import TextStreamer
        from pet.text_generation import before, ends_of, stops_of

        session, settings = self.session, self.session.generation
        pieces: list[str] = []
        signals: list[int] = []

        class Streamer(TextStreamer):
            shown = 0

            def put(self, ids) -> None:
                if signals:
                    raise AnswerEnded
                for token in ids if self.at_prompt else ():  # behind it an answer keeps its first space
                    self.decoder.put(token)
                super().put(ids)

            def on_text(self, text: str) -> None:
                pieces.append(text)
                whole = asked + "".join(pieces)
                self.show(max(len(one) for one in ("", *starts) if whole.endswith(one)))

            def show(self, held: int = 0) -> None:
                """Writes what is new, but for so many characters at its end, which may begin a stop text."""
                text = before("".join(pieces), stops, asked).lstrip()
                text = text[: max(len(text) - held, 0)]
                super().on_text(text[self.shown :])
                self.shown = max(self.shown, len(text))

            def on_end(self) -> None:
                self.show()
                super().on_end()

        ids, ends = self.prompt(messages), ends_of(session.model, session.tokenizer)
        own = session.model.generation_config
        stops, asked = stops_of(settings.stop or None, own), session.tokenizer.decode(ids)
        starts = [stop[:length] for stop in stops for length in range(1, len(stop))]
        streamed = settled({"num_beams": settings.num_beams}, own).get("num_beams", 1) == 1

        def receive(number: int) -> None:
            if signals or not streamed:  # beams are written in one piece
                interrupts.end_at_once(number)
            signals.append(number)

        streamer = Streamer(session.tokenizer)
        try:
            with interrupts.handled_by(receive, [signal.SIGINT]):
                written = session.model.generate(
                    [ids],
                    max_new_tokens=settings.max_new_tokens or own_limit(own, len(ids), session.model.room - len(ids)),
                    eos_token_id=ends,
                    seed=settings.seed,
                    streamer=streamer if streamed else None,
                    tokenizer=session.tokenizer,
                    **settings.choosing(),
                )
        except AnswerEnded:
            streamer.show()
            print(" … (stopped)")
            return before("".join(pieces), stops, asked).strip()
        if not streamed:
            pieces = [session.tokenizer.decode(written[0])[len(asked) :]]
        text = before("".join(pieces), stops, asked).strip()
        if not streamed:
            print(text)
        if written.shape[1] == session.model.room and written[0, -1] not in ends:
            print("(the answer ends here: the model's context is full)")
        return text

    def ask(self, text: str) -> None:
        """A question of the user's, and its answer; both are kept."""
        messages = [*self.messages, {"role": "user", "content": text}]
        answer = self.write(messages)
        self.messages = [*messages, {"role": "assistant", "content": answer}]

    def base(self) -> None:
        """The last question, answered without the adapter; the conversation stays as it was."""
        if not self.messages:
            raise InputError("there is no question yet")
        if self.session.adapter is None:
            raise InputError("there is no adapter: the base itself answers")
        from adapters.apply import disable_adapters

        with disable_adapters(self.session.model):
            self.write(self.messages[:-1])

    def adapter(self, name: str) -> None:
        """Switch to an adapter by name; a directory is loaded first."""
        from adapters.apply import list_adapters, set_adapter
        from adapters.saving import load_adapter

        known = list_adapters(self.session.model)
        if not name:
            print(
                ", ".join(f"{one} (active)" if one == self.session.adapter else one for one in known) or "(no adapter)"
            )
            return
        if name not in known:
            directory = Path(name).expanduser()
            if not directory.is_dir():
                raise InputError(f"{name}: neither an adapter's name nor a directory{nearest(name, known)}")
            name = directory.resolve().name.replace(".", "_")
            if name in known:
                name = next(f"{name}_{number}" for number in range(2, 1000) if f"{name}_{number}" not in known)
            load_adapter(self.session.model, directory, name=name)
        set_adapter(self.session.model, name)
        self.session.adapter = name
        print(f"(active: {name})")

    def command(self, line: str) -> bool:
        """Carry out a line that begins with a slash; False ends the conversation."""
        word, _, rest = line.partition(" ")
        if word in ("/quit", "/exit"):
            return False
        if word == "/help":
            print(wrapped(HELP))
        elif word == "/reset":
            self.messages = []
            print("(new conversation)")
        elif word == "/system":
            if rest.strip():
                check_place("/system", "system", self.session.encoder)
            self.session.settings = changed(self.session.settings, system=rest.strip() or None)
            self.messages = []
            print("(system message set; new conversation)" if rest.strip() else "(no system message; new conversation)")
        elif word == "/base":
            self.base()
        elif word == "/adapter":
            self.adapter(rest.strip())
        else:
            raise InputError(f"there is no command {word}{similar(word, COMMANDS)}; /help lists them")
        return True


def edit_lines() -> None:
    """Gives input() its editing keys, where Python has them."""
    with contextlib.suppress(ImportError):
        import readline
        from locale import CODESET, nl_langinfo

        # by LC_ALL=C it takes the bytes of a Chinese character for three keys, and none of them would be typed
        if (sys.stdin.encoding or "").lower().startswith("utf-8") and nl_langinfo(CODESET) != "UTF-8":
            os.environ["LC_ALL"] = "C.UTF-8"
        # of pasted lines the terminal says that they are one text; a dumb one would show what asks it to
        if os.environ.get("TERM", "dumb") != "dumb":
            readline.parse_and_bind("set enable-bracketed-paste on")


def main(arguments: Sequence[str]) -> int:
    """Talk until the input ends."""
    parser = Parser("pet chat", f"Chat with a model on the terminal.\n\ncommands in the chat:\n{HELP}", EXAMPLES)
    add_chat_session(parser)
    options = read(parser, arguments)
    talk = Conversation(make_chat_session(options))
    terminal = sys.stdin.isatty()
    if terminal:
        edit_lines()
        print("(/help lists the commands; Ctrl-D ends)")
    while True:
        try:
            line = input("> " if terminal else "").strip()
        except (EOFError, KeyboardInterrupt) as end:
            if terminal:  # what comes next begins a line
                print()
            if isinstance(end, KeyboardInterrupt):
                raise
            return 0
        except UnicodeDecodeError as error:
            raise not_text(error) from None
        if not line:
            continue
        try:
            if not line.startswith("/"):
                talk.ask(line)
            elif not talk.command(line):
                return 0
        except InputError as error:
            print(f"({error})", file=sys.stderr)
