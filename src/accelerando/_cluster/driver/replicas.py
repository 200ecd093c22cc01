"""State that is distributed over all members: replicas of local SGD, and checkpoints.

Used by :mod:`accelerando._cluster.driver.machine`.
"""

from __future__ import annotations

from accelerando._cluster import messages
from accelerando._cluster.driver.pool import Turn, ask, end_call
from accelerando._cluster.driver.state import (
    DropBlob,
    Finish,
    Key,
    LoadReplicas,
    Phase,
    SaveCheckpoint,
    Send,
)
from accelerando._cluster.messages import RankId

_AVERAGE_SECONDS = 60.0  # for an averaging, beyond the time after which a rank counts as silent


# -- averaging before members leave ---------------------------------------------------------------


def average_first(turn: Turn, chosen: tuple[RankId, ...]) -> bool:
    """Let replicas average, between two epochs, before some of them leave."""
    state = turn.state
    if not state.averages or state.changed or set(state.members) <= set(chosen):
        return False
    infos = [state.ranks[rank] for rank in turn.present()]
    ended = all(info.outcome == "epoch" and info.status == "ready" for info in infos)
    if len(infos) < len(state.members) or not ended or not any(info.since for info in infos):
        return False  # they have averaged, or a lost one would keep the others waiting
    for rank in state.members:
        turn.change(rank, status="averaging", outcome=None)
        turn.do(Send(rank, messages.AverageNow()))
    turn.enter(Phase.AVERAGING, state.rank_timeout + _AVERAGE_SECONDS)
    return True


# -- replicas -------------------------------------------------------------------------------------


def collect(turn: Turn, event: messages.Collect) -> None:
    """Collect the replicas for a callback that saves the state between two epochs."""
    state, best = turn.state, turn.best()
    if state.averages and best is not None and state.ranks[best].key.update == event.update:
        state.here, state.saving = state.ranks[best].key, True
        ask_replicas(turn)
    else:
        end_call(turn, Finish("collected"))


def ask_replicas(turn: Turn) -> None:
    """Ask the members that have the driver's update for their replicas."""
    state = turn.state
    state.collecting = "replicas"
    asked = [r for r in turn.present() if state.ranks[r].status in ("ready", "raised")]
    ask(turn, [r for r in asked if state.ranks[r].key == state.here], messages.REPLICA_PARTS)


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
