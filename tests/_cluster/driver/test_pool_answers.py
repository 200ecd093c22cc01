"""States and validation results that the driver collects from ranks."""

import pytest

from accelerando._cluster.driver.state import Fail, Phase
from accelerando._cluster.messages import (
    BatchesEvaluated,
    EvaluateBatches,
    RankRaised,
    SegmentEnded,
    StateSent,
    Surveyed,
    Tick,
    WorkerLeft,
)
from tests._cluster.driver.fake import Fit, asked, send

# -- states ---------------------------------------------------------------------------------------


def test_at_the_end_of_an_epoch_one_rank_sends_the_state():
    fit = Fit().start()
    fit.end(update=10)
    assert asked(fit) == {"rank-0": "state/2"}
    assert send(fit, "rank-0") == ["LoadState state/2", "Finish epoch"]
    assert fit.state.here == (0, 10)


def test_an_error_is_raised_when_the_best_state_was_loaded():
    fit = Fit().start()
    fit.on(RankRaised("rank-1", update=8))
    fit.end("lost", update=7, ranks=["rank-0", "rank-2"])
    assert asked(fit) == {"rank-1": "state/2"}, "the rank that raised is the most advanced"
    assert send(fit, "rank-1") == ["LoadState state/2", "rank-1 <- Stop", "RaiseFrom rank-1"]
    assert fit.state.here == (0, 8)
    assert fit.phase is Phase.IDLE


def test_an_error_in_the_first_update_leaves_the_state_of_the_driver():
    fit = Fit(ranks=1).start()
    assert fit.on(RankRaised("rank-0", update=0, begun=False))[-2:] == [
        "rank-0 <- Stop", "RaiseFrom rank-0",
    ]  # fmt: skip


def test_training_continues_if_the_rank_that_raised_dies_before_its_error_is_known():
    fit = Fit(ranks=2).start()
    fit.on(RankRaised("rank-1", update=8))
    fit.end("lost", update=8, ranks=["rank-0"])
    fit.on(WorkerLeft("b"))
    assert send(fit, "rank-0")[-1].startswith("segment 2 generation 2: rank-0 source=None")


def test_an_epoch_that_ended_counts_although_the_sender_dies_then():
    fit = Fit(ranks=2, averages=True).start()
    fit.end(update=10)
    fit.state.call = fit.state.call.__class__(0, 1)  # the last epoch: replicas are collected, too
    send(fit, "rank-0")
    fit.on(WorkerLeft("a"))
    assert send(fit, "rank-1") == ["LoadReplicas (None, 'state/4')", "Finish epoch"]


def test_a_state_that_nobody_waits_for_is_dropped():
    fit = Fit(ranks=2).start()
    fit.end(update=10)
    fit.on(Tick(), after=71)  # rank-0 is silent, rank-1 is asked
    assert fit.statuses() == {"rank-0": "silent", "rank-1": "ready"}
    assert fit.on(StateSent("rank-0", "state/2", 10)) == ["DropBlob state/2"]
    assert fit.statuses()["rank-0"] == "ready", "an answer is a sign of life"
    assert send(fit, "rank-1") == ["LoadState state/3", "Finish epoch"]
    assert fit.on(StateSent("rank-9", "state/9", 10)) == ["DropBlob state/9"]


def test_the_state_of_a_spare_is_not_taken_for_a_newer_one():
    """The members are lost while their state is asked for; the driver's state stays."""
    fit = Fit(ranks=1).start()
    fit.end(update=10)
    did = fit.on(Surveyed(("z",)))
    assert "Finish epoch" not in did
    assert fit.phase is Phase.GATHERING
    assert fit.state.here == (0, 0)


# -- validation -----------------------------------------------------------------------------------


def evaluating(ranks=3, batches=5):
    fit = Fit(ranks=ranks).between_epochs()
    fit.did = fit.on(EvaluateBatches(batches, update=10))
    return fit


def done(fit, rank, **how):
    return fit.on(BatchesEvaluated(rank, asked(fit)[rank], **how))


def test_batches_are_divided_among_the_ranks():
    fit = evaluating()
    assert fit.did == [
        "rank-0 <- Evaluate batches=(0, 3) blob=valid/3",
        "rank-1 <- Evaluate batches=(1, 4) blob=valid/4",
        "rank-2 <- Evaluate batches=(2,) blob=valid/5",
    ]
    assert done(fit, "rank-2") == done(fit, "rank-0") == []
    assert done(fit, "rank-1") == ["Finish evaluated valid/5 valid/3 valid/4"]


def test_no_rank_gets_nothing_to_do():
    assert len(evaluating(batches=2).did) == 2


@pytest.mark.parametrize(
    ("lost", "after"), [(WorkerLeft("b"), 0), (Tick(), 61)], ids=["lost", "silent"]
)
def test_the_batches_of_a_lost_rank_are_evaluated_by_others(lost, after):
    fit = evaluating()
    done(fit, "rank-0")
    done(fit, "rank-2")
    did = fit.on(lost, after)
    assert did[-2:] == [
        "rank-0 <- Evaluate batches=(1,) blob=valid/6",
        "rank-2 <- Evaluate batches=(4,) blob=valid/7",
    ]
    done(fit, "rank-0")
    assert done(fit, "rank-2") == ["Finish evaluated valid/3 valid/5 valid/6 valid/7"]


def test_the_driver_evaluates_if_nobody_else_can():
    assert Fit().on(EvaluateBatches(3, update=0)) == ["Finish unavailable"]
    fit = Fit().between_epochs()
    assert fit.on(EvaluateBatches(3, update=9)) == ["Finish unavailable"], "another model"
    fit = evaluating(ranks=2)
    done(fit, "rank-0")
    assert fit.on(Surveyed(())) == [
        "CancelTask rank-0", "log lost", "DropBlob valid/4", "CancelTask rank-1", "log lost",
        "ScaleCluster 2 0 2", "DropBlob valid/3", "Finish unavailable",
    ]  # fmt: skip


def test_predictions_that_cannot_be_sent():
    fit = evaluating(ranks=2)
    done(fit, "rank-0")
    assert done(fit, "rank-1", sendable=False) == ["DropBlob valid/3", "Finish unavailable"]


def test_an_error_in_validation_is_raised():
    fit = evaluating()
    done(fit, "rank-0")
    assert fit.on(RankRaised("rank-1", update=10)) == [
        "rank-1 <- Stop", "DropBlob valid/4", "DropBlob valid/3", "RaiseFrom rank-1",
    ]  # fmt: skip
    assert fit.on(BatchesEvaluated("rank-2", "valid/5")) == ["DropBlob valid/5"]


def test_an_empty_validation_set_is_done():
    assert evaluating(batches=0).did == ["Finish evaluated"]


def test_a_failure_is_forgotten_with_its_call():
    fit = Fit(ranks=1, worker_timeout=5.0)
    fit.epoch()
    fit.on(Surveyed(()))
    fit.on(Tick(), after=6.0)
    assert isinstance(fit.all[-1], Fail)
    assert "for 5 s (worker_timeout)" in fit.all[-1].reason
    fit.on(Surveyed(("a",)))
    fit.start()
    assert fit.on(SegmentEnded("rank-1", 1, "epoch", 5))[-1].startswith("rank-1 <- SendState")
