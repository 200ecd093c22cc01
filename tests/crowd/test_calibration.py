import numpy as np
import pytest

from accelerando.crowd import OrdinalEmbedding
from accelerando.crowd._calibration import CalibrationRecord


def made(confidence, correct, n_answers=1_000):
    """Predictions for the last answers of an experiment."""
    first = n_answers - len(correct)
    return CalibrationRecord(
        list(range(first, n_answers)), [confidence] * len(correct), list(correct)
    )


def test_correct_predictions_are_trusted():
    record = made(0.8, [True] * 320 + [False] * 80)
    assert record.trust(1_000, 100) == 1.0


def test_wrong_predictions_are_not_trusted():
    record = made(0.8, [True] * 240 + [False] * 160)
    assert record.trust(1_000, 100) == pytest.approx(0.2)


def test_a_few_answers_prove_nothing():
    assert made(0.8, [True] * 6 + [False] * 4).trust(1_000, 100) == 1.0


def test_more_coordinates_excuse_higher_confidence():
    record = made(0.8, [True] * 276 + [False] * 124)
    assert record.trust(1_000, 10) < record.trust(1_000, 150) <= record.trust(1_000, 300)


def test_early_failures_are_forgotten():
    early = CalibrationRecord(list(range(400)), [0.9] * 400, [False] * 400)
    assert early.trust(500, 100) == pytest.approx(0.2)
    assert early.trust(800, 100) == 1.0


def test_predictions_are_made_before_the_answer_is_fitted(eggs):
    line = eggs(12, 300, seed=0)
    model = OrdinalEmbedding(n_items=12, random_state=0).fit(line.triplets[:200])
    chosen = np.arange(100) % 2 == 0
    record = CalibrationRecord()
    record.add(model, line.triplets[200:], chosen)
    assert record.answer == list(range(200, 300, 2))
    assert np.mean(record.correct) == model.score(line.triplets[200::2])
    assert min(record.confidence) >= 0.5
