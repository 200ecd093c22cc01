"""Every sampler, the same promises. A new sampler adds a row to SAMPLERS."""

import json
from dataclasses import asdict, fields

import numpy as np
import pytest

from accelerando.crowd import ARR, TSTE, Greedy, Random, RoundRobin, Uncertainty, Validation
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._sampler import SamplerState

KNOWN = [(0, 1, 9), (3, 4, 11), (5, 6, 0)]
SAMPLERS = [
    Random(),
    RoundRobin(),
    Validation(queries=KNOWN, winners=[1, 4, 6]),
    ARR(),
    ARR(random_share=0.0, pairs=20),
    ARR(cautious=False),
    Greedy(),
    Greedy(random_share=0.5),
    Greedy(include_head=False),
    Uncertainty(),
]
SUBSET = (0, 1, 3, 4, 5, 6, 9, 11)

each_sampler = pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: repr(s)[:60])
each_posterior = pytest.mark.parametrize("known", [False, True], ids=["no posterior", "posterior"])


def make_posterior(known):
    if not known:
        return None
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(12, 2))
    return Posterior(positions, positions, -rng.gamma(1.0, 3.0, size=(12, 12)), TSTE())


@each_sampler
@each_posterior
@pytest.mark.parametrize("count", [1, 30])
def test_as_many_queries_as_asked_for_of_three_different_items(sampler, known, count):
    queries, _ = sampler.propose(sampler.start(12), count, make_posterior(known))
    assert len(queries) == count
    for query in queries:
        assert len({query.head, query.left, query.right}) == 3
        assert all(type(item) is int and 0 <= item < 12 for item in query[:3])


@each_sampler
@each_posterior
def test_the_same_state_proposes_the_same_and_the_next_state_goes_on(sampler, known):
    posterior = make_posterior(known)
    state = sampler.start(12, seed=5)
    first, after = sampler.propose(state, 6, posterior)
    again, _ = sampler.propose(state, 6, posterior)
    assert first == again
    assert after != state


@each_sampler
def test_the_state_survives_json(sampler):
    posterior = make_posterior(True)
    _, state = sampler.propose(sampler.start(12, seed=2), 5, posterior)
    stored = json.loads(json.dumps(asdict(state)))
    restored = SamplerState(**{**stored, "deck": tuple(stored["deck"])})
    assert sampler.propose(restored, 5, posterior) == sampler.propose(state, 5, posterior)


@each_sampler
@each_posterior
def test_only_the_allowed_items_are_asked_about(sampler, known):
    limited = type(sampler)(**{**_settings(sampler), "items": SUBSET})
    queries, _ = limited.propose(limited.start(12), 40, make_posterior(known))
    assert {item for query in queries for item in query[:3]} <= set(SUBSET)


@each_sampler
def test_items_that_do_not_exist_are_refused(sampler):
    wrong = type(sampler)(**{**_settings(sampler), "items": (0, 1, 40)})
    with pytest.raises(ValueError, match="at least 3 of the item numbers 0 to 11"):
        wrong.start(12)


@each_sampler
def test_only_queries_that_a_score_chose_have_one(sampler):
    queries, _ = sampler.propose(sampler.start(12), 60, make_posterior(True))
    share = np.mean([query.score is None for query in queries])
    expected = getattr(sampler, "random_share", 1.0)
    assert abs(share - expected) < 0.2
    blind, _ = sampler.propose(sampler.start(12), 10, None)
    assert all(query.score is None for query in blind)


@pytest.mark.parametrize("sampler", [ARR(), ARR(random_share=0.5), Uncertainty()], ids=repr)
def test_before_the_first_fit_every_item_is_asked_about_equally_often(sampler):
    state = sampler.start(12, seed=3)
    counts = np.zeros(12, dtype=int)
    for _ in range(20):
        queries, state = sampler.propose(state, 6, None)
        asked, left = queries[:4], queries[4:]
        for query in asked:
            counts[list(query[:3])] += 1
        state = sampler.put_back(state, left)
    assert counts.sum() == 240
    assert counts.max() - counts.min() <= 2


def test_no_query_is_chosen_without_trust():
    known = make_posterior(True)
    blind = Posterior(known.positions, known.places, known.log_posterior, TSTE(), trust=0.0)
    for sampler in (ARR(), ARR(random_share=0.0)):
        queries, _ = sampler.propose(sampler.start(12), 40, blind)
        assert all(query.score is None for query in queries)
        bold = type(sampler)(**{**_settings(sampler), "cautious": False})
        queries, _ = bold.propose(bold.start(12), 40, blind)
        assert any(query.score is not None for query in queries)


def _settings(sampler):
    return {field.name: getattr(sampler, field.name) for field in fields(sampler)}
