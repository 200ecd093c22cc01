"""How many more answers: a number where one can be given, a sentence where not."""

import numpy as np

from accelerando.crowd._forecast import Point, answers_to_go


def curve(level, loss, counts, tested):
    return [Point(n, level - loss / n, tested) for n in counts]


def test_the_curve_is_extended_to_the_target():
    points = curve(0.84, 40.0, range(200, 1001, 200), 5000)
    found = answers_to_go(points, 1000, target=0.82)
    assert found.to_go == 1000  # 0.84 - 40 / 2000
    low, high = found.band
    assert 500 < low < 1000 < high < 2000
    assert found.sentence.endswith("for an accuracy of 82 %.")


def test_by_default_it_aims_two_points_below_the_level():
    points = curve(0.80, 60.0, range(200, 2001, 200), 5000)
    found = answers_to_go(points, 2000)
    assert found.target is not None
    assert abs(found.target - 0.78) < 1e-9
    assert found.to_go == 1000


def test_a_curve_that_has_leveled_off_needs_nothing_more():
    found = answers_to_go(curve(0.8, 20.0, range(500, 5001, 500), 400), 5000)
    assert found.to_go == 0
    assert "leveled off near 80 %" in found.sentence
    assert answers_to_go(curve(0.8, 20.0, range(500, 5001, 500), 400), 5000, 0.7).to_go == 0


def test_what_cannot_be_reached_is_said():
    found = answers_to_go(curve(0.75, 20.0, range(200, 1001, 200), 5000), 1000, target=0.9)
    assert found.to_go is None
    assert found.sentence == (
        "An accuracy of 90 % may be out of reach: the curve levels off at 75 %."
    )


def test_few_or_noisy_answers_give_a_sentence_and_no_number():
    assert answers_to_go([], 0).to_go is None
    # What the first two minutes of an experiment look like.
    early = [Point(150, 0.57, 62), Point(450, 0.53, 62), Point(740, 0.74, 62), Point(980, 0.64, 62)]
    assert "too few" in answers_to_go(early, 1548).sentence
    vague = answers_to_go(curve(0.84, 40.0, range(200, 1001, 200), 100), 1000, target=0.835)
    assert vague.to_go is None
    assert "not known well enough" in vague.sentence


def test_estimates_from_drawn_answers_are_of_the_right_size():
    """True curve 0.82 - 60/n, two points below its level at n = 3,000."""
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        points = [Point(n, rng.binomial(60, 0.82 - 60 / n) / 60, 60) for n in range(300, 2001, 100)]
        estimate = answers_to_go(points, 2000)
        if estimate.to_go is not None:
            found.append(2000 + estimate.to_go)
    assert len(found) >= 15
    assert 2000 <= np.median(found) <= 5000
