import numpy as np
import pytest

from accelerando.crowd import OrdinalEmbedding, select_dimension


@pytest.mark.parametrize("true_dimension", [1, 2, 3])
def test_the_true_dimension_is_found(true_dimension):
    rng = np.random.default_rng(true_dimension)
    truth = rng.normal(size=(20, true_dimension))
    rows = np.argsort(rng.random((8_000, 20)), axis=1)[:, :3]
    gap = [np.square(truth[rows[:, 0]] - truth[rows[:, k]]).sum(axis=1) for k in (1, 2)]
    careless = rng.random(len(rows)) < 0.05
    choice = select_dimension(
        rows, (gap[0] < gap[1]) ^ careless, dimensions=(1, 2, 3, 4), folds=4, random_state=0
    )
    assert choice.best == true_dimension
    assert choice.dimensions == (1, 2, 3, 4)
    assert choice.log_likelihood.shape == choice.standard_error.shape == choice.accuracy.shape
    assert choice.accuracy.max() > 0.85


def test_wrong_requests_are_named(eggs):
    rows = eggs(10, 50, seed=0).triplets
    with pytest.raises(ValueError, match=r"'dimensions' .* integers of at least 1"):
        select_dimension(rows, dimensions=(0, 1))
    with pytest.raises(ValueError, match=r"'folds' .* from 2 to the number of answers, 50. Got 51"):
        select_dimension(rows, folds=51)
    with pytest.raises(ValueError, match="hinge loss"):
        select_dimension(rows, estimator=OrdinalEmbedding(noise="gnmds"))
