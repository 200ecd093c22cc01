"""The pool of ranks: start and stop them, ask them, and note what they answer.

These decisions are the same in every phase of :mod:`accelerando._cluster.driver.machine`. An answer
that nobody waits for any more is dropped together with its blob.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from accelerando._cluster import messages
from accelerando._cluster.driver.sizing import Bound, plural
from accelerando._cluster.driver.state import (
    NO_STATE,
    Action,
    AwaitTasks,
    CancelTask,
    DriverState,
    DropBlob,
    Fail,
    Finish,
    Key,
    LoadState,
    Log,
    NoteState,
    Phase,
    RaiseFrom,
    RankInfo,
    Request,
    ScaleCluster,
    Send,
    ShrinkCluster,
    StartRank,
    Status,
)
from accelerando._cluster.messages import RankId

_ANSWER_SECONDS = 60.0  # for a state, beyond the time after which a rank counts as silent
_STOP_SECONDS = 5.0  # for a rank to end its task after Stop


@dataclass
class Turn:
    """The work on one event: a copy of the state, which may be changed, and the actions so far."""

    state: DriverState
    now: float
    actions: list[Action] = field(default_factory=list)

    @classmethod
    def of(cls, state: DriverState, now: float) -> Turn:
        """Copy the state: O(ranks), dictionaries of shared, immutable values."""
        copied = object.__new__(DriverState)  # copy.copy takes several times as long
        vars(copied).update(vars(state))
        copied.ranks, copied.requests = dict(state.ranks), dict(state.requests)
        copied.received, copied.start_blobs = dict(state.received), dict(state.start_blobs)
        copied.lost, copied.counts = list(state.lost), dict(state.counts)
        return cls(copied, now)

    def do(self, *actions: Action) -> None:
        """Add actions."""
        self.actions.extend(actions)

    def log(self, event: str, text: str) -> None:
        """Add a line to the log."""
        self.actions.append(Log(event, text))

    def enter(self, phase: Phase, seconds: float | None = None) -> None:
        """Enter a phase that ends after this number of seconds at the latest."""
        self.state.phase, self.state.entered = phase, self.now
        self.state.deadline = None if seconds is None else self.now + seconds

    @property
    def overdue(self) -> bool:
        """Whether the phase has lasted too long."""
        return self.state.deadline is not None and self.now > self.state.deadline

    def put(self, rank: RankId, info: RankInfo | None) -> RankInfo | None:
        """Replace what is known of a rank, None forgets it; return what was known before."""
        ranks, counts = self.state.ranks, self.state.counts
        before = ranks.get(rank)
        if before is not None:
            counts[before.status] -= 1
        if info is None:
            ranks.pop(rank, None)
        else:
            ranks[rank] = info
            counts[info.status] = counts.get(info.status, 0) + 1
        return before

    def change(self, rank: RankId, **values: Any) -> None:
        """Change what is known of a rank."""
        self.put(rank, replace(self.state.ranks[rank], **values))

    def count(self, *status: Status) -> int:
        """Return the number of ranks with one of these statuses."""
        return sum(self.state.counts.get(one, 0) for one in status)

    def with_status(self, *status: Status) -> list[RankId]:
        """Return the ranks with one of these statuses, oldest first."""
        if not self.count(*status):
            return []
        return [rank for rank, info in self.state.ranks.items() if info.status in status]

    def present(self) -> list[RankId]:
        """Return the members that are not lost."""
        return [rank for rank in self.state.members if rank in self.state.ranks]

    def best(self) -> RankId | None:
        """Return the most advanced rank that can be asked for its state."""
        ranks = self.state.ranks
        known = [r for r in self.with_status("ready", "raised") if ranks[r].key != NO_STATE]
        return max(known, key=lambda rank: ranks[rank].key, default=None)

    def bound(self) -> Bound:
        """Return how many ranks should train."""
        state = self.state
        return state.sizing.bound(len(state.members), len(state.workers))

    def name_blob(self, kind: str) -> str:
        """Return a new name for a blob."""
        self.state.blobs += 1
        return f"{kind}/{self.state.blobs}"


# -- more and fewer ranks -------------------------------------------------------------------------


def recruit(turn: Turn) -> None:
    """Start missing ranks on workers that have none, and ask for more workers."""
    state = turn.state
    if state.call is None or state.phase is Phase.CLOSED:
        return
    wanted = max(turn.bound().ranks, state.ahead)
    missing = wanted - turn.count("starting", "ready", "training", "averaging")
    if state.leaving:
        missing += sum(info.worker in state.leaving for info in state.ranks.values())
    if missing <= 0:
        return
    taken = {info.worker for info in state.ranks.values()}
    free = [worker for worker in state.workers if worker not in taken][:missing]
    for worker in free:
        rank = f"rank-{state.started}"
        state.started += 1
        turn.put(rank, RankInfo(worker, "starting", started_at=turn.now))
        turn.do(StartRank(rank, worker))
    turn.do(ScaleCluster(wanted, len(state.workers), missing - len(free)))


def release(turn: Turn, ranks: list[RankId], keep: int) -> None:
    """Stop ranks that are not needed any more, and give workers back."""
    if ranks:
        stop(turn, tuple(ranks))
        turn.do(ShrinkCluster(keep))


def stop(turn: Turn, ranks: tuple[RankId, ...]) -> None:
    """Stop ranks; those that do not answer are cancelled."""
    state = turn.state
    answering = tuple(rank for rank in ranks if state.ranks[rank].status != "silent")
    turn.do(*(Send(rank, messages.Stop()) for rank in ranks), AwaitTasks(answering, _STOP_SECONDS))
    for rank in ranks:
        drop(turn, rank)


def drop(turn: Turn, rank: RankId, *, cancel: bool = True) -> None:
    """Forget a rank and everything that it was asked for."""
    state = turn.state
    info = turn.put(rank, None)
    if info is not None and info.status == "training":
        state.lost.append(info.worker)
        state.broken = True
    free_start_blob(turn, rank)
    if (request := state.requests.pop(rank, None)) is not None:
        state.todo += request.batches
        turn.do(DropBlob(request.blob))
    if cancel:
        turn.do(CancelTask(rank))


def free_start_blob(turn: Turn, rank: RankId) -> None:
    """Remove the state that was put for a rank, if the rank has not taken it."""
    if (blob := turn.state.start_blobs.pop(rank, None)) is not None:
        turn.do(DropBlob(blob))


def silence(turn: Turn, ranks: Iterable[RankId]) -> None:
    """Wait no longer for ranks; a later answer makes them ready again."""
    for rank in ranks:
        if (request := turn.state.requests.pop(rank, None)) is not None:
            turn.state.todo += request.batches
        turn.change(rank, status="silent")
        turn.log("silent", f"The rank on {turn.state.ranks[rank].worker} does not answer.")


# -- the number of ranks that should train --------------------------------------------------------


def batch_size_changed(turn: Turn, event: messages.BatchSizeChanged) -> None:
    """Follow the batch size."""
    turn.state.sizing = replace(turn.state.sizing, batch_size=event.rows)
    recruit(turn)


def ranks_allowed(turn: Turn, event: messages.RanksAllowed) -> None:
    """Follow a policy; note which update begins."""
    state, most = turn.state, event.most
    state.newest_update = max(state.newest_update, event.update)
    if most == state.sizing.allowed:
        return
    state.sizing = replace(state.sizing, allowed=most)
    bound = turn.bound()
    allows = "any number of ranks" if most is None else plural(most, "rank")
    turn.log(
        "workers",
        f"Update {event.update}: a policy allows {allows}; {bound.ranks} should train "
        f"({bound.why}).",
    )
    recruit(turn)


def update_timed(turn: Turn, event: messages.UpdateTimed) -> None:
    """Compare with fewer ranks, if their number is found by trying."""
    state = turn.state
    workers = len(state.workers)
    state.sizing, found = state.sizing.observe(event.ranks, event.rows, event.seconds, workers)
    if found is not None:
        turn.log("knee", found)
    recruit(turn)


# -- the end of a call ----------------------------------------------------------------------------


def raise_from(turn: Turn, rank: RankId) -> None:
    """End the call with the exception of a rank, whose task ends with it after Stop."""
    turn.do(Send(rank, messages.Stop()))
    drop(turn, rank, cancel=False)
    end_call(turn, RaiseFrom(rank))


def end_call(turn: Turn, action: Finish | Fail | RaiseFrom) -> None:
    """Return to the estimator. Blobs that are still on their way are dropped on arrival."""
    state = turn.state
    kept = action.blobs if isinstance(action, Finish) else ()
    turn.do(*(DropBlob(blob) for blob in state.received if blob not in kept))
    state.requests, state.received, state.todo = {}, {}, ()
    state.collecting, state.failure, state.saving = None, None, False
    turn.enter(Phase.IDLE)
    turn.do(action)


# -- what ranks report ----------------------------------------------------------------------------


def rank_ready(turn: Turn, event: messages.RankReady) -> None:
    """Note that a rank has started."""
    turn.change(event.rank, status="ready")


def segment_ended(turn: Turn, event: messages.SegmentEnded) -> None:
    """Note how a segment or an averaging ended on a rank."""
    state, status = turn.state, turn.state.ranks[event.rank].status
    # A rank that missed the end of its segment joins as a newcomer.
    outcome = None if status == "silent" else event.outcome
    state.unreached = event.reason or state.unreached
    if event.sizes:
        state.compared = {**state.compared, event.rank: (event.own, event.sizes)}
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
    if event.update > state.newest_update:  # an older one may be of the segment before
        state.newest_update, state.forming = event.update, False
    state.stillborn, state.unformed = (), 0
    state.update_seconds, state.period = event.update_seconds, event.period


# -- states ----------------------------------------------------------------------------------------


def ask_model(turn: Turn, rank: RankId, *, whole: bool = True) -> None:
    """Ask the most advanced rank for the state that all ranks share, or where the run is."""
    turn.state.collecting = "model" if whole else "position"
    ask(turn, [rank], messages.MODEL_PARTS if whole else messages.NOTE_PARTS)


def ask(turn: Turn, ranks: list[RankId], parts: tuple[str, ...]) -> None:
    """Ask ranks for parts of their state."""
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
    assert state.call is not None
    state.ended = state.ranks[event.rank].outcome == "epoch" and state.began == state.call.epoch
    key, noted, state.collecting = Key(event.averagings, event.update), state.collecting, None
    if noted == "position":
        state.noted = key
        turn.do(NoteState(event.blob))
    else:
        state.here, state.held_at, state.noted = key, turn.now, None
        turn.do(LoadState(event.blob))


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
