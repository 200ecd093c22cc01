"""Drawn entries: values of those that are certain, one size and the signs of the others."""

import pytest
import torch

from accelerando.compress import _entries
from accelerando.compress._payload import Reader


def test_certain_entries_keep_their_values_and_drawn_ones_have_one_size():
    values = torch.tensor([8.0, -1.0, 0.0, 2.0, -1.0])
    chances = torch.tensor([1.0, 0.25, 0.0, 0.5, 0.25])
    body = _entries.encode(values, chances, torch.tensor([0, 1, 3]), 100.0)
    found = _entries.decode(Reader(memoryview(body)), 5, torch.float32, (5,))
    assert found.tolist() == [8.0, -4.0, 0.0, 4.0, 0.0]


@pytest.mark.parametrize("limit", [7.0, 3.9])
def test_what_could_overflow_is_not_encoded(limit):
    values, chances = torch.tensor([1.0, -1.0]), torch.tensor([0.25, 0.125])
    assert _entries.encode(values, chances, torch.tensor([0]), limit) is None or limit >= 4
    assert _entries.encode(torch.tensor([9.0]), torch.ones(1), torch.tensor([0]), limit) is None


def test_more_entries_than_there_are_raise():
    body = _entries.encode(torch.ones(4), torch.ones(4), torch.arange(4), 10.0)
    with pytest.raises(ValueError, match="4 entries of 3"):
        _entries.decode(Reader(memoryview(body)), 3, torch.float32, (3,))
