"""Losses: ranks, tasks and workers that died or are about to leave; and when the driver gives up.

A worker that is *leaving* got SIGTERM, is being retired, or is closing. It waits a while for its
rank. The segment is paused, as for any other change of the membership; the others continue with the
state that they share. A state that only a leaving rank has is collected before the rank is let go.
Used by :mod:`accelerando._cluster.driver.machine`; a fit that loses nothing calls none of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from accelerando._cluster import messages
from accelerando._cluster.driver import pool, replicas
from accelerando._cluster.driver.pool import Turn, drop, end_call
from accelerando._cluster.driver.sizing import plural
from accelerando._cluster.driver.state import Attempts, Fail, Phase, RaiseFrom, ResendData, Send
from accelerando._cluster.messages import RankId

_LEAVE_SECONDS = 30.0  # no worker waits longer for its rank
_RESENDS = 3
_DEATHS = 3  # segments that lose a worker in the same update
_CONTACTS = 5  # segments that lose contact in the same update, while all workers live
_DRIFT = 1e-4  # relative; processors that round differently stay far below
_STARTS = 8  # times that all workers leave while their ranks start
_GROUPS = 3  # process groups in a row that cannot be formed


# -- workers and tasks that are lost --------------------------------------------------------------


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
        f"Worker {worker} left, or hangs, before it received the data; another one is tried.",
    )


def resend(turn: Turn, starting: Sequence[RankId]) -> None:
    """Start ranks anew, with data from here: Dask would fetch them from a worker that hangs.

    Only one worker gets the data from the driver, and the others fetch them there. Dask waits for
    it until it gives the worker up, which takes minutes.
    """
    if not starting:
        return
    for rank in starting:
        drop(turn, rank)
    turn.do(ResendData())
    turn.log("resend", "A worker hangs that may have the data; they are sent again.")


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


# -- when to give up ------------------------------------------------------------------------------


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


def compare_members(turn: Turn) -> None:
    """Look whether members that share every batch still have the same model."""
    state = turn.state
    compared = list(state.compared.values())
    names = {name: None for own, _ in compared for name in own}
    new = [
        name
        for name in names
        if len({own.get(name) for own, _ in compared}) > 1 and name not in state.differing
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
    (first, size), *others = [sizes for _, sizes in compared]
    if any(
        abs(one - first) > _DRIFT * max(size, abs(first)) or abs(other - size) > _DRIFT * size
        for one, other in others
    ):
        state.failure = (
            "The parameters of the ranks are no longer the same, although all ranks take the same "
            "steps: something changes them differently on each rank, such as a module whose "
            "forward writes to its parameters, or a callback that draws random numbers from its "
            "own generator. Make it depend on random_state only, or train on one rank "
            "(max_workers=1)."
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
            "that the system chooses. Open the TCP ports between the workers: all, those of Dask's "
            "setting accelerando.ports, or those of net.ipv4.ip_local_port_range. Or start workers "
            "with --interface and the network that they share. 'accelerando doctor --scheduler "
            "ADDRESS' tries every pair."
        )


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


# -- workers that are about to leave --------------------------------------------------------------


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
        if status == "starting" and turn.now - state.entered > state.worker_timeout:
            state.stillborn += (worker,)  # lifetimes may be too short to start a rank
        if status == "starting" or spare:
            let_go(turn, rank)
    pool.recruit(turn)


def worker_joined(turn: Turn, worker: str) -> None:
    """Note a worker: a new one, or one that was about to leave and stays."""
    state = turn.state
    state.leaving = {other: at for other, at in state.leaving.items() if other != worker}
    if worker not in state.workers:
        state.workers += (worker,)
    pool.recruit(turn)


def follow_leaving(turn: Turn, event: messages.Surveyed) -> None:
    """Follow workers that are closing, have left, or stay after all.

    Do not wait for the start of a rank on a worker that hangs, nor for its answer; it may come
    later. Members that train notice by themselves that one of them hangs; those that are forming
    their process group would wait for a minute.
    """
    state = turn.state
    if event.hanging:
        awaited = [*turn.with_status("starting"), *state.requests]
        pool.silence(turn, [r for r in awaited if state.ranks[r].worker in event.hanging])
        if set(event.hanging) - set(state.hanging):
            resend(turn, turn.with_status("starting"))
        members = {state.ranks[rank].worker for rank in turn.with_status("training")}
        if state.forming and members.intersection(event.hanging):
            state.broken, state.forming = True, False
    state.hanging = event.hanging
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


def let_leave(turn: Turn) -> bool:
    """Let ranks go that are not needed any more; return True if a state is to be saved before."""
    state, ready, best = turn.state, turn.with_status("ready"), turn.best()
    going = [rank for rank in ready if state.ranks[rank].worker in state.leaving]
    if not going:
        return False
    staying = [rank for rank in ready if rank not in going]
    if replicas.average_first(turn, tuple(staying)):
        return True
    if best is not None and not state.changed:
        others = [state.ranks[rank].key for rank in staying]
        if state.ranks[best].key > max([state.here, *others]):
            pool.ask_model(turn, best)  # nobody else has this state
            return True
    for rank in going:
        let_go(turn, rank)
    return False


def let_go(turn: Turn, rank: RankId) -> None:
    """Stop a rank without waiting for its task, which Dask may have forgotten."""
    info = turn.state.ranks[rank]
    turn.do(Send(rank, messages.Stop()))
    drop(turn, rank)
    turn.log("left", f"The rank on {info.worker} left after update {max(0, info.key.update)}.")
