"""Parsers of the command line: policies, bandwidths, durations and numbers of workers."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando.batch_size import Constant, FullBatch, GeoDamp, PadaDamp, Schedule
from accelerando.cost._parse import (
    parse_bandwidth,
    parse_batch_size,
    parse_seconds,
    parse_workers,
)


@pytest.mark.parametrize(
    "policy",
    [Constant(3), FullBatch(), GeoDamp(8, 2.5, 3), PadaDamp(4, 0.1), Schedule({0: 4, 7: 9})],
    ids=repr,
)
def test_what_a_policy_prints_can_be_typed(policy):
    assert parse_batch_size(repr(policy)) == policy


@given(st.integers(0, 50), st.integers(1, 10**6), st.integers(1, 10**6))
def test_tables_of_epochs(epoch, first, then):
    expected = Schedule({0: first, epoch + 1: then})
    assert parse_batch_size(f"0:{first}, {epoch + 1}:{then}") == expected
    assert parse_batch_size(f"{{0: {first}, {epoch + 1}: {then},}}") == expected


@given(st.text())
def test_any_text_is_read_or_refused_with_a_sentence(text):
    for parse in (parse_batch_size, parse_bandwidth, parse_seconds, parse_workers):
        with contextlib.suppress(ValueError):  # any other error would be a traceback
            parse(text)


@given(st.floats(1e-3, 1e6), st.sampled_from(["k", "M", "G", "T"]))
def test_bandwidths_with_their_units(value, unit):
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit]
    for suffix in ("b/s", "bit/s", "bps", "bit", ""):
        found = parse_bandwidth(f"{value}{unit}{suffix}")
        assert math.isclose(found, value * factor)


def test_bytes_are_not_taken_for_bits():
    with pytest.raises(ValueError, match="multiply bytes by eight"):
        parse_bandwidth("1GB/s")


@given(st.lists(st.integers(1, 1000), min_size=1))
def test_numbers_of_workers(counts):
    assert parse_workers(",".join(map(str, counts))) == sorted(set(counts))


def test_doublings_end_with_the_last():
    assert parse_workers("1..40") == [1, 2, 4, 8, 16, 32, 40]
    assert parse_workers("3..3") == [3]
