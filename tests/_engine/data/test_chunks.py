"""Training sets in chunks of which a process holds some."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando._engine.data.chunks import ChunkFeed, chunked_order, share_out


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 5))
def test_the_order_visits_every_row_once_and_mixes_chunks(lengths, epoch):
    order = chunked_order(1, epoch, lengths)
    assert sorted(order.tolist()) == list(range(sum(lengths)))
    chunk_of = np.repeat(np.arange(len(lengths)), lengths)[order]
    half = len(order) // 2
    for number, n in enumerate(lengths):
        assert abs((chunk_of[:half] == number).sum() - n * half / max(1, len(order))) <= 2


def test_the_order_stays_what_it_was():
    """Seeded results of earlier versions depend on it."""
    assert chunked_order(3, 1, [4, 0, 2, 5]).tolist() == [8, 3, 10, 4, 0, 7, 2, 6, 5, 1, 9]


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 7), st.sampled_from("abcx")),
)
def test_every_chunk_has_one_worker(lengths, holders):
    assigned = share_out(lengths, holders, ["a", "b", "c"])
    assert sorted(n for numbers in assigned.values() for n in numbers) == list(range(len(lengths)))
    assert sum(bool(numbers) for numbers in assigned.values()) == min(3, len(lengths))


def test_chunks_stay_where_they_are_if_shares_are_fair():
    holders = {0: "b", 1: "b", 2: "a"}
    assert share_out([5, 5, 10], holders, ["a", "b"]) == {"a": [2], "b": [0, 1]}
    assert share_out([5, 5, 10], {0: "gone"}, ["a"]) == {"a": [0, 1, 2]}


def test_a_holder_keeps_a_fair_share_only():
    holders = dict.fromkeys(range(6), "a")
    assert share_out([10] * 6, holders, ["a", "b"]) == {"a": [0, 1, 2, 3], "b": [4, 5]}


def test_a_chunk_without_rows_fills_nobody():
    assert share_out([0, 10, 10], {0: "a", 1: "b", 2: "b"}, ["a", "b"]) == {"a": [0, 2], "b": [1]}


def held():
    feed = ChunkFeed([2, 3, 1])
    feed.hold({2: [np.array([50.0]), np.array([5])], 0: [np.array([10.0, 11.0]), np.array([0, 1])]})
    return feed


def test_a_feed_gives_the_rows_of_the_chunks_it_holds():
    feed = held()
    assert feed.share(np.arange(6), None).tolist() == [0, 1, 5]
    assert [leaf.tolist() for leaf in feed.gather(np.array([5, 1]))] == [[50.0, 11.0], [5, 1]]
    feed.hold({1: [np.array([20.0, 21.0, 22.0]), np.array([2, 3, 4])]})
    assert feed.share(np.arange(6), None).tolist() == [2, 3, 4]
    assert set(feed.chunks) == {1}


def test_two_holders_see_the_same_batches():
    mine, other = held(), ChunkFeed([2, 3, 1])
    other.hold({1: [np.array([20.0, 21.0, 22.0]), np.array([2, 3, 4])]})
    assert mine.n_examples == other.n_examples == 6
    for cursor in (0, 2):
        order = chunked_order(3, 1, [2, 3, 1])[cursor:]
        first, second = mine.epoch(3, 1, cursor), other.epoch(3, 1, cursor)
        while (one := first.take(1)) is not None:
            two = second.take(1)
            assert one.size == two.size == one.held + two.held == 1
            owner, guest = (one, two) if one.held else (two, one)
            assert owner.data[1].tolist() == owner.rows.tolist() == order[:1].tolist()
            assert len(guest.data[0]) == 1, "collectives need every rank"
            order = order[1:]
        assert second.take(1) is None
        assert not len(order)


@pytest.mark.parametrize(
    ("drop_last", "min_rows", "sizes"),
    [(False, 1, [4, 2]), (True, 1, [4]), (False, 3, [6]), (True, 3, [6])],
)
def test_the_last_batch_follows_the_rule_of_all_feeds(drop_last, min_rows, sizes):
    feed = ChunkFeed([6], drop_last=drop_last)
    feed.hold({0: [np.arange(6.0), np.arange(6)]})
    batches = feed.epoch(0, 0, 0)
    found = []
    while (batch := batches.take(4, min_rows)) is not None:
        found.append(batch.size)
    assert found == sizes
