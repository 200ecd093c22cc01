"""The crew: every rank of a run and every warm spare, as the driver knows them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from accelerando._workers import workers_of
from accelerando.exceptions import ClusterError
from accelerando.train.cluster.board import Board, Notes
from accelerando.train.cluster.scaling import Scaling
from accelerando.train.cluster.task import serve

log = logging.getLogger("accelerando")

_WAIT_SECONDS = 0.1  # for a note; then the driver looks at Ctrl-C, progress and the clock
_SURVEY_SECONDS = 1.0
_START_SECONDS = 180.0  # for importing torch and fetching the data; then another one is tried


@dataclass
class Host:
    """A rank's task on a worker.

    Attributes
    ----------
    status : str
        ``starting`` (imports, data), ``ready`` (waits for a command), ``training``, ``silent``
        (did not answer when the others had noticed a loss), ``raised`` (the user's code did).
    update : int or None
        The update its state belongs to; None if it has no state yet.
    met, since : int
        Where ranks have parameters of their own: how often they have met, and updates since.
    how : str or None
        How its last segment ended: ``epoch``, ``paused`` or ``lost``; ``met`` if ranks met after.
    """

    place: str
    worker: str
    future: Any
    status: str = "starting"
    update: int | None = None
    met: int = 0
    since: int = 0
    how: str | None = None
    commands: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def position(self) -> tuple[int, int]:
        """What tells who is further: a meeting has in it what all have done before."""
        return (self.met, -1 if self.update is None else self.update)


@dataclass
class Crew:
    """Start ranks on workers, read their notes, notice who is gone."""

    client: Any
    board: Board
    supply: Callable[..., list[Any]]
    run: str
    scaling: Scaling
    on_note: Callable[[dict[str, Any]], None]
    verbose: int = 0
    hosts: dict[str, Host] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    supplies: list[Any] = field(default_factory=list)
    notes: Notes = field(init=False)
    _started: int = 0
    _seen: int = 0
    _resent: int = 0
    _survey_at: float = 0.0

    def __post_init__(self) -> None:
        self.notes = self.board.listen()

    def tell(self, event: str, text: str) -> None:
        """Write one line about what happened."""
        self.events.append({"time": time.time(), "event": event, "text": text})
        log.info("%s", text)
        if self.verbose:
            print(text)

    # -- who is there -----------------------------------------------------------------------------

    def with_status(self, *status: str) -> list[Host]:
        """Return the hosts with one of these statuses, oldest first."""
        return [host for host in self.hosts.values() if host.status in status]

    def workers(self) -> list[str]:
        """Return the addresses of the cluster's workers."""
        found = list(workers_of(self.client))
        self._seen = len(found)
        return found

    def seen(self) -> int:
        """Return how many workers the cluster had when somebody last looked."""
        return self._seen or len(self.workers())

    def recruit(self, wanted: int) -> None:
        """Start missing ranks on workers that have none, and ask for more workers."""
        missing = wanted - len(self.with_status("starting", "ready", "training"))
        if missing <= 0:
            return
        workers = self.workers()
        taken = {host.worker for host in self.hosts.values()}
        free = [worker for worker in workers if worker not in taken]
        for worker in free[:missing]:
            self._start(worker)
        self.scaling.ask(wanted, len(workers), missing - len(free[:missing]))

    def _start(self, worker: str) -> None:
        # What was on no other worker is gone with the last worker that had it.
        if not self.supplies or any(future.status != "finished" for future in self.supplies):
            try:
                self.supplies = self.supply(again=bool(self.supplies) or self._resent > 0)
            except (OSError, TimeoutError):
                # The worker that was to receive them is gone; the next survey tries again.
                self.tell("resend", "A worker is gone that was to receive the data.")
                return
        place = f"rank-{self._started}"
        self._started += 1
        future = self.client.submit(
            serve,
            *self.supplies,
            tuple(self.board.address),
            place,
            key=f"accelerando-{self.run}-{place}",
            workers=[worker],
            allow_other_workers=False,
            pure=False,
            retries=0,
            priority=1000,
        )
        self.hosts[place] = Host(place, worker, future)

    # -- commands and notes -----------------------------------------------------------------------

    def command(self, host: Host, kind: str, **facts: Any) -> None:
        """Pin a command to a host's place."""
        self.board.command(host.place, host.commands, {"kind": kind, **facts})
        host.commands += 1

    def attend(self) -> None:
        """Wait a moment for notes and read them."""
        note = self.notes.next(_WAIT_SECONDS)
        while note is not None:
            self._read(note)
            note = self.notes.next(0.0)
        now = time.monotonic()
        if now > self._survey_at:
            self._survey_at = now + _SURVEY_SECONDS
            self._survey()

    def _read(self, note: dict[str, Any]) -> None:
        kind = note["kind"]
        if kind == "gone":
            self.lose_worker(note["worker"])
        elif "place" in note:
            host = self.hosts.get(note["place"])
            if host is None:
                return  # a late word of somebody given up
            if "update" in note:
                host.update = note["update"]
            if "met" in note:
                host.met, host.since = note["met"], note["since"]
            if kind == "ready" or (kind == "outcome" and host.status == "silent"):
                host.status = "ready"
            elif kind == "outcome":
                host.status, host.how = "ready", note["how"]
            elif kind == "raised":
                host.status = "raised"
        self.on_note(note)

    def lose_worker(self, worker: str) -> None:
        """Strike the hosts of a worker that is gone; a task pinned to it would wait for ever."""
        for host in [h for h in self.hosts.values() if h.worker == worker]:
            self.drop(host)
            self.tell("lost", f"Worker {worker} is gone; {len(self.hosts)} ranks are left.")

    def drop(self, host: Host) -> None:
        """Strike a host from the list and cancel its task."""
        self.hosts.pop(host.place, None)
        host.future.cancel(force=True)

    def _survey(self) -> None:
        """Look for what no note tells: tasks that failed, workers whose end nobody announced."""
        present = set(self.workers())
        for worker in {host.worker for host in self.hosts.values()} - present:
            self.lose_worker(worker)
        for host in list(self.hosts.values()):
            if host.future.status in ("error", "cancelled", "lost"):
                self._failed(host)
            elif host.status == "starting" and time.monotonic() - host.started > _START_SECONDS:
                self.drop(host)
                self.tell("silent", f"The rank on {host.worker} does not start.")
        self.on_note({"kind": "surveyed"})

    def _failed(self, host: Host) -> None:
        """A task ended by itself: say why, or send the data again if they went with a worker."""
        self.hosts.pop(host.place, None)
        if host.future.status == "error":
            error = host.future.exception()
            lost = type(error).__name__ in ("KilledWorker", "FutureCancelledError")
            if not lost and not isinstance(error, RuntimeError | OSError):
                raise error.with_traceback(host.future.traceback())
            if not lost or self._resent >= 3:
                raise ClusterError(
                    f"A rank on {host.worker} could not start: {error}. It has to reach "
                    f"{self.board.address.host}:{self.board.address.port}, and the other workers."
                ) from error
        self._resent += 1
        self.tell(
            "resend", f"The data for the rank on {host.worker} are lost; they are sent again."
        )
        for future in self.supplies:
            future.release()
        self.supplies = []

    # -- the end ----------------------------------------------------------------------------------

    def release(self, hosts: list[Host]) -> None:
        """Let hosts go that are not needed any more, and give their workers back."""
        for host in hosts:
            self.command(host, "end")
        self._await([host.future for host in hosts], seconds=5.0)
        for host in hosts:
            self.hosts.pop(host.place, None)
            host.future.cancel(force=True)

    @staticmethod
    def _await(futures: list[Any], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(not future.done() for future in futures) and time.monotonic() < deadline:
            time.sleep(0.002)

    def disband(self) -> None:
        """End all ranks; those that do not answer are cancelled."""
        for host in self.hosts.values():
            try:
                self.command(host, "end")
            except RuntimeError:
                break
        answering = [h.future for h in self.hosts.values() if h.status != "silent"]
        self._await(answering, seconds=5.0)
        for host in self.hosts.values():
            host.future.cancel(force=True)
        self.hosts.clear()
        self.notes.close()
        if self.supplies:
            self.supplies[0].release()
        self.scaling.restore()
