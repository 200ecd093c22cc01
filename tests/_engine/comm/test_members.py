"""Virtual ranks: their rows, their predictions, their dropout."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accelerando._engine.comm.communicator import Traffic, UpdateResult
from accelerando._engine.comm.members import (
    PlainExchange,
    SilentExchange,
    VirtualGroup,
    divide,
    in_order,
)
from accelerando._engine.data.feed import Batch, Shard
from accelerando.exceptions import UnsupportedError


def batch_of(rows):
    data = {"a": torch.arange(rows), "b": [torch.arange(rows) * 10.0]}, torch.arange(rows)
    return Batch(data, rows, np.arange(rows) + 100, rows)


@given(rows=st.integers(1, 20), replicas=st.integers(2, 5), cursor=st.integers(0, 30))
def test_replicas_get_the_rows_of_ranks(rows, replicas, cursor):
    epoch = np.arange(cursor, cursor + rows)
    for number, (part, places) in enumerate(divide(batch_of(rows), replicas, cursor)):
        expected = Shard(number, replicas).of(epoch, cursor) - cursor
        assert places.tolist() == expected.tolist()
        assert part.held == part.size == len(expected)
        assert part.rows.tolist() == (expected + 100).tolist()
        (X, y) = part.data
        assert X["a"].tolist() == y.tolist() == expected.tolist()
        assert X["b"][0].tolist() == (expected * 10.0).tolist()


def test_a_single_replica_keeps_the_rows_of_its_process():
    batch = Batch("anything", 9, None, 3)
    ((part, places),) = divide(batch, 1, cursor=4)
    assert part == Batch("anything", 3, None, 3)
    assert places.tolist() == [0, 1, 2]


def test_what_has_no_rows_cannot_be_divided():
    with pytest.raises(UnsupportedError, match="virtual_ranks divides every batch"):
        list(divide(Batch((["a", "b"], torch.arange(2)), 2, None, 2), 2, cursor=0))


def result_of(y_pred):
    return UpdateResult(0.0, 0.0, 0.1, {"y_pred": y_pred})


def test_predictions_come_back_in_the_order_of_the_batch():
    parts = list(divide(batch_of(7), 3, cursor=2))
    results = [result_of((part.data[1], part.data[1] * 2.0)) for part, _ in parts]
    first, second = in_order(results, [places for _, places in parts])
    assert first.tolist() == list(range(7))
    assert second.tolist() == [2.0 * n for n in range(7)]
    assert in_order([result_of("text")], [torch.arange(1)]) == ["text"]
    assert in_order([], []) == []


def test_dropout_depends_on_seed_update_and_rank_if_the_run_is_seeded():
    group = VirtualGroup(2)

    def drawn(*numbers, seeded=True):
        group.seed_dropout(*numbers, seeded=seeded)
        return float(torch.rand(()))

    with torch.random.fork_rng():
        assert drawn(1, 2, 0) == drawn(1, 2, 0)
        assert len({drawn(1, 2, 0), drawn(1, 2, 1), drawn(1, 3, 0), drawn(2, 2, 0)}) == 4
        torch.manual_seed(9)
        first = float(torch.rand(()))
        torch.manual_seed(9)
        assert drawn(1, 2, 0, seeded=False) == first  # it follows torch.manual_seed


def test_nothing_is_sent_between_virtual_ranks():
    group, positions = VirtualGroup(3), [[torch.full((2,), float(n))] for n in range(3)]
    assert group.sum(1.0, 2.0) == [1.0, 2.0]
    replicas = SimpleNamespace(n_bytes=8)
    for exchange in (PlainExchange(group), SilentExchange(group)):
        numbers, (mean,) = exchange.start(replicas, positions, [4.0])()
        assert numbers == [4.0]
        assert mean.tolist() == [1.0, 1.0]
        assert exchange.take_traffic().bytes == 2 * 2 * 8  # what three ranks would send
        assert exchange.take_traffic().bytes == 0
    assert positions[0][0].tolist() == [0.0, 0.0]
    assert group.take_traffic() == Traffic()
    assert group.mean_seconds(2.0, 1.0) == (2.0, 0.0)
    assert not group.is_lost(RuntimeError("gloo"))
