"""The list of workers: what is wanted, what is there, and a warning if nothing is."""

import types

import pytest

from accelerando._cluster import rank_task
from accelerando.exceptions import ClusterError
from accelerando.search import _roster
from accelerando.search._roster import Roster, fit_workers, result_of

CLIENT = types.SimpleNamespace(status="running")


@pytest.fixture
def cluster(monkeypatch):
    state = types.SimpleNamespace(workers={"a": {"nthreads": 2}}, shown=[], replaced=[])
    here = rank_task.versions_here(rank_task.PACKAGES)
    state.versions_of = lambda client, workers, *_: dict.fromkeys(workers, here)
    monkeypatch.setattr(_roster, "workers_of", lambda client: state.workers)
    monkeypatch.setattr(rank_task, "versions_of", state.versions_of)
    monkeypatch.setattr(_roster, "show_demand", lambda client, topic, n: state.shown.append(n))
    monkeypatch.setattr(_roster, "replace_lost_workers", lambda client, n: state.replaced.append(n))
    return state


def test_the_demand_is_shown_when_it_changes(cluster, monkeypatch):
    monkeypatch.setattr(_roster, "REFRESH_SECONDS", 0.0)
    roster = Roster(CLIENT, "topic")
    for n_jobs in (5, 6, 5, 1, 0):
        roster.want(n_jobs)
    assert cluster.shown == [3, 1, 0]


def test_without_a_worker_one_is_wanted(cluster):
    cluster.workers = {}
    roster = Roster(CLIENT, "topic")
    roster.want(17)
    assert cluster.shown == [1]
    cluster.workers = {"a": {"nthreads": 4}}
    roster.refresh(force=True)
    roster.want(17)
    assert cluster.shown == [1, 5]


def test_a_cluster_without_workers_is_reported_once(cluster, monkeypatch):
    cluster.workers = {}
    monkeypatch.setattr(_roster, "WARN_SECONDS", -1.0)
    monkeypatch.setattr(_roster, "REPLACE_SECONDS", -1.0)
    with pytest.warns(UserWarning, match="has had no worker for -1 seconds") as caught:
        roster = Roster(CLIENT, "topic")
    roster.refresh(force=True)  # a second warning would be an error
    assert len(caught) == 1
    assert cluster.replaced == [0, 0]


def test_a_demand_that_falls_is_shown_now_and_then(cluster, monkeypatch):
    """Each message costs time, and the demand falls with every model that ends."""
    roster = Roster(CLIENT, "topic")
    for n_jobs in (9, 8, 6, 4, 9, 5):
        roster.want(n_jobs)
    assert cluster.shown == [5]
    roster.want(12)  # a higher demand is urgent
    monkeypatch.setattr(_roster, "REFRESH_SECONDS", 0.0)  # as if that time had passed
    roster.want(8)  # four workers are as good as six while there is one
    assert cluster.shown == [5, 6]
    roster.want(6)
    roster.want(6)
    assert cluster.shown == [5, 6, 3]
    cluster.workers = {name: {"nthreads": 2} for name in "abcd"}
    roster.refresh(force=True)
    roster.want(8)
    roster.want(6)  # one of the four would be idle
    assert cluster.shown == [5, 6, 3, 4, 3]
    cluster.workers = {"a": {"nthreads": 2}}
    monkeypatch.setattr(_roster, "REFRESH_SECONDS", 1e9)
    roster.want(0)  # the search has ended
    assert cluster.shown == [5, 6, 3, 4, 3, 0]


def test_a_client_that_has_given_up_ends_every_wait(cluster):
    client = types.SimpleNamespace(status="running")
    roster = Roster(client, "topic")
    client.status = "closed"
    with pytest.raises(ClusterError, match="scheduler is gone"):
        roster.refresh(force=True)

    def result(timeout):
        raise TimeoutError

    future = types.SimpleNamespace(result=result)  # of a scheduler that will never answer
    assert result_of(future, lambda: False, roster) is None


def test_workers_that_cannot_train_get_nothing_and_are_named_once(cluster, monkeypatch):
    """What is sent to them would make them leave the cluster, which others may use, too."""
    here = rank_task.versions_here(rank_task.PACKAGES)
    answers = {"a": here, "bare": {}}
    monkeypatch.setattr(rank_task, "versions_of", lambda *_: answers)
    cluster.workers = {name: {"nthreads": 2} for name in ("a", "bare", "hangs")}
    with pytest.warns(UserWarning, match="Worker") as caught:
        roster = Roster(CLIENT, "topic")
    roster.refresh(force=True)
    assert roster.threads == {"a": 2}
    assert sorted(str(one.message) for one in caught) == [
        "Worker bare has no accelerando, no torch, no skorch. It is not used.",
        "Worker hangs does not answer and is not used for now.",
    ]


def test_a_worker_that_is_paused_while_it_trains_stays(cluster):
    roster = Roster(CLIENT, "topic")
    facts = {"nthreads": 2, "status": "paused", "memory_limit": 10**9}
    cluster.workers = {"a": facts, "b": facts}
    with pytest.warns(UserWarning, match="Worker b is paused: its memory limit of 1,000 MB"):
        roster.refresh(force=True)
    assert roster.threads == {"a": 2}


def only_unfit(cluster, monkeypatch):
    monkeypatch.setattr(rank_task, "versions_of", lambda *_: {"bare": {}})
    monkeypatch.setattr(_roster, "UNFIT_SECONDS", -1.0)
    cluster.workers = {"bare": {"nthreads": 2}}


@pytest.mark.filterwarnings("ignore:Worker bare")
def test_a_search_whose_workers_are_all_unfit_ends_with_their_names(cluster, monkeypatch):
    only_unfit(cluster, monkeypatch)
    with pytest.raises(ClusterError, match=r"No worker .* can be used .*: bare has no accelerando"):
        Roster(CLIENT, "topic")
    cluster.workers = {}  # a queue may be long: this search waits
    Roster(CLIENT, "topic")


@pytest.mark.filterwarnings("ignore:Worker bare")
def test_a_search_that_has_lost_its_workers_waits_for_others(cluster, monkeypatch):
    roster = Roster(CLIENT, "topic")
    only_unfit(cluster, monkeypatch)
    roster.refresh(force=True)
    assert roster.threads == {}


@pytest.mark.filterwarnings("ignore:Worker bare")
def test_data_waits_for_a_worker_that_fits(cluster, monkeypatch):
    """A task on another worker would make it leave the cluster."""
    answers = {"bare": {}, "a": rank_task.versions_here(rank_task.PACKAGES)}
    monkeypatch.setattr(rank_task, "versions_of", lambda *_: answers)
    monkeypatch.setattr(_roster, "REFRESH_SECONDS", -1.0)
    monkeypatch.setattr(_roster, "POLL_SECONDS", 0.0)
    cluster.workers = {"bare": {"nthreads": 2}}
    looks = []

    def check():
        looks.append(1)
        if len(looks) == 2:
            cluster.workers = {**cluster.workers, "a": {"nthreads": 2}}

    found = fit_workers(CLIENT, check)
    assert found == {"workers": ["a"], "allow_other_workers": True}
    assert (len(looks), cluster.shown) == (2, [1, 0])
