"""Ranks that start and stop, in whatever phase the driver is."""

from accelerando._cluster.driver.pool import Turn
from accelerando._cluster.messages import (
    Close,
    RanksAllowed,
    Tick,
    WorkerJoined,
    WorkerLeft,
)
from tests._cluster.driver.fake import Fit, texts


def test_a_turn_works_on_a_copy():
    fit = Fit().start()
    turn = Turn.of(fit.state, now=1.0)
    turn.change("rank-0", status="silent")
    turn.state.lost.append("a")
    turn.state.requests["rank-0"] = turn.state.start_blobs["rank-9"] = turn.state.received["b"] = 0
    assert fit.statuses()["rank-0"] == "training"
    assert not fit.state.lost
    assert not fit.state.requests
    assert "rank-9" not in fit.state.start_blobs
    assert not fit.state.received


def test_no_rank_starts_before_the_first_epoch():
    fit = Fit(workers=1)
    assert fit.on(WorkerJoined("b")) == []
    assert fit.state.workers == ("a", "b")


def test_a_worker_has_one_rank():
    fit = Fit(ranks=3, workers=2)
    assert fit.epoch() == ["StartRank rank-0 a", "StartRank rank-1 b", "ScaleCluster 3 2 1"]
    assert fit.on(WorkerJoined("b")) == ["ScaleCluster 3 2 1"], "it is known already"
    assert fit.on(WorkerJoined("c")) == ["StartRank rank-2 c", "ScaleCluster 3 3 0"]
    assert fit.on(WorkerJoined("d")) == [], "nobody is missing"


def test_a_silent_rank_keeps_its_worker():
    fit = Fit(ranks=2).start()
    fit.end("lost", update=3, ranks=["rank-0"])
    did = fit.on(Tick(), after=2.1)
    assert did[:2] == ["log silent", "ScaleCluster 2 2 1"]
    assert fit.on(WorkerLeft("b"))[:2] == ["CancelTask rank-1", "log lost"]


def test_close_waits_only_for_ranks_that_answer():
    fit = Fit(ranks=2).start()
    fit.end("lost", update=3, ranks=["rank-0"])
    fit.on(Tick(), after=2.1)
    did = fit.on(Close())
    assert "rank-1 <- Stop" in did
    assert "AwaitTasks ('rank-0',) 5.0" in did
    assert did[-2:] == ["RestoreCluster", "Finish closed"]
    assert "CancelTask rank-1" in did


def test_a_policy_without_a_limit_is_logged_as_such():
    fit = Fit().start()
    fit.on(RanksAllowed("rank-0", 1, update=3))
    fit.on(RanksAllowed("rank-0", None, update=4))
    fit.on(RanksAllowed("rank-0", None, update=5))
    assert texts(fit, "workers") == [
        "Update 3: a policy allows 1 rank; 1 should train (a policy allows 1).",
        "Update 4: a policy allows any number of ranks; 3 should train "
        "(batch 48, 16 rows per rank).",
    ]
