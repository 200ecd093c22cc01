"""A search from outside: attributes, repeatability, stopping, scikit-learn."""

import pickle
import signal
import threading

import dask.array as da
import numpy as np
import pytest
from scipy.stats import uniform
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier

from accelerando.search import (
    HyperbandSearchCV,
)

from .estimators import Counter
from .searches import SPACE, counters, hyperband


def test_a_program_for_dask_ml_runs_with_the_import_changed(data):
    X, y = (da.from_array(part, chunks=150) for part in data)
    search = HyperbandSearchCV(SGDClassifier(), SPACE, 9, 3, random_state=1)
    assert search.fit(X, y, classes=[0, 1, 2]) is search
    expected = {
        "mean_partial_fit_time", "std_partial_fit_time", "mean_score_time", "std_score_time",
        "test_score", "rank_test_score", "model_id", "partial_fit_calls", "params", "bracket",
        "param_alpha", "param_penalty",
    }  # fmt: skip
    assert set(search.cv_results_) == expected
    assert {len(column) for column in search.cv_results_.values()} == {17}
    assert set(search.history_[0]) >= {
        "partial_fit_time", "score_time", "score", "model_id", "params", "partial_fit_calls",
        "elapsed_wall_time", "bracket",
    }  # fmt: skip
    assert search.metadata == search.metadata_
    best = search.best_index_
    assert search.cv_results_["rank_test_score"][best] == 1
    assert search.cv_results_["test_score"][best] == search.best_score_
    assert search.cv_results_["params"][best] == search.best_params_
    last = search.model_history_[search.cv_results_["model_id"][best]][-1]
    assert last["score"] == search.best_score_
    assert search.cv_results_["model_id"][0] == "bracket=2-0"
    assert (search.n_splits_, search.multimetric_) == (1, False)
    lazy = search.predict(X)
    assert isinstance(lazy, da.Array)
    np.testing.assert_array_equal(lazy.compute(), search.predict(data[0]))
    assert search.decision_function(X).compute().shape == (600, 3)
    assert search.score(X, y) == search.scorer_(search.best_estimator_, *data)


def test_the_history_counts_what_the_models_did(data):
    search = counters(chunk_size=100).fit(*data)
    for model, calls in zip(
        search.cv_results_["model_id"], search.cv_results_["partial_fit_calls"], strict=True
    ):
        assert search.model_history_[model][-1]["partial_fit_calls"] == calls
    assert search.best_estimator_.calls_ == 9
    assert search.best_score_ == pytest.approx(9 * search.best_params_["slope"])
    slopes = search.cv_results_["param_slope"][search.cv_results_["bracket"] == 0]
    assert search.best_params_["slope"] >= max(slopes)


def test_the_same_seed_gives_the_same_search(data):
    first, second = (hyperband(MLPClassifier((5,)), {"alpha": [1e-4, 1e-2]}) for _ in range(2))
    first.metadata  # noqa: B018 — asking must not draw random numbers
    first.fit(*data)
    second.fit(*data)
    np.testing.assert_array_equal(first.cv_results_["test_score"], second.cv_results_["test_score"])
    other = hyperband(MLPClassifier((5,)), {"alpha": [1e-4, 1e-2]}, random_state=1).fit(*data)
    assert list(other.cv_results_["test_score"]) != list(first.cv_results_["test_score"])


def test_several_metrics(data):
    scoring = {"accuracy": "accuracy", "loss": make_scorer(accuracy_score)}
    search = hyperband(scoring=scoring, refit="accuracy").fit(*data)
    assert search.multimetric_
    assert search.best_score_ == max(search.cv_results_["test_accuracy"])
    assert set(search.scorer_) == {"accuracy", "loss"}
    assert {"test_loss", "rank_test_loss"} <= set(search.cv_results_)
    assert 0 <= search.score(*data) <= 1
    with pytest.raises(ValueError, match=r"'refit' parameter .* must be one of .* Got True"):
        hyperband(scoring=scoring).fit(*data)


def test_stop_and_best_so_far_from_another_thread(data):
    search = hyperband(
        Counter(seconds=0.005), {"slope": uniform(0, 1)}, max_iter=243, slice_seconds=0.02
    )
    assert search.best_so_far_ is None
    with pytest.raises(RuntimeError, match="no search is running"):
        search.stop()
    seen = []

    def watch():
        while not seen:
            if (best := search.best_so_far_) is not None:
                seen.append(best)
        search.stop()

    thread = threading.Thread(target=watch)
    thread.start()
    search.fit(*data)
    thread.join()
    assert search.stop_reason_ == "stopped"
    assert set(seen[0]) >= {"score", "params", "model_id"}
    assert search.best_so_far_["score"] == search.best_score_
    assert search.best_estimator_.calls_ >= 1


def test_a_stop_before_the_first_score_waits_for_it(data):
    search = counters(slice_seconds=1e-9)

    class StopsAtOnce(Counter):
        def partial_fit(self, X, y=None):
            search.stop()
            return super().partial_fit(X, y)

    search.set_params(estimator=StopsAtOnce()).fit(*data)
    assert search.stop_reason_ == "stopped"
    assert search.metadata_["partial_fit_calls"] == search.n_iter_ == 1


def test_scikit_learns_contract(data):
    search = hyperband()
    with pytest.raises(NotFittedError):
        search.predict(data[0])
    assert not hasattr(search, "n_features_in_")
    assert not hasattr(search, "transform")
    copy = clone(search).fit(*data)
    again = pickle.loads(pickle.dumps(copy))
    np.testing.assert_array_equal(again.predict(data[0]), copy.predict(data[0]))
    scores = cross_val_score(hyperband(), *data, cv=2)
    assert scores.shape == (2,)


def test_fitting_leaves_the_global_random_state_alone(data):
    np.random.seed(3)
    expected = np.random.RandomState(3).rand()
    hyperband().fit(*data)
    assert np.random.rand() == expected


def test_a_search_that_could_not_start_leaves_no_trace(data):
    search = counters(client="nobody")
    with pytest.raises(TypeError, match="'client' parameter"):
        search.fit(*data)
    with pytest.raises(RuntimeError, match="no search is running"):
        search.stop()
    assert search.best_so_far_ is None
    pickle.dumps(search)


def test_a_second_ctrl_c_ends_the_call_and_returns_the_best_so_far(data):
    class Pressed(Counter):
        def partial_fit(self, X, y=None):
            if getattr(self, "calls_", 0) == 2:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            return super().partial_fit(X, y)

    handler = signal.getsignal(signal.SIGINT)
    search = hyperband(Pressed(), {"slope": uniform(0, 1)}).fit(*data)
    assert search.stop_reason_ == "interrupted"
    assert search.best_estimator_.calls_ == search.n_iter_ == 1
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_first_ctrl_c_waits_for_the_call(data):
    class Pressed(Counter):
        def partial_fit(self, X, y=None):
            if getattr(self, "calls_", 0) == 2:
                signal.raise_signal(signal.SIGINT)
            return super().partial_fit(X, y)

    search = hyperband(Pressed(), {"slope": uniform(0, 1)}).fit(*data)
    assert search.stop_reason_ == "stopped"
    assert search.n_iter_ == 3


def test_clients_are_shared_by_clones():
    client, estimator = object(), Counter()
    search = clone(counters(client=client).set_params(estimator=estimator))
    assert search.client is client
    assert search.estimator is not estimator


def test_one_object_searches_once_at_a_time(data):
    begun, go_on = threading.Event(), threading.Event()

    class Waits(Counter):
        def partial_fit(self, X, y=None):
            begun.set()
            go_on.wait(60)
            return super().partial_fit(X, y)

    search = hyperband(Waits(), {"slope": uniform(0, 1)})
    thread = threading.Thread(target=search.fit, args=data)
    thread.start()
    assert begun.wait(60)
    try:
        with pytest.raises(RuntimeError, match="fit is running in another thread"):
            search.fit(*data)
    finally:
        go_on.set()
        thread.join(60)
    assert search.stop_reason_ == "finished"
