"""Bit packing: numbers come back, in the least number of bytes."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando.compress import _bits
from accelerando.compress._payload import Reader

MANY = settings(max_examples=50, deadline=None)


@given(bits=st.integers(1, 8), data=st.data())
@MANY
def test_packed_numbers_come_back_in_the_least_bytes(bits, data):
    numbers = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=50))
    packed = _bits.pack(np.array(numbers, np.uint8), bits)
    assert len(packed) < len(numbers) * bits / 8 + len(_bits.widths(bits))
    reader = Reader(memoryview(packed))
    assert _bits.unpack(reader, len(numbers), bits).tolist() == numbers
    reader.end()


@given(st.lists(st.integers(0, 2), max_size=50))
@MANY
def test_five_trits_to_a_byte(numbers):
    packed = _bits.pack_trits(np.array(numbers, np.uint8))
    assert len(packed) == math.ceil(len(numbers) / 5)
    reader = Reader(memoryview(packed))
    assert _bits.unpack_trits(reader, len(numbers)).tolist() == numbers
    reader.end()


def test_eight_and_one_bits_are_bytes_and_packbits():
    numbers = np.array([1, 0, 0, 1, 0, 1, 1, 0], np.uint8)
    assert _bits.pack(numbers, 8) == bytes(numbers)
    assert _bits.pack(numbers, 1) == bytes([0b01101001])
