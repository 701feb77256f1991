"""``pet convert``: MindFormers' ``.ckpt`` files to Hugging Face directories, and back; weights and LoRA adapters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from model_zoo.errors import InputError
from pet.cli.output import free_output
from pet.cli.parser import Parser
from pet.compat.command_line import boolean

EXAMPLES = [
    ("pet convert glm_tiny --output glm_tiny.ckpt", "a model directory or bundled base as a file for MindFormers"),
    ("pet convert glm_tiny.ckpt --output glm --config glm_tiny", "a MindFormers file as a Hugging Face directory"),
    (
        "pet convert output/glm_lora/adapter --output lora.ckpt --config glm_tiny",
        "an adapter's matrices as a file; says which lora_rank and lora_alpha MindFormers' pet_config needs",
    ),
    (
        "pet convert lora.ckpt --output from_ckpt --config glm_tiny --alpha 16",
        "and back; --config may be the job's YAML file, which also says alpha",
    ),
]


def _is_yaml(name: str | None) -> bool:
    return name is not None and Path(name).suffix in (".yaml", ".yml")


def _form(options):
    from pet.compat.ckpt.names import Form
    from pet.compat.mindformers.model_file import read_file
    from pet.compat.mindformers.sizes import form_of

    given = form_of(read_file(Path(options.config))) if _is_yaml(options.config) else Form()
    return Form(
        given.qkv_concat if options.qkv_concat is None else options.qkv_concat,
        given.mlp_concat if options.mlp_concat is None else options.mlp_concat,
        given.use_rearrange_rope or options.use_rearrange_rope,
        options.old_names,
        options.plain_concat,
    )


def main(arguments: Sequence[str]) -> int:
    """Convert, and say what was done."""
    parser = Parser(
        "pet convert",
        "Convert between MindSpore's .ckpt files with MindFormers' parameter names (GPT-2, LLaMA, ChatGLM-6B, ChatGLM2 "
        "and 3, GLM-4) and Hugging Face directories, bit for bit. One tensor is in memory at a time.",
        EXAMPLES,
    )
    parser.add_argument("source", metavar="SOURCE", help="a .ckpt file, a model directory, or an adapter directory")
    parser.add_argument("--output", required=True, metavar="PLACE", help="a directory, or a file ending in .ckpt")
    parser.add_argument(
        "--config",
        help="of the base: a preset's or bundled base's name, a directory or config.json, or a MindFormers YAML file; "
        "default: config.json beside the .ckpt file, or the preset of its shapes",
    )
    parser.add_argument("--part", choices=["model", "adapter"], help="of a .ckpt file that holds weights and LoRA")
    parser.add_argument("--alpha", type=float, metavar="N", help="lora_alpha of a .ckpt file's LoRA matrices")
    parser.add_argument("--dtype", help="float32, float16 or bfloat16; default: as each tensor is stored")
    parser.add_argument(
        "--qkv-concat", type=boolean, metavar="BOOL", help="writing .ckpt: one matrix for query, key and value"
    )
    parser.add_argument(
        "--mlp-concat", type=boolean, metavar="BOOL", help="writing .ckpt of ChatGLM2: one matrix for gate and up"
    )
    parser.add_argument(
        "--rearranged-rope",
        dest="use_rearrange_rope",
        action="store_true",
        help="ChatGLM2: query and key as with use_rearrange_rope: True; LLaMA: as in MindFormers 0.6",
    )
    parser.add_argument(
        "--plain-concat", action="store_true", help="LLaMA: w_qkv and w_gate_hidden as before MindFormers 1.4"
    )
    parser.add_argument(
        "--old-names",
        action="store_true",
        help="writing .ckpt: ChatGLM2's names up to MindFormers 1.1; LoRA's first ones (tk_delta_lora_a)",
    )
    parser.add_shared("--max-shard-size")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    options = parser.read(arguments)
    with free_output(options) as output:
        convert = _from_ckpt if _reads_ckpt(options.source) else _to_ckpt
        print(convert(parser, options, output))
    return 0


def _form_for(parser: Parser, options, config, names=(), heeded=()):
    """The form that is asked for. Raises InputError for an option that changes nothing of this model.

    Args:
        config: the dictionary of its config.json.
        names: of a file's tensors, which tell the rest.
        heeded: options that are of use in any case.
    """
    from pet.compat.ckpt.names import form_of, unheeded

    form = _form(options)
    idle = [name for name in unheeded(config, form_of(names, form) if names else form) if name not in heeded]
    parser.idle(options, f"on the matrices of this model ({config.get('model_type')}), as they are divided", *idle)
    return form


def _reads_ckpt(source: str) -> bool:
    from pet.compat.ckpt.doors import is_ckpt

    if Path(source).suffix == ".ckpt" and not Path(source).exists():
        raise InputError(f"{source}: no such file")
    return is_ckpt(source)


def _from_ckpt(parser: Parser, options, output: Path):
    from model_zoo.checkpoint.mindspore_files import opened
    from pet.compat.ckpt.beside import kinds_in
    from pet.compat.ckpt.doors import config_for, find_ckpt, to_directory
    from pet.compat.ckpt.prefix import to_prefix

    if output.suffix == ".ckpt":
        raise InputError(f"--output {output}: SOURCE is a .ckpt file, so a directory was expected")
    parser.idle(options, "on a .ckpt file: its names tell it", "qkv_concat", "mlp_concat", "old_names")
    path = find_ckpt(options.source)
    weights, lora, prefix = kinds_in(path)
    adapter = "a prefix" if prefix else "LoRA matrices" if lora else None
    if weights and adapter and options.part is None:
        raise InputError(f"{path}: holds weights and {adapter}: say --part model, or --part adapter")
    if adapter and not weights and options.part == "model":
        raise InputError(f"{path}: --part model: holds {adapter}, and no weights of a model")
    if prefix and (options.part == "adapter" or not weights):
        parser.idle(options, "on a prefix", "alpha", "dtype", "max_shard_size", "use_rearrange_rope", "plain_concat")
        return to_prefix(path, output, options.config)
    with opened(path) as file:
        names = list(file.tensors)
    if options.part == "adapter" or not weights:
        parser.idle(options, "on LoRA matrices", "dtype", "max_shard_size")
        from pet.compat.ckpt.lora import to_adapter
        from pet.compat.mindformers.model_file import read_file
        from pet.compat.mindformers.sizes import alpha_of

        alpha = options.alpha
        if alpha is None and _is_yaml(options.config):
            alpha = alpha_of(read_file(Path(options.config)))
        if alpha is None:
            raise InputError(f"{path}: the file does not say lora_alpha; give --alpha N, as in the job's pet_config")
        form = _form_for(parser, options, config_for(path, options.config), names)
        return to_adapter(path, output, alpha, options.config, form)
    parser.idle(options, "on weights of a model", "alpha")
    form = _form_for(parser, options, config_for(path, options.config), names)
    return to_directory(path, output, options.config, form, options.dtype, options.max_shard_size)


def _to_ckpt(parser: Parser, options, output: Path):
    if output.suffix != ".ckpt":
        raise InputError(f"--output {output}: SOURCE is a directory, so a file ending in .ckpt was expected")
    from model_zoo.checkpoint.reading import read_config
    from pet.compat.ckpt.doors import config_for, to_file
    from pet.names import find_model

    parser.idle(options, "in writing a .ckpt file", "part", "alpha", "max_shard_size")
    if (Path(options.source) / "adapter_config.json").is_file():
        from pet.compat.ckpt.lora import to_lora_file

        if not options.config:
            raise InputError(f"{options.source}: is an adapter; --config says of which base")
        parser.idle(options, "on LoRA matrices", "dtype")
        config = config_for(output, options.config)
        return to_lora_file(
            options.source, output, options.config, _form_for(parser, options, config, (), ["old_names"])
        )
    if not _is_yaml(options.config):
        parser.idle(options, "on a model directory, which has its own", "config")
    form = _form_for(parser, options, read_config(find_model(options.source)))
    return to_file(options.source, output, form, options.dtype)
