"""Ranks that start, are lost or fail, in whatever phase the driver is."""

import pytest

from accelerando._cluster.driver.pool import Turn, plural
from accelerando._cluster.driver.state import Fail, Log, Phase, RaiseFrom, StartSegment
from accelerando._cluster.messages import (
    Close,
    ProgressSeen,
    RankNotStarted,
    RankReady,
    RanksAllowed,
    Surveyed,
    TaskEnd,
    Tick,
    WorkerJoined,
    WorkerLeft,
)
from tests._cluster.driver.fake import WORKERS, Fit


def texts(fit, event):
    return [a.text for a in fit.all if isinstance(a, Log) and a.event == event]


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


def test_a_worker_that_left_unannounced_is_missed_in_the_survey():
    fit = Fit().start()
    did = fit.on(Surveyed(("a", "c", "d")))
    assert did[:3] == ["CancelTask rank-1", "log lost", "StartRank rank-3 d"]
    assert texts(fit, "lost") == ["Worker b left the cluster; ranks left: 2."]


def test_a_worker_without_ranks_may_leave():
    fit = Fit(ranks=1, workers=2).start()
    assert fit.on(WorkerLeft("b")) == []
    assert fit.state.workers == ("a",)
    assert fit.on(WorkerLeft("z")) == []


def test_a_task_that_could_not_be_submitted_is_tried_with_the_next_survey():
    fit = Fit()
    fit.epoch()
    assert fit.on(RankNotStarted("rank-1")) == ["log resend"]
    assert texts(fit, "resend") == [
        "Worker b left before it received the data; another worker is tried."
    ]
    assert fit.on(Tick()) == [], "not at once: that would be a busy loop"
    assert fit.on(Surveyed(("a", "b", "c")))[0] == "StartRank rank-3 b"


@pytest.mark.parametrize("status", ["cancelled", "killed"])
def test_lost_data_are_sent_again(status):
    fit = Fit()
    fit.epoch()
    for number in range(3):
        did = fit.on(Surveyed(WORKERS[:3], {next(iter(fit.state.ranks)): TaskEnd(status)}))
        assert did[1:3] == ["log resend", "ResendData"], number
    did = fit.on(Surveyed(WORKERS[:3], {next(iter(fit.state.ranks)): TaskEnd(status, "Why.")}))
    if status == "cancelled":  # Dask has lost the data; that is nobody's fault
        assert "ResendData" in did
    else:
        assert fit.all[-1] == Fail("A rank on a could not start: Why.", "rank-3")
        assert fit.phase is Phase.IDLE


def test_only_the_first_error_of_several_ends_the_call():
    fit = Fit()
    fit.epoch()
    ends = {"rank-2": TaskEnd("raised"), "rank-0": TaskEnd("raised")}
    assert fit.on(Surveyed(WORKERS[:3], ends)) == ["RaiseFrom rank-2"]
    assert fit.on(Surveyed(WORKERS[:3], {"rank-2": TaskEnd("raised")})) == [
        "StartRank rank-3 c", "ScaleCluster 3 3 0",
    ], "a rank whose error was raised is forgotten"  # fmt: skip


def test_an_error_while_others_train_is_raised():
    fit = Fit().start()
    fit.on(WorkerJoined("d"))
    fit.on(RanksAllowed("rank-0", 9, update=1))
    fit.on(Surveyed(WORKERS[:4], {"rank-1": TaskEnd("raised")}))
    assert fit.all[-1] == RaiseFrom("rank-1")
    did = fit.on(Close())
    assert "rank-0 <- Stop" in did
    assert "rank-1 <- Stop" not in did
    assert "CancelTask rank-1" not in did


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


def test_plurals():
    assert [plural(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


# -- giving up ------------------------------------------------------------------------------------


def test_workers_that_leave_whenever_a_rank_starts_end_the_fit_and_are_named():
    fit = Fit(ranks=2)
    fit.epoch()
    for number in range(15):
        assert fit.phase is Phase.GATHERING, number
        fit.on(Surveyed((f"x{number}",)))
    assert isinstance(fit.all[-1], Fail)
    assert fit.all[-1].reason.startswith("16 workers left the cluster while a rank started")
    assert "x13" in fit.all[-1].reason
    fit.epoch()
    assert fit.phase is Phase.GATHERING, "another call tries again"


def test_a_rank_that_trains_keeps_the_fit_alive():
    fit = Fit(ranks=2, workers=1).start()
    for number in range(30):
        fit.on(Surveyed(("a", f"x{number}")))
    assert fit.phase is Phase.TRAINING
    fit.on(ProgressSeen(update=3, update_seconds=0.1))
    assert fit.state.stillborn == ()


def test_groups_that_cannot_be_formed_end_the_fit_with_the_pair_and_the_remedy():
    fit = Fit(ranks=2).start()
    careful = []
    for _ in range(3):
        careful.append(segments(fit)[-1].careful)
        reason = "10.0.0.1 cannot connect to 10.0.0.2"
        fit.end("lost", update=0, begun=False, ranks=["rank-0"], reason=reason)
        fit.end("lost", update=0, begun=False, ranks=["rank-1"])
    assert careful == [False, True, True], "members knock after the first failure"
    assert isinstance(fit.all[-1], Fail)
    for part in ("Ranks on a, b", reason, "3 times", "ip_local_port_range", "accelerando doctor"):
        assert part in fit.all[-1].reason
    assert "accelerando.ports" in fit.all[-1].reason


def test_a_lost_worker_or_an_update_in_between_is_no_firewall():
    fit = Fit(ranks=2).start()
    for number in range(9):
        if number % 2:
            fit.on(ProgressSeen(update=number, update_seconds=0.1))
        fit.end("lost", update=0, begun=False)
    assert fit.phase is Phase.TRAINING
    fit.on(WorkerLeft("b"))
    before = fit.state.unformed
    fit.end("lost", update=0, begun=False, ranks=["rank-0"])
    assert fit.state.unformed == before


def segments(fit):
    return [action for action in fit.all if isinstance(action, StartSegment)]


def test_too_few_workers_for_min_workers_are_said():
    fit = Fit(ranks=3, workers=1, limits={"min_workers": 2}).start()
    [text] = texts(fit, "min_workers")
    assert text.startswith("min_workers=2 is not met: this fit can use 1 worker of the cluster.")
    assert not texts(Fit(ranks=3, workers=2, limits={"min_workers": 2}).start(), "min_workers")


def test_ranks_that_do_not_start_in_time_are_said():
    fit = Fit(ranks=2, limits={"min_workers": 2})
    fit.epoch()
    fit.on(RankReady("rank-0"))
    fit.on(Tick(), after=61)
    [text] = texts(fit, "min_workers")
    assert "this fit can use 2 workers of the cluster. Training begins with 1 rank and" in text


def test_after_the_loss_of_all_the_log_names_the_update_of_the_driver():
    fit = Fit(ranks=2).start(update=40)
    fit.on(Surveyed(("x", "y")))
    fit.on(RankReady(next(iter(fit.state.ranks))))
    assert texts(fit, "segment")[-1].startswith("Update 40: training continues with 1 rank")
