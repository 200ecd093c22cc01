"""Rows of an IterableDataset."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, default_collate

from accelerando._engine.data.feed import Shard, count_batches
from accelerando._engine.data.stream import RowBuffer, StreamFeed
from accelerando.exceptions import UnsupportedError


class Numbers(IterableDataset):
    def __init__(self, n):
        self.n = n
        self.read = 0

    def __iter__(self):
        for number in range(self.n):
            self.read += 1
            yield torch.tensor(number), torch.tensor(number * 2)


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(0, 40),
    chunk=st.integers(1, 9),
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=6),
    cursor=st.integers(0, 45),
    raw=st.booleans(),
)
def test_a_stream_becomes_batches_of_any_size(n, chunk, sizes, cursor, raw):
    options = {"collate_fn": default_collate} if raw else {}
    batches = StreamFeed(Numbers(n), options, chunk=chunk).epoch(0, 0, cursor)
    seen = []
    for size in [*sizes, *[10] * 5]:
        batch = batches.take(size)
        if batch is None:
            break
        assert batch.size == batch.held == min(size, n - cursor - len(seen))
        assert batch.rows is None
        assert torch.equal(batch.data[1], 2 * batch.data[0])
        seen += batch.data[0].tolist()
    assert seen == list(range(cursor, n))


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(1, 40),
    chunk=st.integers(1, 9),
    wanted=st.integers(1, 12),
    min_rows=st.integers(1, 4),
    drop_last=st.booleans(),
)
def test_the_last_batch_follows_the_rule_of_all_feeds(n, chunk, wanted, min_rows, drop_last):
    feed = StreamFeed(Numbers(n), {}, drop_last=drop_last, chunk=chunk)
    batches = feed.epoch(0, 0, 0)
    sizes = []
    while (batch := batches.take(wanted, min_rows)) is not None:
        sizes.append(batch.size)
    assert len(sizes) == count_batches(n, wanted, min_rows, drop_last)
    assert drop_last or sum(sizes) == n


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40),
    ranks=st.integers(2, 5),
    sizes=st.lists(st.integers(1, 17), min_size=1, max_size=8),
    cursor=st.integers(0, 20),
)
def test_every_rank_keeps_its_share(n, ranks, sizes, cursor):
    epochs = [StreamFeed(Numbers(n), {}, chunk=3).epoch(0, 0, cursor, Shard(r, ranks))
              for r in range(ranks)]  # fmt: skip
    left = list(range(cursor, n))
    for size in sizes:
        batches = [epoch.take(size) for epoch in epochs]
        if not left:
            assert all(batch is None for batch in batches)
            return
        for rank, batch in enumerate(batches):
            mine = [row for row in left[:size] if row % ranks == rank]
            assert batch.size == len(left[:size])
            assert batch.held == len(mine)
            assert batch.data[0].tolist() == (mine or left[:1])
        left = left[size:]


@pytest.mark.parametrize(("min_rows", "read"), [(1, 4), (2, 6)])
def test_no_more_is_read_than_needed(min_rows, read):
    stream = Numbers(20)
    StreamFeed(stream, {}, chunk=1).epoch(0, 0, 0).take(4, min_rows)
    assert stream.read == read


def test_skipped_rows_are_not_collated():
    """A collate function may draw random numbers; a resumed run must not draw them twice."""
    seen = []

    def collate(items):
        seen.append([int(x) for x, _ in items])
        return default_collate(items)

    StreamFeed(Numbers(10), {"collate_fn": collate}, chunk=4).epoch(0, 0, cursor=5).take(3)
    assert seen == [[5, 6, 7]]


def test_the_length_of_a_stream_is_unknown():
    feed = StreamFeed(Numbers(4), {})
    assert feed.n_examples is None
    assert feed.share(np.arange(4), Shard(1, 2)).tolist() == [1, 3]
    with pytest.raises(UnsupportedError, match="cannot be read by their numbers"):
        feed.gather(np.arange(2))


def test_ranks_cannot_divide_what_a_collate_function_made():
    feed = StreamFeed(Numbers(4), {"collate_fn": default_collate})
    with pytest.raises(UnsupportedError, match="Collate inside the IterableDataset"):
        feed.epoch(0, 0, 0, Shard(0, 2))
    assert feed.epoch(0, 0, 0).take(4).size == 4


def test_a_buffer_skips_more_than_it_reads_at_a_time():
    buffer = RowBuffer(iter([torch.arange(3000), torch.arange(3000, 3005)]), None)
    buffer.skip(3001)
    assert buffer.n_rows == 4
    assert buffer.release(2).tolist() == [3001, 3002]
    buffer.skip(100)
    assert buffer.n_rows == 0
