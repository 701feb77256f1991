"""Dynamic loss scaling for float16.

Gradients of a float16 graph vanish below 6e-8. The loss is therefore multiplied by a large number before the backward
pass and the gradients divided by it after. Whether that number was too large shows in the gradients: one that is not
finite skips the step and lowers the scale; a quiet window raises it again (Micikevicius et al. 2018). The check is our
own sum of squares: MindSpore's overflow flags have no kernel on a CPU.
"""

from __future__ import annotations

import dataclasses

# Below this, scaling cannot be what makes the gradients infinite.
SMALLEST = 1.0
# The product of scale and loss must stay representable where the loss is float32 and its gradient float16.
LARGEST = 2.0**24


@dataclasses.dataclass
class LossScale:
    """The factor on the loss and how it moves.

    Attributes:
        scale: the present factor; 1 and ``enabled=False`` for float32 and bfloat16.
        factor: divided by this after an overflow, multiplied after ``window`` steps without.
        window: length of a quiet time, in steps.
        enabled: whether an overflow is answered by a lower scale. Where it is not, the caller must stop the run.
        quiet: steps since the last change.
        skipped: steps skipped so far.
    """

    scale: float = 1.0
    factor: float = 2.0
    window: int = 1000
    enabled: bool = False
    quiet: int = 0
    skipped: int = 0

    @classmethod
    def from_settings(cls, train) -> LossScale:
        """From a recipe's ``train`` section: dynamic for fp16, constant 1 for everything else."""
        if train.precision != "fp16":
            return cls()
        settings = train.loss_scale
        return cls(scale=settings.initial, factor=settings.factor, window=settings.window, enabled=True)

    def overflow(self) -> bool:
        """Lowers the scale after gradients that were not finite. False when it cannot be lowered any further."""
        if not self.enabled or self.scale <= SMALLEST:
            return False
        self.scale = max(SMALLEST, self.scale / self.factor)
        self.quiet = 0
        self.skipped += 1
        return True

    def good(self) -> None:
        """Counts a step with finite gradients, and raises the scale at the end of a quiet window."""
        if not self.enabled:
            return
        self.quiet += 1
        if self.quiet >= self.window:
            self.scale = min(LARGEST, self.scale * self.factor)
            self.quiet = 0

    def state(self) -> dict[str, float | int]:
        """What a checkpoint must hold to go on with the same numbers."""
        return {"scale": self.scale, "quiet": self.quiet, "skipped": self.skipped}

    def load(self, state: dict[str, float | int]) -> None:
        """Goes on from :meth:`state`."""
        self.scale, self.quiet, self.skipped = float(state["scale"]), int(state["quiet"]), int(state["skipped"])
