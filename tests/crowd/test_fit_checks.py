"""Settings of an embedding that are refused."""

import numpy as np
import pytest

from accelerando.crowd import OrdinalEmbedding

ROWS = np.array([[0, 1, 2], [1, 0, 2]])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 0}, "n_components.*or 'auto'"),
        ({"n_components": "two"}, "n_components.*or 'auto'"),
        ({"lapse": 0.5}, "lapse.*'estimate' or 'auto'"),
        ({"lapse": "estimate", "solver": "minibatch"}, "a number with solver='minibatch'"),
        ({"noise": "gnmds", "lapse": "auto"}, "has no probability"),
        ({"noise": "soe", "n_components": "auto"}, "has no probability"),
        ({"ridge": -1.0}, "ridge.*or None"),
        ({"n_init": 0}, "unless there is a warm start"),
        ({"noise": "guess"}, "noise.*'tste'"),
    ],
)
def test_they_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        OrdinalEmbedding(**settings).fit(ROWS)


def test_no_answers_are_refused():
    with pytest.raises(ValueError, match="at least one answer"):
        OrdinalEmbedding().fit(np.empty((0, 3), dtype=int))
    with pytest.raises(ValueError, match="All weights are 0"):
        OrdinalEmbedding().fit(ROWS, sample_weight=[0, 0])
