"""``pet plan``: which layouts of a cluster a model can be tuned on, and what each would hold, send and take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from model_zoo.checkpoint.dtypes import float_name
from model_zoo.errors import InputError, nearest
from pet.cli.info import quantization_of, settings_of, work_options
from pet.cli.parser import Parser
from pet.files import json_text
from pet.names import model_config
from pet.recipe.training import Parallel

EXAMPLES = [
    ("pet plan llama_65b --devices 64 --memory 64GB", "the five fastest layouts that fit; no weights are needed"),
    ("pet plan llama_7b rank=16 --devices 8 --memory 32GB --batch 64 --length 2048", "LoRA of rank 16, 64 rows a step"),
    ("pet plan glm_6b --method none --devices 16 --memory 64GB --recompute", "tuning all weights"),
    ("pet plan llama2_70b --devices 32 --memory 64GB --bandwidth 30GB --network 12.5GB --top 3", "with slower links"),
    ("pet plan glm_tiny --devices 4 --memory 8GB --dtype float32 --json", "for a program to read"),
]
DESCRIPTION = (
    "List the data x tensor x pipeline layouts that fit a cluster, with and without ZeRO-1.\n"
    "Memory and messages are computed from shapes, times from the speed of devices and links.\n"
    "Times are estimates; none was measured on an accelerator."
)


def main(arguments: Sequence[str]) -> int:
    """Plan, and print the table."""
    parser = Parser("pet plan", DESCRIPTION, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a published size, a directory, a config.json, or a tiny base")
    parser.add_argument("--devices", type=int, required=True, metavar="N", help="number of accelerators")
    parser.add_argument("--memory", required=True, metavar="SIZE", help="memory of each device, such as 64GB")
    work_options(parser)
    parser.add_argument("--batch", type=int, metavar="N", help="rows per step over all devices (default 4 each)")
    parser.add_argument("--micro-batch", type=int, metavar="N", help="rows per forward pass; default: the fastest")
    parser.add_argument("--dtype", help="of base and activations; default: config.json's, or float32")
    precisions = "fp32", "bf16", "auto"  # of layers in fp16 no program is made whose memory could be read
    parser.add_argument("--precision", choices=precisions, default="fp32", help="of products, on a CPU (default fp32)")
    sums = get_args(Parallel.model_fields["reduce_dtype"].annotation)
    parser.add_argument("--reduce-dtype", choices=sums, default="float32", help="of messages that are added up")
    parser.add_argument("--bandwidth", default="56GB", metavar="SIZE", help="per second in a machine (default 56GB)")
    parser.add_argument("--network", default="25GB", metavar="SIZE", help="per second between machines (default 25GB)")
    parser.add_argument("--latency", type=float, default=20.0, metavar="US", help="of a message, in us (default 20)")
    parser.add_argument("--per-machine", type=int, default=8, metavar="N", help="devices in a machine (default 8)")
    parser.add_argument("--tflops", type=float, default=313.0, metavar="N", help="peak of a device (default 313)")
    parser.add_argument("--utilisation", type=float, default=0.4, help="fraction of the peak reached (default 0.4)")
    parser.add_argument("--reserve", default="2GB", metavar="SIZE", help="memory kept by the runtime (default 2GB)")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="print the N fastest layouts (default 5)")
    parser.add_argument("--all", action="store_true", help="print every layout")
    options = parser.read(arguments)
    if options.all or options.json:
        parser.idle(options, "with --all or --json, which give every layout", "top")
    from pet.planning.cluster import Cluster, parse_bytes

    cluster = Cluster(
        options.devices,
        parse_bytes(options.memory, "--memory"),
        options.per_machine,
        parse_bytes(options.bandwidth, "--bandwidth", "56GB"),
        parse_bytes(options.network, "--network", "25GB"),
        options.latency * 1e-6,
        options.tflops * 1e12,
        options.utilisation,
        parse_bytes(options.reserve, "--reserve", "2GB", zero=True),
    )
    if options.top < 1:
        raise InputError(f"--top is {options.top}; at least 1 was expected")
    found = look(options, cluster)
    from pet.planning.table import as_dict, as_text

    print(
        json_text(as_dict(found), indent=2)
        if options.json
        else as_text(found, options.model, None if options.all else options.top)
    )
    return 0 if found.feasible else 1


def look(options, cluster):
    """The plan for the command line's model and work."""
    from adapters.methods import method_config
    from model_zoo.counting import sizes
    from pet.info import packed_form, stored_type
    from pet.meta_model import MetaModel
    from pet.planning.process_memory import OPTIMIZER_STATES
    from pet.planning.search import Work, plan
    from pet.train.precision import choose_precision

    if options.optimizer not in OPTIMIZER_STATES:
        raise InputError(f"--optimizer {options.optimizer!r} is unknown{nearest(options.optimizer, OPTIMIZER_STATES)}")
    for name in ("batch", "micro_batch", "length"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} is {value}; at least 1 was expected")
    config = model_config(options.model)
    adapter = method_config({"method": options.method, **settings_of(options)})
    stored = None if adapter is None else stored_type(config)
    context = sizes(config).context
    length = min(512, context) if options.length is None else options.length
    if length > context:
        raise InputError(f"--length is {length}, but the context of {options.model} holds {context} tokens")
    quantization = packed_form(options.model, quantization_of(options))
    work = Work(
        MetaModel(config),
        adapter,
        4 * options.devices if options.batch is None else options.batch,
        length,
        float_name(options.dtype or (None if quantization else stored) or "float32"),
        options.optimizer,
        options.recompute,
        options.micro_batch,
        None if options.dtype or quantization is None else stored,
        quantization,
        choose_precision(options.precision).name,
        reduce_dtype=options.reduce_dtype,
    )
    return plan(work, cluster)
