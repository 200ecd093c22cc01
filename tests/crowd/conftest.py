import numpy as np
import pytest


class Eggs:
    """A line of items and answers to random queries about it, some of them careless."""

    def __init__(self, n_items, n_answers, seed, careless=0.07):
        rng = np.random.default_rng(seed)
        self.truth = np.arange(n_items, dtype=float)
        rows = np.argsort(rng.random((n_answers, n_items)), axis=1)[:, :3]
        nearer = np.abs(rows[:, 0] - rows[:, 1]) <= np.abs(rows[:, 0] - rows[:, 2])
        answered = nearer ^ (rng.random(n_answers) < careless)
        self.triplets = np.where(answered[:, None], rows, rows[:, [0, 2, 1]])


@pytest.fixture
def eggs():
    return Eggs
