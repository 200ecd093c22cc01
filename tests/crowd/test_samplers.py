from dataclasses import replace

import numpy as np
import pytest

from accelerando.crowd import (
    ARR,
    TSTE,
    Belief,
    Greedy,
    Query,
    Random,
    RoundRobin,
    Uncertainty,
    Validation,
    information_gain,
    repeat_agreement,
    uncertainty,
)


@pytest.fixture
def belief():
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(10, 2))
    return Belief(positions, positions, -rng.gamma(1.0, 3.0, size=(10, 10)), TSTE())


def test_random_asks_about_every_item_equally_often():
    queries, _ = Random().propose(Random().start(6), 3_000)
    heads = np.bincount([query.head for query in queries], minlength=6)
    assert heads.min() > 400


def test_round_robin_goes_through_all_heads_before_any_comes_again():
    sampler = RoundRobin()
    state = sampler.start(7)
    heads = []
    for _ in range(7):
        (query,), state = sampler.propose(state, 1)
        heads.append(query.head)
    assert sorted(heads) == list(range(7))


def test_arr_deals_every_head_once_with_its_best_feet(belief):
    sampler = ARR(random_share=0.0)
    queries, _ = sampler.propose(sampler.start(10), 10, belief)
    assert sorted(query.head for query in queries) == list(range(10))
    for query in queries:
        feet = [(a, b) for a in range(10) for b in range(a) if query.head not in (a, b)]
        gains = information_gain([(query.head, a, b) for a, b in feet], belief)
        assert query.score == pytest.approx(gains.max(), abs=1e-5)


def test_arr_gives_a_head_that_comes_twice_two_different_queries(belief):
    sampler = ARR(random_share=0.0)
    queries, _ = sampler.propose(sampler.start(10), 20, belief)
    assert len({query.key for query in queries}) == 20


def test_heads_put_back_are_asked_next(belief):
    sampler = ARR(random_share=0.0)
    queries, state = sampler.propose(sampler.start(10), 6, belief)
    state = sampler.put_back(state, queries[2:])
    again, _ = sampler.propose(state, 4, belief)
    assert [query.head for query in again] == [query.head for query in queries[2:]]


def test_arr_asks_more_at_random_without_trust(belief):
    doubted = replace(belief, trust=0.25)

    def random_share(sampler):
        queries, _ = sampler.propose(sampler.start(10, seed=1), 200, doubted)
        return np.mean([query.score is None for query in queries])

    assert random_share(ARR()) == pytest.approx(0.8, abs=0.1)
    assert random_share(ARR(cautious=False)) == pytest.approx(0.2, abs=0.1)


def test_sides_are_left_to_chance(belief):
    sampler = ARR(random_share=0.0)
    queries, _ = sampler.propose(sampler.start(10), 200, belief)
    first = np.mean([query.left < query.right for query in queries])
    assert 0.3 < first < 0.7


def test_greedy_takes_the_best_of_all(belief):
    sampler = Greedy()
    queries, _ = sampler.propose(sampler.start(10), 5, belief)
    every = [(h, a, b) for h in range(10) for a in range(10) for b in range(a) if h not in (a, b)]
    best = np.sort(information_gain(every, belief))[::-1][:5]
    np.testing.assert_allclose([query.score for query in queries], best, atol=1e-5)


def test_greedy_without_the_heads_entropy_asks_about_one_head(belief):
    sampler = Greedy(include_head=False)
    queries, _ = sampler.propose(sampler.start(10), 8, belief)
    assert len({query.head for query in queries}) == 1


def test_uncertainty_takes_the_feet_that_are_hardest_to_tell_apart(belief):
    sampler = Uncertainty()
    queries, _ = sampler.propose(sampler.start(10), 10, belief)
    for query in queries:
        feet = [(a, b) for a in range(10) for b in range(a) if query.head not in (a, b)]
        hardest = uncertainty([(query.head, a, b) for a, b in feet], belief).max()
        assert query.score == pytest.approx(hardest, abs=1e-6)


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


def test_the_key_of_a_query_does_not_see_sides():
    assert Query(0, 1, 2).key == Query(0, 2, 1).key


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: ARR(random_share=1.5), r"random_share must lie in \[0, 1\]; got 1.5"),
        (lambda: Greedy(random_share=-0.1), r"random_share must lie in \[0, 1\]"),
        (lambda: Validation(queries=()), "at least one"),
        (lambda: Validation(queries=[(0, 1, 2)], winners=[0]), "left or right item"),
        (lambda: Validation(queries=[(0, 1, 2)], winners=[1, 2]), "one item per query"),
        (lambda: Validation(queries=[(0, 1, 1)]).start(5), "three different items"),
    ],
)
def test_wrong_settings_are_named(build, says):
    with pytest.raises(ValueError, match=says):
        build()
