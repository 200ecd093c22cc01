"""TopK keeps the largest entries."""

import pytest
import torch

from accelerando.compress import TopK
from accelerando.compress._sparse import kept_entries


@pytest.mark.parametrize("fraction", [0, -0.1, 1.1, True, "0.1"])
def test_wrong_fractions_are_named(fraction):
    with pytest.raises(ValueError, match="'fraction' parameter of TopK must be a number above 0"):
        TopK(fraction=fraction)


def test_the_largest_entries_come_back_bit_for_bit():
    tensor = torch.tensor([[0.1, -7.0, 2.0], [3.0, 0.0, -0.5]])
    codec = TopK(fraction=0.5)
    found = codec.decode(codec.encode(tensor), (2, 3))
    assert found.tolist() == [[0.0, -7.0, 2.0], [3.0, 0.0, 0.0]]
    assert codec.expected_error(tensor) == pytest.approx(0.1**2 + 0.5**2)


def test_a_fraction_keeps_at_least_one_entry_and_at_most_all():
    assert [kept_entries(n, 0.3) for n in (1, 2, 10)] == [1, 1, 3]
    assert kept_entries(7, 1.0) == 7
