"""The pool of ranks: start them where workers are free, and notice which ones are lost.

These decisions are the same in every phase of :mod:`accelerando._cluster.driver.machine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from accelerando._cluster import messages
from accelerando._cluster.driver.sizing import Bound
from accelerando._cluster.driver.state import (
    NO_STATE,
    Action,
    AwaitTasks,
    CancelTask,
    DriverState,
    DropBlob,
    Fail,
    Finish,
    Log,
    Phase,
    RaiseFrom,
    RankInfo,
    ResendData,
    ScaleCluster,
    Send,
    ShrinkCluster,
    StartRank,
    Status,
)
from accelerando._cluster.messages import RankId

_START_SECONDS = 180.0  # for importing torch and fetching the data; then another rank is started
_STOP_SECONDS = 5.0  # for a rank to end its task after Stop
_RESENDS = 3
_STARTS = 8  # times that all workers leave while their ranks start


def plural(count: int, word: str) -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> plural(1, "rank"), plural(2, "rank")
    ('1 rank', '2 ranks')
    """
    return f"{count} {word}{'s' * (count != 1)}"


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


def count_stillborn(turn: Turn) -> None:
    """Give up if workers leave again and again while their rank starts."""
    state = turn.state
    if turn.count("ready", "training", "averaging") or state.failure is not None:
        return
    if len(state.stillborn) >= _STARTS * max(1, turn.bound().ranks):
        state.failure = (
            f"{plural(len(state.stillborn), 'worker')} left the cluster while a rank started "
            f"there, and no update was made: {', '.join(state.stillborn[-10:])}."
        )


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


# -- workers and tasks that are lost --------------------------------------------------------------


def worker_joined(turn: Turn, worker: str) -> None:
    """Note a worker: a new one, or one that was about to leave and stays."""
    state = turn.state
    state.leaving = {other: at for other, at in state.leaving.items() if other != worker}
    if worker not in state.workers:
        state.workers += (worker,)
    recruit(turn)


def worker_left(turn: Turn, event: messages.WorkerLeft) -> None:
    """Drop the ranks of a worker, unless Dask has only forgotten it and it waits for its rank."""
    state, worker = turn.state, event.worker
    if event.retired and worker in state.leaving:
        return
    state.leaving = {other: at for other, at in state.leaving.items() if other != worker}
    workers_left(turn, {worker})


def workers_left(turn: Turn, gone: set[str]) -> None:
    """Drop the ranks of workers that left: a task pinned to a dead worker waits forever."""
    state = turn.state
    state.workers = tuple(worker for worker in state.workers if worker not in gone)
    for rank in [rank for rank, info in state.ranks.items() if info.worker in gone]:
        worker = state.ranks[rank].worker
        if state.ranks[rank].status == "starting":
            state.stillborn += (worker,)
        drop(turn, rank)
        turn.log("lost", f"Worker {worker} left the cluster; ranks left: {len(state.ranks)}.")


def not_started(turn: Turn, rank: RankId) -> None:
    """Forget a rank whose task could not be submitted; the next survey leads to another try."""
    worker = turn.state.ranks[rank].worker
    drop(turn, rank, cancel=False)
    turn.state.stillborn += (worker,)
    turn.state.workers = tuple(other for other in turn.state.workers if other != worker)
    turn.log(
        "resend",
        f"Worker {worker} left before it received the data; another worker is tried.",
    )


def surveyed(
    turn: Turn, event: messages.Surveyed, notice: Callable[[Turn, messages.Surveyed], None]
) -> None:
    """Compare with what Dask knows: workers, failed tasks, ranks that do not start.

    `notice` looks at workers that are about to leave, if there are any.
    """
    state = turn.state
    if state.leaving or event.closing:
        notice(turn, event)
    state.workers = tuple(worker for worker in event.workers if worker not in state.leaving)
    present = {*event.workers, *state.leaving}
    workers_left(turn, {info.worker for info in state.ranks.values()} - present)
    for rank, end in event.tasks.items():
        if rank in state.ranks and task_ended(turn, rank, end):
            return
    for rank in turn.with_status("starting"):
        if turn.now - state.ranks[rank].started_at > _START_SECONDS:
            turn.log("silent", f"The rank on {state.ranks[rank].worker} does not start.")
            drop(turn, rank)
    recruit(turn)


def task_ended(turn: Turn, rank: RankId, end: messages.TaskEnd) -> bool:
    """Decide what the unexpected end of a task means; return True if it ends the call."""
    state = turn.state
    worker = state.ranks[rank].worker
    again = end.status == "cancelled" or (end.status == "killed" and state.resent < _RESENDS)
    drop(turn, rank, cancel=again or end.status == "finished")
    if end.status == "finished":
        turn.log("lost", f"The rank on {worker} lost its connection to the driver and ended.")
    elif again:
        state.resent += 1
        turn.log("resend", f"The data for the rank on {worker} are lost; they are sent again.")
        turn.do(ResendData())
    elif end.status == "raised":
        end_call(turn, RaiseFrom(rank))
    else:
        end_call(turn, Fail(f"A rank on {worker} could not start: {end.reason}", rank))
    return state.phase is Phase.IDLE


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
