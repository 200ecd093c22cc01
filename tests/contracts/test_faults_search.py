"""A search with a checkpoint: killed, or its disk failing, at every change of a file."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.stats import uniform

from accelerando.search import HyperbandSearchCV, SuccessiveHalvingSearchCV
from accelerando.testing import DiskFault, PowerCut, every_fault
from tests.search.estimators import Counter

X, Y = np.arange(24.0).reshape(12, 2), np.arange(12.0)


def search_of(folder, kind=SuccessiveHalvingSearchCV, **options):
    return kind(
        Counter(),
        {"slope": uniform(0, 1)},
        client=None,
        checkpoint=folder,
        random_state=0,
        verbose=0,
        **options,
    )


def small(folder):
    return search_of(folder, n_initial_parameters=3, n_initial_iter=1, max_iter=3)


@pytest.fixture(scope="module")
def expected():
    return small(None).fit(X, Y).cv_results_["test_score"]


@pytest.mark.parametrize("kind", ["error", "full", "kill"])
def test_the_search_continues_to_the_same_result(tmp_path, expected, kind):
    n_faults = 0
    for number, fault in enumerate(every_fault(lambda n: DiskFault(tmp_path, n, kind))):
        folder = tmp_path / str(number)
        with fault:
            try:
                small(folder).fit(X, Y)
            except OSError:
                assert fault.happened
        n_faults += fault.happened
        again = small(folder).fit(X, Y)
        np.testing.assert_array_equal(again.cv_results_["test_score"], expected)
        assert again.best_estimator_.calls_ == 3
    assert n_faults > 20


def test_after_a_power_cut_the_search_continues_to_the_same_result(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    options = {"kind": HyperbandSearchCV, "max_iter": 3}
    expected = search_of(None, **options).fit(X, Y).cv_results_["test_score"]
    with PowerCut(folder) as power:
        search_of(folder / "run", **options).fit(X, Y)
    n_states = 0
    for remains in power.remains(tmp_path / "left"):
        again = search_of(remains.folder / "run", **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a damaged state is trained again
            again.fit(X, Y)
        np.testing.assert_array_equal(again.cv_results_["test_score"], expected)
        n_states += 1
    assert n_states > 20
