"""Starting points of a fit."""

import numpy as np
import pytest

from accelerando.crowd import _start, triplet_accuracy
from accelerando.crowd._start import spectral_start, starting_points


@pytest.mark.parametrize("dense_up_to", [600, 0], ids=["dense", "sparse"])
def test_the_spectral_start_already_predicts_most_answers(eggs, monkeypatch, dense_up_to):
    monkeypatch.setattr(_start, "_DENSE_UP_TO", dense_up_to)
    line = eggs(30, 2_000, seed=0)
    rng = np.random.default_rng(0)
    start = spectral_start(line.triplets, np.ones(2_000), 30, 2, rng=rng)
    assert start.shape == (30, 2)
    assert triplet_accuracy(start, line.triplets) > 0.8


def test_the_warm_start_comes_first_and_new_items_are_added(eggs):
    triplets = eggs(6, 50, seed=0).triplets
    warm = np.arange(8.0).reshape(4, 2)
    rng = np.random.default_rng(0)
    starts = starting_points(triplets, np.ones(50), (6, 2), warm=warm, n_cold=2, rng=rng)
    assert [start.shape for start in starts] == [(6, 2)] * 3
    np.testing.assert_array_equal(starts[0][:4], warm)
    assert np.abs(starts[0][4:]).max() < 0.1
    only = starting_points(triplets, np.ones(50), (6, 2), warm=warm, n_cold=0, rng=rng)
    assert len(only) == 1


def test_more_components_than_items_are_padded():
    rng = np.random.default_rng(0)
    start = spectral_start(np.array([[0, 1, 2]]), np.ones(1), 3, 5, rng=rng)
    assert start.shape == (3, 5)
    assert np.isfinite(start).all()
