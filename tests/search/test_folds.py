"""Cross-validation in a search: ``cv``."""

import math

import cloudpickle
import dask.array as da
import numpy as np
import pytest
from scipy.stats import loguniform, uniform
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    PredefinedSplit,
    ShuffleSplit,
    cross_val_score,
)
from sklearn.naive_bayes import GaussianNB

from accelerando.search import HyperbandSearchCV, IncrementalSearchCV
from accelerando.search._data import Chunk
from accelerando.search._folds import FoldWorkers
from accelerando.search._train import Folds, Report, Row, Slice, State, TrainingSpec

from .estimators import Counter

GROUPS = np.arange(600) % 4
FOLD_OF_ROW = np.where(np.arange(600) % 5 == 4, -1, np.arange(600) % 3)


@pytest.mark.parametrize(
    "cv",
    [3, KFold(4), GroupKFold(2), PredefinedSplit(FOLD_OF_ROW), list(KFold(3).split(GROUPS))],
    ids=["int", "KFold", "GroupKFold", "PredefinedSplit", "iterable"],
)
def test_scores_are_those_of_cross_val_score(data, cv):
    grid = {"var_smoothing": [1e-9, 1e-1, 10.0]}
    search = IncrementalSearchCV(GaussianNB(), grid, "grid", max_iter=1, cv=cv, client=None)
    groups = GROUPS if isinstance(cv, GroupKFold) else None
    search.set_params(decay_rate=None).fit(*data, groups=groups)
    for i, params in enumerate(search.cv_results_["params"]):
        expected = cross_val_score(GaussianNB(**params), *data, cv=cv, groups=groups)
        found = [search.cv_results_[f"split{k}_test_score"][i] for k in range(search.n_splits_)]
        np.testing.assert_allclose(found, expected)
        assert search.cv_results_["test_score"][i] == pytest.approx(expected.mean())
        assert search.cv_results_["std_test_score"][i] == pytest.approx(expected.std())
    best = GaussianNB(**search.best_params_).fit(*data)  # the winner is trained on all rows
    np.testing.assert_allclose(search.best_estimator_.theta_, best.theta_)


def linear(**params):
    search = HyperbandSearchCV(
        SGDClassifier(), {"alpha": loguniform(1e-5, 1)}, max_iter=9, random_state=0, cv=3,
        chunk_size=150, client=None,
    )  # fmt: skip
    return search.set_params(**params)


def record(search):
    keys = ("model_id", "partial_fit_calls", "score", "split_scores")
    last = [tuple(rows[-1][key] for key in keys) for rows in search.model_history_.values()]
    return sorted(last), search.best_estimator_.coef_.tolist()


def test_folds_give_the_same_result_here_and_on_workers(data, client):
    here = linear().fit(*data)
    assert here.metadata_ == here.metadata
    assert record(here) == record(linear(client=client, slice_seconds=0.05).fit(*data))


class Uneven(Counter):
    """The validation rows say how fast the score rises: one fold stands still, one does not."""

    def score(self, X, y=None):
        return self.calls_ * float(X[0, 0])


def test_patience_looks_at_the_mean(client):
    X, y = np.repeat([[0.0], [2.0]], 10, axis=0), np.zeros(20)
    search = IncrementalSearchCV(
        Uneven(), {"slope": [1.0]}, 1, decay_rate=None, max_iter=6, patience=2, tol=0.5,
        cv=KFold(2), client=None,
    )  # fmt: skip
    assert search.fit(X, y).n_iter_ == 6
    assert search.best_score_ == 6.0
    assert search.set_params(tol=3.0).fit(X, y).n_iter_ == 2
    assert search.set_params(client=client).fit(X, y).n_iter_ == 2


def test_a_checkpoint_continues_with_the_same_splits_only(data, tmp_path, client):
    whole = linear().fit(*data)
    linear(checkpoint=tmp_path, max_calls=30, client=client).fit(*data)
    with pytest.raises(ValueError, match="splits of cv: saved list"):
        linear(checkpoint=tmp_path, cv=KFold(3, shuffle=True, random_state=1)).fit(*data)
    with pytest.raises(ValueError, match=r"splits of cv: saved list .*, now nothing"):
        linear(checkpoint=tmp_path, cv=None).fit(*data)
    resumed = linear(checkpoint=tmp_path).fit(*data)
    assert record(resumed) == record(whole)
    again = linear(checkpoint=tmp_path).fit(*data)  # nothing is left to train
    assert record(again) == record(whole)


class Instant:
    """Workers that make every call at once, with scores that stand still."""

    free_slots, present, n_slots = 1, True, 1

    def __init__(self):
        self.slices = []
        self.states = {}

    def most_calls(self, first):
        return 100

    def submit(self, slices, seconds):
        self.slices += slices

    def wait(self, timeout):
        parts, self.slices = self.slices, []
        assert all(part.seconds == math.inf for part in parts)  # the clock must not end a fold
        return [
            Report(part.model, part.limit, [Row(part.limit, {"score": 1.0}, 0.1, 0.1, 0.0)])
            for part in parts
        ]

    def put(self, model, state):
        self.states[model] = state.calls


def test_patience_remembers_the_means_of_a_checkpoint():
    folds = Folds([[[0]], [[1]]], [[1], [0]])
    spec = TrainingSpec(None, None, "score", 0, 1, patience=2, score_every=1, folds=folds)
    workers = FoldWorkers(Instant(), spec)
    blobs = [cloudpickle.dumps(State(None, 2))] * 2
    workers.put(3, State(blobs, 2, [(1, 1.0), (2, 1.0)]))
    assert workers.inner.states == {6: 2, 7: 2}
    assert workers.most_calls(2) == 1
    workers.submit([Slice(3, {}, 2, 9, 3, 0.5)], 1.0)
    (report,) = workers.wait(0.0)
    assert (report.model, report.calls, report.stopped) == (3, 3, True)
    assert report.rows[0].splits == (1.0, 1.0)
    fresh = FoldWorkers(Instant(), spec)  # has seen one score only
    fresh.submit([Slice(3, {}, 2, 9, 3, 0.5)], 1.0)
    assert not fresh.wait(0.0)[0].stopped


class FailsOnAFold(Counter):
    def partial_fit(self, X, y=None):
        if self.slope > 0.5 and X[0, 0] == 1:
            raise FloatingPointError("this fold cannot be trained")
        return super().partial_fit(X, y)


def test_a_model_that_fails_on_a_fold_fails():
    X, y = np.repeat([[0.0], [1.0]], 10, axis=0), np.zeros(20)
    search = IncrementalSearchCV(
        FailsOnAFold(), {"slope": [0.25, 0.75]}, "grid", decay_rate=None, max_iter=2, cv=KFold(2),
        client=None,
    )  # fmt: skip
    with pytest.warns(FitFailedWarning, match="this fold"):
        search.fit(X, y)
    assert search.best_params_ == {"slope": 0.25}
    np.testing.assert_array_equal(np.isnan(search.cv_results_["test_score"]), [False, True])
    assert np.isnan(search.cv_results_["split0_test_score"][1])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"cv": 1}, "'cv' parameter of HyperbandSearchCV must be an integer of at least 2"),
        ({"cv": "kfold"}, "'cv' parameter"),
        ({"cv": 2.0}, "'cv' parameter"),
        ({"cv": []}, "no fold at all"),
        ({"cv": [([0, 1], [])]}, "a fold without"),
        ({"cv": 3, "test_size": 0.2}, "cv takes the place of test_size"),
        ({"cv": 3, "validation_data": ([[1]], [1])}, "cv takes the place of validation_data"),
    ],
)
def test_wrong_folds_are_refused_before_training(data, params, message):
    with pytest.raises(ValueError, match=message):
        linear(**params).fit(*data)


def test_folds_need_data_in_memory(data):
    X, y = (da.from_array(part, chunks=100) for part in data)
    with pytest.raises(ValueError, match="cv is supported for data in memory only"):
        linear().fit(X, y)


def test_limits_hold_between_folds(data):
    search = HyperbandSearchCV(
        Counter(seconds=0.02), {"slope": uniform(0, 1)}, max_iter=81, cv=ShuffleSplit(3),
        max_seconds=0.5, client=None,
    )  # fmt: skip
    assert search.fit(*data).stop_reason_ == "max_seconds"
    assert search.metadata_["partial_fit_calls"] < 81


def test_the_folds_of_a_model_see_their_rows_only():
    whole = Chunk(np.arange(6), None, {"sample_weight": np.arange(6) * 10})
    chunk, held_out = Folds([[[0, 1], [2]], [[3, 4], [5]]], [[3], [0]]).rows(7, whole)
    assert chunk(0).X.tolist() == [3, 4]
    assert chunk(1).params["sample_weight"].tolist() == [50]
    assert held_out.X.tolist() == [0]
