"""Every transition of the driver, without Dask and without a clock."""

import pytest

from accelerando._cluster.driver.state import Phase
from accelerando._cluster.messages import (
    BatchSizeChanged,
    Close,
    Collect,
    Interrupt,
    RankNotStarted,
    RankRaised,
    RankReady,
    RanksAllowed,
    SegmentEnded,
    Surveyed,
    TaskEnd,
    Tick,
    TrainEpoch,
    WorkerJoined,
    WorkerLeft,
)
from tests._cluster.driver.fake import WORKERS, Fit, check_transition, transitions


def idle():
    return Fit()


def gathering():
    fit = Fit()
    fit.epoch()
    return fit


def one_of_three_ready():
    fit = gathering()
    fit.on(RankReady("rank-0"))
    return fit


def two_of_three_ready():
    fit = one_of_three_ready()
    fit.on(RankReady("rank-1"))
    return fit


def nobody():
    fit = Fit(workers=0)
    fit.epoch()
    return fit


def training():
    return Fit().start()


def interrupted():
    fit = training()
    fit.on(Interrupt())
    return fit


def training_with_spare():
    """Three ranks train on four workers, and the batch is now worth four."""
    fit = Fit(ranks=3, workers=4).start()
    fit.on(BatchSizeChanged("rank-0", 64))
    return fit


def one_lost():
    """A member is lost, and the others have not answered yet."""
    fit = training()
    fit.on(WorkerLeft("b"))
    return fit


def one_left_to_answer():
    fit = one_lost()
    fit.end("lost", update=7, ranks=["rank-0"])
    return fit


def one_epoch_ended():
    fit = training()
    fit.end("epoch", ranks=["rank-0"])
    return fit


def two_epochs_ended():
    fit = one_epoch_ended()
    fit.end("epoch", ranks=["rank-1"])
    return fit


def collecting():
    fit = training()
    fit.end()
    return fit


def idle_after_epoch():
    return Fit().between_epochs()


def raised():
    """The user's code has raised on one rank, and the others have lost contact."""
    fit = training()
    fit.on(RankRaised("rank-1", update=7))
    fit.end("lost", update=7, ranks=["rank-0"])
    return fit


def fewer_wanted():
    fit = training()
    fit.on(RanksAllowed("rank-0", 2, update=5))
    return fit


def unformed():
    """Two groups could not be formed, and one of the three members has said so again."""
    fit = training()
    for _ in range(2):
        fit.end("lost", update=0, begun=False, reason="a cannot connect to b")
    fit.end("lost", update=0, begun=False, ranks=["rank-0", "rank-1"])
    return fit


def seven_left():
    """A cluster of one worker, which has left seven times while its rank started."""
    fit = Fit(ranks=1)
    fit.epoch()
    for old, new in zip("abcdefg", "bcdefgh", strict=True):
        fit.on(WorkerLeft(old))
        fit.on(WorkerJoined(new))
    return fit


G, T, D, C = Phase.GATHERING, Phase.TRAINING, Phase.DRAINING, Phase.COLLECTING
IDLE = Phase.IDLE
NEXT = "rank-1 <- SendState blob=state/3 parts=('MODEL', 'POSITION', 'RECORDS')"
ASK = "rank-0 <- SendState blob=state/2 parts=('MODEL', 'POSITION', 'RECORDS')"
# fmt: off
TRANSITIONS = [
    # given, event, seconds later, phase after, actions
    (idle, TrainEpoch(0, 2), 0, G,
     ["StartRank rank-0 a", "StartRank rank-1 b", "StartRank rank-2 c", "ScaleCluster 3 3 0"]),
    (one_of_three_ready, RankReady("rank-1"), 0, G, []),
    (two_of_three_ready, RankReady("rank-2"), 0, T,
     ["PutState start/1", "segment 1 generation 1: rank-0 rank-1 rank-2 source=0 blob=start/1"]),
    (two_of_three_ready, Tick(), 61, T,
     ["PutState start/1", "segment 1 generation 1: rank-0 rank-1 source=0 blob=start/1"]),
    # a worker dies while its rank starts: the others need not wait for it
    (two_of_three_ready, WorkerLeft("c"), 0, T,
     ["CancelTask rank-2", "log lost", "PutState start/1",
      "segment 1 generation 1: rank-0 rank-1 source=0 blob=start/1"]),
    (one_of_three_ready, WorkerLeft("c"), 0, G, ["CancelTask rank-2", "log lost"]),
    (gathering, Surveyed(WORKERS[:3]), 181, G,
     ["log silent", "log silent", "log silent", "ScaleCluster 3 3 3"]),
    (nobody, Tick(), 59, G, []),
    (nobody, Tick(), 61, IDLE, ["Fail"]),
    (nobody, WorkerJoined("a"), 1, G, ["StartRank rank-0 a", "ScaleCluster 3 1 2"]),
    (gathering, Interrupt(), 0, IDLE, ["Finish interrupted"]),
    # data are lost with a worker
    (gathering, Surveyed(WORKERS[:3], {"rank-1": TaskEnd("cancelled")}), 1, G,
     ["CancelTask rank-1", "log resend", "ResendData", "StartRank rank-3 b", "ScaleCluster 3 3 0"]),
    (gathering, Surveyed(WORKERS[:3], {"rank-1": TaskEnd("raised")}), 1, IDLE,
     ["RaiseFrom rank-1"]),
    (gathering, Surveyed(WORKERS[:3], {"rank-1": TaskEnd("unreachable", "No.")}), 1, IDLE,
     ["Fail"]),
    # inside a segment
    (training, Tick(), 1000, T, []),
    (training, WorkerLeft("b"), 0, D,
     ["CancelTask rank-1", "log lost", "rank-0 <- Abandon generation=1",
      "rank-2 <- Abandon generation=1"]),
    # the one that is lost has not taken the state that was put for it
    (training, WorkerLeft("a"), 0, D,
     ["DropBlob start/1", "CancelTask rank-0", "log lost", "rank-1 <- Abandon generation=1",
      "rank-2 <- Abandon generation=1"]),
    (training, SegmentEnded("rank-1", 1, "lost", 7), 0, D,
     ["rank-0 <- Abandon generation=1", "rank-2 <- Abandon generation=1"]),
    (training, RankRaised("rank-1", 7), 0, D,
     ["rank-0 <- Abandon generation=1", "rank-2 <- Abandon generation=1"]),
    (training, SegmentEnded("rank-1", 1, "epoch", 10), 0, D, []),
    (training, Surveyed(WORKERS[:3], {"rank-2": TaskEnd("finished")}), 1, D,
     ["CancelTask rank-2", "log lost", "StartRank rank-3 c", "ScaleCluster 3 3 0",
      "rank-0 <- Abandon generation=1", "rank-1 <- Abandon generation=1"]),
    (one_left_to_answer, SegmentEnded("rank-2", 1, "lost", 7), 0, T,
     ["ScaleCluster 3 2 1", "log segment",
      "segment 2 generation 2: rank-0 rank-2 source=None blob=None"]),
    (one_left_to_answer, SegmentEnded("rank-2", 1, "lost", 6), 0, T,
     ["ScaleCluster 3 2 1", "log segment",
      "segment 2 generation 2: rank-0 rank-2 source=0 blob=None"]),
    # a silent rank
    (one_left_to_answer, Tick(), 1.9, D, []),
    (one_left_to_answer, Tick(), 2.1, T,
     ["log silent", "ScaleCluster 3 2 2", "log segment",
      "segment 2 generation 2: rank-0 source=None blob=None"]),
    (one_epoch_ended, Tick(), 9.9, D, []),
    (one_epoch_ended, Tick(), 10.1, C, ["log silent", "log silent", ASK]),
    # all ranks lost: those that start again get the state of the driver
    (training, Surveyed(("x",)), 1, G,
     ["DropBlob start/1", "CancelTask rank-0", "log lost", "CancelTask rank-1", "log lost",
      "CancelTask rank-2", "log lost", "StartRank rank-3 x", "ScaleCluster 3 1 2",
      "ScaleCluster 3 1 2"]),
    # workers that leave whenever a rank starts, and ranks that do not reach each other
    (seven_left, WorkerLeft("h"), 0, IDLE, ["CancelTask rank-7", "log lost", "Fail"]),
    (seven_left, RankNotStarted("rank-7"), 0, IDLE, ["log resend", "Fail"]),
    (seven_left, RankReady("rank-7"), 0, T,
     ["PutState start/1", "segment 1 generation 1: rank-7 source=0 blob=start/1"]),
    (unformed, SegmentEnded("rank-2", 3, "lost", 0, begun=False), 0, IDLE, ["Fail"]),
    (unformed, SegmentEnded("rank-2", 3, "lost", 5), 0, T,
     ["log segment", "segment 4 generation 4: rank-2 rank-0 rank-1 source=0 blob=None"]),
    # more and fewer ranks, and Ctrl-C
    (training, BatchSizeChanged("rank-0", 64), 0, T, ["ScaleCluster 4 3 1"]),
    (training_with_spare, RankReady("rank-3"), 0, T,
     ["rank-0 <- Pause segment=1 membership_changes=True"]),
    (training, RanksAllowed("rank-0", 2, update=5), 0, T,
     ["log workers", "rank-0 <- Pause segment=1 membership_changes=True"]),
    (fewer_wanted, RanksAllowed("rank-0", 1, update=6), 0, T, ["log workers"]),
    (fewer_wanted, Interrupt(), 0, T, []),
    (training, Interrupt(), 0, T, ["rank-0 <- Pause segment=1 membership_changes=False"]),
    (interrupted, Interrupt(), 0, T, []),
    (interrupted, SegmentEnded("rank-0", 1, "paused", 7), 0, D, ["DropBlob start/1"]),
    # the end of an epoch
    (two_epochs_ended, SegmentEnded("rank-2", 1, "epoch", 10), 0, C, [ASK]),
    (two_epochs_ended, WorkerLeft("c"), 0, C, ["CancelTask rank-2", "log lost", ASK]),
    (collecting, WorkerLeft("a"), 0, C,
     ["DropBlob state/2", "CancelTask rank-0", "log lost", NEXT]),
    (collecting, Tick(), 71, C, ["log silent", NEXT]),
    (collecting, Surveyed(()), 1, G,
     ["DropBlob state/2", "CancelTask rank-0", "log lost", "CancelTask rank-1", "log lost",
      "CancelTask rank-2", "log lost", "ScaleCluster 3 0 3", "ScaleCluster 3 0 3"]),
    (raised, SegmentEnded("rank-2", 1, "lost", 7), 0, C, [ASK]),
    # between epochs
    (idle_after_epoch, TrainEpoch(1, 2, update=10), 0, T,
     ["segment 2 generation 1: rank-0 rank-1 rank-2 source=None blob=None"]),
    (idle_after_epoch, TrainEpoch(1, 2, update=10, changed=True), 0, T,
     ["PutState start/3",
      "segment 2 generation 1: rank-0 rank-1 rank-2 source=0 blob=start/3"]),
    (idle_after_epoch, WorkerLeft("b"), 0, IDLE, ["CancelTask rank-1", "log lost"]),
    (idle_after_epoch, Collect(update=10), 0, IDLE, ["Finish collected"]),
    (idle_after_epoch, Close(), 0, Phase.CLOSED,
     ["rank-0 <- Stop", "rank-1 <- Stop", "rank-2 <- Stop",
      "AwaitTasks ('rank-0', 'rank-1', 'rank-2') 5.0", "CancelTask rank-0", "CancelTask rank-1",
      "CancelTask rank-2", "RestoreCluster", "Finish closed"]),
]
# fmt: on


@transitions(TRANSITIONS)
def test_transition(row):
    check_transition(row)


def test_calls_come_one_after_the_other():
    with pytest.raises(RuntimeError, match="TrainEpoch came while the driver waits for the end"):
        training().epoch()


def test_nothing_happens_after_the_end():
    fit = idle_after_epoch()
    fit.on(Close())
    assert fit.on(WorkerJoined("z")) == fit.on(RankReady("rank-0")) == fit.on(Tick(), 1000) == []
