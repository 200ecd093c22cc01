"""Hyperband: its patience, and the metadata of its brackets."""

import pytest
from scipy.stats import uniform

from accelerando.search import HyperbandSearchCV, SuccessiveHalvingSearchCV

from .estimators import Counter
from .searches import hyperband


def test_patience_ends_models_that_do_not_improve(data):
    flat = hyperband(Counter(slope=0.0), {"offset": uniform(0, 1)}, max_iter=27, patience=True)
    flat.fit(*data)
    assert flat.metadata_["partial_fit_calls"] < flat.metadata["partial_fit_calls"]
    assert flat.cv_results_["partial_fit_calls"].max() == 9  # scores at 3, 6 and 9, as in Dask-ML
    rising = hyperband(Counter(), {"slope": uniform(0.1, 1)}, max_iter=27, patience=True)
    assert rising.fit(*data).metadata_ == rising.metadata
    with pytest.warns(UserWarning, match="patience=2 is less than"):
        hyperband(Counter(), {"slope": [1.0]}, max_iter=27, patience=2).fit(*data)
    with pytest.raises(
        ValueError, match=r"'patience' parameter .* must be an integer of at least 2, .* Got 1"
    ):
        hyperband(patience=1).fit(*data)


def test_brackets_are_described_as_searches():
    search = HyperbandSearchCV(Counter(), {"slope": [1.0]}, max_iter=9, tol=0.5)
    described = [b["SuccessiveHalvingSearchCV params"] for b in search.metadata["brackets"]]
    starts = [(d["n_initial_parameters"], d["n_initial_iter"]) for d in described]
    assert starts == [(3, 9), (5, 3), (9, 1)]
    for params, bracket in zip(described, search.metadata["brackets"], strict=True):
        assert params["tol"] == 0.5
        single = SuccessiveHalvingSearchCV(Counter(), {"slope": [1.0]}, **params)
        assert single.metadata["partial_fit_calls"] == bracket["partial_fit_calls"]


def test_models_are_named_by_bracket(data):
    search = hyperband(Counter(), {"slope": [1.0]}, max_iter=3).fit(*data)
    expected = ["bracket=1-0", "bracket=1-1", "bracket=1-2", "bracket=0-0", "bracket=0-1"]
    assert list(search.cv_results_["model_id"]) == expected
