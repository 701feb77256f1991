"""The checks of `native_checks` over the kernels of another processor: compiled for 64-bit ARM, and run by an emulator.

    pip install ziglang unicorn; python tests/model_zoo/aarch64_checks.py [CHECK …]

Servers with Ascend devices have such processors. Emulated code reads the arrays where they lie in this process, and has
one thread.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import native_checks
from unicorn import UC_ARCH_ARM64, UC_HOOK_INTR, UC_HOOK_MEM_UNMAPPED, UC_MODE_ARM, UC_PROT_ALL, Uc, arm64_const as arm

from model_zoo.engine.build import COMMON, SOURCES

PAGE, WORD = 4096, 2**64 - 1
STACK, STACK_SIZE = 0x10_0000_0000, 16 << 20
HEAP = 0x20_0000_0000
"""Where the emulated program has its stack and what it allocates: where this process has nothing."""
BACK = 0x30_0000_0000
"""Where a function returns to; nothing is there, and the emulator stops."""
START = "int pet_use_threads(int); int main(void) { pet_use_threads(1); return 0; }"
MAP, UNMAP, END = 222, 215, (93, 94)
NEEDLESS = (29, 96, 98, 123, 124, 135, 172, 226, 233)
"""System calls of Linux, by number: the C library asks for these, and nothing depends on what they do."""


def compiled(directory: Path) -> Path:
    """The kernels as a program that does nothing: what it has is called by name."""
    (directory / "main.c").write_text(START)
    flags = [flag for flag in COMMON if flag not in ("-shared", "-fPIC")]
    sources = [*map(str, sorted(SOURCES.glob("*.c"))), str(directory / "main.c")]
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-static", "-mcpu=tsv110"]
    zig.append("-Wl,--no-gc-sections")  # nothing calls them
    subprocess.run([*zig, *flags, *sources, "-lm", "-o", str(directory / "kernels")], check=True)
    return directory / "kernels"


class Program:
    """An emulated processor with a static program, whose functions are called as those of a `ctypes.CDLL`.

    The program is in the Executable and Linkable Format (ELF).
    """

    def __init__(self, path: Path):
        content = path.read_bytes()
        self.symbols = symbols(content)
        self.processor = Uc(UC_ARCH_ARM64, UC_MODE_ARM)
        self.processor.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
        entry, table = struct.unpack_from("<QQ", content, 24)
        count = struct.unpack_from("<H", content, 56)[0]
        parts = [struct.unpack_from("<IIQQQQQQ", content, table + 56 * number) for number in range(count)]
        loaded = [part for part in parts if part[0] == 1]
        first = min(part[3] for part in loaded) // PAGE * PAGE
        self.processor.mem_map(first, pages(max(part[3] + part[6] for part in loaded) - first))
        for _, _, offset, place, _, size, _, _ in loaded:
            self.processor.mem_write(place, content[offset : offset + size])
        self.processor.mem_map(STACK, STACK_SIZE)
        self.heap, self.lent = HEAP, []
        self.processor.hook_add(UC_HOOK_INTR, self.system_call)
        self.processor.hook_add(UC_HOOK_MEM_UNMAPPED, self.lend)
        headers = next(
            place + table - offset for _, _, offset, place, _, size, _, _ in loaded if offset <= table < size
        )
        top = STACK + STACK_SIZE - PAGE
        about = [3, headers, 4, 56, 5, count, 6, PAGE, 25, top, 0, 0]  # what a Linux program finds on its stack
        self.stack = top - PAGE
        self.processor.mem_write(self.stack, struct.pack(f"<{3 + len(about)}Q", 0, 0, 0, *about))
        self.run(entry)

    def run(self, address: int) -> int:
        self.processor.reg_write(arm.UC_ARM64_REG_SP, self.stack)
        self.processor.reg_write(arm.UC_ARM64_REG_LR, BACK)
        self.processor.emu_start(address, BACK)
        while self.lent:
            self.processor.mem_unmap(*self.lent.pop())
        return self.processor.reg_read(arm.UC_ARM64_REG_X0)

    def system_call(self, processor, number, _) -> None:
        call = processor.reg_read(arm.UC_ARM64_REG_X8)
        first, size = processor.reg_read(arm.UC_ARM64_REG_X0), processor.reg_read(arm.UC_ARM64_REG_X1)
        given = 0
        if call == MAP:
            given, self.heap = self.heap, self.heap + pages(size) + PAGE
            processor.mem_map(given, pages(size))
        elif call == UNMAP:
            processor.mem_unmap(first, pages(size))
        elif call in END:
            processor.emu_stop()
        elif call not in NEEDLESS:
            given = -38 & WORD  # there is no such call
        processor.reg_write(arm.UC_ARM64_REG_X0, given)

    def lend(self, processor, kind, address: int, *_) -> bool:
        """Memory of this process, at its own address, until the function returns."""
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, last = (int(end, 16) for end in line.split(maxsplit=1)[0].split("-"))
            if first <= address < last and line.split()[1].startswith("r"):
                processor.mem_map_ptr(first, last - first, UC_PROT_ALL, first)
                self.lent.append((first, last - first))
                return True
        return False

    def __getattr__(self, name: str):
        address = self.symbols[name]

        def function(*values):
            whole, fractions = [], 0
            for value in values:
                if isinstance(value, ctypes.c_float):
                    bits = struct.unpack("<I", struct.pack("<f", value.value))[0]
                    self.processor.reg_write(arm.UC_ARM64_REG_S0 + fractions, bits)
                    fractions += 1
                else:
                    whole.append(word(value))
            for number, value in enumerate(whole[:8]):
                self.processor.reg_write(arm.UC_ARM64_REG_X0 + number, value)
            self.processor.mem_write(self.stack, struct.pack(f"<{len(whole[8:])}Q", *whole[8:]))
            return ctypes.c_int(self.run(address) & 0xFFFFFFFF).value

        return function


def pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def word(value) -> int:
    """What a register holds for an argument as ctypes takes it."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value & WORD
    if hasattr(value, "_obj"):  # ctypes.byref
        return ctypes.addressof(value._obj)
    if not hasattr(value, "value"):  # an array, or a pointer
        return ctypes.cast(value, ctypes.c_void_p).value or 0
    return (value.value or 0) & WORD


def symbols(content: bytes) -> dict[str, int]:
    """Names and addresses of a program's functions."""
    offset, (size, count) = struct.unpack_from("<Q", content, 40)[0], struct.unpack_from("<HH", content, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", content, offset + size * number) for number in range(count)]
    _, _, _, _, place, length, names, *_ = next(section for section in sections if section[1] == 2)
    texts = sections[names][4]
    found = {}
    for entry in range(place, place + length, 24):
        name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", content, entry)
        found[content[texts + name : content.index(b"\0", texts + name)].decode()] = value
    return found


class Emulated(native_checks.Kernels):
    """Kernels of a program that is emulated."""

    def __init__(self, library: Program):
        self.library, self.guarded, self.digest = library, True, hashlib.sha256()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as stage:
        program = Program(compiled(Path(stage)))
    for check in native_checks.CHECKS:
        if check.__name__ in (sys.argv[1:] or check.__name__):
            began = time.monotonic()
            check(Emulated(program))
            print(f"{check.__name__}: ok, {time.monotonic() - began:.1f} s", flush=True)
