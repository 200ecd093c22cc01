"""Changes of the membership, and models that stay on the ranks."""

import dataclasses

from accelerando._cluster.driver import membership
from accelerando._cluster.driver.state import Key, Log, Phase, PutState, StartSegment
from accelerando._cluster.messages import (
    Fetch,
    Interrupt,
    LeaveRequested,
    RankReady,
    SegmentEnded,
    Surveyed,
    Tick,
    WorkerJoined,
    WorkerLeft,
)
from tests._cluster.driver.fake import Fit, segments, short, texts

# -- what is logged -------------------------------------------------------------------------------


def test_a_membership_that_stays_as_it_is_is_not_logged(monkeypatch):
    monkeypatch.setattr(membership, "log_segment", None)
    monkeypatch.setattr(membership, "go_back", None)
    fit = Fit(ranks=2).start()
    fit.end(update=10)
    fit.collected()
    fit.epoch(1, update=10)
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
    assert f"Ranks on {fit.state.ranks['rank-1'].worker} have not started yet." in text


def test_ranks_on_workers_that_hang_are_said():
    fit = Fit(ranks=2, limits={"min_workers": 2})
    fit.epoch()
    fit.on(RankReady("rank-0"))
    fit.on(Surveyed(("a", "b"), hanging=("b",)))
    [text] = texts(fit, "min_workers")
    assert "Ranks on b have not started yet." in text


def test_after_the_loss_of_all_the_log_names_the_update_of_the_driver():
    fit = Fit(ranks=2).start(update=40)
    fit.on(Surveyed(("x", "y")))
    fit.on(RankReady(next(iter(fit.state.ranks))))
    assert texts(fit, "segment")[-1].startswith("Update 40: training continues with 1 rank")


# -- models that stay on the ranks ----------------------------------------------------------------

MODEL, NOTE = "parts=('MODEL', 'POSITION', 'RECORDS')", "parts=('POSITION', 'RECORDS')"


def skipped(epochs=1, **settings):
    """Train epochs of ten updates after which nobody needs the model."""
    fit = Fit(ranks=2, **settings)
    for number in range(epochs):
        position = {"update": 10 * number, "fetch": False, "patch": {"of": number}}
        if number:
            fit.epoch(number, until=9, **position)
        else:
            fit.start(until=9, changed=True, **position)
        assert fit.end(update=10 * number + 10)[-1].endswith(NOTE)
        assert [did.split()[0] for did in fit.collected()] == ["NoteState", "Finish"]
    return fit


def requests(fit):
    return [short(action) for action in fit.all if "SendState" in short(action)]


def test_a_model_that_nobody_needs_is_not_asked_for():
    fit = skipped(epochs=3)
    assert [NOTE in request for request in requests(fit)] == [True] * 3
    fit.epoch(3, until=9, update=30)
    assert fit.end(update=40)[-1].endswith(MODEL)
    assert [did.split()[0] for did in fit.collected()] == ["LoadState", "Finish"]
    assert [action.blob for action in fit.all if isinstance(action, PutState)] == ["start/1"]


def test_a_model_that_the_driver_has_not_had_for_a_minute_is_asked_for():
    fit = skipped(epochs=2)
    fit.epoch(2, until=9, update=20, fetch=False)
    fit.now += 61
    assert fit.end(update=30)[-1].endswith(MODEL)
    fit.collected()
    fit.epoch(3, until=9, update=30, fetch=False)
    assert fit.end(update=40)[-1].endswith(NOTE)


def test_a_fetch_between_two_epochs_asks_a_rank_that_has_the_model():
    fit = skipped(epochs=2)
    assert fit.on(Fetch())[-1] == f"rank-0 <- SendState blob=state/4 {MODEL}"
    assert fit.on(WorkerLeft("a"))[-1] == f"rank-1 <- SendState blob=state/5 {MODEL}"
    assert [did.split()[0] for did in fit.collected()] == ["LoadState", "Finish"]
    assert fit.state.here == (0, 20)


def lose_all(fit):
    for worker in list(fit.state.workers):
        fit.on(WorkerLeft(worker))
    fit.on(WorkerJoined("e"))


def become_ready(fit):
    did = []
    for rank in fit.state.ranks:
        did = fit.on(RankReady(rank))
    return did


def test_epochs_are_trained_again_with_what_was_sent_before_each():
    fit = skipped(epochs=2)
    lose_all(fit)
    fit.epoch(2, until=9, update=20, patch={"of": 2}, fetch=False)
    did = become_ready(fit)
    assert did[0].startswith("PutState")
    assert "log again" in did
    fit.end(update=10)
    fit.end(update=20)
    last = fit.end(update=30)
    assert [(s.epoch, s.patch["of"]) for s in segments(fit)[-3:]] == [(0, 0), (1, 1), (2, 2)]
    assert last[-1].endswith(NOTE)
    assert fit.collected()[-1] == "Finish epoch"


def test_a_fetch_trains_again_what_all_have_lost():
    fit = skipped(epochs=2)
    lose_all(fit)
    fit.on(Fetch())
    become_ready(fit)
    fit.end(update=10)
    assert fit.end(update=20)[-1].endswith(MODEL)
    assert fit.collected()[-1] == "Finish epoch"
    assert [segment.epoch for segment in segments(fit)[-2:]] == [0, 1]


def test_a_fetch_continues_from_a_rank_that_was_left_behind():
    fit = skipped(epochs=2)
    fit.on(WorkerLeft("a"))
    behind = dataclasses.replace(fit.state.ranks["rank-1"], key=Key(0, 14), outcome=None)
    fit.state.ranks["rank-1"] = behind
    fit.on(Fetch())
    assert (segments(fit)[-1].epoch, segments(fit)[-1].blob) == (1, None)
    assert fit.end(update=20)[-1].endswith(MODEL)


def test_going_back_is_logged_once():
    fit = skipped(epochs=2)
    for _ in range(2):
        lose_all(fit)
        if fit.phase is Phase.IDLE:
            fit.epoch(2, until=9, update=20, patch={"of": 2}, fetch=False)
        become_ready(fit)
    assert len([action for action in fit.all if isinstance(action, PutState)]) == 3
    assert len(texts(fit, "again")) == 1


def test_a_rank_in_the_middle_of_a_lost_epoch_is_continued():
    fit = skipped(epochs=1)
    fit.epoch(1, until=9, update=10, fetch=False)
    fit.on(WorkerLeft("a"))
    fit.on(SegmentEnded("rank-1", 1, "lost", 14))
    assert segments(fit)[-1].epoch == 1
    assert segments(fit)[-1].blob is None


def test_a_worker_that_leaves_with_the_only_copy_gives_it_to_the_driver():
    fit = skipped(epochs=1)
    fit.on(WorkerLeft("b"))
    fit.on(LeaveRequested("a"))
    assert fit.epoch(1, until=9, update=10, fetch=False)[-1].endswith(MODEL)
    assert fit.collected()[0].startswith("LoadState")
    assert fit.phase is Phase.GATHERING, "the epoch was not trained"
    assert fit.state.here == (0, 10)


def test_ctrl_c_without_ranks_does_not_train_again():
    fit = skipped(epochs=2)
    lose_all(fit)
    fit.on(Interrupt())
    assert fit.on(Fetch())[-1] == "Finish interrupted"


def test_ctrl_c_in_an_epoch_collects_the_model():
    fit = skipped(epochs=1)
    fit.epoch(1, until=9, update=10, fetch=False)
    fit.on(Interrupt())
    assert fit.end("paused", update=13)[-1].endswith(MODEL)
    assert fit.collected()[-1] == "Finish interrupted"
