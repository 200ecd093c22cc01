import numpy as np
import pytest

from accelerando.crowd import nearest_neighbor_distance, triplet_accuracy
from accelerando.crowd._metrics import accuracy_band, nearest_neighbor_error, procrustes


def test_ties_count_one_half():
    assert triplet_accuracy([[0.0], [1.0], [-1.0]], [[0, 1, 2]]) == 0.5


def test_accuracy_is_weighted():
    rows = [[0, 1, 2], [2, 0, 1]]
    assert triplet_accuracy([[0.0], [1.0], [3.0]], rows, sample_weight=[3.0, 1.0]) == 0.75


def test_the_true_neighbor_may_be_either_of_two_equally_near():
    # In the embedding only one of the two true neighbors of item 1 is near.
    assert nearest_neighbor_error([[0.0], [0.1], [5.0]], [0, 1, 2]) == 0.0


def test_items_nearer_than_the_true_neighbor_are_counted():
    # Item 0's true neighbor is item 1, but 2 and 3 are embedded nearer: two for item 0.
    error = nearest_neighbor_error([[0.0], [10.0], [1.0], [2.0]], [0.0, 1.0, 10.0, 11.5])
    assert error == pytest.approx((2 + 2 + 0 + 0) / 4)


def test_procrustes_undoes_a_rotation_a_reflection_and_a_scale():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(20, 3))
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    aligned, distance = procrustes(0.2 * truth @ turn + 4.0, truth)
    np.testing.assert_allclose(aligned, truth, atol=1e-10)
    assert distance == pytest.approx(0.0, abs=1e-12)


def test_procrustes_of_unrelated_points_is_near_one():
    rng = np.random.default_rng(0)
    _, distance = procrustes(rng.normal(size=(500, 2)), rng.normal(size=(500, 2)))
    assert 0.9 < distance <= 1.0


def test_procrustes_compares_different_dimensions():
    line = np.linspace(0, 1, 10)
    aligned, distance = procrustes(np.c_[line, np.zeros(10)], line)
    assert aligned.shape == (10, 2)
    assert distance == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("right", "n"), [(0.0, 1), (1.0, 1), (0.5, 10), (0.99, 1000)])
def test_the_band_holds_the_share_and_stays_in_range(right, n):
    low, high = accuracy_band(right, n)
    assert 0.0 <= low <= right <= high <= 1.0
    assert high - low < 0.9


def test_the_band_covers_the_truth_about_as_often_as_it_says():
    draws = np.random.default_rng(0).binomial(80, 0.8, size=2_000) / 80
    bands = [accuracy_band(share, 80) for share in draws]
    covered = np.mean([low <= 0.8 <= high for low, high in bands])
    assert 0.92 < covered < 0.98


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match="Got 3 and 2 rows"):
        nearest_neighbor_error([[0.0], [1.0], [2.0]], [0, 1])
    with pytest.raises(ValueError, match="Got 3 and 2 rows"):
        procrustes([[0.0], [1.0], [2.0]], [0, 1])
    with pytest.raises(ValueError, match="All positions are equal"):
        procrustes([[0.0], [0.0]], [0, 1])
    with pytest.raises(ValueError, match="at least one answer"):
        triplet_accuracy([[0.0]], np.empty((0, 3)))
    with pytest.raises(ValueError, match=r"'n_answers' .* at least 1. Got 0"):
        accuracy_band(0.5, 0)


def test_the_neighbor_found_is_compared_with_the_true_one_by_its_place_on_the_line():
    # Item 0 finds item 3 instead of item 1: two places off; the others are right.
    distance = nearest_neighbor_distance(
        [[0.0, 0.0], [5.0, 5.0], [5.0, 6.0], [0.0, 1.0]], [0.0, 1.0, 2.2, 3.6]
    )
    # 0→3 (true 1): 2; 1→2 (true 0): 2; 2→1 (true 1): 0; 3→0 (true 2): 2
    assert distance == pytest.approx(6 / 4)
    with pytest.raises(ValueError, match=r"shape \(2,\) .* Got \(2, 1\)"):
        nearest_neighbor_distance([[0.0], [1.0]], [[0.0], [1.0]])
