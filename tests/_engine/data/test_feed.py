"""Feeds of arrays, the order of epochs and the rule for the last batch."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from accelerando._engine.data.feed import (
    WHOLE,
    ArrayBatches,
    ArrayFeed,
    Shard,
    batch_rows,
    choose_feed,
    concatenate,
    count_batches,
    count_rows,
    epoch_order,
    leaves,
    map_leaves,
    only_tensors,
    slice_rows,
    unpack,
)
from accelerando._engine.data.loader import LoaderFeed
from accelerando._engine.data.stream import StreamFeed
from accelerando.exceptions import UnsupportedError

X = np.arange(60, dtype="float32").reshape(20, 3)
Y = np.arange(20, dtype="float32").reshape(20, 1)
LEFT, WANTED, MIN_ROWS = st.integers(0, 60), st.integers(1, 20), st.integers(1, 25)


def in_order(seed, epoch, n):
    return np.arange(n)


def memory_map(path, array):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


KINDS = {
    "torch": lambda tmp: [torch.from_numpy(X), torch.from_numpy(Y)],
    "read-only": lambda tmp: [read_only(X), read_only(Y)],
    "memory-mapped": lambda tmp: [memory_map(tmp / "x.npy", X), memory_map(tmp / "y.npy", Y)],
    "sparse": lambda tmp: [sparse.csr_matrix(X), torch.from_numpy(Y)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_array_gives_the_same_batches(kind, tmp_path):
    batches = ArrayFeed(KINDS[kind](tmp_path), None).epoch(seed=1, epoch=2, cursor=0)
    order = epoch_order(1, 2, 20)
    for size, rows in [(6, order[:6]), (11, order[6:17]), (50, order[17:])]:
        batch = batches.take(size)
        assert batch.size == batch.held == len(rows)
        assert batch.rows.tolist() == rows.tolist()
        assert torch.equal(batch.data[0], torch.from_numpy(X[rows]))
        assert torch.equal(batch.data[1], torch.from_numpy(Y[rows]))
    assert batches.take(1) is None


def test_nested_arrays_keep_their_structure():
    nested = {"left": torch.from_numpy(X), "right": [X + 1, torch.from_numpy(X + 2)]}
    batch = ArrayFeed([nested, Y], None, order=in_order).epoch(0, 0, 0).take(2).data
    assert torch.equal(batch[0]["left"], torch.from_numpy(X[:2]))
    assert torch.equal(batch[0]["right"][0], torch.from_numpy(X[:2] + 1))
    assert torch.equal(batch[0]["right"][1], torch.from_numpy(X[:2] + 2))


def test_a_subset_chooses_rows():
    feed = ArrayFeed([torch.from_numpy(X), torch.from_numpy(Y)], np.array([5, 3]), order=in_order)
    assert feed.n_rows == feed.n_examples == 2
    assert feed.epoch(0, 0, 0).take(5).data[1].ravel().tolist() == [5.0, 3.0]
    assert feed.gather(np.array([1]))[1].tolist() == [[3.0]]


def test_an_epoch_continues_at_its_cursor():
    feed = ArrayFeed([torch.arange(9), torch.arange(9)], None)
    batch = feed.epoch(4, 2, cursor=7).take(5)
    assert batch.data[0].tolist() == epoch_order(4, 2, 9)[7:].tolist()
    assert feed.epoch(4, 2, cursor=9).take(5) is None
    assert feed.epoch(4, 2, cursor=30).take(5) is None


def test_drop_last_leaves_out_a_short_batch():
    feed = ArrayFeed([torch.arange(9), torch.arange(9)], None, drop_last=True)
    batches = feed.epoch(0, 0, 0)
    assert [batches.take(4).size for _ in range(2)] == [4, 4]
    assert batches.take(4) is None


@pytest.mark.parametrize("make", [list, tuple])
def test_a_short_remainder_comes_with_the_batch_before(make):
    data = make([torch.arange(13), torch.arange(13)])
    batches = ArrayFeed(data, None).epoch(0, 0, 0)
    assert [batches.take(4, min_rows=2).size for _ in range(3)] == [4, 4, 5]
    assert batches.take(4, min_rows=2) is None


@settings(deadline=None)
@given(
    n=st.integers(1, 50),
    ranks=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 17), min_size=1, max_size=8),
    cursor=st.integers(0, 20),
)
def test_ranks_share_every_batch_without_gap_or_overlap(n, ranks, sizes, cursor):
    X = torch.arange(n)
    epochs = [
        ArrayFeed([X, X], None).epoch(3, 1, cursor, Shard(rank, ranks)) for rank in range(ranks)
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
        # A rank without a share shows one row, since collectives need every rank.
        assert all(len(batch.data[0]) == max(1, batch.held) for batch in batches)
        order = order[size:]


def test_shards_are_strided_along_the_epoch():
    order = np.arange(100, 120)
    for cut in range(20):
        first, second = Shard(2, 3).of(order[:cut], 0), Shard(2, 3).of(order[cut:], cut)
        assert [*first, *second] == Shard(2, 3).of(order, 0).tolist() == order[2::3].tolist()
    assert WHOLE.of(order, 5) is order
    feed = ArrayFeed([torch.zeros(4), torch.zeros(4)], None)
    assert feed.share(np.array([7, 8, 9]), Shard(1, 2)).tolist() == [8]


# -- the rule for the last batch, and the five rules that it replaces ------------------------------


def old_memory(left, size, fewest, drop_last):
    if 0 < left - size < fewest:
        size = left
    rows = range(left)[:size]
    return None if len(rows) == 0 or (drop_last and len(rows) < size) else len(rows)


def old_loader(left, size, fewest, drop_last):
    if 0 < left - size < fewest:
        size = left
    count = min(size, left)
    return None if count <= 0 or (drop_last and count < size) else count


def old_stream(left, size, fewest, drop_last):
    n_held = min(left, size + fewest if fewest > 1 else size)  # chunks of one row
    if 0 < n_held - size < fewest:
        size = n_held
    count = min(size, n_held)
    return None if count == 0 or (drop_last and count < size) else count


def old_chunks(left, size, fewest):
    if 0 < left - size < fewest:
        size = left
    return len(range(left)[:size]) or None


def old_count(examples, rows, fewest, drop_last):
    whole, rest = divmod(examples, rows)
    joins = drop_last or rest < fewest
    return whole + (rest > 0 and (not joins or (whole == 0 and not drop_last)))


@settings(max_examples=300, deadline=None)
@given(LEFT, WANTED, MIN_ROWS, st.booleans())
def test_one_rule_replaces_those_of_four_feeds(left, wanted, min_rows, drop_last):
    rows = batch_rows(left, wanted, min_rows, drop_last) or None
    assert rows == old_memory(left, wanted, min_rows, drop_last)
    assert rows == old_loader(left, wanted, min_rows, drop_last)
    assert rows == old_stream(left, wanted, min_rows, drop_last)
    if not drop_last:
        assert rows == old_chunks(left, wanted, min_rows)


@settings(max_examples=500, deadline=None)
@given(LEFT, WANTED, MIN_ROWS, st.booleans())
def test_counting_batches_equals_taking_them(left, wanted, min_rows, drop_last):
    rest, taken = left, 0
    while rows := batch_rows(rest, wanted, min_rows, drop_last):
        rest, taken = rest - rows, taken + 1
    assert count_batches(left, wanted, min_rows, drop_last) == taken
    # The old formula was wrong if the remainder may be longer than a batch.
    if min_rows <= wanted:
        assert taken == old_count(left, wanted, min_rows, drop_last)


def test_nothing_left_is_no_batch():
    for left in (0, -3):
        assert batch_rows(left, 4, 2, False) == count_batches(left, 4, 2, False) == 0


# -- orders ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 10**6), st.integers(0, 200))
def test_an_epochs_order_is_a_permutation_that_depends_on_seed_and_epoch(seed, epoch, n):
    assert sorted(epoch_order(seed, epoch, n)) == list(range(n))
    assert epoch_order(seed, epoch, n).tolist() == epoch_order(seed, epoch, n).tolist()


def test_orders_stay_what_they_were():
    """Seeded results of earlier versions depend on these draws."""
    assert epoch_order(0, 0, 8).tolist() == [2, 4, 3, 6, 5, 0, 1, 7]
    assert epoch_order(7, 3, 8).tolist() == [3, 5, 0, 4, 2, 7, 1, 6]


# -- nested batches ----------------------------------------------------------------------------

Pair = namedtuple("Pair", ["a", "b"])


def test_leaves_of_every_structure():
    tree = {"x": [torch.arange(4), (torch.arange(4) + 10,)], "y": Pair(torch.ones(4), torch.eye(4))}
    assert [len(leaf) for leaf in leaves(tree)] == [4] * 4
    doubled = map_leaves(lambda leaf: leaf * 2, tree)
    assert isinstance(doubled["y"], Pair)
    assert isinstance(doubled["x"][1], tuple)
    assert doubled["x"][1][0].tolist() == [20, 22, 24, 26]
    assert only_tensors(tree)
    assert not only_tensors([torch.ones(2), "word"])
    assert not only_tensors(torch.tensor(1.0))
    assert count_rows(tree) == 4


def test_cutting_and_joining_gives_the_same_batch():
    tree = {"x": [torch.arange(6), (torch.arange(6),)], "y": Pair(torch.arange(6), torch.eye(6))}
    parts = [slice_rows(tree, 0, 1), slice_rows(tree, 1, 4), slice_rows(tree, 4, 6)]
    assert count_rows(parts[1]) == 3
    joined = concatenate(parts)
    assert type(joined["y"]) is Pair
    for one, other in zip(leaves(joined), leaves(tree), strict=True):
        assert torch.equal(one, other)
    assert concatenate([tree]) is tree


def test_a_batch_has_two_values():
    X, y = unpack([torch.ones(3), torch.zeros(3)])
    assert X.sum() == 3
    assert y.sum() == 0
    for batch in ([torch.ones(3)], torch.ones(3)):
        with pytest.raises(ValueError, match=r"have 1 value\. .* exactly 2 values, X and y"):
            unpack(batch)
    with pytest.raises(ValueError, match="have 3 values"):
        unpack((1, 2, 3))


def test_batches_for_validation_keep_the_order():
    batches = ArrayBatches(([torch.arange(7), torch.arange(7)], np.array([6, 5, 4, 3, 2])), 2)
    assert len(batches) == 3
    assert [X.tolist() for X, _ in batches] == [[6, 5], [4, 3], [2]]


# -- the choice of a feed ----------------------------------------------------------------------


class Numbers(IterableDataset):
    def __iter__(self):
        return iter([(torch.tensor(1.0), torch.tensor(1.0))])


def test_the_feed_follows_the_data():
    data = TensorDataset(torch.arange(6), torch.arange(6))
    arrays = (list(data.tensors), None)

    class OwnLoader(DataLoader):
        pass

    assert type(choose_feed(arrays, data, {"num_workers": 0})) is ArrayFeed
    assert type(choose_feed(None, data, {})) is LoaderFeed
    assert type(choose_feed(arrays, data, {"num_workers": 1})) is LoaderFeed
    assert type(choose_feed(arrays, data, {}, loader=OwnLoader)) is LoaderFeed
    assert type(choose_feed(None, Numbers(), {})) is StreamFeed


@pytest.mark.parametrize("in_memory", [True, False])
def test_options_decide_the_order_and_the_last_batch(in_memory):
    data = TensorDataset(torch.arange(6), torch.arange(6))
    arrays = (list(data.tensors), None) if in_memory else None

    def rows(**options):
        batch = choose_feed(arrays, data, options).epoch(1, 2, 0).take(6)
        return batch.data[0].tolist()

    assert rows() == rows(shuffle=True) == epoch_order(1, 2, 6).tolist()
    assert rows(shuffle=False) == [0, 1, 2, 3, 4, 5]
    assert rows(sampler=[5, 3]) == [5, 3]
    feed = choose_feed(arrays, data, {"drop_last": True})
    assert feed.drop_last
    assert feed.epoch(0, 0, 0).take(7) is None


def test_what_no_feed_can_do_is_refused():
    data = TensorDataset(torch.arange(6), torch.arange(6))
    with pytest.raises(UnsupportedError, match="iterator_train__batch_sampler decides"):
        choose_feed(None, data, {"batch_sampler": [[0, 1]]})
    with pytest.raises(UnsupportedError, match="iterator_train__sampler cannot order"):
        choose_feed(None, Numbers(), {"sampler": [0]})
