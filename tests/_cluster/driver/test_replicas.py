"""Replicas and checkpoints, of which every member has a part."""

import pytest

from accelerando._cluster.driver import replicas
from accelerando._cluster.driver.pool import Turn
from accelerando._cluster.driver.state import Phase
from accelerando._cluster.messages import (
    CheckpointSent,
    Collect,
    Interrupt,
    RanksAllowed,
    Tick,
    WorkerLeft,
)
from tests._cluster.driver.fake import Fit, asked, send

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


def test_parts_of_older_checkpoints_are_dropped_with_their_blobs():
    turn = Turn.of(Fit(averages=True).start().state, now=1.0)
    turn.state.parts = {5: {"rank-0": "a", "rank-1": "b"}, 8: {"rank-0": "c"}}
    replicas.drop_parts(turn, before=8)
    assert [action.blob for action in turn.actions] == ["a", "b"]
    assert turn.state.parts == {8: {"rank-0": "c"}}
    replicas.drop_parts(turn)
    assert not turn.state.parts
