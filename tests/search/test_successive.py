"""Successive halving: one bracket."""

import pytest
from sklearn.linear_model import SGDClassifier

from accelerando.search import (
    SuccessiveHalvingSearchCV,
)

from .searches import SPACE


def test_defaults_of_successive_halving(data):
    search = SuccessiveHalvingSearchCV(SGDClassifier(), SPACE, client=None, random_state=0)
    assert search.fit(*data).metadata == search.metadata_
    assert set(search.metadata) == {"partial_fit_calls", "n_models", "max_iter"}


def test_the_first_rung_is_as_long_as_the_last_survivor_allows():
    def calls(**options):
        search = SuccessiveHalvingSearchCV(SGDClassifier(), SPACE, **options)
        (bracket,) = search._brackets()
        assert search.metadata["max_iter"] == bracket.max_calls
        return bracket.metadata["decisions"]

    assert calls(n_initial_parameters=9, max_iter=90) == [10, 30, 90]
    assert calls(n_initial_parameters=9) == [1, 3, 9]
    assert calls(n_initial_parameters=9, n_initial_iter=2, aggressiveness=9) == [2, 18]


def test_wrong_parameters_are_named():
    search = SuccessiveHalvingSearchCV(SGDClassifier(), SPACE, n_initial_parameters=0)
    words = "'n_initial_parameters' parameter of SuccessiveHalvingSearchCV must be an integer"
    with pytest.raises(ValueError, match=words):
        search.metadata  # noqa: B018
