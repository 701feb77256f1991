"""One adapter out of several: weighted sums of their ΔW, exactly or within a rank.

``cat`` stacks the factors, ``[w₁s₁B₁ … wₙsₙBₙ]·[A₁; …; Aₙ]``, and is the sum Σ wᵢΔWᵢ itself, at the sum of the ranks.
The others but ``linear`` work on the ΔW themselves, never on A and B apart (the sum of products is no product of sums),
and cut the result to a rank by its largest singular values. How much that leaves out is measured and printed.

    svd               Σ wᵢ·ΔWᵢ
    magnitude_prune   Σ wᵢ·largest(ΔWᵢ)                           keeps the largest share `density` of the entries
    ties              trim as above, choose each entry's sign, average the entries of that sign (Yadav et al. 2023)
    dare_linear       Σ wᵢ·random(ΔWᵢ)/density                    keeps a random share (Yu et al. 2024)
    dare_ties         a random share, then ties' signs and averages

PEFT calls these ``svd``, ``magnitude_prune_svd``, and so on, names that are taken here, too; with ``ties_svd`` and
``dare_ties_svd`` signs are elected before the weights, as there. Of those that work on A and B apart there is

    linear            (Σ √wᵢsᵢ·Bᵢ)·(Σ √wᵢsᵢ·Aᵢ)                   PEFT's; far from Σ wᵢ·ΔWᵢ, and by how much is printed
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from adapters.adapter import Adapter
from adapters.factors import generator_for
from adapters.lora import LoRAConfig
from adapters.patterns import keys_for
from adapters.registry import registry
from adapters.schema import LARGEST
from adapters.sites import weight_array
from model_zoo.arguments import checked
from model_zoo.errors import InputError, nearest
from model_zoo.settings import require

log = logging.getLogger("pet")

PRUNED = ("ties", "dare_linear", "dare_ties", "magnitude_prune")
METHODS = ("cat", "svd", "linear", *PRUNED, *(f"{name}_svd" for name in PRUNED))
CHOICES = {
    "density": (("ties", "dare", "prune"), 0.5, float, {"gt": 0, "le": 1}),
    "majority": (("ties",), "total", str, {"choices": ("total", "frequency")}),
    "seed": (("dare",), 0, int, {"ge": 0}),
}
"""{argument: (parts of the names of the methods that read it, default, type, bounds)}."""


@dataclasses.dataclass(frozen=True)
class CombineReport:
    """What a combination did; prints as one line.

    Attributes:
        method: how it was made.
        rank: the largest rank among its cells.
        error: ‖cut − whole‖ / ‖whole‖ over all cells (Frobenius norms): what the rank left out; of ``linear`` the
            distance from Σ wᵢ·ΔWᵢ.
        worst: the cell with the largest error of its own, and that error.
    """

    name: str
    method: str
    rank: int
    error: float
    worst: tuple[str, float]

    def __str__(self) -> str:
        line = f"combined into {self.name!r} by {self.method}, rank {self.rank}"
        if self.method == "cat":
            return f"{line}: exact"
        kind = "distance from the weighted sum" if self.method == "linear" else "truncation error"
        return f"{line}: {kind} {self.error:.2e}, at most {self.worst[1]:.2e} ({self.worst[0]})"


@checked
def combine_adapters(
    model: nn.Cell,
    names: Sequence[str],
    weights: Sequence[float] | None = None,
    new_name: str = "combined",
    method: str = "cat",
    rank: int | None = None,
    density: float = 0.5,
    majority: str = "total",
    seed: int = 0,
) -> CombineReport:
    """Makes a LoRA adapter of several; they stay as they are, and the new one is not active yet.

    Args:
        model: with the adapters, all LoRA or DoRA without weights of their own (modules_to_save, biases, tokens).
        names: which.
        weights: factor of each ΔW; default 1 each.
        new_name: of the new adapter.
        method: see the module's table.
        rank: for all methods but ``cat`` and ``linear``: the new rank; default the largest among the adapters,
            ``rank_pattern`` included.
        density: share of the entries that pruning keeps, above 0 and at most 1.
        majority: how ties chooses a sign: ``total`` (of the weighted sum) or ``frequency`` (of most adapters).
        seed: of dare's choice.

    Returns:
        The report, which is printed too.

    Raises:
        InputError: unknown names or method, other methods than LoRA, numbers out of range. The model is unchanged then.
    """
    state = registry(model)
    names = [names] if isinstance(names, str) else list(names)
    weights = [1.0] * len(names) if weights is None else list(weights)
    check(names, weights, method, {"density": density, "majority": majority, "seed": seed})
    adapters = [state.get(name) for name in names]
    state.check_new(new_name)
    state.refuse_while_merged("combine adapters")
    if rank is not None:
        require("combine_adapters", "rank", rank, int, ge=1, le=LARGEST)
        if method in ("cat", "linear"):
            raise InputError(f"combine_adapters: {method} keeps every rank; leave rank out, or choose svd")
    for adapter in adapters:
        refuse_uncombinable(adapter, method)
    paths = list(dict.fromkeys(path for adapter in adapters for path in adapter.modules))
    pairs, errors = {}, {}
    # of all cells, as in PEFT: a cell's sum has more than the rank of each
    configs = [adapter.config for adapter in adapters]
    usual = max(max([config.rank, *(config.rank_pattern or {}).values()]) for config in configs)
    with state.disabled():
        for path in paths:
            parts = [
                (weight, adapter.modules[path])
                for weight, adapter in zip(weights, adapters, strict=True)
                if path in adapter.modules
            ]
            if method == "cat":
                pairs[path] = stacked(parts)
                continue
            if method == "linear":
                pairs[path], errors[path] = summed(parts, path)
                continue
            site = next(adapter.sites[path] for adapter in adapters if path in adapter.sites)
            base = weight_array(site)
            deltas = [as_matrix(module.delta(base), site) for _, module in parts]
            generator = generator_for(seed, path)
            whole = mixed(deltas, [weight for weight, _ in parts], method, density, majority, generator)
            pairs[path], errors[path] = truncated(whole, rank or usual)
    if any(np.abs(factor).max() > np.finfo(np.float32).max for pair in pairs.values() for factor in pair):
        raise InputError("combine_adapters: weights: the sum is larger than float32 can hold")
    config = new_config(pairs)
    added = state.add(config, new_name)
    added.learnt = True
    for path, (b, a) in pairs.items():
        for parameter, values in zip(reversed(added.modules[path].tensors().values()), (b, a), strict=True):
            ops.assign(parameter, Tensor(np.ascontiguousarray(values.reshape(parameter.shape)), ms.float32))
    report = summary(new_name, method, pairs, errors)
    print(report)
    return report


def check(names, weights, method, choices) -> None:
    """Raises InputError for arguments that make no sense; says which take no effect."""
    if method not in METHODS:
        raise InputError(f"combine_adapters: method {method!r} is not known{nearest(method, METHODS)}")
    if not names:
        raise InputError("combine_adapters: no adapter is named")
    if len(set(names)) < len(names):
        raise InputError(f"combine_adapters: {', '.join(map(str, names))} names an adapter twice")
    if len(weights) != len(names):
        raise InputError(f"combine_adapters: {len(names)} adapters, but {len(weights)} weights")
    for value in weights:
        require("combine_adapters", "weight", value, float)
    for name, (words, default, hint, facts) in CHOICES.items():
        require("combine_adapters", name, choices[name], hint, **facts)
        using = [one for one in METHODS if any(word in one for word in words)]
        if choices[name] != default and method not in using:
            log.warning("combine_adapters: %s has no effect with %s, only with %s", name, method, ", ".join(using))


def refuse_uncombinable(adapter: Adapter, method: str) -> None:
    """Raises InputError for an adapter that is more than a ΔW of low rank on some cells."""
    if not isinstance(adapter.config, LoRAConfig):
        raise InputError(f"adapter {adapter.name!r} is of method {adapter.config.method}; only LoRA can be combined")
    if adapter.replaced or adapter.companions:
        whole = [item.saved_name for item in adapter.replaced] + list(adapter.companions)
        raise InputError(f"adapter {adapter.name!r} trains {whole[0]} beside LoRA and cannot be combined")
    if adapter.config.use_dora and method in ("cat", "linear"):
        raise InputError(f"adapter {adapter.name!r} is DoRA, whose ΔW has no low rank for {method}; choose svd")


# The arithmetic, in float64 -------------------------------------------------------------------------------------------


def stacked(parts) -> tuple[np.ndarray, np.ndarray]:
    """B and A whose product is the weighted sum of the parts' products."""
    factors = [(weight, *module.factors()) for weight, module in parts]
    return np.concatenate([weight * b for weight, b, _ in factors], 1), np.concatenate([a for *_, a in factors], 0)


def summed(parts, path: str) -> tuple[tuple[np.ndarray, np.ndarray], tuple[float, float]]:
    """The weighted sums of the B and of the A, a negative weight in A, and (‖distance from Σ wᵢ·ΔWᵢ‖², ‖that sum‖²)."""
    ranks = {module.factors()[1].shape[0] for _, module in parts}
    if len(ranks) > 1:
        raise InputError(
            f"combine_adapters: linear adds up factors of one rank; {path} has {sorted(ranks)}; choose svd"
        )
    b, a = (np.zeros_like(factor) for factor in parts[0][1].factors())
    for weight, module in parts:
        own_b, own_a = module.factors()
        root = math.sqrt(abs(weight) / module.scale)  # the scale is in B
        b, a = b + root * own_b, a + math.copysign(root * module.scale, weight) * own_a
    whole = np.matmul(*stacked(parts))
    return (b, a), (float(((whole - b @ a) ** 2).sum()), float((whole**2).sum()))


def as_matrix(delta: np.ndarray, site) -> np.ndarray:
    """A ΔW in the weight's own shape as the matrix that B·A is: ``(out, in)``, or ``(width, V)`` of an embedding."""
    if site.kind == "conv":
        return delta.reshape(delta.shape[0], -1)
    return delta.T if site.transposed or site.kind == "embedding" else delta


def keep_largest(delta: np.ndarray, density: float) -> np.ndarray:
    """The share of entries that is largest in magnitude, the rest zero."""
    count = max(1, int(density * delta.size))
    kept = np.zeros(delta.size)
    chosen = np.argsort(-np.abs(delta).ravel(), kind="stable")[:count]
    kept[chosen] = delta.ravel()[chosen]
    return kept.reshape(delta.shape)


def agreeing(deltas: list[np.ndarray], voting: list[np.ndarray], majority: str) -> np.ndarray:
    """Ties' second half: the sign that each entry of `voting` elects, and the mean of the `deltas` whose own has it."""
    stack = np.stack(voting)
    elected = np.sign(np.sign(stack).sum(0) if majority == "frequency" else stack.sum(0))
    elected = np.where(elected == 0, 1.0, elected)
    agree = (np.sign(stack) == elected) & (stack != 0)
    return np.where(agree, np.stack(deltas), 0.0).sum(0) / np.maximum(agree.sum(0), 1)


def mixed(deltas, weights, method, density, majority, generator) -> np.ndarray:
    """The combined ΔW before it is cut to a rank."""
    as_peft, method = method.endswith("_svd"), method.removesuffix("_svd")
    if method in ("ties", "magnitude_prune"):
        deltas = [keep_largest(delta, density) for delta in deltas]
    elif method.startswith("dare"):  # a random share of the entries, scaled up so that the expectation stays
        deltas = [np.where(generator.random(one.shape) < density, one / density, 0.0) for one in deltas]
    weighted = [weight * delta for weight, delta in zip(weights, deltas, strict=True)]
    if method.endswith("ties"):
        return agreeing(weighted, deltas if as_peft else weighted, majority)
    return np.sum(weighted, 0)


def truncated(whole: np.ndarray, rank: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[float, float]]:
    """The best approximation of a rank as (B, A), and (‖what is left out‖², ‖whole‖²)."""
    left, values, right = np.linalg.svd(whole, full_matrices=False)
    rank = min(rank, len(values))
    root = np.sqrt(values[:rank])
    pair = left[:, :rank] * root, root[:, None] * right[:rank]
    return pair, (float((values[rank:] ** 2).sum()), float((values**2).sum()))


def summary(name, method, pairs, errors) -> CombineReport:
    """The report of a combination with these squared errors per cell."""
    relative = {path: math.sqrt(lost / whole) if whole else 0.0 for path, (lost, whole) in errors.items()}
    worst = max(relative.items(), key=lambda item: item[1], default=("", 0.0))
    lost, whole = (sum(pair[place] for pair in errors.values()) for place in (0, 1))
    error = math.sqrt(lost / whole) if whole else 0.0
    return CombineReport(name, method, max(a.shape[0] for _, a in pairs.values()), error, worst)


# The new adapter ------------------------------------------------------------------------------------------------------


def new_config(pairs) -> LoRAConfig:
    """A LoRA of these ranks with scale 1 everywhere, its cells named in full."""
    ranks = {path: a.shape[0] for path, (_, a) in pairs.items()}
    usual = max(set(ranks.values()), key=list(ranks.values()).count)
    keys = keys_for(ranks)
    others = {keys[path]: rank for path, rank in ranks.items() if rank != usual}
    return LoRAConfig(
        rank=usual,
        alpha=usual,
        targets=list(pairs),
        rank_pattern=others or None,
        alpha_pattern=dict(others) or None,
    )
