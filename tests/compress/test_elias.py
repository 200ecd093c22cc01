"""Elias-Fano code: positions come back, near their entropy; invalid codes raise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando.compress import _elias
from accelerando.compress._payload import Reader


@given(n=st.integers(1, 5000), data=st.data())
@settings(max_examples=50, deadline=None)
def test_positions_come_back(n, data):
    positions = sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=60)))
    encoded = _elias.encode_positions(np.array(positions, np.int64), n)
    if positions:
        bits = len(positions) * (2 + math.log2(n / len(positions)))
        assert len(encoded) <= bits / 8 + 4
    reader = Reader(memoryview(encoded))
    assert _elias.decode_positions(reader, len(positions), n).tolist() == positions
    reader.end()


def test_the_bytes_of_the_format_do_not_change():
    # Two positions below 16: low part 3 bits, 101 and 001; high parts 0 and 1 in unary.
    assert _elias.encode_positions(np.array([5, 9]), 16) == bytes([0b10100000, 0b10100100])


@pytest.mark.parametrize(
    ("encoded", "count", "n", "message"),
    [
        (b"", 5, 4, "do not fit"),
        (bytes([0b11100000, 0]), 2, 16, "number of positions"),
        (bytes([0b10010000, 0b10100100]), 2, 16, "outside"),
        (bytes([0b11000000, 0b10100100]), 2, 16, "do not increase"),
    ],
)
def test_invalid_codes_raise(encoded, count, n, message):
    with pytest.raises(ValueError, match=message):
        _elias.decode_positions(Reader(memoryview(encoded)), count, n)
