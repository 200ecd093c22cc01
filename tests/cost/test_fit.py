"""The line that is fitted to the durations of updates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando.cost._fit import fit_line

positive = st.floats(1e-6, 1e2)


@given(positive, positive, st.lists(st.integers(1, 10_000), min_size=2, unique=True))
def test_a_line_is_found_again(per_example, overhead, sizes):
    rows = np.array(sizes)
    found = fit_line(rows, overhead + per_example * rows)
    predicted = found[1] + found[0] * rows
    np.testing.assert_allclose(predicted, overhead + per_example * rows, rtol=1e-4)


def test_one_slow_update_does_not_move_the_line():
    rows = np.array([10] * 9 + [20] * 9)
    seconds = 0.1 * rows
    seconds[0] = 99.0
    assert fit_line(rows, seconds) == pytest.approx((0.1, 0.0), abs=1e-9)


def test_with_one_size_all_of_it_is_time_per_example():
    assert fit_line(np.array([10, 10]), np.array([0.5, 0.5])) == (0.05, 0.0)
