"""Clusters as they are: adaptive ones, ones without workers, and models that kill their worker."""

import threading
import time

import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy.stats import uniform
from sklearn.exceptions import FitFailedWarning

from accelerando.search import HyperbandSearchCV, IncrementalSearchCV
from accelerando.search._losses import LostTasks
from accelerando.search._train import Slice

from .conftest import mortal_cluster
from .estimators import Counter, Suicidal


def part(model):
    return Slice(model, {}, 0, 3, 3, 1.0)


def test_a_loss_counts_only_for_a_model_that_was_alone():
    lost = LostTasks()
    for _ in range(5):
        assert lost.on_death([part(1), part(2)], alone=False) == []
        assert all(again.alone and len(again.slices) == 1 for again in lost.waiting)
    assert lost.on_death([part(1)], alone=True) == []
    lost.clear(1)
    assert lost.on_death([part(1)], alone=True) == []
    assert lost.on_death([part(1)], alone=True) == [part(1)]


@pytest.fixture(scope="module")
def adaptive():
    with LocalCluster(
        n_workers=0, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:  # six processes would take long to start
        yield cluster


@pytest.mark.parametrize(("minimum", "maximum"), [(0, 1), (1, 6)])
def test_an_adaptive_cluster_sees_the_demand(adaptive, minimum, maximum, data):
    adaptive.adapt(minimum=minimum, maximum=maximum, interval="100ms", wait_count=20)
    with Client(adaptive, set_as_default=False) as client:
        most = []

        search = HyperbandSearchCV(
            Counter(seconds=0.02), {"slope": uniform(0, 1)}, max_iter=27, client=client,
            slice_seconds=0.1, random_state=0,
        )  # fmt: skip
        thread = threading.Thread(target=search.fit, args=data)
        thread.start()
        while thread.is_alive() and len(most) < maximum:
            most = list(client.scheduler_info(n_workers=-1)["workers"])
            time.sleep(0.05)
        while thread.is_alive() and search.best_so_far_ is None:
            time.sleep(0.01)
        if thread.is_alive():
            search.stop()
        thread.join()
    assert len(most) == maximum
    assert search.best_score_ > 0


@pytest.mark.parametrize("limit", ["max_seconds", "stop"])
def test_limits_hold_without_a_worker(limit, data):
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        search = HyperbandSearchCV(
            Counter(seconds=0.01), {"slope": uniform(0, 1)}, max_iter=81, client=client,
            slice_seconds=0.05, random_state=0, max_seconds=4 if limit == "max_seconds" else None,
        )  # fmt: skip

        def close():
            while search.best_so_far_ is None:
                time.sleep(0.01)
            cluster.scale(0)
            while client.scheduler_info(n_workers=-1)["workers"]:
                time.sleep(0.01)
            if limit == "stop":
                search.stop()

        thread = threading.Thread(target=close)
        thread.start()
        search.fit(*data)
        thread.join()
    assert search.stop_reason_ == {"stop": "stopped"}.get(limit, limit)
    assert search.best_estimator_.calls_ == search.n_iter_


def test_a_search_that_never_gets_a_worker_ends(data):
    with (
        LocalCluster(n_workers=0, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        search = HyperbandSearchCV(
            Counter(), {"slope": uniform(0, 1)}, max_iter=3, client=client, max_seconds=0.5
        )
        with pytest.raises(ValueError, match=r"ended \(max_seconds\) before a model was scored"):
            search.fit(*data)


def test_models_that_kill_their_worker_cost_no_other_model(data):
    """On a cluster of Dask's own making, which gives up a worker that dies too often."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
        pytest.warns(FitFailedWarning, match="trained only this model died"),
    ):
        search = IncrementalSearchCV(
            Suicidal(at=1), {"fatal": [False, True], "slope": [0.1, 0.2]}, "grid",
            max_iter=3, client=client,
        ).fit(*data)  # fmt: skip
    fatal = search.cv_results_["param_fatal"].astype(bool)
    assert list(np.isnan(search.cv_results_["test_score"])) == list(fatal)
    assert search.best_estimator_.calls_ == 3


def test_workers_that_the_cluster_gave_up_are_started_again(data):
    with mortal_cluster(1) as cluster, Client(cluster, set_as_default=False) as client:
        (name,) = cluster.workers
        nanny = cluster.workers.pop(name)  # as the cluster does 15 seconds after a loss
        cluster.sync(nanny.close)
        search = HyperbandSearchCV(
            Counter(), {"slope": uniform(0, 1)}, max_iter=3, client=client, max_seconds=60
        ).fit(*data)
    assert search.stop_reason_ == "finished"


class Hangs(Counter):
    """Never returns from its second call if its slope is above one half."""

    def partial_fit(self, X, y=None):
        if self.slope > 0.5 and getattr(self, "calls_", 0) == 1:
            time.sleep(600)
        return super().partial_fit(X, y)


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_a_call_that_hangs_fails(where, data, request):
    client = None if where == "here" else request.getfixturevalue("mortal")
    with pytest.warns(FitFailedWarning, match="longer than max_call_seconds=0.3"):
        search = IncrementalSearchCV(
            Hangs(), {"slope": [0.1, 0.2, 0.7]}, "grid", max_iter=3, client=client,
            max_call_seconds=0.3, random_state=0,
        ).fit(*data)  # fmt: skip
    assert search.best_params_ == {"slope": 0.2}
    assert np.isnan(search.cv_results_["test_score"]).sum() == 1


class Uncopied(Counter):
    """A task copies the state of a model before it trains the model further; some cannot be."""

    def __deepcopy__(self, memo):
        if self.slope > 0.5:
            raise TypeError("the model's own trouble")
        twin = type(self)(**self.get_params())
        vars(twin).update(vars(self))
        return twin


def test_a_task_that_raises_is_not_sent_again(mortal, data):
    with pytest.warns(FitFailedWarning, match="the model's own trouble"):
        search = HyperbandSearchCV(
            Uncopied(), {"slope": uniform(0, 1)}, max_iter=9, client=mortal, random_state=0
        ).fit(*data)
    assert np.isnan(search.cv_results_["test_score"]).any()
    assert np.isfinite(search.best_score_)
