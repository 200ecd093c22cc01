from dataclasses import replace

import numpy as np
import pytest

from accelerando.crowd import (
    ARR,
    TSTE,
    Greedy,
    Uncertainty,
    information_gain,
)
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._score import uncertainty


@pytest.fixture
def posterior():
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(10, 2))
    return Posterior(positions, positions, -rng.gamma(1.0, 3.0, size=(10, 10)), TSTE())


def test_arr_deals_every_head_once_with_its_best_feet(posterior):
    sampler = ARR(random_share=0.0)
    queries, _ = sampler.propose(sampler.start(10), 10, posterior)
    assert sorted(query.head for query in queries) == list(range(10))
    for query in queries:
        feet = [(a, b) for a in range(10) for b in range(a) if query.head not in (a, b)]
        gains = information_gain([(query.head, a, b) for a, b in feet], posterior)
        assert query.score == pytest.approx(gains.max(), abs=1e-5)


def test_arr_gives_a_head_that_comes_twice_two_different_queries(posterior):
    sampler = ARR(random_share=0.0)
    queries, _ = sampler.propose(sampler.start(10), 20, posterior)
    assert len({query.key for query in queries}) == 20


def test_heads_put_back_are_asked_next(posterior):
    sampler = ARR(random_share=0.0)
    queries, state = sampler.propose(sampler.start(10), 6, posterior)
    state = sampler.put_back(state, queries[2:])
    again, _ = sampler.propose(state, 4, posterior)
    assert [query.head for query in again] == [query.head for query in queries[2:]]


def test_arr_asks_more_at_random_without_trust(posterior):
    doubted = replace(posterior, trust=0.25)

    def random_share(sampler):
        queries, _ = sampler.propose(sampler.start(10, seed=1), 200, doubted)
        return np.mean([query.score is None for query in queries])

    assert random_share(ARR()) == pytest.approx(0.84, abs=0.08)
    assert random_share(ARR(random_share=0.2)) == pytest.approx(0.8, abs=0.1)
    assert random_share(ARR(cautious=False)) == pytest.approx(0.35, abs=0.1)


def test_sides_are_left_to_chance(posterior):
    sampler = ARR(random_share=0.0)
    queries, _ = sampler.propose(sampler.start(10), 200, posterior)
    first = np.mean([query.left < query.right for query in queries])
    assert 0.3 < first < 0.7


def test_greedy_takes_the_best_of_all(posterior):
    sampler = Greedy()
    queries, _ = sampler.propose(sampler.start(10), 5, posterior)
    every = [(h, a, b) for h in range(10) for a in range(10) for b in range(a) if h not in (a, b)]
    best = np.sort(information_gain(every, posterior))[::-1][:5]
    np.testing.assert_allclose([query.score for query in queries], best, atol=1e-5)


def test_greedy_without_the_heads_entropy_asks_about_one_head(posterior):
    sampler = Greedy(include_head=False)
    queries, _ = sampler.propose(sampler.start(10), 8, posterior)
    assert len({query.head for query in queries}) == 1


def test_uncertainty_takes_the_feet_that_are_hardest_to_tell_apart(posterior):
    sampler = Uncertainty()
    queries, _ = sampler.propose(sampler.start(10), 10, posterior)
    for query in queries:
        feet = [(a, b) for a in range(10) for b in range(a) if query.head not in (a, b)]
        hardest = uncertainty([(query.head, a, b) for a, b in feet], posterior).max()
        assert query.score == pytest.approx(hardest, abs=1e-6)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: ARR(random_share=1.5), "'random_share' parameter of ARR .* at most 1. Got 1.5"),
        (lambda: Greedy(random_share=-0.1), "'random_share' parameter of Greedy"),
    ],
)
def test_wrong_settings_are_named(build, says):
    with pytest.raises(ValueError, match=says):
        build()
