"""MindPet's names, under its module paths too: ``from pet.compat.mindpet.delta.lora import LoRADense``.

A script that is to stay as it is gets them by ``sys.modules["mindpet"] = pet.compat.mindpet`` before its first import.
"""

from pet.compat.paths import modules_of
from pet.lazy import names_of

_CELLS, _PREFIXES, _TUNING, _ERRORS = (f"{__name__}.{name}" for name in ("cells", "prefixes", "tuning", "errors"))
_DELTA = {
    "delta.adapter": {_CELLS: ("AdapterDense", "AdapterLayer")},
    "delta.lora": {_CELLS: ("LoRADense",)},
    "delta.low_rank_adapter": {_CELLS: ("LowRankAdapterDense", "LowRankAdapterLayer", "LowRankLinear")},
    "delta.prefix_layer": {_PREFIXES: ("PrefixLayer",)},
    "delta.ptuning2": {_PREFIXES: ("PrefixEncoder",)},
    "delta.r_drop": {_TUNING: ("RDropLoss", "rdrop_repeat")},
}
_GRAPH = {
    "graph.freeze_utils": {_TUNING: ("freeze_delta", "freeze_from_config", "freeze_modules")},
    "graph.ckpt_util": {_TUNING: ("TrainableParamsCheckPoint",)},
}


def _all(*tables: dict) -> dict:
    found: dict = {}
    for table in tables:
        for modules in table.values():
            for module, names in modules.items():
                found[module] = (*found.get(module, ()), *names)
    return found


__getattr__, __dir__ = names_of(__name__, _all(_DELTA, _GRAPH))
__modules__ = modules_of(
    {
        "delta": _all(_DELTA),
        "graph": _all(_GRAPH),
        **_DELTA,
        **_GRAPH,
        "delta.delta_constants": {_ERRORS: ("VALID_TENSOR_DATATYPE",)},
        "layers.activation": {"mindspore.nn": ("get_activation",)},
        "utils.constants": {_ERRORS: ("DEFAULT_FLAGS", "DEFAULT_MODES", "DELTA_LIST")},
        "utils.exceptions": {
            _ERRORS: (
                *("AbsolutePathError", "LinkPathError", "MindPetError", "ModelConfigFreezeInfoError"),
                *("ReadYamlFileError", "UnexpectedError"),
            )
        },
        "utils.version_control": {"mindspore.nn": ("get_activation",)},
    }
)
