"""Processes of its own, limits in words, the winner on all rows, given validation rows, studies."""

import contextlib
import datetime
import subprocess
import sys

import dask.array as da
import numpy as np
import optuna
import pytest
from distributed import Client, Future, LocalCluster, get_client, worker_client
from scipy.stats import uniform
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import SGDClassifier

from accelerando.search import IncrementalSearchCV
from accelerando.search._limits import limit_seconds
from accelerando.search._refit import resolve, train_once
from accelerando.search._train import Slice

from .estimators import Counter, Raises
from .searches import counters, hyperband

SGD = SGDClassifier(random_state=0)
WEIGHT = np.linspace(0.5, 1.5, 600)


def test_n_jobs_needs_no_dask_code_and_no_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "import numpy as np\n"
        "from sklearn.base import BaseEstimator\n"
        "from accelerando.search import IncrementalSearchCV\n"
        "class Model(BaseEstimator):\n"
        "    def __init__(self, a=0.0):\n"
        "        self.a = a\n"
        "    def partial_fit(self, X, y=None):\n"
        "        return self\n"
        "    def score(self, X, y=None):\n"
        "        return os.getpid()\n"
        "search = IncrementalSearchCV(Model(), {'a': [1, 2, 3, 4]}, 4, max_iter=2, n_jobs=2)\n"
        "search.fit(np.zeros((20, 2)), np.zeros(20))\n"
        "print('trained', os.getpid() not in search.cv_results_['test_score'])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "trained True\n", done.stderr


def test_futures_are_arguments(data, client):
    X, y, weight, model = (client.submit(lambda one=one: one) for one in (*data, WEIGHT, SGD))
    search = IncrementalSearchCV(
        model, {"alpha": [1e-4, 1e-2]}, "grid", max_iter=2, random_state=0, client=client,
        validation_data=client.submit(lambda: (data[0][:50], data[1][:50])),
    )  # fmt: skip
    search.fit(X, y, sample_weight=weight)
    assert search.estimator is model  # the parameter stays what it was
    plain = search.set_params(estimator=SGD, validation_data=(data[0][:50], data[1][:50]))
    assert search.best_score_ == plain.fit(*data, sample_weight=WEIGHT).best_score_


def test_a_future_that_fit_cannot_wait_for_is_refused():
    class Waiting(Future):
        def __init__(self):
            pass

        async def result(self, timeout=None):
            return 1

        def __del__(self):
            pass

    with pytest.raises(TypeError, match="asynchronous client"):
        resolve({"classes": Waiting()})


def test_a_future_with_a_large_result_is_waited_for():
    class Large(Future):
        def __init__(self):
            self.asked = []

        def result(self, timeout=None):
            self.asked.append(timeout)
            if timeout is not None:
                raise TimeoutError
            return 1

        def done(self):
            return len(self.asked) > 2

        def __del__(self):
            pass

    checked = []
    assert resolve(Large(), lambda: checked.append(1)) == 1
    assert checked == [1, 1]


def test_the_winner_is_not_waited_for_without_workers():
    class Nobody:
        busy, present = True, False

        def submit(self, slices, seconds):
            pass

        def wait(self, timeout):
            pytest.fail("waits for a worker after the limit")

    with pytest.raises(RuntimeError, match=r"ended \(max_seconds\), but no worker is left"):
        train_once(Nobody(), Slice(0, {"a": 1}, 3, 3, 3, 1.0), lambda: "max_seconds")


def test_time_limits_in_words(data):
    slow = hyperband(Counter(seconds=0.01), {"slope": uniform(0, 1)}, max_iter=81)
    for limit in ("200 ms", 0.2, datetime.timedelta(milliseconds=200)):
        assert slow.set_params(max_time=limit).fit(*data).stop_reason_ == "max_seconds"
    written = {
        "10 min": 600,
        "10min": 600,
        "2 mins": 120,
        "3 sec": 3,
        "2 hrs": 7200,
        "1 hour": 3600,
    }
    assert {text: limit_seconds(counters(max_time=text)) for text in written} == written
    with pytest.raises(ValueError, match=r"'max_time' parameter .* Got 'soon'"):
        counters(max_time="soon").fit(*data)
    with pytest.raises(ValueError, match="the same limit"):
        counters(max_time=3, max_seconds=3).fit(*data)


def test_a_target_ends_the_search(data):
    search = counters(max_iter=81, target_score=2.0).fit(*data)
    assert search.stop_reason_ == "target_score"
    assert search.best_score_ >= 2.0
    assert search.metadata_["partial_fit_calls"] < search.metadata["partial_fit_calls"]


@pytest.mark.parametrize("kind", ["numpy", "dask", "dask on workers"])
def test_the_winner_is_trained_on_all_rows(kind, data, client):
    X, y = data if kind == "numpy" else (da.from_array(part, chunks=150) for part in data)
    where = client if kind == "dask on workers" else None
    search = counters(refit_all=True, client=where).fit(X, y)
    assert set(search.best_estimator_.rows_) == ({600} if kind == "numpy" else {150})
    assert search.best_estimator_.calls_ == search.n_iter_


@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_validation_rows_may_be_given(kind, data):
    X, y = data if kind == "numpy" else (da.from_array(part, chunks=150) for part in data)
    seen = []

    def scoring(model, X, y):
        seen.append(X.copy())
        return model.score(X, y)

    given = X[:50] + 1000, y[:50]
    search = counters(scoring=scoring, validation_data=given).fit(X, y)
    assert all(len(rows) == 50 and rows.min() > 500 for rows in seen)
    assert set(search.best_estimator_.rows_) == ({600} if kind == "numpy" else {150})
    with pytest.raises(ValueError, match="takes the place of test_size"):
        search.set_params(test_size=0.2).fit(X, y)


def both(model, X, y):
    return {"up": model.score(X, y), "down": -model.score(X, y)}


def test_a_scorer_may_return_a_dict(data):
    search = counters(scoring=both, refit="down").fit(*data)
    assert search.multimetric_
    assert search.best_score_ == max(search.cv_results_["test_down"])
    assert search.score(*data) == -search.best_estimator_.score(*data)
    assert {"test_up", "rank_test_up"} <= set(search.cv_results_)
    for wrong in (True, "side"):
        with pytest.raises(ValueError, match=r"dict with \['down', 'up'\], so refit must name"):
            counters(scoring=both, refit=wrong).fit(*data)


def test_a_search_becomes_a_study_of_optuna(data):
    space = {"slope": uniform(0, 1), "offset": [0.0, 0.5]}
    with pytest.warns(FitFailedWarning, match=r"failed after \d calls"):
        search = hyperband(Raises(), space, max_iter=9).fit(*data)
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = search.to_optuna("search")
    optuna.logging.set_verbosity(level)
    assert len(study.trials) == 17
    assert study.best_value == search.best_score_
    assert study.best_params == pytest.approx(search.best_params_)
    states = {trial.state.name for trial in study.trials}
    assert states == {"COMPLETE", "PRUNED", "FAIL"}
    best = study.best_trial
    assert best.intermediate_values[search.n_iter_] == search.best_score_


def test_processes_and_a_client_are_refused(client, data):
    with pytest.raises(ValueError, match="client cannot be passed as well"):
        IncrementalSearchCV(Counter(), {"slope": [1.0]}, n_jobs=2, client=client).fit(*data)


@pytest.fixture(scope="module")
def one_thread():
    """A cluster on which one task can run at a time."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize("where", ["the cluster", "given back before", "here"])
def test_a_search_inside_a_task(where, data, one_thread):
    """It may use the only thread of the cluster, on which the task itself runs."""

    def task():
        with contextlib.ExitStack() as stack:
            if where == "given back before":
                stack.enter_context(worker_client())
            client = None if where == "here" else get_client()
            X, y = (da.from_array(rows, chunks=300) for rows in data) if client else data
            return hyperband(SGD, max_iter=3, client=client).fit(X, y).best_score_

    assert 0 < one_thread.submit(task, pure=False).result(timeout=60) <= 1
    assert one_thread.submit(lambda: 1, pure=False).result(timeout=60) == 1
