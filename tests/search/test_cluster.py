"""Searches on real worker processes: same results, lost workers, interrupted searches."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy.stats import loguniform, uniform
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier

from accelerando.search import AsyncHalvingSearchCV, HyperbandSearchCV, IncrementalSearchCV
from accelerando.search._cluster import DaskWorkers

from .conftest import mortal_cluster
from .estimators import Counter, Logged, Raises, Suicidal

HERE = os.path.dirname(__file__)


@pytest.fixture(scope="module")
def answers(data):
    return {cls: fit(cls, None, data) for cls in (HyperbandSearchCV, AsyncHalvingSearchCV)}


def fit(cls, client, data, **options):
    space = {"alpha": loguniform(1e-5, 1), "learning_rate_init": loguniform(1e-4, 1e-1)}
    return cls(
        MLPClassifier((8,)), space, max_iter=9, random_state=0, client=client, chunk_size=100,
        **options,
    ).fit(*data)  # fmt: skip


def same(one, other):
    for column in ("model_id", "partial_fit_calls", "test_score", "rank_test_score"):
        np.testing.assert_array_equal(one.cv_results_[column], other.cv_results_[column])
    assert one.best_params_ == other.best_params_
    assert one.best_index_ == other.best_index_
    for left, right in zip(one.best_estimator_.coefs_, other.best_estimator_.coefs_, strict=True):
        np.testing.assert_array_equal(left, right)


def test_any_number_of_workers_gives_the_result_of_this_process(data, answers):
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        for n_workers in (1, 2, 4):
            cluster.scale(n_workers)
            client.wait_for_workers(n_workers)
            for cls, answer in answers.items():
                same(fit(cls, client, data), answer)


def test_neither_do_tiny_slices_nor_the_order_change_it(data, answers, client):
    for cls, answer in answers.items():
        same(fit(cls, client, data, slice_seconds=0.001, priority="fifo"), answer)


def test_dask_arrays_stay_on_the_workers(data, client):
    X, y = (da.from_array(part, chunks=150) for part in data)
    options = {"max_iter": 9, "random_state": 0}
    space = {"alpha": loguniform(1e-5, 1)}
    there = HyperbandSearchCV(SGDClassifier(), space, client=client, **options).fit(X, y)
    here = HyperbandSearchCV(SGDClassifier(), space, client=None, **options).fit(X, y)
    np.testing.assert_array_equal(there.cv_results_["test_score"], here.cv_results_["test_score"])


def test_the_default_client_is_used_when_there_is_one(data, two_workers):
    with Client(two_workers):
        search = HyperbandSearchCV(Counter(), {"slope": uniform(0, 1)}, max_iter=9)
        where = set()
        # the workers of this cluster are other processes, so a process id tells them apart
        search.set_params(scoring=_process_id).fit(*data)
        where = {row["score"] for row in search.history_}
    assert where
    assert float(os.getpid()) not in where


def _process_id(estimator, X, y):
    return os.getpid()


def test_rows_are_placed_once_on_each_worker(data, client, monkeypatch):
    placed = []
    scatter = client.scatter

    def counted(parts, workers, **options):
        placed.extend(workers)
        return scatter(parts, workers=workers, **options)

    monkeypatch.setattr(client, "scatter", counted)
    HyperbandSearchCV(Counter(), {"slope": uniform(0, 1)}, max_iter=27, client=client).fit(*data)
    assert sorted(placed) == sorted(client.scheduler_info(n_workers=-1)["workers"])


def test_workers_that_are_threads_of_this_process(data):
    expected = HyperbandSearchCV(
        SGDClassifier(), {"alpha": loguniform(1e-5, 1)}, max_iter=9, random_state=0, client=None
    ).fit(*data)
    handler = signal.getsignal(signal.SIGINT)
    with Client(
        processes=False, n_workers=1, threads_per_worker=3, dashboard_address=":0"
    ) as client:
        search = clone(expected).set_params(client=client).fit(*data)
    np.testing.assert_array_equal(
        search.cv_results_["test_score"], expected.cv_results_["test_score"]
    )
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_search_with_a_client_can_be_cloned(client):
    search = HyperbandSearchCV(Counter(), {"slope": [1.0]}, client=client)
    assert clone(search).client is client
    assert clone(search).estimator is not search.estimator


def test_a_search_leaves_nothing_on_the_cluster(data, client):
    HyperbandSearchCV(Counter(), {"slope": uniform(0, 1)}, max_iter=9, client=client).fit(*data)

    def left(dask_scheduler):
        topics = [name for name in dask_scheduler._broker._topics if "accelerando" in name]
        return list(dask_scheduler.tasks), topics

    deadline = time.monotonic() + 20
    while any(client.run_on_scheduler(left)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert client.run_on_scheduler(left) == ([], [])


def test_failures_are_scored_on_workers_too(data, client):
    with pytest.warns(FitFailedWarning, match="loss is infinite"):
        search = HyperbandSearchCV(
            Raises(), {"slope": uniform(0, 1)}, max_iter=9, client=client, random_state=0
        ).fit(*data)
    assert search.best_params_["slope"] <= 0.5
    with pytest.raises(FloatingPointError, match="loss is infinite"):
        search.set_params(error_score="raise").fit(*data)


def killed_at_call_nine(client, data, tmp_path):
    """A search in which the first model that gets there takes its worker down."""
    options = {"max_iter": 27, "random_state": 0}
    space = {"slope": uniform(0, 1)}
    expected = HyperbandSearchCV(Counter(), space, client=None, **options).fit(*data)
    flag = tmp_path / "killed"
    search = HyperbandSearchCV(
        Suicidal(fatal=True, at=9, flag=str(flag)), space, client=client, **options
    ).fit(*data)
    assert flag.exists()
    np.testing.assert_array_equal(
        search.cv_results_["test_score"], expected.cv_results_["test_score"]
    )
    assert search.metadata_ == expected.metadata_
    assert search.best_estimator_.calls_ == 27


def test_a_lost_worker_costs_its_work_not_the_search(data, mortal, tmp_path):
    killed_at_call_nine(mortal, data, tmp_path)


def test_the_only_worker_may_be_lost(data, tmp_path):
    with mortal_cluster(1) as cluster, Client(cluster, set_as_default=False) as client:
        killed_at_call_nine(client, data, tmp_path)


@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_a_lost_worker_costs_the_last_calls_of_its_models(
    kind, data, mortal, tmp_path, monkeypatch
):
    monkeypatch.setattr("accelerando.search._copies.COPY_SECONDS", 0.0)  # a copy of every slice
    log, cue = tmp_path / "log", tmp_path / "cue"
    X, y = data if kind == "numpy" else (da.from_array(part, chunks=150) for part in data)
    doomed = Suicidal(
        seconds=0.01, log=str(log), flag=str(tmp_path / "killed"), cue=str(cue), at=80, fatal=True
    )
    search = IncrementalSearchCV(
        doomed, {"slope": [0.5]}, 1, max_iter=100, client=mortal, slice_seconds=0.05,
        fits_per_score=1000,
    )  # fmt: skip

    copied = []

    def give_the_cue_when_there_is_a_copy():
        # The first slice has 16 calls at most, so there is one before call 80.
        while not copied:
            time.sleep(0.01)
            copied.extend(c.calls for c in copies(search) if c.future.status == "finished")
        cue.touch()

    threading.Thread(target=give_the_cue_when_there_is_a_copy, daemon=True).start()
    search.fit(X, y)
    assert search.best_estimator_.calls_ == 100
    calls = log.read_text().split("\n")[:-1]
    assert len({line.split()[-1] for line in calls}) == 2  # both workers trained it
    assert len({line.split()[1] for line in calls}) == 100
    assert len(calls) - 100 <= 79 - max(copied)  # all since the copy; from its first call it is 79


def copies(search):
    driver = getattr(search, "_driver", None)
    workers = getattr(driver, "workers", None)
    return [] if workers is None else list(workers.copies.locations.get(0, []))


def test_a_model_that_kills_its_workers_is_given_up(data, mortal):
    with pytest.warns(FitFailedWarning, match=r"fatal.*True"):
        search = IncrementalSearchCV(
            Suicidal(), {"fatal": [False, True]}, "grid", max_iter=3, client=mortal
        ).fit(*data)
    assert not search.best_params_["fatal"]
    assert search.best_estimator_.calls_ == 3


def test_a_model_stays_where_it_is_unless_its_worker_is_busy(data, client, tmp_path):
    log = tmp_path / "log"
    IncrementalSearchCV(
        Logged(seconds=0.002, log=str(log)), {"slope": [0.1, 0.2]}, "grid", max_iter=40,
        client=client, slice_seconds=0.005,
    ).fit(*data)  # fmt: skip
    where = {tuple(line.split()[::2]) for line in log.read_text().split("\n")[:-1]}
    assert len(where) == 2  # two models, two workers, dozens of slices: each has its own


@pytest.mark.parametrize("workers", [0, 2], ids=["this process", "cluster"])
def test_ctrl_c_returns_the_best_so_far(workers, tmp_path):
    script = tmp_path / "search.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import contextlib, numpy as np
            from distributed import Client, LocalCluster
            from scipy.stats import uniform
            from accelerando.search import HyperbandSearchCV
            from estimators import Counter

            if __name__ == "__main__":
                with contextlib.ExitStack() as stack:
                    client = None
                    if {workers}:
                        cluster = LocalCluster(
                            n_workers={workers}, threads_per_worker=1, dashboard_address=":0"
                        )
                        client = stack.enter_context(Client(stack.enter_context(cluster)))
                    search = HyperbandSearchCV(
                        Counter(seconds=0.01), {{"slope": uniform(0, 1)}}, max_iter=2187,
                        client=client, slice_seconds=0.1,
                        scoring=lambda model, X, y: print("scored", flush=True) or model.score(X, y)
                    )
                    print("go", flush=True)
                    search.fit(np.zeros((100, 2)), np.zeros(100))
                    print("ended", search.stop_reason_, search.best_score_ > 0,
                          search.best_estimator_.calls_ ==
                          search.cv_results_["partial_fit_calls"][search.best_index_],
                          len(search.history_) > 0, flush=True)
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": HERE},
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("scored"):
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
    output, errors = process.communicate(timeout=100)
    assert "ended stopped True True True" in output, errors


def test_an_estimator_with_a_client_is_trained_in_this_process(data, client, tmp_path):
    class OnCluster(Counter):
        def __init__(self, slope=1.0, client=None):
            super().__init__(slope)
            self.client = client

        def partial_fit(self, X, y=None):
            # would wait for ever on a worker that the search itself keeps busy
            assert self.client.submit(len, [1, 2], pure=False).result() == 2
            self.process_ = os.getpid()
            return super().partial_fit(X, y)

    search = HyperbandSearchCV(
        OnCluster(client=client), {"slope": uniform(0, 1)}, max_iter=3, client=client
    ).fit(*data)
    assert search.best_estimator_.process_ == os.getpid()
    assert search.best_estimator_.client is client
    with pytest.raises(TypeError, match=r"cannot be pickled .* Dask client in a parameter"):
        clone(search).set_params(checkpoint=tmp_path).fit(*data)


def test_lost_models_are_trained_again_within_the_memory(data, mortal, tmp_path, monkeypatch):
    """A task may ask for one block at a time, also if a model must start again."""
    monkeypatch.setattr("accelerando.search._roster.MOST_BYTES", 1.0)
    asked = []
    submit = mortal.submit

    def counted(function, *args, **options):
        if function.__name__ == "run_task":
            asked.append(len(args[4]))
        return submit(function, *args, **options)

    monkeypatch.setattr(mortal, "submit", counted)
    X, y = (da.from_array(part, chunks=100) for part in data)
    doomed = Suicidal(flag=str(tmp_path / "killed"), at=5, fatal=True)
    search = IncrementalSearchCV(doomed, {"slope": [0.5]}, 1, max_iter=7, client=mortal)
    search.fit(X, y)
    assert set(asked) == {1}
    assert search.best_estimator_.calls_ == 7


def test_a_worker_that_hangs_gets_its_data_later():
    """The limits of the search are honored before the next try."""

    def hang(worker):
        raise TimeoutError(f"Worker {worker} hangs.")

    workers = SimpleNamespace(placement=SimpleNamespace(on=hang))
    assert DaskWorkers._with_data(workers, "tcp://a") is None
