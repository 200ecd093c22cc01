"""HalfPrecision rounds to 16 bits, relative to the largest entry."""

import pytest
import torch

from accelerando.compress import HalfPrecision, _payload


def through(codec, tensor):
    return codec.decode(codec.encode(tensor), tensor.shape)


@pytest.mark.parametrize("dtype", ["float32", torch.bfloat16, None])
def test_only_two_dtypes_are_taken(dtype):
    with pytest.raises(ValueError, match=r"'dtype' parameter of HalfPrecision .* Got"):
        HalfPrecision(dtype=dtype)


@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_an_entry_is_off_by_at_most_half_of_its_last_bit(dtype, error):
    tensor = torch.linspace(0.1, 8.0, 5000)
    found = through(HalfPrecision(dtype), tensor)
    assert float(((found - tensor) / tensor).abs().max()) <= error * 1.01
    assert float(((found - tensor) / tensor).abs().max()) >= error / 2  # and it is rounded


@pytest.mark.parametrize("size", [1e-30, 1e-9, 1e30])
def test_small_and_large_gradients_lose_no_more(size):
    """Float16 alone has no numbers below 6e-8 and above 65504."""
    tensor = torch.tensor([1.0, -0.5, 0.25]) * size
    torch.testing.assert_close(through(HalfPrecision("float16"), tensor), tensor, rtol=1e-6, atol=0)


def test_a_number_takes_two_bytes():
    payload = HalfPrecision().encode(torch.randn(1000))
    assert len(payload) == _payload.HEADER_BYTES + 9 + 2 * 1000
