"""A token of a model by the storage of its weights: `python benchmarks/decoding.py [--model big] [--turns 7]`.

Each storage has a process of its own, of which one at a time decodes; a ratio is taken within a turn. Weights are
random. With ``--llama-cpp PYTHON``, an interpreter that has llama-cpp-python and gguf, llama.cpp is one more side: the
same dimensions in Q4_0, embeddings and head in float16.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from cases import MODELS
from machine import about, key_of
from worker import serve

TOKENS, ANSWERS = 64, 2
PROMPT = range(3, 11)
LLAMAS = [name for name, sizes in MODELS.items() if sizes["model_type"] == "llama"]
LLAMA_CPP = "llama.cpp Q4_0"

STORAGE = {
    "fp32": {"dtype": "float32"},
    "bf16": {"dtype": "auto"},
    "int8": {"dtype": "auto", "quantization": {"type": "int8"}},
    "int4": {"dtype": "auto", "quantization": {"type": "int4"}},
    "nf4": {"dtype": "auto", "quantization": {"type": "nf4"}},
    "nf4 double": {"dtype": "auto", "quantization": {"type": "nf4", "double": True}},
}
"""How the base, which is a file in bfloat16, is opened; embeddings and head are as in the file where it is packed."""


def write(model: str, directory: Path) -> None:
    """The base, in bfloat16."""
    import mindspore as ms

    import pet
    from model_zoo.checkpoint.saving import save_pretrained

    config = MODELS[model] | {"max_position_embeddings": 2048, "tie_word_embeddings": False}
    save_pretrained(pet.AutoModel.from_config(config, seed=0), directory, dtype=ms.bfloat16)


def decoder(base: str, storage: str):
    """A function that answers so many times with `TOKENS` tokens."""
    import pet

    model = pet.AutoModel.from_pretrained(base, **STORAGE[storage])
    prompt = np.array([PROMPT], np.int32)

    def run(count: int) -> dict:
        out = [model.generate(prompt, max_new_tokens=TOKENS, eos_token_id=None) for _ in range(count)]
        return {"ids": np.asarray(out[-1]).tolist()}

    return run


def write_gguf(model: str, file: Path) -> None:
    """The same dimensions for llama.cpp, with random weights and no vocabulary."""
    import gguf

    sizes = MODELS[model]
    hidden, inner, vocabulary = (sizes[name] for name in ("hidden_size", "intermediate_size", "vocab_size"))
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(hidden)
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_feed_forward_length(inner)
    writer.add_head_count(sizes["num_attention_heads"])
    writer.add_head_count_kv(sizes["num_key_value_heads"])
    writer.add_rope_dimension_count(hidden // sizes["num_attention_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("none")
    random = np.random.default_rng(0)
    q4_0 = gguf.GGMLQuantizationType.Q4_0

    def add(name: str, *shape: int, packed: bool = True) -> None:
        values = random.normal(0, 0.02, shape).astype(np.float32)
        if packed:
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, q4_0), raw_dtype=q4_0)
        else:
            writer.add_tensor(f"{name}.weight", values if len(shape) == 1 else values.astype(np.float16))

    for name in ("token_embd", "output"):
        add(name, vocabulary, hidden, packed=False)
    add("output_norm", hidden, packed=False)
    for layer in range(sizes["num_hidden_layers"]):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}", hidden, packed=False)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}", hidden, hidden)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}", inner, hidden)
        add(f"blk.{layer}.ffn_down", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp_decoder(file: str):
    """As `decoder`, by llama.cpp on as many threads as there are cores."""
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)  # it says thousands of lines
    model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = 256
    settings.n_threads = settings.n_threads_batch = len(os.sched_getaffinity(0))
    context = llama_cpp.llama_init_from_model(model, settings)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def answer() -> list[int]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        ids, new = list(PROMPT), list(PROMPT)
        for _ in range(TOKENS):
            tokens = (llama_cpp.llama_token * len(new))(*new)  # the batch keeps its address alone
            assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(new))) == 0
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (vocabulary,))
            new = [int(logits.argmax())]
            ids += new
        return ids

    def run(count: int) -> dict:
        return {"ids": [answer() for _ in range(count)]}

    run.log = quiet  # called for as long as anything is computed
    return run


class Side:
    """A process that waits to be asked."""

    def __init__(self, python: str, base: Path, storage: str):
        words = [python, __file__, "--serve", str(base), storage]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def milliseconds(self) -> float:
        """Of one token, behind an answer that is not counted: a machine may have taken away what lay idle."""
        self.seconds(1)
        return self.seconds(ANSWERS) / TOKENS / ANSWERS * 1000

    def seconds(self, answers: int) -> float:
        self.process.stdin.write(f"{answers}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=LLAMAS, default="big")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="an interpreter that has llama-cpp-python and gguf")
    parser.add_argument("--serve", nargs=2, metavar=("BASE", "STORAGE"), help=argparse.SUPPRESS)
    parser.add_argument("--base", metavar="DIRECTORY", help=argparse.SUPPRESS)
    parser.add_argument("--gguf", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.base:
        return write(options.model, Path(options.base))
    if options.gguf:
        return write_gguf(options.model, Path(options.gguf))
    if options.serve:
        base, storage = options.serve
        return serve(llama_cpp_decoder(base) if storage == LLAMA_CPP else decoder(base, storage))
    with tempfile.TemporaryDirectory() as directory:
        base, file = Path(directory, "base"), Path(directory, "base.gguf")
        # by a process that ends: threads of MindSpore's would go on turning round on one of the cores
        subprocess.run([sys.executable, __file__, "--model", options.model, "--base", str(base)], check=True)
        sides = {storage: Side(sys.executable, base, storage) for storage in STORAGE}
        if options.llama_cpp:
            subprocess.run([options.llama_cpp, __file__, "--model", options.model, "--gguf", str(file)], check=True)
            sides[LLAMA_CPP] = Side(options.llama_cpp, file, LLAMA_CPP)
        for side in sides.values():
            side.seconds(1)  # compiles
        turns = [{name: side.milliseconds() for name, side in sides.items()} for _ in range(options.turns)]
        for side in sides.values():
            side.process.stdin.close()
            side.process.wait()
    print(key_of(len(os.sched_getaffinity(0))), about(), sep="\n")
    against = [name for name in ("fp32", LLAMA_CPP) if name in sides]
    titles = [f"times the rate of {name}".rjust(34) for name in against]
    print(f"{options.model:16}{'ms a token':>12}", *titles, sep="")
    for name in sides:
        cells = [f"{statistics.median(turn[name] for turn in turns):12.2f}"]
        for other in against:
            ratios = sorted(turn[other] / turn[name] for turn in turns)
            cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})".rjust(34))
        print(f"{name:16}", *cells, sep="")


if __name__ == "__main__":
    main()
