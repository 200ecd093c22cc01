"""Scores of a block of pairs, in numba, equal those in NumPy."""

import numpy as np
import pytest

pytest.importorskip("numba")

from accelerando.crowd import _kernel_numba, _kernel_numpy


@pytest.mark.parametrize("lapse", [0.0, 0.02, 0.3])
def test_both_kernels_give_the_same_scores(lapse):
    rng = np.random.default_rng(1)
    log_odds = rng.normal(scale=10, size=(200, 30)).astype(np.float32)
    log_odds[0] = [200.0, -200.0] * 15  # beyond what exp can represent in single precision
    log_odds[1] = 0.0
    weights = rng.dirichlet(0.2 * np.ones(30), size=7).astype(np.float32)
    ours = _kernel_numba.score_block(log_odds.copy(), lapse, weights)
    plain = _kernel_numpy.score_block(log_odds.copy(), lapse, weights)
    np.testing.assert_allclose(ours, plain, atol=2e-6)
