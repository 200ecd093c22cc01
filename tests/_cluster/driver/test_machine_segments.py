"""Which ranks train next, from which state, and when the driver gives up: whole stories."""

import pytest

from accelerando._cluster.driver.state import Fail, Log, Phase, StartSegment
from accelerando._cluster.messages import (
    BatchSizeChanged,
    CheckpointSent,
    Interrupt,
    ProgressSeen,
    RankReady,
    RanksAllowed,
    SegmentEnded,
    Tick,
    UpdateTimed,
    WorkerLeft,
)
from tests._cluster.driver.fake import WORKERS, Fit, segments, texts
from tests._cluster.driver.test_machine import (
    idle_after_epoch,
    one_left_to_answer,
    training,
    training_with_spare,
)


def test_a_late_joiner_is_in_the_next_segment():
    fit = training_with_spare()
    fit.on(RankReady("rank-3"))
    fit.end("paused", update=5)
    assert segments(fit)[-1].members == ("rank-0", "rank-1", "rank-2", "rank-3")
    assert segments(fit)[-1].source == 0, "the newcomer has no state"
    assert segments(fit)[-1].intact == (True, True, True, False)
    assert texts(fit, "segment") == [
        "Update 5: training continues with 4 ranks (before: 3; batch 64, 16 rows per rank)."
    ]


def test_a_change_waits_a_moment_for_further_ranks():
    fit = Fit(ranks=1, workers=3).start()
    fit.on(BatchSizeChanged("rank-0", 48))
    assert fit.on(RankReady("rank-1")) == []
    assert fit.on(Tick(), after=1.9) == []
    assert fit.on(Tick(), after=0.2) == ["rank-0 <- Pause segment=1 membership_changes=True"]
    fit.end("paused")
    assert segments(fit)[-1].members == ("rank-0", "rank-1")


def test_ranks_that_a_schedule_needs_are_kept_and_others_released():
    fit = Fit(ranks=3)
    fit.start(next_batch_size=32)
    fit.on(RanksAllowed("rank-0", 1, update=3))
    fit.end("paused", update=5)
    # All three were needed by the batch of 48 when the epoch began.
    assert fit.statuses() == {"rank-0": "training", "rank-1": "ready", "rank-2": "ready"}
    fit.end("epoch")
    fit.collected()
    did = fit.epoch(1, update=10)
    assert did[-6:] == [
        "rank-1 <- Stop", "rank-2 <- Stop", "AwaitTasks ('rank-1', 'rank-2') 5.0",
        "CancelTask rank-1", "CancelTask rank-2", "ShrinkCluster 1",
    ]  # fmt: skip
    assert list(fit.state.ranks) == ["rank-0"]


def test_ranks_are_warmed_up_for_the_next_epoch():
    fit = Fit(ranks=1, workers=3)
    assert fit.epoch(next_batch_size=48)[:3] == [
        "StartRank rank-0 a", "StartRank rank-1 b", "StartRank rank-2 c",
    ]  # fmt: skip
    fit.on(RankReady("rank-1"))
    assert segments(fit)[-1].members == ("rank-1",)
    fit.on(RankReady("rank-0"))
    fit.end()
    fit.collected()
    fit.epoch(1, update=10, batch_size=48)
    assert segments(fit)[-1].members == ("rank-1", "rank-0")


def test_the_first_batch_of_a_schedule_counts_from_the_second_epoch_on():
    fit = Fit(ranks=3)
    fit.epoch(batch_size=16)
    assert fit.state.sizing.batch_size == 48, "a policy may have decided before the first update"
    assert fit.state.call is not None


def test_a_silent_rank_comes_back_as_a_newcomer():
    fit = one_left_to_answer()
    fit.on(Tick(), after=2.1)
    assert fit.statuses() == {"rank-0": "training", "rank-2": "silent"}
    assert texts(fit, "silent") == ["The rank on c does not answer."]
    did = fit.on(SegmentEnded("rank-2", 1, "lost", 6))
    assert did == ["rank-0 <- Pause segment=2 membership_changes=True"]
    assert fit.state.ranks["rank-2"].outcome is None
    fit.end("paused", update=9, ranks=["rank-0"])
    assert segments(fit)[-1].members == ("rank-0", "rank-2")
    assert segments(fit)[-1].source == 0


def test_patience_grows_with_the_duration_of_an_update():
    fit = training()
    fit.on(ProgressSeen(update=5, update_seconds=1.0, period=4))
    fit.on(WorkerLeft("b"))
    assert fit.on(Tick(), after=11.9) == []
    assert "log silent" in fit.on(Tick(), after=0.2)
    fit = training()
    fit.on(ProgressSeen(update=5, update_seconds=1.0, period=4))
    fit.end("epoch", ranks=["rank-0"])
    assert fit.on(Tick(), after=89.0) == []
    assert "log silent" in fit.on(Tick(), after=2.0)


def test_the_best_rank_gives_its_state():
    fit = Fit(ranks=3).start()
    fit.end("lost", update=7, ranks=["rank-0"])
    fit.end("lost", update=6, ranks=["rank-1"])
    fit.end("lost", update=8, ranks=["rank-2"])
    assert segments(fit)[-1].members == ("rank-2", "rank-0", "rank-1")
    assert segments(fit)[-1].source == 0


def spare_of_the_epoch_before():
    """Two ranks train the first epoch, one of them the second; the other one is kept as a spare."""
    fit = Fit(ranks=2).between_epochs()
    fit.epoch(1, until=4, update=10, batch_size=16, next_batch_size=32)
    assert fit.statuses() == {"rank-0": "training", "rank-1": "ready"}
    return fit


def test_a_spare_has_not_ended_the_epoch_of_others():
    fit = spare_of_the_epoch_before()
    fit.on(WorkerLeft("a"))
    assert fit.phase is Phase.TRAINING
    assert segments(fit)[-1].members == ("rank-1",)
    assert segments(fit)[-1].epoch == 1


def test_a_spare_that_is_older_than_the_driver_is_not_asked():
    fit = spare_of_the_epoch_before()
    fit.on(CheckpointSent("rank-0", "checkpoint/14", segment=2, update=14))
    fit.on(WorkerLeft("a"))
    assert segments(fit)[-1].members == ("rank-1",)
    assert segments(fit)[-1].blob == "start/3", "the state of the checkpoint is newer"
    assert fit.state.here.update == 14


def test_ctrl_c_does_not_collect_a_state_that_is_older_than_the_drivers():
    fit = spare_of_the_epoch_before()
    fit.on(CheckpointSent("rank-0", "checkpoint/14", segment=2, update=14))
    fit.on(Interrupt())
    assert fit.on(WorkerLeft("a")) == ["CancelTask rank-0", "log lost", "Finish interrupted"]
    assert fit.state.here.update == 14


def test_a_change_on_the_driver_is_put_again_until_a_rank_has_it():
    fit = idle_after_epoch()
    fit.epoch(1, update=10, changed=True)
    fit.on(WorkerLeft("a"))
    fit.end("lost", update=10, ranks=["rank-1", "rank-2"], begun=False)
    assert segments(fit)[-1].blob == "start/4"
    fit.end("lost", update=10, begun=True)
    assert segments(fit)[-1].blob is None


def test_a_state_that_a_callback_loaded_replaces_newer_ones():
    fit = idle_after_epoch()
    fit.epoch(1, update=4, changed=True)
    fit.on(WorkerLeft("a"))
    fit.end("lost", update=10, ranks=["rank-1", "rank-2"], begun=False)
    assert segments(fit)[-1].blob == "start/4", "update 10 is that of a model that was replaced"
    assert "Update 4:" in texts(fit, "segment")[-1]


def test_ctrl_c_after_a_loss_collects_what_ranks_have():
    fit = Fit(ranks=1).start()
    fit.end("lost", update=7, begun=True)
    fit.on(Interrupt())
    fit.end("paused", update=8)
    assert fit.phase is Phase.COLLECTING
    assert fit.collected()[-1] == "Finish interrupted"
    assert fit.state.here.update == 8


@pytest.mark.parametrize("survivors", [True, False])
def test_an_update_that_kills_three_times_fails(survivors):
    fit = Fit(ranks=2 if survivors else 1, workers=6)
    fit.start()
    for attempt, victim in enumerate(("a", "b", "c")):
        newest = [r for r, info in fit.state.ranks.items() if info.worker == victim]
        assert newest
        fit.on(WorkerLeft(victim))
        if survivors:
            fit.end("lost", update=7, ranks=[r for r in fit.state.members if r not in newest])
        if attempt < 2:
            for rank, status in fit.statuses().items():
                if status == "starting":
                    fit.on(RankReady(rank))
            if survivors:
                fit.end("paused", update=7)
            assert fit.phase is Phase.TRAINING
    if survivors:
        assert fit.phase is Phase.COLLECTING, "the best state is kept"
        fit.collected()
        assert fit.state.here.update == 7
    failure = fit.all[-1]
    assert isinstance(failure, Fail)
    assert failure.reason.startswith(f"Update {8 if survivors else 1} has killed 3 workers")
    assert "a, b, c" in failure.reason


@pytest.mark.parametrize("rough", [5, 8], ids=["seen late", "seen in time"])
def test_a_loss_of_all_members_is_counted_although_progress_is_seen_late(rough):
    """The segments after it are careful and report every update; the estimate is corrected."""
    fit = Fit(ranks=1, workers=6)
    fit.start()
    fit.on(ProgressSeen(update=rough, update_seconds=0.01))
    victims = "abc" if rough == 8 else "abcd"  # an estimate that was wrong does not count
    for number, victim in enumerate(victims):
        fit.on(WorkerLeft(victim))
        if number < len(victims) - 1:
            fit.on(RankReady(f"rank-{number + 1}"))
            (started,) = [act for act in fit.all if isinstance(act, StartSegment)][number + 1 :]
            assert started.careful
            fit.on(RanksAllowed(f"rank-{number + 1}", None, 8))
    failure = fit.all[-1]
    assert isinstance(failure, Fail)
    assert failure.reason.startswith("Update 9 has killed 3 workers: ")
    assert ", ".join(victims[-3:]) in failure.reason
    assert "partial_fit" in failure.reason


def test_segments_beyond_the_update_are_not_careful():
    fit = Fit(ranks=2, workers=6)
    fit.start()
    fit.on(WorkerLeft("a"))
    fit.end("lost", update=7, ranks=fit.state.members[1:])
    fit.on(RankReady("rank-2"))
    fit.end("paused", update=50)
    segments = [act for act in fit.all if isinstance(act, StartSegment)]
    assert [segments[0].careful, segments[1].careful, segments[-1].careful] == [False, True, False]


def test_losses_at_different_updates_are_no_reason_to_fail():
    fit = Fit(ranks=1, workers=6)
    fit.start()
    for number, victim in enumerate(WORKERS[:5]):
        fit.on(ProgressSeen(update=10 * number + 5, update_seconds=0.01))
        fit.on(WorkerLeft(victim))
        fit.on(RankReady(f"rank-{number + 1}"))
        assert fit.phase is Phase.TRAINING


def test_losses_before_an_update_begins_are_no_reason_to_fail():
    fit = Fit(ranks=2, workers=6)
    fit.start()
    for victim in WORKERS[:4]:
        gone = [r for r, info in fit.state.ranks.items() if info.worker == victim]
        fit.on(WorkerLeft(victim))
        fit.end(
            "lost", update=0, ranks=[r for r in fit.state.members if r not in gone], begun=False
        )
        for rank, status in fit.statuses().items():
            if status == "starting":
                fit.on(RankReady(rank))
        if fit.phase is Phase.TRAINING and len(fit.state.members) < 2:
            fit.end("paused", update=0)
    assert fit.phase is Phase.TRAINING


def test_the_number_of_ranks_is_found_by_trying():
    fit = Fit(ranks=4, limits={"max_workers": "auto"})
    assert fit.epoch() == ["StartRank rank-0 a", "ScaleCluster 1 4 0"]
    fit.on(RankReady("rank-0"))
    assert fit.on(UpdateTimed("rank-0", ranks=1, rows=64, seconds=0.01)) == [
        "StartRank rank-1 b", "ScaleCluster 2 4 0",
    ]  # fmt: skip
    fit.on(RankReady("rank-1"))
    fit.end("paused", update=25)
    assert fit.on(UpdateTimed("rank-0", ranks=2, rows=64, seconds=0.012)) == [
        "log knee", "rank-0 <- Pause segment=2 membership_changes=True",
    ]  # fmt: skip
    assert texts(fit, "knee") == [
        "Batch 64: an update takes 12.0 ms on 2 ranks, 10.0 ms on 1; training continues with 1."
    ]


@pytest.mark.parametrize("progress", [False, True])
def test_contact_that_is_lost_again_and_again_ends_the_fit(progress):
    """All workers live, and no update is made: the fifth time is the last."""
    fit = Fit().start()
    for time in range(1, 6):
        if progress:
            fit.end("lost", update=time)
        else:
            fit.end("lost", update=0)
    if progress:
        assert fit.phase is Phase.TRAINING
        return
    if fit.phase is Phase.COLLECTING:
        fit.collected()
    failure = fit.all[-1]
    assert isinstance(failure, Fail)
    assert failure.reason.startswith("Ranks have lost contact to each other 5 times in a row")
    assert "rank_timeout above 10 s" in failure.reason
    assert fit.state.ranks, "nobody has died"


@pytest.mark.parametrize(
    ("sizes", "own", "raised", "logged"),
    [
        ((1.0, 2.0), {"module#top": "1"}, False, False),
        ((1.0 + 1e-7, 2.0), {"module#top": "1"}, False, False),
        ((1.01, 2.0), {"module#top": "1"}, True, False),
        ((1.0, 2.0), {"module#top": "3"}, False, True),
        ((1.0, 2.0), {}, False, True),
    ],
)
def test_members_that_drift_apart_are_noticed(sizes, own, raised, logged):
    fit = Fit(ranks=2).start()
    told = [({"module#top": "1"}, (1.0, 2.0)), (own, sizes)]
    for rank, (seen, numbers) in zip(fit.state.members, told, strict=True):
        fit.on(SegmentEnded(rank, 1, "epoch", 5, own=seen, sizes=numbers))
    fit.collected()
    said = [act.text for act in fit.all if isinstance(act, Log) and act.event == "differ"]
    assert len(said) == logged
    assert all("module.top" in text for text in said)
    assert isinstance(fit.all[-1], Fail) == raised
    assert not raised or "no longer the same" in fit.all[-1].reason
