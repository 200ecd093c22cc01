"""Refitting while answers arrive."""

import numpy as np
import pytest

from accelerando.crowd import OrdinalEmbedding
from accelerando.crowd._posterior import Posterior
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
    assert refitter.guard.answer == []  # there was no embedding to predict them
    expected = refitter.model.score(rows[30:][~chosen[30:]])
    refitter.update(rows, chosen)
    assert refitter.guard.answer == [k for k in range(30, 60) if k % 3]
    assert np.mean(refitter.guard.correct) == pytest.approx(expected)


def test_the_posterior_has_the_trust_of_the_guard(refitter, eggs):
    rows = eggs(10, 300, seed=0).triplets
    random = np.zeros(300, dtype=bool)
    assert refitter.update(rows[:40], random[:40]).trust == 0.0
    refitter.guard.begun, refitter.guard.share = True, 0.36
    assert refitter.update(rows, random).trust == 0.36
    assert refitter.update(rows).trust == 1.0, "without a record there is nothing to guard"


def test_auto_chooses_again_when_answers_have_grown_by_a_third(eggs):
    model = OrdinalEmbedding(noise="auto", n_items=10, random_state=0)
    refitter = Refitter(model, warmup=30, temper=0.4)
    rows = eggs(10, 130, seed=0).triplets
    at = []
    for count in (30, 35, 39, 45, 52, 60):
        refitter.update(rows[:count], np.zeros(count, dtype=bool))
        at.append(refitter.chosen_at)
    assert at == [30, 30, 39, 39, 52, 60]
    assert refitter.choice.reason


def test_answers_of_people_who_guess_weigh_less(eggs):
    rows = eggs(10, 900, seed=0).triplets
    who = np.arange(900) % 9
    careless = (who < 2) & (np.random.default_rng(0).random(900) < 0.5)
    rows = np.where(careless[:, None], rows[:, [0, 2, 1]], rows)
    model = OrdinalEmbedding(1, "logistic", ridge=0.2, n_items=10, random_state=0)
    refitter = Refitter(model, warmup=30, temper=0.4)
    posterior = refitter.update(rows[:600], None, who[:600], None)
    refitter.update(rows, None, who, None)
    weights = refitter.weights(who)
    assert weights[who < 2].mean() < 0.5 < weights[who >= 2].mean()
    plain = Posterior.from_embedding(model, rows)
    assert np.ptp(posterior.log_posterior) < np.ptp(plain.log_posterior)


def test_many_answers_at_once_are_tested_by_their_second_half(refitter, eggs):
    rows = eggs(10, 200, seed=0).triplets
    posterior = refitter.update(rows, np.zeros(200, dtype=bool))
    assert refitter.guard.answer == list(range(100, 200))
    assert posterior.trust == 1.0
    blind = Refitter(OrdinalEmbedding(n_items=10, random_state=0), warmup=30, temper=0.4)
    coin = np.random.default_rng(0).random(200) < 0.5
    rows = np.where(coin[:, None], rows, rows[:, [0, 2, 1]])
    assert blind.update(rows, np.zeros(200, dtype=bool)).trust == 0.0
