import numpy as np
import pytest

from accelerando.crowd import AlienEggs, FromEmbedding, Replay


def test_alien_eggs_follow_the_fitted_curve():
    eggs = AlienEggs([0.0, 1.0, 3.0])
    queries = np.array([[0, 1, 2], [0, 2, 1]])
    ratio = 3.0 / 4.0
    expected = 0.0707 + (1 - 2 * 0.0707) / (1 + np.exp(-17.55 * (ratio - 0.5)))
    np.testing.assert_allclose(eggs.probability(queries), [expected, 1 - expected])


def test_equally_near_eggs_are_a_guess():
    np.testing.assert_allclose(AlienEggs([1, 0, 2]).probability(np.array([[0, 1, 2]])), 0.5)


def test_the_best_possible_accuracy_on_ninety_eggs():
    rng = np.random.default_rng(0)
    queries = np.argsort(rng.random((20_000, 90)), axis=1)[:, :3]
    chance = AlienEggs(range(90)).probability(queries)
    assert np.maximum(chance, 1 - chance).mean() == pytest.approx(0.835, abs=0.003)


def test_answers_are_drawn_with_the_stated_probability():
    rng = np.random.default_rng(0)
    queries = np.tile([[0, 1, 2]], (4_000, 1))
    for crowd in (AlienEggs([0, 1, 3]), FromEmbedding([[0.0], [1.0], [1.5]], "ste", 0.1)):
        answers = crowd(queries, rng)
        assert set(answers.tolist()) == {0, 1}
        left = answers.mean()
        assert 0.6 < left < 0.97


def test_replay_answers_as_people_did_and_is_silent_otherwise():
    oracle = Replay([[0, 1, 2]] * 30 + [[0, 2, 1]] * 10)
    rng = np.random.default_rng(0)
    answers = oracle(np.tile([[0, 2, 1]], (2_000, 1)), rng)
    assert answers.mean() == pytest.approx(0.25, abs=0.04)
    assert oracle(np.array([[1, 0, 2]]), rng).tolist() == [-1]
