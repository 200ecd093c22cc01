"""The objective of a fit; its gradient is tested for every noise model in tests/contracts."""

import numpy as np
import pytest

from accelerando.crowd import TSTE
from accelerando.crowd._objective import Objective, _AllPairs, _UsedPairs

POSITIONS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])


def test_the_loss_is_the_weighted_mean_of_the_answers():
    triplets = np.array([[0, 1, 2], [0, 2, 1]])
    loss, _, _ = Objective(triplets, np.array([3.0, 1.0]), 3, TSTE())(POSITIONS, 0.1)
    p = TSTE().probability(np.array(1.0), np.array(4.0), 0.1)
    assert loss == pytest.approx(-(3 * np.log(p) + np.log(1 - p)) / 4)


def test_equal_answers_are_merged():
    triplets = np.array([[0, 1, 2], [1, 0, 2], [0, 1, 2]])
    merged = Objective(triplets, np.ones(3), 3, TSTE())
    assert len(merged._weights) == 2
    weighted = Objective(triplets[:2], np.array([2.0, 1.0]), 3, TSTE())
    for one, other in zip(merged(POSITIONS, 0.0), weighted(POSITIONS, 0.0), strict=True):
        np.testing.assert_allclose(one, other)


def test_the_ridge_adds_its_share_per_answer():
    triplets, weights = np.array([[0, 1, 2]]), np.array([4.0])
    plain = Objective(triplets, weights, 3, TSTE())(POSITIONS, 0.0)
    ridge = Objective(triplets, weights, 3, TSTE(), ridge=0.8)(POSITIONS, 0.0)
    assert ridge[0] - plain[0] == pytest.approx(0.5 * 0.2 * 5.0)
    np.testing.assert_allclose(ridge[1] - plain[1], 0.2 * POSITIONS)


def test_few_items_use_a_full_matrix_and_many_items_a_list_of_pairs():
    triplets = np.array([[0, 1, 2]])
    assert isinstance(Objective(triplets, np.ones(1), 128, TSTE())._pairs, _AllPairs)
    assert isinstance(Objective(triplets, np.ones(1), 1000, TSTE())._pairs, _UsedPairs)


def test_both_layouts_of_pairs_give_the_same_gradient():
    rng = np.random.default_rng(0)
    triplets = np.array([rng.permutation(9)[:3] for _ in range(20)])
    positions, per_pair = rng.normal(size=(9, 2)), rng.normal(size=81)
    full, used = _AllPairs(triplets, 9), _UsedPairs(triplets, 9)
    keys = used._head * 9 + used._foot
    sparse = np.zeros(81)
    sparse[keys] = per_pair[keys]
    np.testing.assert_allclose(
        full.squared_distances(positions)[keys], used.squared_distances(positions)
    )
    np.testing.assert_allclose(
        full.gradient(positions, sparse), used.gradient(positions, per_pair[keys])
    )
