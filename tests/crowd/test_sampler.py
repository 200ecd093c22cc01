"""What all samplers share."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from accelerando.crowd import Random
from accelerando.crowd._sampler import Query, SamplerState, cover, deal, draw_queries


def test_the_key_of_a_query_does_not_see_sides():
    assert Query(0, 1, 2).key == Query(0, 2, 1).key


def test_queries_have_three_different_items_and_the_given_head():
    rng = np.random.default_rng(0)
    items = np.array([3, 5, 8, 9])
    for query in draw_queries(items, 50, rng) + draw_queries(items, 50, rng, head=5):
        assert len({query.head, query.left, query.right}) == 3
        assert {query.head, query.left, query.right} <= {3, 5, 8, 9}
    assert {query.head for query in draw_queries(items, 20, rng, head=5)} == {5}


def test_a_deck_is_dealt_to_its_end_before_it_is_shuffled_again():
    rng = np.random.default_rng(0)
    items = np.arange(5)
    first, rest = deal(items, (), 3, rng)
    second, rest = deal(items, rest, 2, rng)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert rest == ()
    many, rest = deal(items, (4, 2), 6, rng)
    assert many[:2] == [4, 2]
    assert len(rest) == 1


@pytest.mark.parametrize("items", [(0, 1), (0, 1, 10), (-1, 1, 2)])
def test_items_that_do_not_exist_are_named(items):
    with pytest.raises(ValueError, match=r"'items' parameter of Random .* numbers 0 to 9. Got"):
        Random(items=items).start(10)


@pytest.mark.parametrize("n_items", [3, 4, 5, 7, 12, 100])
def test_a_coverage_design_asks_about_all_items_equally_often(n_items):
    rng = np.random.default_rng(0)
    deck, counts = (), np.zeros(n_items, dtype=int)
    for _ in range(50):
        queries, deck = cover(np.arange(n_items), deck, 3, rng)
        for query in queries:
            assert len(set(query[:3])) == 3
            counts[list(query[:3])] += 1
        assert counts.max() - counts.min() <= 2


def test_a_coverage_design_connects_all_items_soon():
    rng = np.random.default_rng(1)
    queries, _ = cover(np.arange(90), (), 90, rng)  # three rounds
    group = np.arange(90)
    for query in queries:
        for item in query[1:3]:
            group[group == group[item]] = group[query[0]]
    assert len(set(group)) == 1


def test_each_query_of_a_coverage_design_is_a_fair_draw():
    rng = np.random.default_rng(2)
    heads, pairs = np.zeros(6), np.zeros((6, 6))
    for _ in range(3_000):
        queries, _ = cover(np.arange(6), (), 2, rng)
        for head, left, right, _ in queries:
            heads[head] += 1
            pairs[left, right] += 1
    np.testing.assert_allclose(heads / heads.sum(), 1 / 6, atol=0.02)
    np.testing.assert_allclose(pairs[~np.eye(6, dtype=bool)] / pairs.sum(), 1 / 30, atol=0.01)


def test_a_state_from_json_equals_the_one_before():
    state = SamplerState(5, 1, 2, (3, 4), (0, 1, 2))
    assert SamplerState(**json.loads(json.dumps(asdict(state)))) == state
