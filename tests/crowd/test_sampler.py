"""What all samplers share."""

import numpy as np
import pytest

from accelerando.crowd import Random
from accelerando.crowd._sampler import Query, deal, draw_queries


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
