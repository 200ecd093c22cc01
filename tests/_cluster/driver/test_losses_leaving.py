"""Workers that give notice: their ranks leave first, and no state is lost with them."""

from accelerando._cluster.driver.state import Phase
from accelerando._cluster.messages import (
    BatchesEvaluated,
    BatchSizeChanged,
    EvaluateBatches,
    Interrupt,
    LeaveRequested,
    RankReady,
    SegmentEnded,
    Surveyed,
    TrainEpoch,
    WorkerJoined,
    WorkerLeft,
)
from tests._cluster.driver.fake import WORKERS, Fit, check_transition, segments, texts, transitions

G, T, D, C, A = (
    Phase.GATHERING, Phase.TRAINING, Phase.DRAINING, Phase.COLLECTING, Phase.AVERAGING,
)  # fmt: skip


def starting():
    fit = Fit(ranks=2, workers=3)
    fit.epoch()
    return fit


def training():
    return Fit(ranks=2).start()


def training_beside_a_free_worker():
    return Fit(ranks=2, workers=3).start()


def with_a_spare():
    """Two ranks train, a third is ready, and a fourth is still starting."""
    fit = Fit(ranks=2, workers=4).start()
    fit.on(BatchSizeChanged("rank-0", 64))
    fit.on(RankReady("rank-2"))
    return fit


def alone():
    return Fit(ranks=1).start()


def asked_to_leave():
    fit = training()
    fit.on(LeaveRequested("a"))
    return fit


def all_asked_to_leave():
    fit = alone()
    fit.on(LeaveRequested("a"))
    return fit


def one_paused():
    fit = asked_to_leave()
    fit.end("paused", update=5, ranks=["rank-0"])
    return fit


def only_the_leaving_one_has_the_update():
    fit = asked_to_leave()
    fit.end("lost", update=7, ranks=["rank-0"])
    return fit


def between_epochs():
    fit = Fit(ranks=2).between_epochs()
    fit.on(LeaveRequested("a"))
    return fit


def replicas_between_epochs():
    fit = Fit(ranks=2, averages=True).between_epochs(since=3)
    fit.on(LeaveRequested("a"))
    return fit


def replicas_all_leave():
    fit = replicas_between_epochs()
    fit.on(LeaveRequested("b"))
    return fit


PAUSE = "rank-0 <- Pause segment=1 membership_changes=True"
MODEL = "SendState blob=state/2 parts=('MODEL', 'POSITION', 'RECORDS')"
LEFT = ["rank-0 <- Stop", "CancelTask rank-0", "log left"]
# fmt: off
TRANSITIONS = [
    # given, event, seconds later, phase after, actions
    (training, LeaveRequested("a"), 0, T, ["log leaving", "ScaleCluster 2 1 1", PAUSE]),
    (training, LeaveRequested("b"), 0, T, ["log leaving", "ScaleCluster 2 1 1", PAUSE]),
    (training, LeaveRequested("z"), 0, T, []),
    (training, Surveyed(WORKERS[:2], closing=("a",)), 0, T,
     ["log leaving", "ScaleCluster 2 1 1", "ScaleCluster 2 1 1", PAUSE]),
    (asked_to_leave, LeaveRequested("a"), 0, T, []),
    # another rank is started where a worker is free
    (training_beside_a_free_worker, LeaveRequested("a"), 0, T,
     ["log leaving", "StartRank rank-2 c", "ScaleCluster 2 2 0", PAUSE]),
    # a rank that does not train goes at once
    (starting, LeaveRequested("a"), 0, G,
     ["log leaving", *LEFT, "StartRank rank-2 c", "ScaleCluster 2 2 0"]),
    (with_a_spare, LeaveRequested("c"), 0, T,
     ["log leaving", "rank-2 <- Stop", "CancelTask rank-2", "log left", "ScaleCluster 4 3 1"]),
    # Dask forgets the worker, and it still waits for its rank
    (asked_to_leave, WorkerLeft("a", retired=True), 0, T, []),
    (asked_to_leave, Surveyed(("b",)), 1, T, ["ScaleCluster 2 1 1"]),
    # it waits no longer
    (asked_to_leave, WorkerLeft("a"), 0, D,
     ["DropBlob start/1", "CancelTask rank-0", "log lost", "rank-1 <- Abandon generation=1"]),
    (asked_to_leave, Surveyed(("b",)), 31, D,
     ["DropBlob start/1", "CancelTask rank-0", "log lost", "ScaleCluster 2 1 1",
      "rank-1 <- Abandon generation=1"]),
    # the others have the same state
    (one_paused, SegmentEnded("rank-1", 1, "paused", 5), 0, T,
     ["ScaleCluster 2 1 1", *LEFT, "log segment",
      "segment 2 generation 2: rank-1 source=None blob=None"]),
    # the others were lost, or are behind
    (only_the_leaving_one_has_the_update, SegmentEnded("rank-1", 1, "lost", 7), 0, T,
     ["ScaleCluster 2 1 1", *LEFT, "log segment",
      "segment 2 generation 2: rank-1 source=None blob=None"]),
    (only_the_leaving_one_has_the_update, SegmentEnded("rank-1", 1, "lost", 6), 0, C,
     ["ScaleCluster 2 1 1", f"rank-0 <- {MODEL}"]),
    # nobody else has the state
    (all_asked_to_leave, SegmentEnded("rank-0", 1, "paused", 5), 0, C,
     ["DropBlob start/1", "ScaleCluster 1 0 1", f"rank-0 <- {MODEL}"]),
    # the other one dies before it has paused
    (one_paused, WorkerLeft("b"), 0, C,
     ["CancelTask rank-1", "log lost", "ScaleCluster 2 0 2", f"rank-0 <- {MODEL}"]),
    # between epochs the driver has the state
    (between_epochs, TrainEpoch(1, 2, update=10), 0, T,
     ["ScaleCluster 2 1 1", *LEFT, "log segment",
      "segment 2 generation 2: rank-1 source=None blob=None"]),
    (between_epochs, WorkerJoined("a"), 0, Phase.IDLE, []),
    # replicas average before one of them leaves
    (replicas_between_epochs, TrainEpoch(1, 2, update=10), 0, A,
     ["ScaleCluster 2 1 1", "rank-0 <- AverageNow", "rank-1 <- AverageNow"]),
    (replicas_all_leave, TrainEpoch(1, 2, update=10), 0, A,
     ["ScaleCluster 2 0 2", "rank-0 <- AverageNow", "rank-1 <- AverageNow"]),
]
# fmt: on


@transitions(TRANSITIONS)
def test_transition(row):
    check_transition(row)


def test_the_state_of_the_only_rank_is_kept():
    fit = all_asked_to_leave()
    fit.end("paused", update=5)
    assert fit.collected() == ["LoadState state/2", "ScaleCluster 1 0 1", *LEFT]
    assert fit.state.here.update == 5
    assert fit.phase is G
    assert fit.on(WorkerLeft("a", retired=True)) == []
    assert fit.on(Surveyed(())) == ["ScaleCluster 1 0 1"]
    assert not fit.state.leaving
    fit.on(WorkerJoined("b"))
    assert fit.on(RankReady("rank-1"))[-2:] == [
        "log segment", "segment 2 generation 2: rank-1 source=0 blob=start/3",
    ]  # fmt: skip
    assert not texts(fit, "lost")


def test_replicas_that_all_leave_are_averaged_and_collected():
    fit = replicas_all_leave()
    fit.epoch(1, update=10)
    fit.end("averaged", update=10, averagings=1)
    assert fit.phase is C
    fit.collected()
    did = fit.collected()
    assert "LoadReplicas ('state/4', 'state/5')" in did
    assert [line for line in did if "Stop" in line] == ["rank-0 <- Stop", "rank-1 <- Stop"]
    assert fit.state.here == (1, 10)


def test_a_worker_that_stays_after_all_is_used_again():
    fit = asked_to_leave()
    fit.on(WorkerJoined("a"))
    assert fit.state.workers == ("b", "a")
    fit.end("paused", update=5)
    assert segments(fit)[-1].members == ("rank-0", "rank-1")
    assert not texts(fit, "left")


def test_a_worker_that_is_still_there_later_is_used_again():
    fit = asked_to_leave()
    fit.end("paused", update=5)
    assert fit.on(Surveyed(("a", "b"), closing=("a",)), after=31) == ["ScaleCluster 2 1 1"]
    assert "StartRank rank-2 a" not in fit.on(Surveyed(("a", "b"), closing=("a",)))
    assert "StartRank rank-2 a" in fit.on(Surveyed(("a", "b")))


def test_ctrl_c_and_notice_at_once():
    fit = all_asked_to_leave()
    assert fit.on(Interrupt()) == [], "it is pausing already"
    fit.end("paused", update=5)
    assert fit.collected()[-1] == "Finish interrupted"
    assert fit.state.here.update == 5


def test_a_rank_that_leaves_evaluates_only_if_nobody_else_can():
    fit = between_epochs()
    assert fit.on(EvaluateBatches(4, 10)) == [
        "rank-1 <- Evaluate batches=(0, 1, 2, 3) blob=valid/3"
    ]
    fit.on(BatchesEvaluated("rank-1", "valid/3"))
    fit.on(LeaveRequested("b"))
    assert len(fit.on(EvaluateBatches(4, 10))) == 2


def test_workers_whose_lifetime_is_too_short_to_start_a_rank_end_the_fit():
    fit = Fit(ranks=1, workers=0, worker_timeout=60.0)
    fit.epoch()
    for number in range(5 + 8):  # the first minute's may be a coincidence
        assert fit.phase is Phase.GATHERING
        fit.on(WorkerJoined(f"w{number}"))
        fit.on(LeaveRequested(f"w{number}"), after=10.0)
        fit.on(WorkerLeft(f"w{number}"))
    assert fit.phase is Phase.IDLE
    assert fit.all[-1].reason.startswith("8 workers left the cluster while a rank started there")
