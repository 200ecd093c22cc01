"""Reliability of participants."""

import numpy as np
import pytest

from accelerando.crowd._reliability import estimate_reliability


def people(counts, *, each=60, seed=0):
    """(attentive probabilities, participants, left) of people of these kinds."""
    rng = np.random.default_rng(seed)
    likely, who, sides = [], [], []
    for person, kind in enumerate(kind for kind, n in counts.items() for _ in range(n)):
        left_chance = rng.choice([0.1, 0.3, 0.7, 0.9], size=each)
        left = {
            "careful": rng.random(each) < left_chance,
            "guessing": rng.random(each) < 0.5,
            "left": np.ones(each, dtype=bool),
            "opposite": rng.random(each) >= left_chance,
        }[kind]
        likely.append(np.where(left, left_chance, 1 - left_chance))
        who.append(np.full(each, person))
        sides.append(left)
    return np.concatenate(likely), np.concatenate(who), np.concatenate(sides)


def test_each_kind_of_person_is_recognized():
    p, who, left = people({"careful": 20, "guessing": 4, "left": 4, "opposite": 4})
    found = estimate_reliability(p, who, left)
    np.testing.assert_allclose(found.shares.sum(axis=1), 1.0)
    assert found.slope[:20].mean() > 0.8
    assert abs(found.slope[20:24].mean()) < 0.3
    assert found.side_bias[24:28].min() > 0.8
    assert found.slope[28:].max() < -0.5


def test_a_person_with_few_answers_is_taken_to_be_like_the_others():
    p, who, left = people({"careful": 30, "guessing": 1})
    few = np.flatnonzero(who == 30)[:2]
    keep = np.r_[np.flatnonzero(who < 30), few]
    found = estimate_reliability(p[keep], who[keep], left[keep])
    many = estimate_reliability(p, who, left)
    assert found.slope[30] > 0.6
    unlucky = np.flatnonzero((who == 30) & (p < 0.5))[:2]
    keep = np.r_[np.flatnonzero(who < 30), unlucky]
    assert estimate_reliability(p[keep], who[keep], left[keep]).slope[30] > 0.3
    assert many.slope[30] < 0.4


def test_the_group_shrinks_towards_where_it_is():
    good = estimate_reliability(*people({"careful": 20}))
    mixed = estimate_reliability(*people({"careful": 10, "guessing": 10}))
    assert good.group[0] > mixed.group[0] + 0.1


def test_the_interval_contains_the_estimate_and_narrows_with_answers():
    few = estimate_reliability(*people({"careful": 10}, each=10))
    many = estimate_reliability(*people({"careful": 10}, each=200))
    for found in (few, many):
        assert np.all(found.low <= found.slope + 0.02)
        assert np.all(found.slope <= found.high + 0.02)
    assert (many.high - many.low).mean() < 0.6 * (few.high - few.low).mean()


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(1)
    inside = []
    for truth in (0.1, 0.5, 0.9):
        chance = rng.choice([0.05, 0.95], size=(100, 50))
        attentive = rng.random(chance.shape) < truth
        left = np.where(
            attentive, rng.random(chance.shape) < chance, rng.random(chance.shape) < 0.5
        )
        p = np.where(left, chance, 1 - chance).ravel()
        found = estimate_reliability(p, np.repeat(np.arange(100), 50), left.ravel())
        inside.append(np.mean((found.low <= truth) & (truth <= found.high)))
    assert np.mean(inside) > 0.85


def test_floor_and_slope_give_probabilities():
    p, who, left = people({"careful": 5, "left": 2, "opposite": 2})
    found = estimate_reliability(p, who, left)
    floor, slope = found.mixture(who, left)
    for q in (0.0, 0.4, 1.0):
        chance = floor + slope * q
        assert np.all((chance > 0) & (chance <= 1))
    both = [found.mixture(who, np.full(len(who), side)) for side in (True, False)]
    total = both[0][0] + both[0][1] * 0.3 + both[1][0] + both[1][1] * 0.7
    np.testing.assert_allclose(total, 1.0, atol=5e-3)


def test_a_stranger_is_like_the_group():
    found = estimate_reliability(*people({"careful": 5, "guessing": 2}))
    floor, slope = found.mixture(np.array([99]), np.array([True]))
    assert slope[0] == pytest.approx(found.group[0] - found.group[3])
    assert floor[0] == pytest.approx(found.group[1] + found.group[3])


def test_names_may_be_text_and_sides_unknown():
    p, who, _ = people({"careful": 8, "guessing": 2})
    found = estimate_reliability(p, np.array([f"p{k}" for k in who]))
    assert found.people[0] == "p0"
    assert found.slope[:8].min() > found.slope[8:].max()
    np.testing.assert_allclose(found.side_bias, 0.0, atol=1e-9)


def test_every_answer_needs_a_participant():
    with pytest.raises(ValueError, match=r"participants.*one entry per answer"):
        estimate_reliability([0.5, 0.5], ["a"])
