"""Scores of a block of pairs, in NumPy."""

import numpy as np
import pytest

from accelerando.crowd._kernel_numpy import binary_entropy, score_block


def expected(log_odds, lapse, weights):
    """h₂(Σ τ p) − Σ τ h₂(p), entry by entry in double precision."""
    p = lapse + (1 - 2 * lapse) / (1 + np.exp(-log_odds.astype(float)))
    scores = np.empty((len(weights), len(p)))
    for row, tau in enumerate(weights.astype(float)):
        for column in range(len(p)):
            mixed = tau @ p[column]
            scores[row, column] = binary_entropy(mixed) - tau @ binary_entropy(p[column])
    return scores


def block(seed=0, n_pairs=5, n_places=4, n_heads=3):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(n_places), size=n_heads).astype(np.float32)
    return rng.normal(scale=3, size=(n_pairs, n_places)).astype(np.float32), weights


def test_entropy_is_zero_for_certain_answers_and_log_two_for_a_guess():
    values = binary_entropy(np.array([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(values, [0.0, np.log(2.0), 0.0], atol=1e-10)


@pytest.mark.parametrize("lapse", [0.0, 0.1])
def test_scores_follow_the_formula(lapse):
    log_odds, weights = block()
    wanted = expected(log_odds, lapse, weights)
    np.testing.assert_allclose(score_block(log_odds, lapse, weights), wanted, atol=1e-6)


def test_huge_log_odds_do_not_overflow():
    weights = np.array([[0.5, 0.5]], dtype=np.float32)
    log_odds = np.array([[1e30, -1e30]], dtype=np.float32)
    # Two places that predict opposite answers with certainty: the answer is worth one bit.
    np.testing.assert_allclose(score_block(log_odds, 0.0, weights), [[np.log(2.0)]], atol=1e-6)
