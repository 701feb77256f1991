"""ReLoRA (Lialin et al. 2023): a LoRA adapter is merged into the base and begun anew while it is trained, again and
again, so that what it learns in all has a higher rank.

What was merged is an adapter of its own, ``NAME-earlier``, with the factors of all parts one behind the other. It is
merged as any is (`adapters.merge`): the base is itself again wherever it is asked for, and sums are rounded once,
however often was added to them. A packed weight is packed anew out of its file each time, since what is learnt between
two restarts may be less than a step of its codes. All parts have one scale, so that both adapters together are a plain
LoRA of a multiple of the rank on the untouched base: that is what files hold (`adapters.lora_peft`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from mindspore import nn

from adapters.adapter import Adapter
from adapters.lora import LoRAConfig
from adapters.lora_peft import A, B, growth_of
from adapters.merge import merged_into
from adapters.merge_values import unpacked
from adapters.registry import registry
from adapters.saving import fill
from adapters.settings import FROM_WEIGHTS
from model_zoo.checkpoint.parameters import read_parameter, write_parameter
from model_zoo.errors import InputError
from model_zoo.quantization.storage import is_quantized


def restarting(model: nn.Cell) -> Adapter:
    """The adapter of a model that can be begun anew.

    Raises:
        InputError: there is none.
    """
    state = registry(model)
    if len(state.active) != 1:
        raise InputError(f"one adapter can be begun anew; active are: {', '.join(state.active) or 'none'}")
    adapter = state.get(state.active[0])
    config, earlier = adapter.config, [adapter.earlier.name] if adapter.earlier is not None else []
    if others := [name for name in state.merged_names if name not in earlier]:
        raise InputError(f"adapter {others[0]!r} is merged, and what {adapter.name!r} learns could not be beside it")
    if not isinstance(config, LoRAConfig) or config.use_dora or config.init in FROM_WEIGHTS:
        raise InputError(f"adapter {adapter.name!r}: only LoRA that begins with B at zero can be begun anew")
    for path, site in adapter.sites.items():
        if site.kind != "linear" and path not in adapter.companions:
            raise InputError(f"adapter {adapter.name!r}: {path} is of kind {site.kind}; only linear cells can")
        if is_quantized(site.cell) and site.cell.source is None:
            with site.cell.origin():  # which says what is needed
                pass
    return adapter


def begin_anew(model: nn.Cell, seed: int) -> int:
    """Merges what the adapter has learnt and begins it anew. Returns the rank of all parts.

    Args:
        model: whose active adapter it is; `restarting` has seen it.
        seed: of the new A.
    """
    adapter = restarting(model)
    before, now = earlier_tensors(adapter), factors(adapter)
    for key, array in before.items():
        now[key] = np.concatenate([array, now[key]], 0 if key.endswith(A) else 1)
    put_earlier(model, adapter, now)
    config = dataclasses.replace(adapter.config, seed=seed)
    for path in adapter.earlier.modules:
        mine, fresh = adapter.modules[path], config.build(adapter.sites[path])
        write_parameter(mine.lora_A.weight, fresh.lora_A.weight.asnumpy())
        write_parameter(mine.lora_B.weight, fresh.lora_B.weight.asnumpy())
    return adapter.config.rank + adapter.earlier.config.rank


def factors(adapter: Adapter) -> dict[str, np.ndarray]:
    """Copies of an adapter's A and B by their names in a file."""
    tensors = adapter.tensors().items()
    return {key: read_parameter(value).copy() for key, value in tensors if key.endswith((A, B))}


def earlier_tensors(adapter: Adapter) -> dict[str, np.ndarray]:
    """Those of what it was before; none where it was not begun anew."""
    return factors(adapter.earlier) if adapter.earlier is not None else {}


def put_earlier(model: nn.Cell, adapter: Adapter, tensors: Mapping[str, np.ndarray]) -> None:
    """Makes these factors, as `earlier_tensors` gives them, what the adapter was before: they are in the weights then,
    in the place of those that were."""
    state = registry(model)
    if adapter.earlier is not None:
        state.take_out()
        state.delete(adapter.earlier.name)
        adapter.earlier = None
    if not tensors:
        return
    paths = [key.removesuffix(A) for key in tensors if key.endswith(A)]
    config = adapter.config
    times = len(tensors[paths[0] + A]) // config.rank_at(paths[0])
    growth = growth_of(config, times)
    earlier = state.add(
        LoRAConfig(
            rank=config.rank * times,
            alpha=config.alpha * growth,
            targets=paths,
            rank_pattern={key: rank * times for key, rank in (config.rank_pattern or {}).items()} or None,
            alpha_pattern={key: alpha * growth for key, alpha in (config.alpha_pattern or {}).items()} or None,
            use_rslora=config.use_rslora,
        ),
        f"{adapter.name}-earlier",
    )
    if problems := fill(earlier, dict(tensors)):
        state.delete(earlier.name)
        raise InputError.collect(problems)
    adapter.earlier = earlier
    merged_into(state, earlier.name, requantize=True, first=unpacked)
