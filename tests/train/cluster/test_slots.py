"""Numbers that travel with tensors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accelerando.train.cluster.slots import BYTES, read, write
from accelerando.train.feed import Part

# Single precision has no larger ones, and rounds the last bits of very small ones.
ORDINARY = st.floats(-1e38, 1e38).filter(lambda x: x == 0 or abs(x) > 1e-20)


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.tuples(*[ORDINARY] * n), min_size=1)))
def test_sums_are_those_of_double_precision(rows):
    ranks = len(rows)
    total = sum(write(row, Part(rank, ranks)) for rank, row in enumerate(rows))
    exact = torch.tensor(rows, dtype=torch.float64).sum(0).tolist()
    assert read(total, ranks) == exact
    assert total.nbytes == BYTES * ranks * len(rows[0])


@given(ORDINARY)
def test_one_number_comes_out_as_it_went_in(number):
    assert read(write([number], Part(0, 1)), 1) == [number]


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e300])
def test_what_is_no_number_is_none_on_all_ranks(number):
    total = write([number, 1.0], Part(0, 2)) + write([2.0, 3.0], Part(1, 2))
    found, other = read(total, 2)
    assert not math.isfinite(found)
    assert other == 4.0


def test_a_double_precision_message_carries_them_too():
    sent = write([0.1, 0.2], Part(1, 2)).double()
    assert read(sent, 2) == [0.1, 0.2]
