import numpy as np
import pytest

from accelerando.crowd import plan


def test_a_closer_goal_needs_more_answers():
    near = plan(12, 1, within=0.03, runs=3)[0]
    far = plan(12, 1, within=0.15, runs=3)[0]
    assert far.middle < near.middle


def test_the_band_holds_the_middle_and_the_seed_decides():
    first, second = (plan(10, 1, within=0.1, runs=3, random_state=4) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.answers, other.answers)
        low, high = one.band
        assert low <= one.middle <= high
        assert len(one.answers) == 3


def test_giving_up_is_reported():
    needed = plan(20, 2, within=0.01, runs=1, max_answers=40)[0]
    assert needed.reached == 0
    assert needed.answers.tolist() == [40.0]
    assert plan(20, 2, within=0.01, runs=1, max_answers=15)[0].answers.tolist() == [15.0]
    smallest = plan(4, 1, within=0.001, runs=1)  # all queries are asked before the limit
    assert all(4 <= need.middle <= 400 for need in smallest)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"items": 3}, "'items' .* at least 4"),
        ({"items": 10, "dimensions": 0}, "'dimensions' .* at least 1"),
        ({"items": 10, "within": 0.0}, "'within' .* above 0 and below 0.5"),
    ],
)
def test_wrong_settings_are_named(settings, says):
    with pytest.raises(ValueError, match=says):
        plan(**settings)
