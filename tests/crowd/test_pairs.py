"""Pairs of feet: numbering, sampling, shuffling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando.crowd._pairs import SMALLEST_BLOCK, choose_pairs, shuffled_pairs, unrank


@given(n=st.integers(2, 40), size=st.integers(1, 50), seed=st.integers(0, 100))
def test_shuffled_pairs_come_once_each(n, size, seed):
    blocks = list(shuffled_pairs(np.arange(n), "all", size, np.random.default_rng(seed)))
    pairs = [pair for left, right in blocks for pair in zip(left, right, strict=True)]
    assert sorted(pairs) == [(a, b) for a in range(n) for b in range(a + 1, n)]


def test_pairs_are_numbered_as_they_are_listed():
    for n in (3, 4, 17, 1000):
        total = n * (n - 1) // 2
        first, second = np.triu_indices(n, 1)
        ours = unrank(np.arange(total), n)
        np.testing.assert_array_equal(ours, (first, second))
    # Far out, where a square root in double precision may be off by one.
    n = 2_000_000
    number = np.array([0, 1, n * (n - 1) // 2 - 1, n * (n - 1) // 4, 1_999_998, 1_999_999])
    first, second = unrank(number, n)
    back = first * n - first * (first + 1) // 2 + second - first - 1
    np.testing.assert_array_equal(back, number)


def test_a_sample_has_different_pairs_of_the_given_items():
    feet = np.array([2, 5, 7, 11, 13])
    left, right = choose_pairs(feet, 6, 1, np.random.default_rng(0))
    assert len({*zip(left.tolist(), right.tolist(), strict=True)}) == 6
    assert (left < right).all()
    assert set(left.tolist()) | set(right.tolist()) <= set(feet.tolist())


def test_all_pairs_are_chosen_if_there_are_no_more():
    for pairs in ("all", "auto", 6, 100):
        left, right = choose_pairs(np.arange(4), pairs, 1, np.random.default_rng(0))
        assert [*zip(left.tolist(), right.tolist(), strict=True)] == [
            *((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)),
        ]


def test_many_items_are_sampled_with_a_fixed_amount_of_work():
    few, _ = choose_pairs(np.arange(400), "auto", 400 * 400, np.random.default_rng(0))
    assert len(few) == 300 * 300 * 44_850 // (400 * 400)
    fewest, _ = choose_pairs(np.arange(400), "auto", 10**12, np.random.default_rng(0))
    assert len(fewest) == SMALLEST_BLOCK


def test_a_limit_ends_the_shuffled_pairs():
    blocks = list(shuffled_pairs(np.arange(30), 25, 10, np.random.default_rng(0)))
    assert [len(left) for left, _ in blocks] == [10, 10, 5]


@pytest.mark.parametrize("pairs", [0, 2.5, "some", True])
def test_a_wrong_number_of_pairs_is_named(pairs):
    with pytest.raises(ValueError, match=r"'pairs' parameter of search must be .* 'auto' or 'all'"):
        choose_pairs(np.arange(4), pairs, 1, np.random.default_rng(0))
