"""Settings of an embedding that are refused."""

import tracemalloc

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


@pytest.mark.parametrize(
    ("rows", "error", "says"),
    [
        ([[0, 1, 10**9]], ValueError, "item number 1,000,000,000 in 1 answers"),
        ([[0, 1, 2_000]], ValueError, "pass n_items if there"),
        ([[0, 1, 10**30]], TypeError, "integers"),
        ([[0.0, 1.0, 1e9]], ValueError, "item number 1,000,000,000"),
        ([[0.0, 1.0, 1e300]], ValueError, "below 2"),
        ([[0.0, 1.0, float("inf")]], ValueError, "below 2"),
        ([[0.0, 1.0, float("nan")]], TypeError, "integers"),
        ([[0, 1, -1]], ValueError, "at least 0"),
        ([[0, 2, True]], TypeError, "Booleans"),
        (np.array([[0, 1, 2]], dtype=bool), TypeError, "bool"),
        (np.array([[0, 1, 2**63]], dtype=np.uint64), ValueError, "below 2"),
    ],
)
def test_item_numbers_that_would_take_all_memory_are_refused_before_a_fit(rows, error, says):
    tracemalloc.start()
    try:
        with pytest.raises(error, match=says):
            OrdinalEmbedding().fit(rows)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_number_of_items_is_limited_and_a_warm_start_may_have_more_than_answers_name():
    with pytest.raises(ValueError, match="at most 10,000,000"):
        OrdinalEmbedding(n_items=10**9).fit([[0, 1, 2]])
    start = np.random.default_rng(0).normal(size=(3000, 2))
    assert len(OrdinalEmbedding(n_init=0).fit([[0, 1, 2_999]], init=start).embedding_) == 3000
    model = OrdinalEmbedding(random_state=0).fit([[0, 1, 2], [2, 1, 0]])
    with pytest.raises(ValueError, match="1,000,000,000"):
        model.partial_fit([[0, 1, 10**9]])
