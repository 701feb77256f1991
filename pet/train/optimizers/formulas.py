"""Adam's family and SGD: the formulas, which follow torch's arithmetic line by line."""

from __future__ import annotations

from mindspore import ops

from model_zoo.engine import adamw_in_place, available
from pet.train.optimizers.base import Optimizer
from pet.train.segments import flatten, unflatten

_map = ops.HyperMap()


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), in the order of torch's operations.

    Args:
        betas: decay of the first and the second moment.
        eps: added to the root of the corrected second moment.
        bias_correction: False takes the moments as they are, which begin at 0, as MindSpore's AdamWeightDecay does.
    """

    slots = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, segments, betas=(0.9, 0.999), eps: float = 1e-8, compiled: bool = True, bias_correction: bool = True
    ):
        self.betas, self.eps, self.bias_correction = tuple(betas), eps, bias_correction
        super().__init__(segments, compiled)

    def scalars(self, learning_rate, weight_decay, step):
        first, second = (1.0 - beta**step if self.bias_correction else 1.0 for beta in self.betas)
        return learning_rate / first, second**0.5, 1.0 - learning_rate * weight_decay

    @classmethod
    def moves_in_place(cls):
        return cls.rule is AdamW.rule and available()

    def in_place(self):
        constants = (1.0 - self.betas[0], self.betas[1], 1.0 - self.betas[1], self.eps)

        def in_one(weights, gradient, average, square, numbers):
            adamw_in_place(weights, gradient, average, square, (*numbers, *constants))

        return in_one

    def rule(self, segment, state):
        average, square = state["exp_avg"], state["exp_avg_sq"]
        new_share, decay, new_square, eps = 1.0 - self.betas[0], self.betas[1], 1.0 - self.betas[1], self.eps

        def adamw(weights, gradient, scalars):
            step_size, root, keep = scalars
            mean = average + (gradient - average) * new_share
            mean_square = square * decay + gradient * gradient * new_square
            weights = weights * keep - step_size * (mean / (ops.sqrt(mean_square) / root + eps))
            weights = ops.depend(weights, ops.assign(average, mean))
            return ops.depend(weights, ops.assign(square, mean_square))

        return adamw


class Adam(AdamW):
    """Adam (Kingma & Ba 2015); weight decay is added to the gradient, as torch's Adam does."""

    def scalars(self, learning_rate, weight_decay, step):
        return *super().scalars(learning_rate, 0.0, step), weight_decay

    def rule(self, segment, state):
        adamw = super().rule(segment, state)

        def adam(weights, gradient, scalars):
            return adamw(weights, gradient + weights * scalars[3], scalars[:3])

        return adam


class SGD(Optimizer):
    """Stochastic gradient descent; weight decay is added to the gradient."""

    def scalars(self, learning_rate, weight_decay, step):
        return learning_rate, weight_decay

    def rule(self, segment, state):
        def sgd(weights, gradient, scalars):
            learning_rate, weight_decay = scalars
            return weights - learning_rate * (gradient + weights * weight_decay)

        return sgd


class Momentum(SGD):
    """SGD with a running sum of gradients, ``v = momentum·v + g`` (Polyak 1964; torch's form, without dampening).

    Args:
        momentum: what is kept of the sum at each step.
    """

    slots = ("momentum_buffer",)

    def __init__(self, segments, momentum: float = 0.9, compiled: bool = True):
        self.momentum = momentum
        super().__init__(segments, compiled)

    def rule(self, segment, state):
        buffer, momentum = state["momentum_buffer"], self.momentum

        def with_momentum(weights, gradient, scalars):
            learning_rate, weight_decay = scalars
            velocity = buffer * momentum + (gradient + weights * weight_decay)
            weights = weights - learning_rate * velocity
            return ops.depend(weights, ops.assign(buffer, velocity))

        return with_momentum


class Lion(Optimizer):
    """Lion (Chen et al. 2023): the sign of a running mean of gradients, with decoupled weight decay. It keeps half of
    AdamW's state, and wants a third to a tenth of its learning rate.

    Args:
        betas: what is kept of the mean in the step's direction, and in the state. The paper has 0.9 and 0.99,
            transformers AdamW's.
    """

    slots = ("exp_avg",)

    def __init__(self, segments, betas=(0.9, 0.99), compiled: bool = True):
        self.betas = tuple(betas)
        super().__init__(segments, compiled)

    def scalars(self, learning_rate, weight_decay, step):
        return learning_rate, 1.0 - learning_rate * weight_decay

    def rule(self, segment, state):
        average, (ahead, kept) = state["exp_avg"], self.betas

        def lion(weights, gradient, scalars):
            learning_rate, keep = scalars
            direction = ops.sign(average * ahead + gradient * (1.0 - ahead))
            weights = weights * keep - learning_rate * direction
            return ops.depend(weights, ops.assign(average, average * kept + gradient * (1.0 - kept)))

        return lion


def _trusted(learning_rate, weights, update):
    """Lamb's step of one tensor: the update is given the length of the weights."""
    weight_norm = ops.sqrt((weights * weights).sum())
    update_norm = ops.sqrt((update * update).sum())
    usable = ops.logical_and(weight_norm > 0, update_norm > 0)
    ratio = ops.select(usable, weight_norm / ops.select(usable, update_norm, ops.ones_like(update_norm)), 1.0)
    return weights - learning_rate * ratio * update


class Lamb(AdamW):
    """Lamb (You et al. 2020): AdamW's direction, given each tensor's own length. For very large batches."""

    def scalars(self, learning_rate, weight_decay, step):
        first, second = (1.0 - beta**step for beta in self.betas)
        return first, second**0.5, weight_decay, learning_rate

    def rule(self, segment, state):
        average, square = state["exp_avg"], state["exp_avg_sq"]
        new_share, decay, new_square, eps = 1.0 - self.betas[0], self.betas[1], 1.0 - self.betas[1], self.eps
        sizes = segment.sizes

        def lamb(weights, gradient, scalars):
            correction, root, weight_decay, learning_rate = scalars
            mean = average + (gradient - average) * new_share
            mean_square = square * decay + gradient * gradient * new_square
            update = (mean / correction) / (ops.sqrt(mean_square) / root + eps) + weights * weight_decay
            step = ops.partial(_trusted, learning_rate)
            weights = flatten(_map(step, unflatten(weights, sizes), unflatten(update, sizes)))
            weights = ops.depend(weights, ops.assign(average, mean))
            return ops.depend(weights, ops.assign(square, mean_square))

        return lamb
