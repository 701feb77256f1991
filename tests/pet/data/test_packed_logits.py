"""A document's logits do not depend on the company it has in its row."""

from functools import partial

import numpy as np
import pytest

from pet.data import DataSettings, Loader, TokenDataset

FAMILIES = ["chatglm1", "chatglm2", "glm", "gpt2", "llama_gqa"]


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_equals_alone(fixtures, name):
    import mindspore as ms

    from model_zoo.auto import AutoModel

    model = AutoModel.from_pretrained(fixtures / name)
    tokens = np.load(fixtures / name / "ref.npz")["input_ids"].astype(np.int32)
    # whole rows and short documents; ChatGLM-6B's hold their [gMASK] <sop>
    documents = [*tokens, *(row[-k:] for row, k in zip(tokens, (3, 5), strict=False))]
    if name == "chatglm1":
        sop = model.config.bos_token_id
        documents = [row[max(0, row.tolist().index(sop) - keep) :] for row in tokens for keep in (2, 3, 99)]
    dataset = TokenDataset.from_samples([(ids, np.ones(len(ids), bool)) for ids in documents])
    length = int(2.5 * dataset.lengths.max())
    layout = partial(model.family.document_layout, model.config)
    loader = Loader(dataset, 2, DataSettings(max_length=length), layout=layout)
    seen = 0
    for batch in loader.batches(0):
        inputs = [ms.Tensor(batch[key]) for key in ("input_ids", "position_ids", "start", "end")]
        logits = model.head(model.hidden_states(*inputs, None)).asnumpy().reshape(2, length, -1)
        assert np.isfinite(logits).all()
        for row, samples in enumerate(batch["sample_ids"]):
            at = 0
            for sample in samples:
                alone = model(documents[sample][None]).asnumpy()[0]
                assert np.abs(logits[row, at : at + len(alone)] - alone).max() < 1e-5
                at += len(alone)
                seen += 1
    assert seen == len(documents) and max(len(row) for b in loader.batches(0) for row in b["sample_ids"]) > 1
