"""Ranks leave before their workers do, if the workers give notice.

A worker that is *leaving* got SIGTERM, is being retired, or is closing. It waits a while for its
rank. The segment is paused, as for any other change of the membership; the others continue with the
state that they share. A state that only a leaving rank has is collected before the rank is let go.
Used by :mod:`accelerando._cluster.driver.machine`.
"""

from __future__ import annotations

from collections.abc import Callable

from accelerando._cluster import messages
from accelerando._cluster.driver import answers, pool
from accelerando._cluster.driver.pool import Turn
from accelerando._cluster.driver.state import Phase, Send
from accelerando._cluster.messages import RankId

_LEAVE_SECONDS = 30.0  # no worker waits longer for its rank


def leave_requested(turn: Turn, worker: str) -> None:
    """Note that a worker is about to leave: no rank starts on it, and the one there leaves."""
    state = turn.state
    if worker in state.leaving:
        return
    state.leaving = {**state.leaving, worker: turn.now}
    state.workers = tuple(other for other in state.workers if other != worker)
    ranks = [rank for rank, info in state.ranks.items() if info.worker == worker]
    if ranks:
        turn.log("leaving", f"Worker {worker} is about to leave the cluster.")
    for rank in ranks:
        status = state.ranks[rank].status
        spare = status == "ready" and state.phase is Phase.TRAINING  # members are training
        if status == "starting" or spare:
            let_go(turn, rank)
    pool.recruit(turn)


def surveyed(turn: Turn, event: messages.Surveyed) -> None:
    """Follow workers that are closing, have left, or stay after all."""
    state = turn.state
    for worker in event.closing:
        leave_requested(turn, worker)
    occupied = {info.worker for info in state.ranks.values()}
    for worker, since in list(state.leaving.items()):
        waited = turn.now - since > _LEAVE_SECONDS
        if worker in event.workers:
            over = waited and worker not in event.closing
        else:
            over = waited or worker not in occupied
        if over:
            state.leaving = {w: at for w, at in state.leaving.items() if w != worker}


def is_leaving(turn: Turn, ranks: tuple[RankId, ...]) -> bool:
    """Return True if the worker of one of these ranks is leaving."""
    known = turn.state.ranks
    return any(rank in known and known[rank].worker in turn.state.leaving for rank in ranks)


def let_leave(turn: Turn, average: Callable[[Turn, tuple[RankId, ...]], bool]) -> bool:
    """Let ranks go that are not needed any more; return True if their state has to be saved before.

    `average` lets replicas average before some of the members leave.
    """
    state, ready, best = turn.state, turn.with_status("ready"), turn.best()
    going = [rank for rank in ready if state.ranks[rank].worker in state.leaving]
    if not going:
        return False
    staying = [rank for rank in ready if rank not in going]
    if average(turn, tuple(staying)):
        return True
    if best is not None and not state.changed:
        others = [state.ranks[rank].key for rank in staying]
        if state.ranks[best].key > max([state.here, *others]):
            answers.ask_model(turn, best)  # nobody else has this state
            return True
    for rank in going:
        let_go(turn, rank)
    return False


def let_go(turn: Turn, rank: RankId) -> None:
    """Stop a rank without waiting for its task, which Dask may have forgotten."""
    info = turn.state.ranks[rank]
    turn.do(Send(rank, messages.Stop()))
    pool.drop(turn, rank)
    turn.log("left", f"The rank on {info.worker} left after update {max(0, info.key.update)}.")
