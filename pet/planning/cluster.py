"""The machines that a run is planned for."""

from __future__ import annotations

import dataclasses
import math
import re

from model_zoo.errors import InputError

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str, option: str, example: str = "64GB", zero: bool = False) -> float:
    """Bytes of ``"64GB"`` (powers of ten) or ``"64GiB"`` (powers of two).

    Args:
        option: what it was given for, for the message.
        example: a size as it should read.
        zero: whether nothing is a size, too.

    Raises:
        InputError: no number, or a unit that is none.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b(?:/s)?\s*", str(text), re.IGNORECASE)
    if found is None or not (zero or float(found[1])):
        raise InputError(f"{option} {text!r}: a size was expected, such as {example} (units: KB, MB, GB, TB, GiB)")
    return float(found[1]) * UNITS[found[2].lower()]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Devices, and the wires between them. What is not given is that of an Ascend 910B machine.

    Attributes:
        devices: how many in all.
        memory: bytes of each.
        per_machine: devices of one machine.
        bandwidth: bytes per second from a device to others of its machine.
        network: bytes per second from a device to those of other machines.
        latency: seconds that a message takes whatever its size.
        flops: the most that a device computes in a second.
        utilisation: the share of it that matrix products reach.
        reserve: bytes that the runtime and its communication library keep on each device for themselves, with the
            buffers of one communicator.
        communicator: bytes of the buffers of each further one: HCCL's default, 200 MB to send from and as much to
            receive in.
    """

    devices: int
    memory: float
    per_machine: int = 8
    bandwidth: float = 56e9
    network: float = 25e9
    latency: float = 20e-6
    flops: float = 313e12
    utilisation: float = 0.4
    reserve: float = 2e9
    communicator: float = 4e8

    def __post_init__(self):
        for name in ("devices", "per_machine"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')} is {getattr(self, name)}; at least 1 was expected")
        for option, value, most in (("tflops", self.flops * 1e-12, math.inf), ("utilisation", self.utilisation, 1.0)):
            if not 0 < value <= most or math.isinf(value):
                wanted = "a number above 0" + ", at most 1," * (most == 1)
                raise InputError(f"--{option} is {value:g}; {wanted} was expected")
        if not 0 <= self.latency < math.inf:
            raise InputError(f"--latency is {self.latency * 1e6:g}; 0 or more was expected")
        if self.reserve >= self.memory:
            raise InputError("--reserve: takes all of --memory")

    def kept(self, communicators: int) -> float:
        """Bytes of a device that a process cannot have, where it talks in so many groups."""
        return self.reserve + self.communicator * max(0, communicators - 1)

    def speed(self, span: int) -> float:
        """Bytes per second within a group whose first and last rank are ``span`` devices apart, both counted."""
        return self.bandwidth if span <= self.per_machine else self.network

    def reduce_seconds(self, nbytes: float, calls: int, members: int, span: int) -> float:
        """Time of sums over a group, in a ring: every byte goes out and comes in 2·(n − 1)/n times."""
        return calls * self.latency + 2.0 * (members - 1) / members * nbytes / self.speed(span)

    def send_seconds(self, nbytes: float, calls: int, span: int) -> float:
        """Time of messages to one other device, or to all in a ring."""
        return calls * self.latency + nbytes / self.speed(span)
