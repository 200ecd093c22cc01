"""Rows of an IterableDataset."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, default_collate

from accelerando._engine.data.feed import Shard, count_batches
from accelerando._engine.data.stream import StreamFeed
from accelerando.exceptions import ClusterError, StateError, UnsupportedError


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
    n=st.integers(1, 40),
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


class Together:
    """Sums of numbers over ranks that are threads of this process."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.said = [()] * ranks
        self.barrier = threading.Barrier(ranks)

    def of(self, rank):
        def total(*numbers):
            self.said[rank] = numbers
            self.barrier.wait(20)
            sums = [sum(column) for column in zip(*self.said, strict=True)]
            self.barrier.wait(20)
            return sums

        return total


def read_together(streams, sizes, cursor=0, min_rows=1, options=None, mark=None, epoch=0, **more):
    """Return for each rank its batches, and its mark after the last one."""
    ranks = len(streams)
    together = Together(ranks)

    def read(rank):
        feed = StreamFeed(streams[rank], options or {}, **{"chunk": 3, **more})
        batches = feed.epoch(0, epoch, cursor, Shard(rank, ranks))
        batches.join(together.of(rank), mark or {})
        taken = []
        for size in sizes:
            taken.append(batches.take(size, min_rows))
            if taken[-1] is None:
                break
        return taken, batches.mark

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(read, range(ranks)))


class Sharded(Numbers):
    """Numbers of which a rank reads only its own."""

    def shard(self, rank, size):
        for number in range(rank, self.n, size):
            self.read += 1
            yield torch.tensor(number), torch.tensor(number * 2)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40),
    ranks=st.integers(2, 5),
    sizes=st.lists(st.integers(1, 17), min_size=1, max_size=8),
    cursor=st.integers(0, 20),
    kind=st.sampled_from([Numbers, Sharded]),
    min_rows=st.sampled_from([1, 2]),
    raw=st.booleans(),
)
def test_every_rank_keeps_its_share(n, ranks, sizes, cursor, kind, min_rows, raw):
    """For any number of ranks the batches are those of one process."""
    options = {"collate_fn": default_collate} if raw else {}
    sizes = [*sizes, 50, 50]
    alone = read_together([kind(n)], sizes, cursor, min_rows, options)[0]
    found = read_together([kind(n) for _ in range(ranks)], sizes, cursor, min_rows, options)
    start = cursor
    for number, whole in enumerate(alone[0]):
        batches = [taken[number] for taken, _ in found]
        if whole is None:
            assert all(batch is None for batch in batches)
            break
        rows = whole.data[0].tolist()
        for rank, batch in enumerate(batches):
            mine = [row for row in rows if row % ranks == rank]
            assert (batch.size, batch.held) == (whole.size, len(mine))
            if mine:
                assert batch.data[0].tolist() == mine
            else:
                assert len(batch.data[0]) == 1
        start += whole.size
    assert start == max(n, cursor)
    assert all(mark == alone[1] for _, mark in found)


def test_a_rank_reads_only_its_shard():
    streams = [Sharded(300) for _ in range(3)]
    read_together(streams, [60] * 6)
    probes = [1 * 2 + 4, 1 * 2 + 5, 1 * 2 + 6]  # the first rows, once
    assert [s.read - probe for s, probe in zip(streams, probes, strict=True)] == [100, 100, 100]


class Shuffled(Numbers):
    def __init__(self, n, seed):
        super().__init__(n)
        self.seed = seed

    def __iter__(self):
        for number in np.random.default_rng(self.seed).permutation(self.n):
            yield torch.tensor(number), torch.tensor(number * 2)


class LateChange(Numbers):
    """One row is another one on one rank."""

    def __init__(self, n, at):
        super().__init__(n)
        self.at = at

    def __iter__(self):
        for number in range(self.n):
            yield torch.tensor(number), torch.tensor(number * 2 + (number == self.at))


@pytest.mark.parametrize(
    "streams",
    [
        [Shuffled(40, 0), Shuffled(40, 1)],
        [Numbers(40), Numbers(33)],
        [Numbers(40), Numbers(40), Numbers(39)],
        [Numbers(40), LateChange(40, 35)],
        [Numbers(40), Numbers(0)],
    ],
    ids=["order", "length", "length of the third", "one target", "empty"],
)
@pytest.mark.parametrize("raw", [False, True])
def test_streams_that_differ_stop_before_the_update(streams, raw):
    options = {"collate_fn": default_collate} if raw else {}
    with pytest.raises(ClusterError, match=r"different rows on different ranks.* not made"):
        read_together(streams, [10] * 9, options=options)


class ByFile(Numbers):
    """Ranks get contiguous parts, as with files: not the protocol."""

    def shard(self, rank, size):
        share = self.n // size
        return [(float(n), n) for n in range(rank * share, (rank + 1) * share)]


class Unseeded(Numbers):
    def shard(self, rank, size):
        return [(float(n), n) for n in np.random.default_rng().permutation(100)[rank::size]]


class EndsEarly(Sharded):
    def shard(self, rank, size):
        rows = list(super().shard(rank, size))
        return rows[: len(rows) - 3 * rank]


@pytest.mark.parametrize("kind", [ByFile, Unseeded])
def test_a_sharding_that_is_not_the_protocol_is_refused_before_training(kind):
    with pytest.raises(ClusterError, match=r"must yield the rows rank, rank \+ size"):
        read_together([kind(40), kind(40)], [])


def test_shards_with_other_ends_are_refused():
    with pytest.raises(ClusterError, match="the shards of the 2 ranks have 5, 2 of the next 10"):
        read_together([EndsEarly(40), EndsEarly(40)], [10] * 4)


@pytest.mark.parametrize("kind", [Numbers, Sharded])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (2, 1), (3, 2)])
def test_another_number_of_ranks_continues_inside_an_epoch(kind, before, after):
    mark = read_together([kind(30) for _ in range(before)], [7, 4])[0][1]
    assert mark["rows"] == 11
    found = read_together([kind(30) for _ in range(after)], [9], mark["rows"], mark=mark)
    rows = sorted(row for taken, _ in found for row in taken[0].data[0].tolist())
    assert rows == list(range(11, 20))
    whole = read_together([kind(30)], [20])[0][1]
    assert {made["digest"] for _, made in found} == {whole["digest"]}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("other", [Shuffled(30, 1), Numbers(8), LateChange(30, 10)])
def test_a_stream_that_does_not_repeat_itself_is_not_resumed(other, ranks):
    mark = read_together([Numbers(30)], [7, 4])[0][1]
    with pytest.raises(StateError, match="does not repeat the 11 rows of epoch 1"):
        read_together([other] * ranks, [9], mark["rows"], mark=mark)


def test_resumed_shards_are_compared_too():
    mark = read_together([Sharded(30)], [7, 4])[0][1]
    mark["digest"] += 1
    with pytest.raises(StateError, match="does not repeat"):
        read_together([Sharded(30), Sharded(30)], [9], mark["rows"], mark=mark)


class ByEpoch(Numbers):
    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for number in np.random.default_rng(self.epoch).permutation(self.n):
            yield torch.tensor(number), torch.tensor(number * 2)


class ShardedByEpoch(ByEpoch):
    def shard(self, rank, size):
        return islice(iter(self), rank, None, size)


@pytest.mark.parametrize("kind", [ByEpoch, ShardedByEpoch])
def test_a_stream_hears_of_the_epoch(kind):
    orders = [
        read_together([kind(20), kind(20)], [20], epoch=epoch)[0][0][0].data[0].tolist()
        for epoch in (0, 1, 0)
    ]
    assert orders[0] == orders[2] != orders[1]


class Counting(Numbers):
    """Like a Loader of torchdata: every ``iter`` is the next epoch, and the state says which."""

    epochs = 0

    def __iter__(self):
        self.epochs += 1
        for number in np.random.default_rng(self.epochs).permutation(self.n):
            yield torch.tensor(number), torch.tensor(number * 2)

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stream_with_a_state_resumes_in_its_epoch(ranks):
    stream = Counting(30)
    ended = read_together([stream], [30, 1])[0][1]  # the first epoch
    second = StreamFeed(stream, {}).epoch(0, 1, 0)
    second.join(lambda *numbers: list(numbers), ended)
    rows = [second.take(12).data[0].tolist(), second.mark]
    rest = second.take(18).data[0].tolist()
    streams = [stream, *(Counting(30) for _ in range(ranks - 1))]  # one of them has just begun
    found = read_together(streams, [18], 12, mark=rows[1], epoch=1)
    again = sorted(row for taken, _ in found for row in taken[0].data[0].tolist())
    assert again == sorted(rest)
    newcomer = read_together([Counting(30)], [12], mark=ended, epoch=1)[0][0][0]
    assert newcomer.data[0].tolist() == rows[0]


@pytest.mark.parametrize("kind", [Numbers, Sharded])
@pytest.mark.parametrize(("epoch", "says"), [(0, "epoch 1.$"), (3, "epoch 4.*new iterator")])
def test_an_empty_stream_is_refused(kind, epoch, says):
    for ranks in (1, 2):
        with pytest.raises(ValueError, match=f"the stream yields nothing in {says}"):
            read_together([kind(0) for _ in range(ranks)], [4], epoch=epoch)


def test_a_short_stream_whose_last_batch_is_dropped_is_not_empty():
    assert read_together([Numbers(3)], [4], drop_last=True)[0][0] == [None]


def test_fewer_rows_than_ranks():
    found = read_together([Sharded(1), Sharded(1), Sharded(1)], [4, 4])
    assert [taken[0].held for taken, _ in found] == [1, 0, 0]
    assert [taken[0].data[0].tolist() for taken, _ in found] == [[0], [0], [0]]


class Mixed(IterableDataset):
    """Rows of everything that a stream may yield."""

    def __init__(self, other=""):
        self.other = other

    def __iter__(self):
        for n in range(12):
            yield {"text": f"{n}{self.other}", "parts": (n, np.full(2, n), torch.ones(n % 3))}


def test_rows_of_any_kind_are_compared():
    options = {"collate_fn": lambda rows: (torch.tensor([r["parts"][0] for r in rows]), rows)}
    found = read_together([Mixed(), Mixed()], [5, 5, 5], options=options)
    assert [batch.data[0].tolist() for batch in found[1][0][:2]] == [[1, 3], [5, 7, 9]]
    with pytest.raises(ClusterError, match="different rows"):
        read_together([Mixed(), Mixed("!")], [5], options=options)


class Raises(Numbers):
    def __iter__(self):
        yield from super().__iter__()
        raise OSError("the disk is gone")


def test_an_error_of_the_stream_is_the_users():
    with pytest.raises(OSError, match="the disk is gone"):
        read_together([Raises(5)], [4, 4])


def test_processes_that_persist_would_not_hear_of_an_epoch():
    options = {"num_workers": 1, "persistent_workers": True}
    with pytest.raises(UnsupportedError, match="never hear of set_epoch"):
        StreamFeed(ByEpoch(4), options)
    assert StreamFeed(ShardedByEpoch(4), options)._loader.loader.persistent_workers
    assert not StreamFeed(ByEpoch(4), {"num_workers": 1})._loader.loader.persistent_workers


@pytest.mark.parametrize("n", [9, 24, 25, 31])
def test_worker_processes_read_a_shard_in_its_order(n):
    feed = StreamFeed(ShardedByEpoch(n), {"num_workers": 2}, chunk=4)
    try:
        for epoch in (0, 1):
            alone = ShardedByEpoch(n)
            alone.set_epoch(epoch)
            batches = feed.epoch(0, epoch, 2)
            rows = [batches.take(10), batches.take(n)]
            expected = [int(x) for x, _ in list(alone)[2:]]
            assert [r for b in rows if b for r in b.data[0].tolist()] == expected
    finally:
        feed.close()


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
