"""Position uncertainty."""

import numpy as np
import pytest

import accelerando.crowd._uncertainty as module
from accelerando.crowd import TSTE, FromEmbedding, Logistic, OrdinalEmbedding
from accelerando.crowd._uncertainty import position_uncertainty

N = 15
TRUTH = 1.5 * np.random.default_rng(3).normal(size=(N, 2))


def answers(n_answers, seed=0, items=N):
    rng = np.random.default_rng(seed)
    rows = np.argsort(rng.random((n_answers, items)), axis=1)[:, :3]
    left = FromEmbedding(TRUTH, "logistic")(rows, rng) == 1
    return np.where(left[:, None], rows, rows[:, [0, 2, 1]])


def test_it_is_near_the_spread_of_repeated_experiments():
    places, told = [], []
    for seed in range(25):
        rows = answers(3_000, seed)
        model = OrdinalEmbedding(2, "logistic", n_items=N, random_state=0)
        model.fit(rows, init=TRUTH)
        found = model.embedding_
        left, _, right = np.linalg.svd(found.T @ (TRUTH - TRUTH.mean(axis=0)))
        places.append(found @ left @ right)
        told.append(position_uncertainty(found, rows, model.noise_, lapse=0.05))
    spread = np.sqrt(np.var(places, axis=0).mean(axis=1))
    ratio = np.mean(told, axis=0) / spread
    assert 0.6 < ratio.mean() < 1.4
    assert np.corrcoef(np.mean(told, axis=0), spread)[0, 1] > 0.7


def test_four_times_the_answers_halve_it():
    few, many = answers(400), np.tile(answers(400), (4, 1))
    one = position_uncertainty(TRUTH, few, Logistic(), ridge=0.0)
    four = position_uncertainty(TRUTH, many, Logistic(), ridge=0.0)
    np.testing.assert_allclose(four, one / 2, rtol=1e-3)
    weighted = position_uncertainty(TRUTH, few, Logistic(), ridge=0.0, weights=np.full(400, 4.0))
    np.testing.assert_allclose(weighted, four, rtol=1e-6)


def test_items_never_asked_about_have_none():
    found = position_uncertainty(TRUTH, answers(300, items=12), TSTE())
    assert np.isnan(found[12:]).all()
    assert np.isfinite(found[:12]).all()
    nobody = position_uncertainty(TRUTH, answers(300), TSTE(), weights=np.zeros(300))
    assert np.isnan(nobody).all()


def test_it_does_not_depend_on_shift_and_rotation():
    angle = 0.7
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    rows = answers(800)
    one = position_uncertainty(TRUTH, rows, Logistic(), ridge=0.0)
    other = position_uncertainty(TRUTH @ turn + 5.0, rows, Logistic(), ridge=0.0)
    np.testing.assert_allclose(one, other, rtol=0.02)


def test_an_item_with_fewer_answers_is_less_certain():
    rows = answers(2_000)
    rare = rows[~(rows == 4).any(axis=1)]
    both = np.concatenate([rare, rows[(rows == 4).any(axis=1)][:15]])
    found = position_uncertainty(TRUTH, both, Logistic())
    assert np.nanargmax(found) == 4


def test_many_items_are_looked_at_one_by_one(monkeypatch):
    rows = answers(1_500)
    whole = position_uncertainty(TRUTH, rows, Logistic())
    monkeypatch.setattr(module, "_TOGETHER_UP_TO", 3)
    given = position_uncertainty(TRUTH, rows, Logistic())
    assert np.corrcoef(given, whole)[0, 1] > 0.9
    assert 0.5 < (given / whole).mean() < 1.3


@pytest.mark.parametrize("lapse", [0.0, 0.2])
def test_lapses_cost_information(lapse):
    rows = answers(600)
    clean = position_uncertainty(TRUTH, rows, Logistic(), lapse=0.0)
    lapsed = position_uncertainty(TRUTH, rows, Logistic(), lapse=lapse)
    assert np.all(lapsed >= clean - 1e-12)
    assert (lapse == 0.0) == np.allclose(lapsed, clean)


def test_it_is_the_inverse_of_the_information_of_one_distance(monkeypatch):
    # Three items on a line, one query: z = |h − l| − |h − w| moves by one with each foot.
    place = np.array([[0.0], [1.0], [3.0]])
    rows, lapse = np.array([[0, 1, 2]] * 50), 0.1
    p = 1 / (1 + np.exp(-2.0))
    chosen, slope = lapse + 0.8 * p, 0.8 * p * (1 - p)
    information = 50 * slope**2 / (chosen * (1 - chosen))
    monkeypatch.setattr(module, "_TOGETHER_UP_TO", 0)
    found = position_uncertainty(place, rows, Logistic(), lapse=lapse, ridge=0.0)
    np.testing.assert_allclose(found[1:], 1 / np.sqrt(information), rtol=1e-4)
