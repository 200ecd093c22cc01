"""Answers of ranks: ends of segments, states and replicas, checkpoints, validation results.

Used by :mod:`accelerando._cluster.driver.machine`. An answer that nobody waits for any more is
dropped together with its blob.
"""

from __future__ import annotations

from typing import Any

from accelerando._cluster import messages
from accelerando._cluster.driver.pool import Turn, end_call, free_start_blob, raise_from, silence
from accelerando._cluster.driver.state import (
    DropBlob,
    Finish,
    Key,
    LoadReplicas,
    LoadState,
    Phase,
    Request,
    SaveCheckpoint,
    Send,
)
from accelerando._cluster.messages import RankId

_ANSWER_SECONDS = 60.0  # for a state, beyond the time after which a rank counts as silent


# -- the end of a segment -----------------------------------------------------------------------


def rank_ready(turn: Turn, event: messages.RankReady) -> None:
    """Note that a rank has started."""
    turn.change(event.rank, status="ready")


def segment_ended(turn: Turn, event: messages.SegmentEnded) -> None:
    """Note how a segment or an averaging ended on a rank."""
    state, status = turn.state, turn.state.ranks[event.rank].status
    # A rank that missed the end of its segment joins as a newcomer.
    outcome = None if status == "silent" else event.outcome
    state.unreached = event.reason or state.unreached
    _leave_segment(turn, event, broken=outcome == "lost", status="ready", outcome=outcome)


def rank_raised(turn: Turn, event: messages.RankRaised) -> None:
    """Note that the user's code raised; the error is raised when the state was collected."""
    _leave_segment(turn, event, broken=True, status="raised")


def _leave_segment(
    turn: Turn, event: messages.SegmentEnded | messages.RankRaised, *, broken: bool, **values: Any
) -> None:
    """Note the state that a rank has at the end of a segment."""
    state = turn.state
    free_start_blob(turn, event.rank)
    if state.ranks[event.rank].status == "training":
        state.broken = state.broken or broken
        if event.begun:
            state.begun, state.changed = True, False
            state.stillborn, state.unformed, state.unreached = (), 0, ""
    if event.begun:
        values |= {"key": Key(event.averagings, event.update), "since": event.since}
    turn.change(event.rank, **values)


def progress_seen(turn: Turn, event: messages.ProgressSeen) -> None:
    """Note the newest update and how long an update takes."""
    state = turn.state
    state.newest_update = max(state.newest_update, event.update)
    state.stillborn, state.unformed = (), 0
    state.update_seconds, state.period = event.update_seconds, event.period


# -- states and replicas --------------------------------------------------------------------------


def ask_model(turn: Turn, rank: RankId) -> None:
    """Ask the most advanced rank for the state that all ranks share."""
    turn.state.collecting = "model"
    _ask(turn, [rank], messages.MODEL_PARTS)


def ask_replicas(turn: Turn) -> None:
    """Ask the members that have the driver's update for their replicas."""
    state = turn.state
    state.collecting = "replicas"
    asked = [r for r in turn.present() if state.ranks[r].status in ("ready", "raised")]
    _ask(turn, [r for r in asked if state.ranks[r].key == state.here], messages.REPLICA_PARTS)


def _ask(turn: Turn, ranks: list[RankId], parts: tuple[str, ...]) -> None:
    for rank in ranks:
        blob = turn.name_blob("state")
        turn.state.requests[rank] = Request(blob)
        turn.do(Send(rank, messages.SendState(blob, parts)))
    turn.enter(Phase.COLLECTING, turn.state.rank_timeout + _ANSWER_SECONDS)


def _answered(turn: Turn, rank: RankId, blob: str) -> Request | None:
    """Return the request that a blob answers; drop the blob if nobody waits for it."""
    if turn.state.ranks[rank].status == "silent":
        turn.change(rank, status="ready", outcome=None)
    request = turn.state.requests.get(rank)
    if request is None or request.blob != blob:
        turn.do(DropBlob(blob))
        return None
    return turn.state.requests.pop(rank)


def state_sent(turn: Turn, event: messages.StateSent) -> None:
    """Load a state, or keep a replica until all replicas arrived."""
    state = turn.state
    if _answered(turn, event.rank, event.blob) is None:
        return
    if state.collecting == "replicas":
        state.received[event.blob] = event.rank
        return
    state.here, state.collecting = Key(event.averagings, event.update), None
    state.ended = state.ranks[event.rank].outcome == "epoch"
    turn.do(LoadState(event.blob))


def load_replicas(turn: Turn) -> None:
    """Load the replicas that arrived; a lost member has none."""
    state = turn.state
    blobs = {rank: blob for blob, rank in state.received.items()}
    state.received, state.collecting = {}, None
    turn.do(LoadReplicas(tuple(blobs.get(rank) for rank in state.members)))


# -- checkpoints ----------------------------------------------------------------------------------


def checkpoint_sent(turn: Turn, event: messages.CheckpointSent) -> None:
    """Save a checkpoint when all parts of it arrived."""
    state = turn.state
    members = state.members if state.averages else state.members[:1]
    here = Key(event.averagings, event.update)
    training = state.phase in (Phase.TRAINING, Phase.DRAINING) and event.segment == state.segment
    if not training or event.rank not in members or here <= state.here:
        turn.do(DropBlob(event.blob))
        return
    arrived = {**state.parts.get(event.update, {}), event.rank: event.blob}
    state.parts = {**state.parts, event.update: arrived}
    if len(arrived) < len(members):
        return
    state.here, state.changed = here, False
    turn.do(SaveCheckpoint(tuple(arrived[rank] for rank in members)))
    state.parts = {update: parts for update, parts in state.parts.items() if update != event.update}
    drop_parts(turn, event.update)


def drop_parts(turn: Turn, before: int | None = None) -> None:
    """Drop the parts of checkpoints that will never be complete: of older updates, or all."""
    state = turn.state
    stale = [update for update in state.parts if before is None or update < before]
    for update in stale:
        turn.do(*(DropBlob(blob) for blob in state.parts[update].values()))
    state.parts = {update: p for update, p in state.parts.items() if update not in stale}


# -- validation -----------------------------------------------------------------------------------


def evaluate(turn: Turn, event: messages.EvaluateBatches) -> None:
    """Begin an evaluation."""
    turn.state.todo = tuple(range(event.batches))
    turn.state.evaluated_update = event.update
    turn.enter(Phase.EVALUATING)


def batches_evaluated(turn: Turn, event: messages.BatchesEvaluated) -> None:
    """Keep results; give up if predictions cannot be sent."""
    if _answered(turn, event.rank, event.blob) is None:
        return
    if event.sendable:
        turn.state.received[event.blob] = event.rank
    else:
        end_call(turn, Finish("unavailable"))


def watch_evaluation(turn: Turn) -> None:
    """Divide the batches that nobody evaluates among the ranks that have the model."""
    state = turn.state
    if raised := turn.with_status("raised"):
        raise_from(turn, raised[0])
        return
    if turn.overdue:
        silence(turn, list(state.requests))
    if state.requests:
        return
    if not state.todo:
        end_call(turn, Finish("evaluated", tuple(state.received)))
        return
    newest = state.evaluated_update
    ranks = [r for r in turn.with_status("ready") if state.ranks[r].key.update == newest]
    if any(state.ranks[rank].worker not in state.leaving for rank in ranks):
        ranks = [rank for rank in ranks if state.ranks[rank].worker not in state.leaving]
    if not ranks:
        end_call(turn, Finish("unavailable"))
        return
    todo, state.todo = sorted(state.todo), ()
    for number, rank in enumerate(ranks[: len(todo)]):
        share = tuple(todo[number :: len(ranks)])
        blob = turn.name_blob("valid")
        state.requests[rank] = Request(blob, share)
        turn.do(Send(rank, messages.Evaluate(share, blob)))
    turn.enter(Phase.EVALUATING, state.worker_timeout)
