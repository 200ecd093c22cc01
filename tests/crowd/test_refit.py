"""Refitting while answers arrive."""

import numpy as np
import pytest

from accelerando.crowd import OrdinalEmbedding
from accelerando.crowd._refit import Refitter


@pytest.fixture
def refitter():
    return Refitter(OrdinalEmbedding(n_items=10, random_state=0), warmup=30, temper=0.4)


def test_there_is_no_posterior_before_the_warmup(refitter, eggs):
    rows = eggs(10, 60, seed=0).triplets
    assert refitter.update(rows[:29]) is None
    assert refitter.n_refits == 0
    posterior = refitter.update(rows[:30])
    assert (posterior.n_items, posterior.temper) == (10, 0.4)
    assert refitter.n_refits == 1


def test_cold_starts_join_when_the_number_of_answers_has_doubled(refitter, eggs, monkeypatch):
    rows = eggs(10, 130, seed=0).triplets
    cold = []
    original = OrdinalEmbedding.fit

    def fit(self, triplets, *arguments, **options):
        cold.append(len(triplets))
        return original(self, triplets, *arguments, **options)

    monkeypatch.setattr(OrdinalEmbedding, "fit", fit)
    for count in (30, 45, 59, 61, 100, 125):
        refitter.update(rows[:count])
        assert refitter.model.n_answers_ == count
    assert cold == [30, 61, 125]


def test_predictions_are_recorded_before_the_answers_are_fitted(refitter, eggs):
    rows = eggs(10, 60, seed=0).triplets
    chosen = np.arange(60) % 3 == 0
    refitter.update(rows[:30], chosen[:30])
    assert refitter.calibration.answer == []  # there was no embedding to predict them
    expected = refitter.model.score(rows[30:][chosen[30:]])
    refitter.update(rows, chosen)
    assert refitter.calibration.answer == list(range(30, 60, 3))
    assert np.mean(refitter.calibration.correct) == pytest.approx(expected)


def test_the_posterior_has_the_trust_of_the_record(refitter, eggs):
    rows = eggs(10, 300, seed=0).triplets
    refitter.update(rows[:200])
    refitter.calibration.answer = list(range(150, 250))
    refitter.calibration.confidence = [0.95] * 100
    refitter.calibration.correct = [False] * 100
    assert refitter.update(rows).trust == pytest.approx(0.2)
