"""Each sample once, the same order whatever the division into batches and ranks, and resuming at any batch."""

import sys

import numpy as np
import pytest

from model_zoo.errors import InputError
from pet.data import DataSettings, Loader, TokenDataset, plan as plan_module
from pet.data.plan import Rows, make_plan

PACKINGS = ("pack", "buckets", "longest", "none")


@pytest.fixture(scope="module")
def dataset():
    random = np.random.default_rng(1)
    samples = []
    for number in range(157):
        length = int(np.clip(random.lognormal(3, 0.7), 3, 100))
        trained = np.arange(length) >= random.integers(0, length - 1)
        samples.append((np.full(length, number + 1), trained))
    return TokenDataset.from_samples(samples)


def loader_for(dataset, packing, batch_size=4, **options):
    changes = {name: options.pop(name) for name in ("shuffle", "seed", "buckets", "drop_last") if name in options}
    return Loader(dataset, batch_size, DataSettings(packing=packing, max_length=100, **changes), **options)


def members(batches):
    return [sample for batch in batches for row in batch["sample_ids"] for sample in row]


def same(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in arrays(left))


def arrays(batch):
    return [name for name, value in batch.items() if isinstance(value, np.ndarray)]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_sample_comes_exactly_once_with_all_its_labels(dataset, packing, shuffle):
    loader = loader_for(dataset, packing, shuffle=shuffle, accumulation=2)
    batches = list(loader.batches(3))
    assert sorted(members(batches)) == list(range(len(dataset)))
    assert len(batches) == loader.batches_per_epoch(3) == 2 * loader.steps_per_epoch(3)
    found = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    assert found == sum(int(dataset[index][1][1:].sum()) for index in range(len(dataset)))
    for batch in batches:
        for row, samples in enumerate(batch["sample_ids"]):
            tokens = [token for sample in samples for token in dataset[sample][0].tolist()]
            assert batch["input_ids"][row, : len(tokens)].tolist() == tokens


@pytest.mark.parametrize("packing", PACKINGS)
def test_drop_last_leaves_out_the_rows_that_fill_no_step(dataset, packing):
    whole, full = (loader_for(dataset, packing, accumulation=2, drop_last=one) for one in (False, True))
    batches = list(full.batches(1))
    assert full.steps_per_epoch(1) == whole.steps_per_epoch(1) - 1
    assert members(batches) == members(list(whole.batches(1))[: len(batches)])
    assert all(row for batch in batches for row in batch["sample_ids"])
    assert 0 <= full.padding(1) < 1
    alone = Loader(dataset, 500, DataSettings(packing="none", max_length=100, drop_last=True))
    assert alone.steps_per_epoch() == 1  # which is all there is


def test_samples_of_which_nothing_is_learnt_are_refused():
    first_alone = np.arange(4) == 0  # nothing predicts the first token
    with pytest.raises(InputError, match="none of the 3 samples has a label"):
        Loader(TokenDataset.from_samples([(np.arange(4), first_alone)] * 3), 2)


@pytest.mark.parametrize("packing", PACKINGS)
def test_resuming_gives_the_batches_that_would_have_come(dataset, packing):
    whole = list(loader_for(dataset, packing).batches(2))
    for start in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
        rest = list(loader_for(dataset, packing).batches(2, start=start))
        assert [batch.index for batch in rest] == list(range(start, len(whole)))
        assert all(same(left, right) for left, right in zip(rest, whole[start:], strict=True))


def test_resuming_does_not_make_the_batches_before(dataset, monkeypatch):
    read = []
    original = TokenDataset.__getitem__
    loader = loader_for(dataset, "none")
    last = len(loader) - 1
    monkeypatch.setattr(TokenDataset, "__getitem__", lambda self, index: read.append(index) or original(self, index))
    batch = next(loader.batches(0, start=last))
    assert sorted(read) == sorted(members([batch]))


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_rows_of_one_process(dataset, packing, world_size):
    alone = list(loader_for(dataset, packing, batch_size=4).batches(1))
    shared = [
        list(loader_for(dataset, packing, batch_size=4 // world_size, rank=rank, world_size=world_size).batches(1))
        for rank in range(world_size)
    ]
    for index, batch in enumerate(alone):
        parts = [batches[index] for batches in shared]
        for name in ("input_ids", "labels", "position_ids", "start", "end"):
            assert np.array_equal(np.concatenate([part[name] for part in parts]), batch[name])
        assert [row for part in parts for row in part["sample_ids"]] == batch["sample_ids"]
    assert {len(batches) for batches in shared} == {len(alone)}


@pytest.mark.parametrize("packing", PACKINGS)
def test_accumulation_divides_a_step_and_changes_nothing_else(dataset, packing):
    whole = list(loader_for(dataset, packing, batch_size=8).batches(0))
    halves = list(loader_for(dataset, packing, batch_size=4, accumulation=2).batches(0))
    assert len(halves) == 2 * len(whole)
    for step, batch in enumerate(whole):
        parts = halves[2 * step : 2 * step + 2]
        assert np.array_equal(np.concatenate([part["input_ids"] for part in parts]), batch["input_ids"])


def test_the_order_is_a_function_of_seed_and_epoch(dataset):
    def order(seed, epoch):
        return members(loader_for(dataset, "pack", seed=seed).batches(epoch))

    assert order(5, 0) == order(5, 0)
    assert order(5, 0) != order(5, 1)
    assert order(5, 0) != order(6, 0)
    assert members(loader_for(dataset, "none", shuffle=False).batches(4)) == list(range(len(dataset)))
    one = loader_for(dataset, "pack", seed=5)
    for epoch in (0, 1, 0):
        assert members(one.batches(epoch)) == order(5, epoch), "whatever epoch it was asked for before"


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_shuffled_epoch_does_not_go_by_length(packing):
    """Rows are packed, and buckets filled, in an order of lengths, which the model is not to learn in."""
    lengths = np.random.default_rng(0).integers(1, 101, 4000)
    how = {"packing": packing, "max_length": 100, "rows_per_step": 8, "shuffle": True, "seed": 3}
    for epoch in (0, 1):
        rows = [row for row in make_plan(lengths, **how, epoch=epoch).rows[:] if len(row)]
        longest = [lengths[row].max() for row in rows]
        assert abs(np.corrcoef(np.arange(len(rows)), longest)[0, 1]) < 0.2


def test_there_are_few_shapes(dataset):
    longest = int(dataset.lengths.max())
    for packing, most in {"pack": 1, "none": 1, "buckets": 4, "longest": 2}.items():
        loader = loader_for(dataset, packing)
        seen = {batch["input_ids"].shape for batch in loader.batches(0)}
        assert seen == set(loader.shapes(0)) and len(seen) <= most
    assert {shape[1] for shape in loader_for(dataset, "pack").shapes()} == {100}
    given = loader_for(dataset, "buckets", buckets=[20, 40, 100]).shapes()
    assert {shape[1] for shape in given} <= {20, 40, 100} and longest > 40
    # accumulated batches of one step have one shape
    shapes = [batch["input_ids"].shape for batch in loader_for(dataset, "buckets", accumulation=2).batches(0)]
    assert shapes[::2] == shapes[1::2]


def test_rows_that_fill_up_the_last_step_are_padding(dataset):
    loader = loader_for(dataset, "none", batch_size=50)
    last = list(loader.batches(0))[-1]
    empty = [row for row, samples in enumerate(last["sample_ids"]) if not samples]
    assert len(empty) == 4 * 50 - len(dataset)
    assert (last["labels"][empty] == -100).all() and last["input_ids"].shape == (50, 100)


@pytest.mark.parametrize("packing", PACKINGS)
def test_padding_has_the_tokenizer_s_token(dataset, packing):
    batch = next(loader_for(dataset, packing, pad_token_id=777).batches())
    expected = np.full_like(batch["input_ids"], 777)
    for row, samples in enumerate(batch["sample_ids"]):
        ids = [token for sample in samples for token in dataset[sample][0].tolist()]
        expected[row, : len(ids)] = ids
    np.testing.assert_array_equal(batch["input_ids"], expected)
    assert (expected == 777).any()


def test_padding_is_the_share_that_is_not_useful(dataset):
    for packing in PACKINGS:
        loader = loader_for(dataset, packing)
        batches = list(loader.batches(0))
        processed = sum(batch["input_ids"].size for batch in batches)
        useful = sum(len(dataset[sample][0]) for sample in members(batches))
        assert loader.padding(0) == pytest.approx(1 - useful / processed)
    assert loader_for(dataset, "pack").padding() < 0.05 < loader_for(dataset, "buckets").padding()


def test_two_rows_of_positions(dataset):
    def layout(ids):
        own = np.arange(len(ids))
        return np.stack([own, own * 2]), own + 1

    batch = next(loader_for(dataset, "pack", layout=layout).batches(0))
    assert batch["position_ids"].shape == (4, 2, 100)
    assert (batch["position_ids"][:, 1] == 2 * batch["position_ids"][:, 0]).all()


def test_what_cannot_be_loaded_is_refused(dataset):
    with pytest.raises(InputError, match=r"memory:\d+: sample of \d+ tokens, max_length is 20"):
        Loader(dataset, 4, DataSettings(max_length=20))
    with pytest.raises(InputError, match="no sample"):
        Loader(TokenDataset.from_samples([]), 4)
    with pytest.raises(InputError, match="rank"):
        Loader(dataset, 4, rank=2, world_size=2)


def test_settings_name_what_is_wrong():
    with pytest.raises(InputError) as caught:
        DataSettings(packing="bucket", max_length=1, columns={"promt": "q"})
    text = str(caught.value)
    assert "3 problems" in text and "'buckets'" in text and "max_length" in text and "'prompt'" in text
    with pytest.raises(InputError, match="did you mean 'max_length'"):
        DataSettings.of({"max_length": 9}, max_lenght=10)
    with pytest.raises(InputError, match=r"data\.max_lenght: no such setting.*did you mean 'max_length'"):
        DataSettings.of({"max_lenght": 9})
    assert DataSettings.of({"max_length": 9, "train": ["x"]}).max_length == 9


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_plan_is_made_without_a_line_of_python_for_each_row(packing):
    lengths = np.random.default_rng(0).integers(1, 65, 40_000)
    lines = 0

    def count(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        return count if frame.f_code.co_filename == plan_module.__file__ else None

    before = sys.gettrace()
    sys.settrace(count)
    try:
        plan = make_plan(lengths, packing=packing, max_length=64, rows_per_step=2, shuffle=True, seed=0, epoch=0)
    finally:
        sys.settrace(before)
    assert 0 < lines < 200 and len(plan.rows) == 2 * plan.steps > 10_000
    assert np.array_equal(np.sort(plan.rows.members), np.arange(40_000))


def test_a_step_of_longest_is_as_long_as_its_longest_row():
    lengths = np.random.default_rng(0).integers(1, 300, 101)
    options = {"max_length": 280, "rows_per_step": 4, "seed": 3, "epoch": 1}
    plan = make_plan(np.minimum(lengths, 280), packing="longest", shuffle=True, **options)
    for step, length in enumerate(plan.lengths):
        longest = max(min(lengths[row].max(), 280) for row in plan.rows[4 * step : 4 * step + 4] if len(row))
        assert length == min(-(-longest // 64) * 64, 280)


def test_rows_in_another_order():
    rows = Rows(np.array([5, 6, 7, 8, 9]), np.array([2, 0, 3]))
    assert [row.tolist() for row in rows[:]] == [[5, 6], [], [7, 8, 9]]
    assert [row.tolist() for row in rows.reordered(np.array([2, 1, 0]))[:]] == [[7, 8, 9], [], [5, 6]]


def test_a_pair_that_is_longer_than_the_last_bucket_is_refused():
    """It would be left out of every epoch."""
    pairs = TokenDataset.from_samples([(np.ones(9), np.arange(9) > 3)] * 4)
    pairs.documents = 2
    settings = DataSettings(packing="buckets", buckets=[6, 12], max_length=10, documents=2)
    with pytest.raises(
        InputError, match=r"data\.buckets: the longest is 12, but a sample with all its documents has 18"
    ):
        Loader(pairs, 1, settings).shapes()
