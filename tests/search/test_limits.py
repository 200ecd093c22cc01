"""Limits hold in every wait, also for data that a cluster without workers should compute."""

import signal
import threading
import time

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from sklearn.linear_model import SGDClassifier

from accelerando._cluster.driver import chunks
from accelerando.search import IncrementalSearchCV, _limits
from accelerando.search._limits import Limits, compute
from accelerando.search._refit import all_rows

ROWS, LABELS = np.arange(40.0).reshape(20, 2), np.arange(20) % 2


@pytest.fixture(scope="module")
def nobody():
    """A client of a cluster that has no worker and never gets one."""
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def data_of(case, client):
    """Return the data of a search that waits for something before it trains."""
    lazy, labels = da.from_array(ROWS, chunks=(5, 2)), da.from_array(LABELS, chunks=5)
    if case == "classes":
        return lazy, labels, {}, {}
    if case == "a future":
        return client.submit(lambda: ROWS, pure=False), LABELS, {}, {}
    if case == "validation rows":
        return ROWS, LABELS, {"validation_data": (lazy, labels)}, {}
    frame = dd.from_pandas(pd.DataFrame(ROWS, columns=["a", "b"]), npartitions=4)
    return frame, dd.from_pandas(pd.Series(LABELS), npartitions=4), {}, {"classes": [0, 1]}


def n_tasks(client):
    return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))


def search_of(**options):
    return IncrementalSearchCV(
        SGDClassifier(), {"alpha": [1e-4, 1e-2]}, "grid", max_iter=2, **options
    )


@pytest.mark.parametrize(
    "case", ["classes", "lengths of partitions", "a future", "validation rows"]
)
def test_time_is_limited_before_training(nobody, case):
    X, y, options, fit_params = data_of(case, nobody)
    search = search_of(max_seconds=0.3, **options)
    with pytest.raises(ValueError, match=r"ended \(max_seconds\) before a model was scored: it"):
        search.fit(X, y, **fit_params)
    del X, y
    while n_tasks(nobody):
        time.sleep(0.01)  # nothing is left on the cluster


@pytest.mark.parametrize("how", ["stop", "Ctrl-C"])
def test_a_search_that_waits_for_its_data_can_be_ended(nobody, how):
    X, y, _, _ = data_of("classes", nobody)
    search = search_of()

    def end():
        while not n_tasks(nobody):
            time.sleep(0.01)
        if how == "stop":
            search.stop()
        else:
            signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=end)
    thread.start()
    error, words = {
        "stop": (ValueError, r"ended \(stopped\) before"), "Ctrl-C": (KeyboardInterrupt, None),
    }[how]  # fmt: skip
    with pytest.raises(error, match=words):
        search.fit(X, y)
    thread.join()
    with pytest.raises(RuntimeError, match="no search is running"):
        search.stop()


def test_all_rows_are_not_waited_for_after_a_limit(nobody):
    X, y, _, _ = data_of("lengths of partitions", nobody)
    with pytest.raises(RuntimeError, match=r"ended \(stopped\), but no worker is left"):
        all_rows(X, y, None, 0, {}, nobody, lambda: "stopped")


def test_a_limit_counts_from_the_start_of_its_clock():
    limits = Limits(search_of(max_time="1 ms"))
    while not limits.over():
        pass
    assert limits.reason() == "max_seconds"
    limits.search.set_params(max_time=None)
    assert limits.reason() is None
    limits.stop_requested.set()
    assert limits.reason() == "stopped"


def test_values_are_computed_in_their_order():
    with dask.config.set(scheduler="sync"):  # counts for more than a client
        one, three = compute(da.ones(2).sum(), 3)
    assert (float(one), three) == (2.0, 3)


def test_data_that_a_client_has_persisted_is_computed_by_it():
    """Also if it is not the default client; no other one has the data."""
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        X = client.persist(da.from_array(ROWS, chunks=(5, 2)))
        y = client.persist(da.from_array(LABELS, chunks=5))
        search = search_of(client=client, validation_data=(X, y)).fit(X, y)
        assert search.score(X, y) == search.score(ROWS, LABELS)
    with dask.config.set(scheduler="synchronous"):  # the client is closed
        assert search.score(da.from_array(ROWS, chunks=(5, 2)), LABELS) >= 0


def test_tasks_that_the_scheduler_learns_of_late_are_cancelled_too(nobody, monkeypatch):
    """Dask ignores a message to cancel tasks whose graph it is still reading."""
    monkeypatch.setattr(_limits, "CANCEL_AGAIN", (0.05, 0.1))
    cancelled, cancel = [], nobody.cancel

    def lost(futures, **options):
        if future not in futures:  # a test before this one cancels its own again
            return cancel(futures, **options)
        cancelled.append(len(futures))
        return cancel(futures, **options) if len(cancelled) > 1 else None

    future = nobody.submit(lambda: ROWS, pure=False)
    monkeypatch.setattr(nobody, "cancel", lost)

    def over():
        nobody.futures.pop(future.key, None)  # as cancelling does
        raise ValueError("over")

    with pytest.raises(ValueError, match="over"):
        _limits.results_of([future], nobody, over)
    while n_tasks(nobody):
        time.sleep(0.01)
    assert cancelled[:2] == [1, 1]


def test_workers_that_load_models_are_those_of_the_client_that_computes(client, monkeypatch):
    asked = []
    found = {"workers": ["one"]}
    monkeypatch.setattr(chunks, "where_ranks_can_be", lambda one: asked.append(one) or found)
    with _limits.current(client):
        assert _limits.where_models_load() == found
    assert asked == [client]
    with dask.config.set(scheduler="synchronous"):
        assert _limits.where_models_load() == {}
