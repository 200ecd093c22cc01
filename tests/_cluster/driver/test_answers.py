"""States, replicas, checkpoints and validation results that the driver collects from ranks."""

import pytest

from accelerando._cluster.driver.state import Fail, Log, Phase, StartSegment
from accelerando._cluster.messages import (
    BatchesEvaluated,
    CheckpointSent,
    Collect,
    EvaluateBatches,
    Interrupt,
    RankRaised,
    RanksAllowed,
    SegmentEnded,
    StateSent,
    Surveyed,
    Tick,
    WorkerLeft,
)
from tests._cluster.driver.fake import Fit


def asked(fit):
    return {rank: request.blob for rank, request in fit.state.requests.items()}


def send(fit, rank):
    key = fit.state.ranks[rank].key
    return fit.on(StateSent(rank, asked(fit)[rank], key.update, key.averagings))


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
    fit.state.call = fit.state.call.__class__(1, 2)  # the last epoch: replicas are collected, too
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


# -- replicas (local SGD) -------------------------------------------------------------------------


def test_replicas_are_collected_at_the_last_epoch_only():
    fit = Fit(ranks=2, averages=True).between_epochs(averagings=2, since=1)
    assert fit.phase is Phase.IDLE
    fit.epoch(1, update=10, averagings=2)
    fit.end(update=20, averagings=4, since=2)
    send(fit, "rank-0")
    assert asked(fit) == {"rank-0": "state/4", "rank-1": "state/5"}
    send(fit, "rank-1")
    assert send(fit, "rank-0") == ["LoadReplicas ('state/4', 'state/5')", "Finish epoch"]


@pytest.mark.parametrize("lost", [WorkerLeft("b"), Tick()], ids=["lost", "silent"])
def test_a_replica_that_is_missing_is_left_out(lost):
    fit = Fit(ranks=2, averages=True).start()
    fit.on(Interrupt())
    fit.end("paused", update=7, averagings=1, since=2)
    send(fit, "rank-0")
    send(fit, "rank-0")
    did = fit.on(lost, after=71)
    assert did[-2:] == ["LoadReplicas ('state/3', None)", "Finish interrupted"]


def test_only_members_with_the_newest_update_have_a_replica():
    fit = Fit(ranks=3, averages=True).start()
    fit.on(Interrupt())
    fit.end("lost", update=7, averagings=1, since=2, ranks=["rank-0", "rank-2"])
    fit.end("lost", update=8, averagings=1, since=3, ranks=["rank-1"])
    assert list(asked(fit)) == ["rank-1"]
    send(fit, "rank-1")
    assert list(asked(fit)) == ["rank-1"]
    assert send(fit, "rank-1")[0] == "LoadReplicas (None, 'state/3', None)"


def test_a_callback_that_saves_collects_the_replicas():
    fit = Fit(ranks=2, averages=True).between_epochs(averagings=2, since=1)
    fit.on(Collect(update=10))
    send(fit, "rank-0")
    assert send(fit, "rank-1") == ["LoadReplicas ('state/3', 'state/4')", "Finish collected"]
    assert fit.on(Collect(update=9)) == ["Finish collected"], "ranks do not have that update"
    fit.epoch(1, update=10, averagings=2)
    assert fit.phase is Phase.TRAINING


def test_replicas_average_before_some_of_them_leave():
    fit = Fit(ranks=3, averages=True).start()
    fit.on(RanksAllowed("rank-0", 2, update=9))
    fit.end(update=10, averagings=2, since=3)
    fit.collected()
    assert fit.epoch(1, update=10, averagings=2) == [
        "rank-0 <- AverageNow", "rank-1 <- AverageNow", "rank-2 <- AverageNow",
    ]  # fmt: skip
    assert fit.phase is Phase.AVERAGING
    did = fit.end("averaged", update=10, averagings=3)
    assert did[1] == "segment 2 generation 2: rank-0 rank-1 source=0 blob=None"
    assert "rank-2 <- Stop" in did


def test_an_averaging_that_does_not_end_is_given_up():
    fit = Fit(ranks=2, averages=True).start()
    fit.on(RanksAllowed("rank-0", 1, update=9))
    fit.end(update=10, averagings=2, since=3)
    fit.collected()
    fit.epoch(1, update=10, averagings=2)
    fit.end("averaged", update=10, averagings=3, ranks=["rank-1"])
    did = fit.on(Tick(), after=71)
    assert did[0] == "log silent"
    assert fit.state.members == ("rank-1",)
    assert fit.phase is Phase.TRAINING


@pytest.mark.parametrize(("since", "whole"), [(0, True), (2, False)])
def test_nobody_averages_without_need_or_with_a_lost_one(since, whole):
    fit = Fit(ranks=3, averages=True).start()
    fit.on(RanksAllowed("rank-0", 1, update=9))
    fit.end(update=10, averagings=2, since=since)
    fit.collected()
    if not whole:
        fit.on(WorkerLeft("c"))
    did = fit.epoch(1, update=10, averagings=2)
    assert not any("AverageNow" in action for action in did)
    assert fit.phase is Phase.TRAINING


def test_what_a_lost_replica_did_since_the_last_averaging_is_logged():
    fit = Fit(ranks=3, averages=True).start()
    fit.on(WorkerLeft("b"))
    fit.end("lost", update=27, averagings=1, since=2, ranks=["rank-0", "rank-2"])
    [text] = [a.text for a in fit.all if isinstance(a, Log) and a.event == "unaveraged"]
    assert text == (
        "The last averaging was 2 updates ago: what 1 lost rank did since then is lost, what the "
        "others did is kept."
    )
    [_, segment] = [a for a in fit.all if isinstance(a, StartSegment)]
    assert segment.source == 0, "the others average before they continue"


# -- checkpoints ----------------------------------------------------------------------------------


def part(rank, update, segment=1):
    return CheckpointSent(rank, f"{rank}/{update}", segment, update)


def test_under_all_reduce_the_first_member_has_the_checkpoint():
    fit = Fit(ranks=2).start()
    assert fit.on(part("rank-0", 5)) == ["SaveCheckpoint ('rank-0/5',)"]
    assert fit.state.here == (0, 5)
    assert fit.on(part("rank-1", 5)) == ["DropBlob rank-1/5"]
    assert fit.on(part("rank-0", 5)) == ["DropBlob rank-0/5"], "not older than what is here"


def test_replicas_are_saved_when_all_parts_arrived():
    fit = Fit(ranks=2, averages=True).start()
    assert fit.on(part("rank-0", 10)) == []
    assert fit.on(part("rank-1", 20)) == []  # the part of update 10 is lost
    assert fit.on(part("rank-0", 20)) == [
        "SaveCheckpoint ('rank-0/20', 'rank-1/20')", "DropBlob rank-0/10",
    ]  # fmt: skip
    assert fit.state.parts == {}


def test_a_worker_that_dies_during_a_checkpoint_leaves_no_part_behind():
    fit = Fit(ranks=2, averages=True).start()
    fit.on(part("rank-0", 10))
    fit.on(WorkerLeft("b"))
    did = fit.end("lost", update=11, ranks=["rank-0"])
    assert "DropBlob rank-0/10" in did
    assert fit.on(part("rank-0", 10)) == ["DropBlob rank-0/10"], "it is of an older segment"


def test_a_part_that_arrives_between_segments_is_dropped():
    fit = Fit(ranks=1).start()
    fit.end(update=10)
    assert fit.on(part("rank-0", 9)) == ["DropBlob rank-0/9"]


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
