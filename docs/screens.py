"""Writes the pages' pictures of terminals anew: ``python docs/screens.py [NAME…]``, in an environment with ``.[docs]``.

Each command runs on a terminal of its own, in a new directory, and what it prints becomes docs/screens/NAME.svg.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100
SCREENS = {
    "data": ["pet data llama_lora --samples 2"],
    "finetune": ["pet finetune llama_lora"],
    "chat": ["pet finetune llama_lora", "pet chat --run output/llama_lora"],
    "plan": ["pet plan llama_7b --devices 8 --memory 64GB"],
}
"""Name -> commands, of which the last is shown."""
TYPED = {"chat": ["On which street is Green Field Shop?", "/base", "/quit"]}
"""What is typed at each prompt of a command that asks."""
PROMPT = re.compile(r"^> (\x1b\[[0-9;?]*[a-z])*\Z", re.MULTILINE)


def printed(command: str, directory: Path, typed: list[str]) -> str:
    """What a command prints on a terminal of `WIDTH` columns; a line that was written over counts as it was last."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))  # without a width nothing is redrawn
    environment = {**os.environ, "COLUMNS": str(WIDTH), "LINES": "40", "TERM": "xterm-256color"}
    words = [sys.executable, "-m", *command.split()]
    process = subprocess.Popen(
        words, stdin=inside, stdout=inside, stderr=inside, cwd=directory, env=environment, start_new_session=True
    )
    os.close(inside)
    text, waiting = b"", list(typed)
    while True:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        try:
            piece = os.read(terminal, 1 << 16) if ready else b""
        except OSError:  # the other end is closed
            break
        text += piece
        if waiting and PROMPT.search(text.decode("utf-8", "ignore").replace("\r", "")):
            os.write(terminal, waiting.pop(0).encode() + b"\n")
    os.close(terminal)
    if process.wait():
        raise SystemExit(f"{command}: exit code {process.returncode}\n{text.decode('utf-8', 'replace')}")
    lines = text.decode("utf-8").replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def main(names: list[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    for name in names or SCREENS:
        with tempfile.TemporaryDirectory() as directory:
            *_, text = [
                printed(command, Path(directory), TYPED.get(name, []) if command == SCREENS[name][-1] else [])
                for command in SCREENS[name]
            ]
        with open(os.devnull, "w") as nowhere:
            console = Console(record=True, width=WIDTH, file=nowhere)
            console.print(Text(f"$ {SCREENS[name][-1]}", style="bold"))
            for where in (f"{directory}/", f"{ROOT}/"):  # where it happened to run
                text = text.replace(where, "")
            console.print(Text.from_ansi(text.strip("\n")))
            path = ROOT / "docs" / "screens" / f"{name}.svg"
            path.parent.mkdir(exist_ok=True)
            console.save_svg(str(path), title=SCREENS[name][-1])
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
