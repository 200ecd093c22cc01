"""Attention checks and repeats."""

import pytest

from accelerando.crowd import (
    Validation,
)
from accelerando.crowd._attention import repeat_agreement


def test_validation_swaps_the_sides_the_second_time_round():
    known = [(0, 1, 2), (3, 4, 5)]
    sampler = Validation(queries=known)
    queries, _ = sampler.propose(sampler.start(6), 4)
    rows = [tuple(query[:3]) for query in queries]
    assert sorted(rows[:2]) == known
    assert sorted(rows[2:]) == [(0, 2, 1), (3, 5, 4)]


def test_validation_knows_who_passed():
    sampler = Validation(queries=[(0, 1, 2)], winners=[2])
    assert sampler.passed((0, 1, 2), 2) is True
    assert sampler.passed((0, 2, 1), 1) is False
    assert sampler.passed((4, 1, 2), 1) is None
    assert Validation(queries=[(0, 1, 2)]).passed((0, 1, 2), 1) is None


def test_agreement_on_repeats():
    rows = [(0, 1, 2), (0, 2, 1), (3, 4, 5), (0, 1, 2)]
    assert repeat_agreement(rows, [1, 2, 4, 2]) == 0.5
    assert repeat_agreement(rows[:1], [1]) is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"queries": ()}, "at least one query"),
        ({"queries": [(0, 1, 2)], "winners": [0]}, "left or right item"),
        ({"queries": [(0, 1, 2)], "winners": [1, 2]}, "item of each query"),
    ],
)
def test_wrong_settings_are_named(settings, says):
    with pytest.raises(ValueError, match=says):
        Validation(**settings)


@pytest.mark.parametrize("query", [(0, 1, 1), (0, 1, 5)])
def test_queries_about_unknown_items_are_refused_at_the_start(query):
    with pytest.raises(ValueError, match="three different items"):
        Validation(queries=[query]).start(5)
