"""Workers, ranks and tasks that are lost, and when the driver gives up."""

import pytest

from accelerando._cluster.driver import losses
from accelerando._cluster.driver.pool import Turn
from accelerando._cluster.driver.state import CancelTask, Fail, Phase, RaiseFrom
from accelerando._cluster.messages import (
    Close,
    ProgressSeen,
    RankNotStarted,
    RankReady,
    RanksAllowed,
    SegmentEnded,
    Surveyed,
    TaskEnd,
    Tick,
    WorkerJoined,
    WorkerLeft,
)
from tests._cluster.driver.fake import WORKERS, Fit, segments, texts


def test_a_fit_that_loses_nothing_asks_about_no_losses(monkeypatch):
    names = [name for name in vars(losses) if callable(vars(losses)[name])]
    for name in names:
        if vars(losses)[name].__module__ == losses.__name__:
            monkeypatch.setattr(losses, name, None)
    fit = Fit().between_epochs()
    assert fit.on(Surveyed(WORKERS[:3])) == []
    fit.epoch(1, update=10)
    fit.end(update=20)
    assert fit.collected()[-1] == "Finish epoch"


def test_the_ranks_of_workers_that_left_are_dropped_and_the_workers_forgotten():
    turn = Turn.of(Fit().start().state, now=1.0)
    losses.workers_left(turn, {"a", "c"})
    assert turn.state.workers == ("b",)
    assert list(turn.state.ranks) == ["rank-1"]
    assert turn.state.lost == ["a", "c"]
    assert turn.state.stillborn == ()  # they had started


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
        "Worker b left, or hangs, before it received the data; another one is tried."
    ]
    assert fit.on(Tick()) == [], "not at once: that would be a busy loop"
    assert fit.on(Surveyed(("a", "b", "c")))[0] == "StartRank rank-3 b"


def test_ranks_that_start_on_workers_that_hang_are_not_awaited():
    fit = Fit()
    fit.epoch()
    fit.on(RankReady("rank-0"))
    fit.on(RankReady("rank-2"))
    assert fit.state.phase is Phase.GATHERING
    did = fit.on(Surveyed(("a", "b", "c"), hanging=("b",)))
    assert did[0] == "log silent"
    assert fit.state.phase is Phase.TRAINING
    assert fit.state.members == ("rank-0", "rank-2")
    assert "CancelTask rank-1" not in did
    fit.on(RankReady("rank-1"))
    assert fit.state.ranks["rank-1"].status == "ready", "it may come later"


def test_a_member_that_hangs_while_the_group_is_formed_is_left_behind():
    """The others would wait for a minute; once they train, they notice by themselves."""
    fit = Fit().start()
    did = fit.on(Surveyed(("a", "b", "c"), hanging=("b",)))
    assert [one for one in did if "Abandon" in one] == [
        f"rank-{number} <- Abandon generation=1" for number in range(3)
    ]
    assert fit.state.phase is Phase.DRAINING
    fit.on(SegmentEnded("rank-0", 1, "lost", 0, 0, 0, begun=False))
    fit.on(SegmentEnded("rank-2", 1, "lost", 0, 0, 0, begun=False))
    fit.on(Tick(), after=3.0)
    assert texts(fit, "silent") == ["The rank on b does not answer."]
    assert fit.state.phase is Phase.TRAINING
    assert fit.state.members == ("rank-0", "rank-2")


def test_a_member_that_hangs_while_it_trains_is_noticed_by_the_others():
    fit = Fit().start()
    fit.on(ProgressSeen(update=1, update_seconds=0.1))
    assert fit.on(Surveyed(("a", "b", "c"), hanging=("b",))) == []
    alone = Fit(ranks=1).start()
    assert alone.on(Surveyed(("a", "b", "c"), hanging=("a",))) == [], "it may only be busy"


def test_data_that_only_a_hanging_worker_may_have_are_sent_again():
    """The others would wait for them until Dask gives the worker up, after five minutes."""
    fit = Fit()
    fit.epoch()
    did = fit.on(Surveyed(("a", "b", "c"), hanging=("a",)))
    assert did.count("ResendData") == 1
    assert {"CancelTask rank-1", "CancelTask rank-2"} <= set(did)
    assert [one for one in did if one.startswith("StartRank")] == [
        "StartRank rank-3 b",
        "StartRank rank-4 c",
    ]
    assert did.index("ResendData") < did.index("StartRank rank-3 b")
    again = fit.on(Surveyed(("a", "b", "c"), hanging=("a",)))
    assert "ResendData" not in again, "the new ones have theirs from another worker"
    fit.on(Surveyed(("a", "b", "c")))
    assert "ResendData" in fit.on(Surveyed(("a", "b", "c"), hanging=("b",)))


def test_nothing_is_sent_again_if_no_rank_waits_for_it():
    fit = Fit().start()
    assert "ResendData" not in fit.on(Surveyed(WORKERS[:3], hanging=("a",)))


def test_another_rank_is_asked_if_the_worker_of_the_first_hangs():
    fit = Fit().start()
    fit.end()
    assert fit.state.phase is Phase.COLLECTING
    [asked] = fit.state.requests
    worker = fit.state.ranks[asked].worker
    fit.on(Surveyed(WORKERS[:3], hanging=tuple(w for w in WORKERS if w != worker)))
    assert list(fit.state.requests) == [asked]
    fit.on(Surveyed(WORKERS[:3], hanging=(worker,)))
    assert fit.state.ranks[asked].status == "silent"
    [other] = fit.state.requests
    assert other != asked


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


def test_workers_that_start_no_rank_are_awaited_as_long_as_missing_ones():
    """Their threads may be busy with the tasks of somebody else, for hours."""
    fit = Fit(ranks=2, worker_timeout=300.0)
    fit.epoch()
    fit.on(Surveyed(("a", "b")), after=181)
    assert texts(fit, "silent") == [
        "The rank on a has not started for 180 s.", "The rank on b has not started for 180 s.",
    ]  # fmt: skip
    for _ in range(299):
        fit.on(Surveyed(("a", "b")), after=1)
    assert fit.phase is Phase.GATHERING
    assert not any(isinstance(action, CancelTask) for action in fit.all), "they wait for a thread"
    fit.on(Surveyed(("a", "b")), after=2)
    assert isinstance(fit.all[-1], Fail)


def test_a_rank_that_starts_late_is_used():
    fit = Fit(ranks=2)
    fit.epoch()
    fit.on(Surveyed(("a", "b")), after=181)
    fit.on(RankReady("rank-1"), after=30)
    assert fit.phase is Phase.TRAINING
    assert fit.state.members == ("rank-1",)
    did = fit.on(RankReady("rank-0"))
    assert any("Pause" in one for one in did), "it joins"
