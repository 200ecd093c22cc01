"""A clock that jumps, and one that is right again afterwards."""

import time

import pytest

from accelerando.testing import ClockJump


@pytest.mark.parametrize("hours", [-5, 5])
def test_the_clock_jumps_at_the_reading_that_was_named(hours):
    real = time.time
    began, steady = time.time(), time.monotonic()
    with ClockJump(at=3, seconds=hours * 3600) as jump:
        readings = [time.time(), time.time(), time.time(), time.time_ns() / 1e9]
        assert jump.happened
        assert time.monotonic() - steady < 3600
    assert [round((reading - began) / 3600) for reading in readings] == [0, 0, hours, hours]
    assert time.time is real


def test_a_clock_that_is_not_read_does_not_jump():
    with ClockJump(at=2, seconds=60) as jump:
        time.time()
    assert not jump.happened
