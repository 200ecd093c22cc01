"""Rows on their way from a DataLoader to batches."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from accelerando._engine.data.buffer import RowBuffer
from accelerando._engine.data.feed import choose_feed
from accelerando.exceptions import UnsupportedError


def test_a_buffer_skips_more_than_it_reads_at_a_time():
    buffer = RowBuffer(iter([torch.arange(3000), torch.arange(3000, 3005)]), None)
    assert sum(rows for rows, _ in buffer.discard(3001)) == 3001
    assert buffer.n_rows == 4
    assert buffer.first(3).tolist() == [3001, 3002, 3003]
    assert buffer.release(2).tolist() == [3001, 3002]
    assert [taken.tolist() for _, taken in buffer.discard(100)] == [[3003, 3004]]
    assert buffer.n_rows == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"generator": torch.Generator()}, "random_state decides the order"),
        ({"num_workers": 1, "in_order": False}, "no run could be repeated"),
        ({"batch_sampler": [[0]]}, "no batch-size policy can"),
    ],
)
def test_arguments_that_cannot_be_honored_are_refused(options, says):
    data = TensorDataset(torch.zeros(4, 2), torch.zeros(4))
    with pytest.raises(UnsupportedError, match=says):
        choose_feed(None, data, options)
