"""Loading a base beneath adapters: what these took from the weights, and was not trained since, is taken anew.

Applying then loading gives the same as loading then applying: DoRA's norms, the factors of PiSSA and OLoRA,
prompts and trained rows that begin as rows of an embedding, copies of biases and whole cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from adapters.method import AdapterModule
from model_zoo.checkpoint.dtypes import as_storage
from model_zoo.checkpoint.parameters import write_parameter


@contextmanager
def base_loading(state) -> Iterator[None]:
    """The bare base within, to be written to; afterwards the adapters stand on the new weights as they did on the old.

    Which values nobody has trained is seen by building each adapter again, before and after: its configuration and
    seed say what it starts with.

    Args:
        state: the model's `adapters.registry.Registry`. What is merged is taken out first, and merged anew.
    """
    with state.disabled():
        before = {name: fresh_modules(state.model, adapter) for name, adapter in state.adapters.items()}
        copies = [item for adapter in state.adapters.values() for item in adapter.replaced if untouched(item)]
        yield
        for name, adapter in state.adapters.items():
            after = fresh_modules(state.model, adapter)
            for path, module in adapter.modules.items():
                module.follow_base(before[name][path], after[path])
                module.attached(adapter.sites[path])
        for item in copies:
            write_parameter(item.own, item.base.asnumpy())
        if state.merged is not None:
            state.merged = state.merged.anew(state)


def fresh_modules(model, adapter) -> dict[str, AdapterModule]:
    """The adapter's modules by path as they would be built now; nothing is attached."""
    chosen = [site for path, site in adapter.sites.items() if path not in adapter.companions]
    modules = adapter.config.build_all(model, chosen)
    modules.update({companion.site.path: companion.build() for companion in adapter.config.companions(model, chosen)})
    return modules


def untouched(item) -> bool:
    """Whether a copy that an adapter trains whole is still what the base has there."""
    return np.array_equal(as_storage(item.own.asnumpy())[0], as_storage(item.base.asnumpy())[0])
