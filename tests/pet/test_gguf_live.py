"""llama.cpp gives the same greedy ids from GGUF files, for models and for adapters on them."""

from __future__ import annotations

import numpy as np
import pytest
from gguf_models import BASES, PROMPT, adapters_in, bases_in, greedy, llama_cpp, server

from pet.names import bundled_models

gguf = pytest.importorskip("gguf")
pytest.importorskip("xllamacpp", reason="llama.cpp (pip install xllamacpp)")


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    return bases_in(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="module")
def adapters(bases, tmp_path_factory):
    return adapters_in(tmp_path_factory.mktemp("adapters"), bases)


@pytest.mark.parametrize("name", BASES)
def test_llama_cpp_gives_the_same_greedy_ids(bases, adapters, tmp_path, name):
    from model_zoo.tokenizers import AutoTokenizer
    from pet.gguf.adapter import write_adapter
    from pet.gguf.model import write_model

    base = bases(name)
    plain, adapter, adapted = adapters(name)
    assert plain != adapted
    write_model(base, tmp_path / "base.gguf", "float32")
    write_adapter(adapter, base, tmp_path / "lora.gguf")
    ids = AutoTokenizer.from_pretrained(base).encode(PROMPT)
    assert llama_cpp(tmp_path / "base.gguf", ids) == plain
    assert llama_cpp(tmp_path / "base.gguf", ids, tmp_path / "lora.gguf") == adapted


@pytest.mark.parametrize("name", ["llama", "llama_json", "llama3", "qwen2"])
def test_llama_cpp_cuts_texts_into_the_same_tokens(bases, adapters, tmp_path, name):
    from pet.gguf.model import write_model

    write_model(bases(name), tmp_path / "base.gguf", "float32")
    assert llama_cpp(tmp_path / "base.gguf", PROMPT) == adapters(name)[0]


def rounded(directory, kind):
    """A checkpoint's model with its matrices as a GGUF file of this type holds them."""
    from model_zoo.auto import AutoModel

    model = AutoModel.from_pretrained(directory)
    for parameter in model.get_parameters():
        if parameter.ndim == 1:
            continue
        values = np.ascontiguousarray(parameter.asnumpy(), np.float32)
        fits = values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        own = kind if fits else gguf.GGMLQuantizationType.F16
        values = gguf.dequantize(gguf.quants.quantize(values, own), own).reshape(values.shape)
        parameter.set_data(type(parameter.data)(values.astype(np.float32)))
    return model


def behind(model, ids, chosen):
    """By how much chosen ids fall behind the likeliest, on average, in standard deviations of their logits: about 3 for
    ids of another model."""
    from mindspore import Tensor

    logits = model(Tensor(np.array([ids + chosen], np.int32))).asnumpy()[0, len(ids) - 1 : -1].astype(np.float64)
    own = np.take_along_axis(logits, np.array(chosen)[:, None], 1)[:, 0]
    return float(((logits.max(1) - own) / logits.std(1)).mean())


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("name", BASES)
def test_llama_cpp_gives_the_ids_of_the_rounded_weights(bases, adapters, tmp_path, name, dtype):
    """In f16 the very ids, for the base, the merged model and the adapter on the base. In q8_0 llama.cpp rounds what
    goes into a product to 8 bits, too, so that random weights give other ids; they must be nearly as likely."""
    from adapters.saving import load_adapter
    from model_zoo.tokenizers import AutoTokenizer
    from pet.cli.main import main
    from pet.gguf.adapter import write_adapter
    from pet.gguf.model import write_model

    base, (_, adapter, _) = bases(name), adapters(name)
    merged, lora = tmp_path / "merged", tmp_path / "lora.gguf"
    assert main(["export", str(adapter), "--base", str(base), "--format", "merged", "--output", str(merged)]) == 0
    write_adapter(adapter, base, lora)
    ids = AutoTokenizer.from_pretrained(base).encode(PROMPT)
    for directory, added in ((base, None), (merged, None), (base, lora)):
        file = tmp_path / f"{directory.name}.gguf"
        if not file.exists():
            write_model(directory, file, dtype)
        model = rounded(directory, gguf.GGMLQuantizationType[dtype.upper()])
        if added:
            load_adapter(model, adapter, strict=False)  # the weights are rounded
        found = llama_cpp(file, ids, added)
        assert found
        if dtype == "f16":
            assert found == greedy(model, ids)[: len(found)]
        else:
            assert behind(model, ids, found) < 0.25


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("name", ["llama_tiny", "glm4_tiny"])
def test_a_chat_with_a_trained_model_is_the_same(tmp_path, name, dtype):
    """By the template in the file: `glm4_tiny` has none of its own."""
    from model_zoo.auto import AutoModel
    from model_zoo.tokenizers import AutoTokenizer
    from pet.gguf.model import write_model

    base = bundled_models()[name]
    write_model(base, tmp_path / "base.gguf", dtype)
    llama, model = server(tmp_path / "base.gguf"), AutoModel.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    for talk in (
        [{"role": "user", "content": "Who made this lamp?"}],
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}],
    ):
        ids = tokenizer.prompt(talk)
        wanted = tokenizer.decode(model.generate([ids], max_new_tokens=16)[0, len(ids) :].tolist())
        answer = llama.handle_chat_completions({"messages": talk, "max_tokens": 16, "temperature": 0.0})
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert answer["choices"][0]["message"]["content"].strip() == wanted.strip()
