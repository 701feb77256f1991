"""Activation functions as cells, each with a plain path and a kernel where the engine has one."""

from __future__ import annotations

from functools import partial

import mindspore as ms
from mindspore import nn, ops

from model_zoo.ascend import has_operators
from model_zoo.ascend.swiglu import SwiGLUOperator
from model_zoo.engine import uses_kernel
from model_zoo.layers import Parts


def tanh(x):
    """The hyperbolic tangent by the sigmoid: MindSpore's own is off by up to 1e-4 on a CPU."""
    return 2.0 * ops.sigmoid(2.0 * x) - 1.0


class SoftCap(nn.Cell):
    """``cap·tanh(x/cap)`` of float32 numbers."""

    def __init__(self, cap: float):
        super().__init__()
        self.cap, self.inner = cap, 1.0 / cap
        uses_kernel(self, "hyperbolic_tangent")

    def construct(self, x):
        return self.cap * self.kernel(x * self.inner)

    def trace(self, tracer, x):
        bent = tracer.emit("hyperbolic_tangent", tracer.emit("scale", x, factor=self.inner))
        return tracer.emit("scale", bent, factor=self.cap)


class Activation(nn.Cell):
    """A function of one tensor, by its name in the engine's table."""

    def __init__(self, operation: str):
        super().__init__()
        uses_kernel(self, operation)
        self.plain = self.kernel  # which takes every type

    def construct(self, x):
        return self.kernel(x) if self.fast and x.dtype == ms.float32 else self.plain(x)

    def trace(self, tracer, x):
        return tracer.emit(self.operation[0], x)


class GeluTanh(nn.Cell):
    """``0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))``, as the equal ``x·sigmoid(2·√(2/π)·(x + 0.044715·x³))``.

    MindSpore's tanh on a CPU is off by up to 1e-4; its sigmoid is right to 1e-6.
    """

    def __init__(self):
        super().__init__()
        uses_kernel(self, "gelu_tanh")

    def construct(self, x):
        if self.fast and x.dtype == ms.float32:
            return self.kernel(x)
        return x * ops.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))

    def trace(self, tracer, x):
        return tracer.emit("gelu_tanh", x)


class QuickGelu(nn.Cell):
    """``x·sigmoid(1.702·x)``, MindSpore's fast GELU, as the equal ``silu(1.702·x)/1.702``."""

    def construct(self, x):
        return x * ops.sigmoid(1.702 * x)

    def trace(self, tracer, x):
        wide = tracer.emit("silu", tracer.emit("scale", x, factor=1.702))
        return tracer.emit("scale", wide, factor=1 / 1.702)


ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), partial(Activation, "gelu")),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), GeluTanh),
    "quick_gelu": QuickGelu,
    "relu": partial(Activation, "relu"),
    **dict.fromkeys(("silu", "swish"), partial(Activation, "silu")),
    "tanh": partial(Activation, "hyperbolic_tangent"),
}
"""Of one input, by their names in a config.json; several are the same function."""


class SwiGLU(nn.Cell):
    """``silu(gate)·up`` (Shazeer 2020)."""

    def __init__(self):
        super().__init__()
        uses_kernel(self, "swiglu")
        self.device = SwiGLUOperator() if has_operators() else None

    def construct(self, gate, up):
        if self.device is not None:
            return self.device(ops.concat((gate, up), -1))
        if self.fast and gate.dtype == ms.float32:
            return self.kernel(gate, up)
        return gate * ops.sigmoid(gate) * up

    def trace(self, tracer, gate, up):
        return tracer.emit("swiglu", gate, up)


class GeGLU(nn.Cell):
    """``gelu(gate)·up`` with GELU by tanh (Shazeer 2020)."""

    def __init__(self):
        super().__init__()
        self.gelu = GeluTanh()
        uses_kernel(self, "geglu")

    def construct(self, gate, up):
        if self.fast and gate.dtype == ms.float32:
            return self.kernel(gate, up)
        return self.gelu(gate) * up

    def trace(self, tracer, gate, up):
        return tracer.emit("geglu", gate, up)


GATED = {"silu": SwiGLU, "gelu_pytorch_tanh": GeGLU}
"""Of two inputs, by the activation's name in a config.json."""


class Joined(nn.Cell):
    """An activation of one tensor that holds gate | up: ``(N, 2·ffn)`` → ``(N, ffn)``."""

    def __init__(self, act: nn.Cell):
        super().__init__()
        self.act, self.device = act, getattr(act, "device", None)
        self.parts = Parts(2)

    def construct(self, both):
        if self.device is not None:
            return self.device(both)
        gate, up = self.parts(both)
        return self.act(gate, up)
