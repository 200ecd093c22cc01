"""Data sets with a length, through PyTorch's DataLoader."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, default_collate

from accelerando._engine.data.feed import WHOLE, Shard, choose_feed, epoch_order
from accelerando._engine.data.loader import LoaderFeed, check_repeatable, own_generator
from accelerando.exceptions import UnsupportedError


def numbers(n):
    return TensorDataset(torch.arange(n), torch.arange(n) * 2)


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(1, 40),
    chunk=st.integers(1, 9),
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=10),
    cursor=st.integers(0, 40),
    raw=st.booleans(),
)
def test_chunks_become_batches_of_any_size(n, chunk, sizes, cursor, raw):
    """Chunks of the DataLoader leave as the requested batches, in order, without a loss."""
    options = {"collate_fn": default_collate} if raw else {}
    feed = LoaderFeed(numbers(n), options, chunk=chunk)
    batches = feed.epoch(7, 1, cursor)
    seen = []
    for size in [*sizes, *[10] * 5]:
        batch = batches.take(size)
        if batch is None:
            break
        assert batch.size == min(size, n - cursor - len(seen))
        assert batch.data[0].tolist() == batch.rows.tolist()
        assert torch.equal(batch.data[1], 2 * batch.data[0])
        seen += batch.rows.tolist()
    assert seen == epoch_order(7, 1, n)[cursor:].tolist()[: len(seen)]


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 50),
    ranks=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 17), min_size=1, max_size=8),
    cursor=st.integers(0, 20),
)
def test_ranks_share_every_batch_without_gap_or_overlap(n, ranks, sizes, cursor):
    epochs = [
        LoaderFeed(numbers(n), {}, chunk=3).epoch(3, 1, cursor, Shard(rank, ranks))
        for rank in range(ranks)
    ]
    order = epoch_order(3, 1, n)[cursor:]
    for size in sizes:
        batches = [epoch.take(size) for epoch in epochs]
        if batches[0] is None:
            assert all(batch is None for batch in batches)
            assert not len(order)
            return
        assert {batch.size for batch in batches} == {min(size, len(order))}
        held = [row for b in batches for row in b.data[0].tolist()[: b.held]]
        assert sorted(held) == sorted(order[:size].tolist())
        assert all(len(batch.data[0]) == max(1, batch.held) for batch in batches)
        order = order[size:]


def test_a_short_remainder_comes_with_the_batch_before():
    batches = LoaderFeed(numbers(13), {}, chunk=4).epoch(0, 0, 0)
    assert [batches.take(4, min_rows=2).size for _ in range(3)] == [4, 4, 5]
    assert batches.take(4, min_rows=2) is None


def test_drop_last_leaves_out_a_short_batch():
    batches = LoaderFeed(numbers(10), {}, drop_last=True, chunk=4).epoch(0, 0, 0)
    assert [batches.take(4).size for _ in range(2)] == [4, 4]
    assert batches.take(4) is None


def test_a_rank_fetches_only_its_rows():
    class Watched(Dataset):
        fetched: list[int] = []  # noqa: RUF012

        def __len__(self):
            return 12

        def __getitem__(self, row):
            self.fetched.append(row)
            return torch.tensor(row), torch.tensor(row)

    feed = LoaderFeed(Watched(), {}, order=lambda seed, epoch, n: np.arange(n), chunk=2)
    batches = feed.epoch(0, 0, 3, Shard(1, 3))
    assert batches.take(9).rows.tolist() == [4, 7, 10]
    assert Watched.fetched == [4, 7, 10]


def test_single_rows_are_read_by_number():
    assert LoaderFeed(numbers(5), {}).gather(np.array([3, 1]))[1].tolist() == [6, 2]
    feed = LoaderFeed(numbers(5), {"collate_fn": len})
    assert feed.gather(np.array([3, 1])) == 2
    assert feed.n_examples == 5
    assert feed.share(np.array([3, 1, 2]), Shard(0, 2)).tolist() == [3, 2]


def test_a_collate_function_sees_the_batch_as_a_whole():
    seen = []

    def collate(items):
        seen.append(len(items))
        return default_collate(items)

    batches = LoaderFeed(numbers(10), {"collate_fn": collate}, chunk=3).epoch(0, 0, 0)
    while batches.take(4):
        pass
    assert seen == [4, 4, 2]


def test_loading_draws_no_global_random_numbers():
    """Otherwise the number of worker processes would change dropout."""
    before = torch.get_rng_state()
    LoaderFeed(numbers(10), {}, chunk=3).epoch(0, 0, 0).take(10)
    assert torch.equal(before, torch.get_rng_state())


def test_the_loaders_seed_depends_on_seed_and_epoch():
    feed = LoaderFeed(numbers(10), {})
    drawn = []
    for seed, epoch in [(1, 0), (1, 1), (2, 0), (1, 0)]:
        feed.epoch(seed, epoch, 0)
        drawn.append(feed._loader._generator.initial_seed())
    assert drawn == [1_000_003, 1_000_004, 2_000_006, 1_000_003]


def test_items_that_are_no_tensors_ask_for_a_collate_function():
    class Words(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, row):
            return "word", torch.zeros(1)

    with pytest.raises(UnsupportedError, match="Pass iterator_train__collate_fn"):
        LoaderFeed(Words(), {}).epoch(0, 0, 0).take(2)


class Augmented(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, row):
        return row, torch.rand(1).item() + np.random.random() + random.random()


def drawn(shard=WHOLE, epoch=0, sizes=(5, 7), **options):
    feed = LoaderFeed(Augmented(), options, chunk=2)
    try:
        batches = feed.epoch(3, epoch, 0, shard)
        found = [batches.take(size).data for size in sizes]
        return {int(row): float(x) for rows, xs in found for row, x in zip(rows, xs, strict=True)}
    finally:
        feed.close()


def test_augmentation_depends_on_seed_epoch_and_row_only():
    state = torch.get_rng_state()
    alone = drawn()
    assert torch.equal(torch.get_rng_state(), state), "dropout would draw other numbers"
    assert drawn(Shard(0, 2)) | drawn(Shard(1, 2)) == alone
    assert drawn(sizes=(12,)) == alone
    assert drawn(num_workers=2) == alone
    assert drawn(epoch=1) != alone
    assert len(set(alone.values())) == 12


@pytest.mark.parametrize("kind", [random.Random, np.random.default_rng, torch.Generator])
def test_generators_of_a_data_set_are_found(kind):
    data = Augmented()
    assert own_generator(data) is None
    data.transform = [Augmented(), Augmented()]
    data.transform[1].rng = kind()
    assert own_generator(data) == "dataset.transform[1].rng"


class Together(Augmented):
    """It reads several rows at once, and draws for each or for all of them."""

    def __init__(self, once):
        super().__init__()
        self.once, self.calls = once, []

    def __getitem__(self, row):
        return self.__getitems__([row])[0]

    def __getitems__(self, rows):
        self.calls.append(len(rows))
        if self.once is None:
            return [(torch.tensor([float(row)]), torch.tensor([row])) for row in rows]
        noise = torch.rand(1)  # a number for all of them
        return [(torch.tensor([float(row)]), row + noise) for row in rows]


def test_rows_are_read_together_unless_that_draws():
    plain, noisy = Together(once=None), Together(once=True)
    for data, largest in ((plain, 5), (noisy, 1)):
        feed = LoaderFeed(data, {}, chunk=5)
        data.calls.clear()
        alone = feed.epoch(3, 0, 0).take(5).data[1].tolist()
        assert max(data.calls) == largest
        halves = [feed.epoch(3, 0, 0, Shard(rank, 2)).take(5).data[1].tolist() for rank in (0, 1)]
        assert sorted(halves[0] + halves[1]) == sorted(alone)


def test_a_subset_draws_for_every_row():
    """Subset has ``__getitems__``, also if the data set inside has not."""

    def drawn(shard, chunk):
        feed = LoaderFeed(Subset(Augmented(), range(2, 10)), {}, chunk=chunk)
        return sorted(feed.epoch(3, 0, 0, shard).take(8).data[1].flatten().tolist())

    alone = drawn(WHOLE, 8)
    assert drawn(WHOLE, 3) == alone
    assert sorted(drawn(Shard(0, 2), 8) + drawn(Shard(1, 2), 8)) == alone


class Fading(Augmented):
    def __init__(self):
        super().__init__()
        self.reads = 0

    def __getitem__(self, row):
        self.reads += 1
        return torch.tensor([float(self.reads)]), torch.tensor([row])


class Keeps(Augmented):
    """It reads every row once, as data sets do that keep decoded pictures."""

    def __init__(self, *, draws, kept):
        super().__init__()
        self.draws, self.kept = draws, kept

    def __getitem__(self, row):
        if self.kept[row] is None:
            self.kept[row] = float(torch.rand(())) if self.draws else float(row)
        return torch.tensor([self.kept[row]]), torch.tensor([row])


class Broken(Augmented):
    def __getitem__(self, row):
        raise OSError


def test_rows_that_are_others_when_they_are_read_again_are_refused():
    for data in (Augmented(), Broken(), Subset(Augmented(), range(4))):
        check_repeatable(LoaderFeed(data, {}))
    with pytest.raises(UnsupportedError, match="how often rows have been read"):
        check_repeatable(LoaderFeed(Fading(), {}))
    check_repeatable(LoaderFeed(Keeps(draws=False, kept=[None] * 12), {}))
    with pytest.raises(UnsupportedError, match="keeps what it drew when it was read first"):
        check_repeatable(LoaderFeed(Keeps(draws=True, kept=[None] * 12), {}))
    generator = Augmented()
    generator.rng = random.Random()
    with pytest.raises(UnsupportedError, match=r"dataset\.rng is a random generator"):
        check_repeatable(LoaderFeed(generator, {}))


def test_a_stream_is_not_shuffled_by_the_loader():
    class Rows(IterableDataset):
        def __iter__(self):
            return iter([(0.0, 1)])

    with pytest.raises(UnsupportedError, match="shuffle=True cannot change the order"):
        choose_feed(None, Rows(), {"shuffle": True})
    assert choose_feed(None, Rows(), {"shuffle": False}).n_examples is None
