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


def test_errors_count_relative_to_the_duration():
    """An outlier of a large batch must not make the prediction of small ones useless."""
    rows = np.array([1, 100, 200])
    seconds = (0.2 + 0.01 * rows) * [1.0, 1.0, 1.5]
    per_example, overhead = fit_line(rows, seconds)
    assert overhead + per_example == pytest.approx(seconds[0], rel=0.05)


def test_a_size_with_many_updates_counts_more():
    rows, seconds = np.array([10, 20, 30]), np.array([1.0, 2.0, 6.0])
    often = np.append(rows, [10] * 20), np.append(seconds, [1.0] * 20)
    errors = [
        abs(overhead + 10 * each - 1.0)
        for each, overhead in (fit_line(rows, seconds), fit_line(*often))
    ]
    assert errors[1] < 0.2 * errors[0]
