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


@pytest.mark.parametrize("bits", [1, 9, 2.0, True, "2"])
def test_wrong_bits_are_named(bits):
    with pytest.raises(ValueError, match="'bits' parameter of TopK must be an integer from 2 to 8"):
        TopK(bits=bits)


def test_two_bits_are_a_sign_and_one_of_two_sizes():
    """Kept entries are replaced by the mean of the smaller or of the larger half of them."""
    tensor = torch.tensor([0.1, -7.0, 2.0, 3.0, 0.0, -0.5, 5.0, -4.0])
    codec = TopK(fraction=0.5, bits=2)  # keeps -7, 3, 5 and -4
    found = codec.decode(codec.encode(tensor), (8,))
    assert found.tolist() == [0.0, -6.0, 0.0, 3.5, 0.0, 0.0, 6.0, -3.5]
    assert codec.expected_error(tensor) == pytest.approx(0.01 + 4 + 0.25 + 2 * 1 + 2 * 0.25)


def test_more_bits_cost_more_bytes_and_lose_less():
    tensor = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    codecs = [TopK(0.1, bits=bits) for bits in (2, 3, 4, 8)] + [TopK(0.1)]
    sizes = [len(codec.encode(tensor)) for codec in codecs]
    errors = [codec.expected_error(tensor) for codec in codecs]
    assert sizes == sorted(sizes)
    assert errors == sorted(errors, reverse=True)
    assert sizes[0] < 0.35 * sizes[-1]  # positions are left


@pytest.mark.parametrize("scale", [1e-38, 3e38])
def test_groups_of_extreme_numbers_have_means(scale):
    tensor = torch.tensor([1.0, -1.0, 0.5, 0.0]) * scale
    codec = TopK(1.0, bits=2)
    found = codec.decode(codec.encode(tensor), (4,))
    torch.testing.assert_close(found, torch.tensor([1.0, -1.0, 0.25, 0.25]) * scale)
