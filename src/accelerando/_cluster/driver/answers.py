"""Answers of ranks: ends of segments, states and replicas, checkpoints, validation results.

Used by :mod:`accelerando._cluster.driver.machine`. An answer that nobody waits for any more is
dropped together with its blob.
"""

from __future__ import annotations

from typing import Any

from accelerando._cluster import messages
from accelerando._cluster.driver.pool import (
    Turn,
    end_call,
    free_start_blob,
    plural,
    raise_from,
    silence,
)
from accelerando._cluster.driver.state import (
    Attempts,
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

_DEATHS = 3  # segments that lose a worker in the same update
_CONTACTS = 5  # segments that lose contact in the same update, while all workers live
_GROUPS = 3  # process groups in a row that cannot be formed
_DRIFT = 1e-4  # relative; processors that round differently stay far below
_ANSWER_SECONDS = 60.0  # for a state, beyond the time after which a rank counts as silent


# -- the end of a segment -----------------------------------------------------------------------


def rank_ready(turn: Turn, event: messages.RankReady) -> None:
    """Note that a rank has started."""
    turn.change(event.rank, status="ready")


def segment_ended(turn: Turn, event: messages.SegmentEnded) -> None:
    """Note how a segment or an averaging ended on a rank."""
    state, status = turn.state, turn.state.ranks[event.rank].status
    if event.unused is not None:
        state.unused = event.unused
    # A rank that missed the end of its segment joins as a newcomer.
    outcome = None if status == "silent" else event.outcome
    state.unreached = event.reason or state.unreached
    if event.sizes:
        state.told = {**state.told, event.rank: (event.own, event.sizes)}
    _leave_segment(turn, event, broken=outcome == "lost", status="ready", outcome=outcome)


def count_loss(turn: Turn) -> None:
    """Count losses in the same update; give up if the update itself seems to end its workers.

    After the loss of all members, training begins again from the driver's state. How far they
    were is known roughly from their progress, and exactly from then on.
    """
    state, before, present = turn.state, turn.state.attempts, turn.present()
    if not state.broken or (present and not state.begun) or turn.count("raised"):
        return
    best = max((state.ranks[rank].key.update for rank in present), default=-1)
    update = 1 + (max(best, state.here.update) if present else state.newest_update)
    if before.update != update:
        before = Attempts()
    workers = (*before.workers, *state.lost)
    died, lost = before.count + bool(state.lost), before.contacts + (not state.lost)
    state.attempts = Attempts(update, died, workers, lost)
    if died >= _DEATHS:
        state.failure = (
            f"Update {update} has killed {plural(len(workers), 'worker')}: "
            f"{', '.join(workers[:10])}. Its batch seems to end the process: by a crash of a "
            "native library, or because the memory is too small for it. The estimator holds the "
            "newest state before it. Look into the workers' logs, train with a smaller batch_size "
            "or more memory per worker; partial_fit then continues."
        )
    elif lost >= _CONTACTS:
        state.failure = (
            f"Ranks have lost contact to each other {lost} times in a row in update {update}, and "
            "no worker has died. Their network drops connections, or an update takes longer than "
            f"ranks wait for each other: pass a rank_timeout above {state.rank_timeout:g} s. The "
            "estimator holds the newest state before it; partial_fit continues."
        )


def count_unformed(turn: Turn) -> None:
    """Count groups whose members are all there and do not reach each other; then give up."""
    state = turn.state
    if state.begun or state.lost or len(state.members) < 2:
        return
    state.unformed += 1
    if state.unformed >= _GROUPS:
        workers = ", ".join(state.ranks[rank].worker for rank in turn.present()[:10])
        state.failure = (
            f"Ranks on {workers} could not form a process group, {_GROUPS} times in a row: "
            f"{state.unreached or 'they did not answer'}. Ranks connect to each other on ports "
            "that the system chooses. Open all TCP ports between the workers (Linux chooses from "
            "net.ipv4.ip_local_port_range), or start workers with --interface and the network that "
            "they share. 'accelerando doctor --scheduler ADDRESS' tries every pair."
        )


def compare_members(turn: Turn) -> None:
    """Look whether members that share every batch still have the same model."""
    state = turn.state
    told, state.told = list(state.told.values()), {}
    if len(told) < 2:
        return
    names = {name: None for own, _ in told for name in own}
    new = [
        name
        for name in names
        if len({own.get(name) for own, _ in told}) > 1 and name not in state.differing
    ]
    if new:
        state.differing += tuple(new)
        turn.log(
            "differ",
            f"Forward passes have changed {', '.join(n.replace('#', '.') for n in new[:5])} in "
            "different ways on different ranks. The estimator gets what the first rank has. If "
            "training depends on it, the result depends on the number of ranks: train on one "
            "(max_workers=1).",
        )
    (first, size), *others = [sizes for _, sizes in told]
    if any(
        abs(one - first) > _DRIFT * max(size, abs(first)) or abs(other - size) > _DRIFT * size
        for one, other in others
    ):
        state.failure = (
            "The parameters of the ranks are no longer the same, although all ranks take the same "
            "steps: something changes them differently on each rank, such as a module whose "
            "forward writes to its parameters, or a callback that draws random numbers from a "
            "generator of its own. Make it depend on random_state only, or train on one rank "
            "(max_workers=1)."
        )


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
