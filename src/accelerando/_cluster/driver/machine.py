"""The driver as a state machine: a state and an event give the next state and the actions.

:func:`step` decides who trains, when the membership changes, what is collected, and when to give
up. It is pure: no clock, no Dask, no torch; ``driver/run.py`` carries the actions out.

An epoch is ``IDLE -> GATHERING -> TRAINING -> DRAINING -> COLLECTING -> IDLE``. If members are
lost, or the number of ranks changes, DRAINING leads back to GATHERING, and the next *segment*
continues with the state of the most advanced rank. If no rank has a state that is newer than the
driver's, it continues with the driver's. Every phase but IDLE and TRAINING ends at a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from accelerando._cluster import messages
from accelerando._cluster.driver import losses, membership, pool, replicas
from accelerando._cluster.driver.pool import Turn, end_call, silence
from accelerando._cluster.driver.state import (
    NO_STATE,
    Action,
    DriverState,
    DropBlob,
    Fail,
    Finish,
    Key,
    Phase,
    PutState,
    RestoreCluster,
    Send,
    StartSegment,
)
from accelerando._cluster.messages import RankId

_START_SECONDS = 180.0  # to find a free thread, import torch and fetch the data
_GATHER_SECONDS = 60.0  # the first segment waits this long for ranks that are still starting
_SWITCH_SECONDS = 2.0  # a change of membership waits this long for further ranks
_LOST_SECONDS = 2.0  # after a loss, the others report it within this time
_SLOW_UPDATES = 20  # a rank may take this many times the usual update
_HELD_SECONDS = 60.0  # then the driver collects the model although nobody needs it


def step(state: DriverState, event: messages.Event, now: float) -> tuple[DriverState, list[Action]]:
    """Return the state after an event, and the actions to carry out in their order.

    Parameters
    ----------
    state : DriverState
        The state before; it is not changed.
    event : Event
        What happened.
    now : float
        The time in seconds, on a clock that never goes back.

    Examples
    --------
    >>> from accelerando._cluster.driver.sizing import Limits, Sizing
    >>> state = DriverState(Sizing(Limits(examples_per_worker=16), batch_size=32))
    >>> state, _ = step(state, messages.Surveyed(workers=("tcp://a:1", "tcp://b:1")), now=0.0)
    >>> state, actions = step(state, messages.TrainEpoch(epoch=0, until=1), now=0.1)
    >>> actions[0]
    StartRank(rank='rank-0', worker='tcp://a:1')
    >>> state.phase.name, [info.status for info in state.ranks.values()]
    ('GATHERING', ['starting', 'starting'])
    """
    turn = Turn.of(state, now)
    rank = getattr(event, "rank", None)
    if turn.state.phase is Phase.CLOSED or (rank is not None and rank not in turn.state.ranks):
        if blob := getattr(event, "blob", None):
            turn.do(DropBlob(blob))  # a late answer of a rank that was given up
        return turn.state, turn.actions
    if isinstance(event, _CALLS) and turn.state.phase is not Phase.IDLE:
        raise RuntimeError(
            f"{type(event).__name__} came while the driver waits for {turn.state.phase.value}."
        )
    _HANDLERS[type(event)](turn, event)
    before = None
    while (now_in := (turn.state.phase, turn.state.collecting)) != before:
        before = now_in
        if turn.state.phase in _WATCHES:
            _WATCHES[turn.state.phase](turn)
    return turn.state, turn.actions


# -- calls of the estimator -----------------------------------------------------------------------


def _train_epoch(turn: Turn, event: messages.TrainEpoch) -> None:
    state = turn.state
    state.call, state.ended = event, False
    if state.noted is None:
        state.here, state.held_at, state.calls = Key(event.averagings, event.update), turn.now, ()
    state.calls += (event,)
    state.stillborn, state.unformed, state.unreached = (), 0, ""
    if event.changed:
        state.changed = True  # what ranks have is older, whatever their update is
        for rank in state.ranks:
            turn.change(rank, key=NO_STATE)
    state.sizing = replace(state.sizing, n_examples=event.n_examples)
    state.ahead = state.sizing.ahead(event.next_batch_size, len(state.workers))
    if event.update and event.batch_size:
        state.sizing = replace(state.sizing, batch_size=event.batch_size)
    _gather(turn)


def _fetch(turn: Turn, event: messages.Fetch) -> None:
    state, best = turn.state, turn.best()
    assert state.call is not None
    state.call, state.ended = replace(state.call, fetch=True), False
    if best is not None and state.ranks[best].key == state.noted:
        pool.ask_model(turn, best)
    else:
        _gather(turn)


def _close(turn: Turn, event: messages.Close) -> None:
    if turn.state.parts:
        replicas.drop_parts(turn)
    pool.stop(turn, tuple(turn.state.ranks))
    turn.do(RestoreCluster())
    end_call(turn, Finish("closed"))
    turn.enter(Phase.CLOSED)


def _interrupt(turn: Turn, event: messages.Interrupt) -> None:
    turn.state.interrupted = True


# -- gathering ------------------------------------------------------------------------------------


def _gather(turn: Turn) -> None:
    turn.state.served_at = turn.now
    turn.enter(Phase.GATHERING)
    pool.recruit(turn)


def _watch_gathering(turn: Turn) -> None:
    """Begin a segment when enough ranks are ready; give up if there is none for too long."""
    state = turn.state
    if state.stillborn:
        losses.count_stillborn(turn)
    if state.interrupted or state.failure or turn.count("raised"):
        _conclude(turn)
        return
    if state.leaving and losses.let_leave(turn):
        return
    ready, starting = turn.count("ready"), turn.count("starting")
    patience = 0.0 if state.members else _GATHER_SECONDS
    waited = turn.now - state.entered >= patience
    if ready and (waited or not starting or ready >= turn.bound().ranks):
        _begin_segment(turn, turn.with_status("ready"))
    elif ready or starting:
        state.served_at = turn.now
    elif turn.now - state.served_at > state.worker_timeout:
        reason = (
            f"The cluster has had no worker for this fit for {state.worker_timeout:g} s "
            "(worker_timeout). The estimator holds the newest state that was collected; "
            "partial_fit continues from it when there are workers again."
        )
        end_call(turn, Fail(reason))


def _begin_segment(turn: Turn, ready: list[RankId]) -> None:
    state, wanted = turn.state, turn.bound().ranks
    assert state.call is not None
    ready.sort(key=lambda rank: state.ranks[rank].key, reverse=True)
    members = tuple(ready[:wanted])  # the first has the newest state and gives it to the others
    if state.averages and replicas.average_first(turn, members):
        return
    newest, source, blob = state.ranks[members[0]].key, None, None
    if state.changed or newest < state.here:
        source, blob = 0, turn.name_blob("start")
        state.start_blobs[members[0]] = blob
        turn.do(PutState(blob))
        if state.noted is not None:
            membership.go_back(turn)
    elif state.ranks[members[-1]].key != newest:
        source = 0
    outcomes = [state.ranks[rank].outcome for rank in members]
    state.forming = False
    if members != state.members or any(outcome != "epoch" for outcome in outcomes):
        if state.averages and source is None:
            source = 0  # replicas that differ are averaged before the segment begins
        state.generation, state.abandoned = state.generation + 1, False
        state.forming = len(members) > 1
        if state.members or len(members) < min(state.sizing.limits.min_workers, wanted):
            membership.log_segment(turn, members)
    state.members, state.segment, state.lost = members, state.segment + 1, []
    state.newest_update = max(newest, state.here).update
    state.paused = state.begun = state.broken = False
    reached = state.here if blob else newest
    # The current epoch, or an earlier one that is trained again.
    call = [c for c in state.calls if Key(c.averagings, c.update) <= reached][-1]
    state.spares_since, state.began = None, call.epoch
    for rank in members:
        turn.change(rank, status="training", outcome=None)
    turn.do(
        StartSegment(
            segment=state.segment,
            generation=state.generation,
            members=members,
            source=source,
            blob=blob,
            epoch=call.epoch,
            until=state.call.until,
            patch=call.patch,
            intact=tuple(outcome in ("epoch", "paused", "averaged") for outcome in outcomes),
            careful=state.unformed > 0
            or (state.attempts.count > 0 and state.newest_update <= state.attempts.update),
        )
    )
    turn.enter(Phase.TRAINING)
    keep = max(wanted, state.ahead)
    pool.release(turn, ready[keep:], keep)


def _watch_averaging(turn: Turn) -> None:
    if turn.overdue:
        silence(turn, turn.with_status("averaging"))
    if not turn.count("averaging"):
        _gather(turn)


# -- training -------------------------------------------------------------------------------------


def _watch_training(turn: Turn) -> None:
    """Wait for the end of a segment; pause it if others should train."""
    state, busy = turn.state, turn.count("training")
    if not busy or (turn.overdue and state.phase is Phase.DRAINING):
        silence(turn, turn.with_status("training"))
        _end_segment(turn)
    elif state.broken and not state.abandoned:
        state.abandoned = True  # members that are still joining the group need not wait
        abandon = messages.Abandon(state.generation)
        turn.do(*(Send(rank, abandon) for rank in turn.with_status("training")))
        turn.enter(Phase.DRAINING, max(_LOST_SECONDS, 3 * state.update_seconds * state.period))
    elif busy < len(state.members) and state.phase is Phase.TRAINING:
        slow = _SLOW_UPDATES * state.update_seconds * state.period
        turn.enter(Phase.DRAINING, state.rank_timeout + slow)
    elif state.phase is Phase.TRAINING and not state.paused and _should_pause(turn):
        state.paused = True
        pause = messages.Pause(state.segment, membership_changes=not state.interrupted)
        turn.do(Send(state.members[0], pause))


def _should_pause(turn: Turn) -> bool:
    """Return True after Ctrl-C, and if it is time to continue with other ranks."""
    state, wanted, count = turn.state, turn.bound().ranks, len(turn.state.members)
    if state.leaving and losses.is_leaving(turn, state.members):
        return True
    if state.interrupted or wanted <= count:
        return state.interrupted or wanted < count
    spares = turn.count("ready")  # members are not ready while they train
    if not spares:
        return False
    if count + spares >= wanted or not turn.count("starting"):
        return True
    if state.spares_since is None:
        state.spares_since = turn.now
    return turn.now - state.spares_since > _SWITCH_SECONDS


def _end_segment(turn: Turn) -> None:
    """Count segments that fail in the same update, then decide what comes next."""
    state = turn.state
    if state.parts:
        replicas.drop_parts(turn)
    if state.broken:
        losses.count_loss(turn)
    if not state.begun:
        losses.count_unformed(turn)
    compared = list(state.compared.values())
    if any(other != compared[0] for other in compared):
        losses.compare_members(turn)
    state.compared = {}
    _conclude(turn)


# -- the end of an epoch --------------------------------------------------------------------------


def _conclude(turn: Turn) -> None:
    """Collect the best state if the call is over, or train the rest of the epoch."""
    state, best = turn.state, turn.best()
    over = bool(state.interrupted or state.failure or turn.count("raised"))
    if best is not None and not state.changed:
        key = state.ranks[best].key
        ended = state.ranks[best].outcome == "epoch" and best in state.members
        assert state.call is not None
        if ended and not over and state.began < state.call.epoch:  # it was trained again
            _gather(turn)
            return
        if ended or (over and key > state.here):
            due = turn.now - state.held_at > _HELD_SECONDS
            pool.ask_model(turn, best, whole=over or due or state.call.fetch)
            return
        if over and state.averages and key == state.here:
            replicas.ask_replicas(turn)
            return
    _finish(turn) if over else _gather(turn)


def _watch_collecting(turn: Turn) -> None:
    state = turn.state
    if turn.overdue:
        silence(turn, list(state.requests))
    if state.requests:
        return
    if state.collecting in ("model", "position"):  # the rank that was asked is lost
        _conclude(turn)
    elif state.collecting == "replicas":
        replicas.load_replicas(turn)
        _finish(turn)
    else:
        assert state.call is not None
        last = state.call.epoch + 1 >= state.call.until
        if state.averages and (last or state.interrupted or not state.ended):
            replicas.ask_replicas(turn)
        else:
            _finish(turn)


def _finish(turn: Turn) -> None:
    """End the call with what was collected."""
    state = turn.state
    if state.saving:
        end_call(turn, Finish("collected"))
    elif raised := turn.with_status("raised"):
        pool.raise_from(turn, raised[0])
    elif state.failure is not None:
        end_call(turn, Fail(state.failure))
    elif state.interrupted:
        end_call(turn, Finish("interrupted"))
    elif state.ended:
        end_call(turn, Finish("epoch"))
    else:  # the rank that had raised is lost
        _gather(turn)


# -- once a second --------------------------------------------------------------------------------


def _surveyed(turn: Turn, event: messages.Surveyed) -> None:
    """Compare with what Dask knows: workers, failed tasks, ranks that do not start."""
    state = turn.state
    if state.leaving or event.closing or event.hanging or state.hanging:
        losses.follow_leaving(turn, event)
    state.workers = tuple(worker for worker in event.workers if worker not in state.leaving)
    present = {*event.workers, *state.leaving}
    if gone := {info.worker for info in state.ranks.values()} - present:
        losses.workers_left(turn, gone)
    for rank, end in event.tasks.items():
        if rank in state.ranks and losses.task_ended(turn, rank, end):
            return
    for rank in turn.with_status("starting"):
        if turn.now - state.ranks[rank].started_at > _START_SECONDS:
            turn.change(rank, status="silent")  # it is used if it starts within worker_timeout
            state.served_at = turn.now
            since = f"for {_START_SECONDS:g} s"
            turn.log("silent", f"The rank on {state.ranks[rank].worker} has not started {since}.")
    pool.recruit(turn)


_CALLS = (messages.TrainEpoch, messages.EvaluateBatches, messages.Fetch, messages.Collect)
_HANDLERS: Mapping[type, Callable[[Turn, Any], None]] = {
    messages.TrainEpoch: _train_epoch,
    messages.EvaluateBatches: pool.evaluate,
    messages.Fetch: _fetch,
    messages.Collect: replicas.collect,
    messages.Close: _close,
    messages.Interrupt: _interrupt,
    messages.Tick: lambda turn, event: None,
    messages.RankReady: pool.rank_ready,
    messages.SegmentEnded: pool.segment_ended,
    messages.RankRaised: pool.rank_raised,
    messages.StateSent: pool.state_sent,
    messages.BatchesEvaluated: pool.batches_evaluated,
    messages.CheckpointSent: replicas.checkpoint_sent,
    messages.BatchSizeChanged: pool.batch_size_changed,
    messages.RanksAllowed: pool.ranks_allowed,
    messages.UpdateTimed: pool.update_timed,
    messages.ProgressSeen: pool.progress_seen,
    messages.WorkerJoined: lambda turn, event: losses.worker_joined(turn, event.worker),
    messages.WorkerLeft: losses.worker_left,
    messages.LeaveRequested: lambda turn, event: losses.leave_requested(turn, event.worker),
    messages.Surveyed: _surveyed,
    messages.RankNotStarted: lambda turn, event: losses.not_started(turn, event.rank),
}
_WATCHES: Mapping[Phase, Callable[[Turn], None]] = {
    Phase.GATHERING: _watch_gathering,
    Phase.TRAINING: _watch_training,
    Phase.DRAINING: _watch_training,
    Phase.AVERAGING: _watch_averaging,
    Phase.COLLECTING: _watch_collecting,
    Phase.EVALUATING: pool.watch_evaluation,
}
