"""What happens on a rank between two updates; a fake mailbox, a fake group."""

from types import SimpleNamespace

import pytest
import torch

from accelerando._cluster.messages import (
    BatchSizeChanged,
    CheckpointSent,
    Pause,
    RanksAllowed,
    UpdateTimed,
)
from accelerando._cluster.worker import hooks as module
from accelerando._cluster.worker.hooks import Paused, RankCopy, RankHooks, Timing, usual_seconds
from accelerando._decisions import Settings
from accelerando._engine._torch import unpack
from accelerando._engine.comm.communicator import SingleProcess, Traffic, UpdateResult
from accelerando._engine.comm.process_group import LostContact
from accelerando._engine.data.feed import Shard
from tests._cluster.worker.plain import PlainRankModel
from tests._engine.comm.ranks import fit_of, model_of

RESULT = UpdateResult(0.5, 1.0, 0.1, {})


class FakeMailbox:
    def __init__(self):
        self.reported, self.blobs = [], {}

    def report(self, event):
        self.reported.append(event)

    def put(self, blob, content):
        self.blobs[blob] = content


class FakeInbox:
    def __init__(self):
        self.sent = None

    def pause(self, segment):
        return self.sent if self.sent is not None and self.sent.segment == segment else None


class FakeGroup:
    def __init__(self, rank=0, size=3):
        self.shard = Shard(rank, size)
        self.pause = self.switch = self.paused = False
        self.failure = None
        self.timeouts = []

    def set_timeout(self, seconds):
        self.timeouts.append(seconds)


class FakeComm(SingleProcess):
    """Remembers that it was flushed."""

    current_period = 1
    flushed = 0

    def flush(self, state):
        self.flushed += 1


class Clock:
    """Every update takes what the test says."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    return fake


def hooks_of(*, rank=0, averages=False, timing=None, **settings):
    progress, model = [], model_of()
    hooks = RankHooks(
        FakeMailbox(),
        FakeInbox(),
        f"rank-{rank}",
        FakeGroup(rank),
        7,
        timing or Timing(),
        PlainRankModel(model),
        RankCopy(PlainRankModel(model)).pack,
        progress.append,
        averages=averages,
    )
    hooks.fit = fit_of(model, lambda spec: FakeComm(), rank_timeout=10.0, **settings)
    hooks.progress = progress
    return hooks


def update(hooks, rows=12, seconds=0.0):
    state = hooks.fit.state
    hooks.before_update(SimpleNamespace(size=rows))
    if seconds:
        module.time.now += seconds
    state.position.update += 1
    state.position.examples += rows
    state.batch_size = rows
    hooks.after_update(SimpleNamespace(size=rows), RESULT)


def kinds(hooks):
    return [type(event) for event in hooks.mailbox.reported]


# -- decisions ------------------------------------------------------------------------------------


def test_the_first_member_reports_decisions_once():
    hooks = hooks_of()
    update(hooks)
    update(hooks)
    assert hooks.mailbox.reported == [BatchSizeChanged("rank-0", 12)]
    hooks.fit.state.settings = Settings(workers=2)
    update(hooks, rows=24)
    assert hooks.mailbox.reported[1:] == [
        BatchSizeChanged("rank-0", 24),
        RanksAllowed("rank-0", 2, 3),
    ]
    hooks.fit.state.settings = Settings()
    update(hooks, rows=24)
    assert hooks.mailbox.reported[3:] == [RanksAllowed("rank-0", None, 4)]


def test_other_members_do_not_report():
    hooks = hooks_of(rank=1)
    hooks.fit.state.settings = Settings(workers=2)
    for _ in range(25):
        update(hooks)
    assert hooks.mailbox.reported == []
    assert hooks.progress == []


# -- pauses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [True, False])
def test_the_first_member_passes_a_pause_on(changes):
    hooks = hooks_of()
    update(hooks)
    assert not hooks.group.pause
    hooks.inbox.sent = Pause(7, membership_changes=changes)
    update(hooks)
    assert hooks.group.pause
    assert hooks.group.switch is changes
    hooks.group.paused = True  # the others have agreed with the next update
    with pytest.raises(Paused):
        update(hooks)


def test_a_pause_of_another_segment_or_to_another_member_is_not_passed_on():
    first, other = hooks_of(), hooks_of(rank=1)
    first.inbox.sent = Pause(6, membership_changes=True)
    other.inbox.sent = Pause(7, membership_changes=True)
    for hooks in (first, other):
        update(hooks)
        assert not hooks.group.pause


def test_a_loss_of_contact_ends_the_segment_after_the_update():
    hooks = hooks_of()
    hooks.group.failure, hooks.group.paused = LostContact("gone"), True
    with pytest.raises(LostContact):
        update(hooks)
    assert hooks.mailbox.reported  # the update counts


# -- durations ------------------------------------------------------------------------------------


def test_silence_is_measured_in_usual_updates(clock):
    hooks = hooks_of()
    for _ in range(19):
        update(hooks, seconds=0.5)
    assert UpdateTimed not in kinds(hooks)
    update(hooks, seconds=0.5)
    assert hooks.group.timeouts == [pytest.approx(10.0 + 20 * 0.5)] * 20
    assert hooks.mailbox.reported[-1] == UpdateTimed("rank-0", 3, 12, 0.5)
    update(hooks, seconds=0.5)
    assert len(hooks.group.timeouts) == 20


def test_a_rank_that_hangs_in_the_first_updates_is_not_awaited_for_a_minute(clock):
    """The slowest update counts, and a very slow one leaves the timeout as it was."""
    hooks = hooks_of()
    for seconds in [0.1, 1.0, 0.2, 30.0]:
        update(hooks, seconds=seconds)
    assert hooks.group.timeouts == pytest.approx([12.0, 30.0, 30.0, 60.0])


def test_the_first_updates_do_not_count(clock):
    hooks = hooks_of()
    for seconds in [30.0, 9.0] + [0.5] * 18:
        update(hooks, seconds=seconds)
    assert hooks.mailbox.reported[-1].seconds == 0.5


def test_a_longer_period_means_longer_silence(clock):
    hooks = hooks_of()
    for _ in range(20):
        update(hooks, seconds=0.5)
    hooks.fit.comm.current_period = 4
    update(hooks, seconds=0.5)
    assert hooks.group.timeouts[20:] == [pytest.approx(10.0 + 20 * 0.5 * 4)]
    hooks.fit.comm.current_period = 2  # a shorter one does not make ranks impatient
    update(hooks, seconds=0.5)
    assert len(hooks.group.timeouts) == 21


def test_another_batch_size_is_timed_anew(clock):
    hooks = hooks_of()
    for _ in range(20):
        update(hooks, seconds=0.5)
    for _ in range(20):
        update(hooks, rows=24, seconds=2.0)
    assert [e for e in hooks.mailbox.reported if isinstance(e, UpdateTimed)][-1] == UpdateTimed(
        "rank-0", 3, 24, 2.0
    )


def test_segments_of_one_group_share_their_durations(clock):
    timing = Timing()
    first = hooks_of(timing=timing)
    for _ in range(20):
        update(first, seconds=0.5)
    second = hooks_of(timing=timing)
    update(second, seconds=0.5)
    assert UpdateTimed not in kinds(second)


@pytest.mark.parametrize("period", [1, 2, 4])
def test_a_slow_start_and_a_stall_do_not_count_as_usual(period):
    turn = [1.0] * (period - 1) + [2.0]
    seconds = [50.0, 50.0, *(turn * 18)[:18]]
    seconds[6] = 30.0
    assert usual_seconds(seconds, period) == pytest.approx(sum(turn) / period)


def test_rare_averagings_count_nevertheless():
    assert usual_seconds([9.0, 9.0, *[1.0] * 9, 10.0, *[1.0] * 8], period=10) == 1.5


# -- checkpoints ----------------------------------------------------------------------------------


def test_the_first_member_sends_a_checkpoint_now_and_then():
    hooks = hooks_of(checkpoint_every=2)
    for _ in range(4):
        update(hooks)
    sent = [e for e in hooks.mailbox.reported if isinstance(e, CheckpointSent)]
    assert [(e.blob, e.segment, e.update) for e in sent] == [
        ("checkpoint/2/rank-0", 7, 2),
        ("checkpoint/4/rank-0", 7, 4),
    ]
    content = unpack(hooks.mailbox.blobs["checkpoint/4/rank-0"])["tensors"]
    assert {"modules", "optimizers", "updates"} <= set(content)
    assert "rng" not in content
    assert hooks.fit.comm.flushed == 2


def test_other_members_send_their_replicas_only_if_they_have_some():
    silent, averaging = (hooks_of(rank=1, averages=a, checkpoint_every=1) for a in (False, True))
    update(silent)
    update(averaging)
    assert silent.mailbox.blobs == {}
    assert averaging.mailbox.reported == [CheckpointSent("rank-1", "checkpoint/1/rank-1", 7, 1)]
    assert list(unpack(averaging.mailbox.blobs["checkpoint/1/rank-1"])["tensors"]) == ["replicas"]


# -- progress -------------------------------------------------------------------------------------


def test_progress_is_reported_four_times_a_second(clock):
    hooks = hooks_of()
    hooks.fit.comm.traffic = Traffic(bytes=100, wait_seconds=0.02)
    for _ in range(11):
        update(hooks, seconds=0.1)
    # In the first update, and then when a quarter of a second passed.
    assert [event["update"] for event in hooks.progress] == [1, 4, 7, 10]
    later = hooks.progress[1]
    assert later["examples_per_second"] == pytest.approx(12 * 3 / 0.3)
    assert later["bytes_per_second"] == pytest.approx(100 * 3 / 0.3)
    assert later["waiting"] == pytest.approx(0.02 * 3 / 0.3)
    assert (later["ranks"], later["loss"], later["lr"], later["period"]) == (3, 0.5, 0.1, 1)
    assert torch.tensor([v for v in later.values() if isinstance(v, float)]).isfinite().all()
