"""The worker: refits embeddings and fills queues while the web processes take answers."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

from sqlalchemy import Connection

from accelerando.crowd._posterior import Posterior
from accelerando.crowd._sampler import Search
from accelerando.crowd._search import SearchResult, search
from accelerando.crowd.serve.learner import LOOK_BACK, Learner
from accelerando.crowd.store import Store, participants, published
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot

__all__ = ["Worker"]

_RENEW_SECONDS = 2.0
_CLEAN_SECONDS = 60.0
_CLOCK_JUMP = 5.0  # seconds
_NICE = 10
_EXHAUSTIVE = 300
# Beyond this many items a search samples pairs: no turn could score all of them.
_LISTED = 2000
_MOST_PAIRS = 200_000

log = logging.getLogger("accelerando.crowd.worker")


class Worker:
    """Take turns over all experiments of a store until :attr:`stop` is set.

    Parameters
    ----------
    store : Store
    turn_seconds : float, default=0.25
        Minimum seconds between the starts of two turns. The worker also pauses at least as long as
        the last turn took.
    scheduler : str, optional
        Address of a Dask scheduler, for the searches of large experiments.
    owner : str, optional
        Owner of the lease. Of several workers on one database only the one with the lease works. A
        restarted worker with the same owner need not wait until the lease expires.
    """

    def __init__(
        self,
        store: Store,
        *,
        turn_seconds: float = 0.25,
        scheduler: str | None = None,
        owner: str | None = None,
    ) -> None:
        self.store = store
        self.turn_seconds = turn_seconds
        self.scheduler = scheduler
        self.owner = owner or secrets.token_hex(8)
        self.stop = threading.Event()
        self.turns = 0
        self._learners: dict[tuple[int, float], Learner] = {}
        self._last_seconds: float | None = None
        self._errors: dict[str, str] = {}
        self._renew_at = self._clean_at = 0.0
        self._rival: tuple[str, int] | None = None
        self._rival_since = 0.0
        self._ahead: float | None = None
        self._cluster: Search | None = None
        # Fits run in a thread of low priority, so that participants do not wait. The thread that
        # writes keeps its priority: it must not starve while it holds the lock of a SQLite file.
        self._fit_thread = ThreadPoolExecutor(1, "fit", initializer=_lower_priority)

    def run(self) -> None:
        """Work until :attr:`stop` is set."""
        while not self.stop.is_set():
            begin = time.monotonic()
            try:
                if self._renew_lease():
                    self.turn()
            except Exception as error:  # the database may be unreachable for a while
                log.warning("The worker waits two seconds after an error: %s", error)
                self.stop.wait(2.0)
            spent = time.monotonic() - begin
            self.stop.wait(max(self.turn_seconds - spent, spent, 0.01))
        try:
            with self.store.write() as connection:
                published.release_lease(connection, self.owner)
        except Exception as error:
            log.info("The worker could not release its lease: %s", error)

    def turn(self) -> int:
        """Take one turn for every experiment; return how many had something to do."""
        with self.store.read() as connection:
            names = stored.names(connection)
        busy = 0
        now = time.monotonic()
        clean = now >= self._clean_at
        if clean:
            self._clean_at = now + _CLEAN_SECONDS
        for name in names:
            try:
                if clean:
                    self._delete_withdrawn(name)
                busy += self._turn(name)
                self._errors.pop(name, None)
            except ApiError:
                continue  # the experiment was deleted during the turn
            except Exception as error:
                if name not in self._errors:
                    log.exception("The turn of experiment %s failed.", name)
                self._errors[name] = f"{name}: {type(error).__name__}: {error}"[:500]
                self._learners.clear()
        return busy

    def _delete_withdrawn(self, name: str) -> None:
        with self.store.write() as connection:
            snapshot = stored.find(connection, name)
            participants.delete_withdrawn(connection, snapshot, time.time())

    def _turn(self, name: str) -> int:
        with self.store.read() as connection:
            snapshot = stored.find(connection, name)
            learner = self._learner(connection, snapshot)
            learner.take(connection, 0 if self.store.is_sqlite else LOOK_BACK)
            ready = published.left_in_queue(connection, snapshot)
        if not learner.is_due(ready):
            return 0
        begin = time.monotonic()
        work = self._fit_thread.submit(learner.work, ready, self._search(learner))
        while not wait([work], timeout=_RENEW_SECONDS).done:
            # The first fit of a long history takes a while: others must see that this worker lives.
            if not self._renew_lease():
                work.result()
                return 1  # another worker has taken over
        queues, fitted = work.result()
        clock = time.time()
        with self.store.write() as connection:
            current = stored.find(connection, name)
            if (current.frame.id, current.revision) != (snapshot.frame.id, snapshot.revision):
                return 1  # answers were deleted during the turn: do not publish this embedding
            published.publish(
                connection, current, queues, learner.states, fitted, clock, learner.report
            )
        self._last_seconds = time.monotonic() - begin
        self.turns += 1
        return 1

    def _learner(self, connection: Connection, snapshot: Snapshot) -> Learner:
        key = snapshot.frame.id, snapshot.frame.created
        learner = self._learners.get(key)
        if learner is None or learner.revision != snapshot.revision:
            learner = self._learners[key] = Learner.open(connection, snapshot)
        return learner

    def _search(self, learner: Learner) -> Search:
        if learner.frame.n_items <= _EXHAUSTIVE:
            # Compiling the numba kernel takes seconds with random queries only, and saves a
            # millisecond per turn.
            return partial(search, backend="numpy")
        if self.scheduler is not None:
            if self._cluster is None:
                from accelerando.crowd.serve.cluster import ClusterSearch

                self._cluster = ClusterSearch(self.scheduler, self.turn_seconds)
            return self._cluster
        # Search until the next turn is due: more pairs give better queries.
        return partial(_timed, seconds=self.turn_seconds)

    def _renew_lease(self) -> bool:
        """Renew the lease from time to time; return True if this worker holds it."""
        now = time.monotonic()
        if now < self._renew_at:
            return True
        self._watch_clock(now)
        error = "; ".join(self._errors.values()) or None
        # The other worker has shown no sign of life for a while, by this worker's own stopwatch.
        is_dead = self._rival is not None and now - self._rival_since >= published.LEASE_SECONDS
        dead = self._rival if is_dead else None
        with self.store.write() as connection:
            rival = published.renew_lease(
                connection, self.owner, time.time(), self.turns, self._last_seconds, error, dead
            )
        if rival != self._rival:
            self._rival, self._rival_since = rival, now
        self._renew_at = now + _RENEW_SECONDS if rival is None else 0.0
        if rival is not None:
            self._learners.clear()
            self.stop.wait(_RENEW_SECONDS)
        return rival is None

    def _watch_clock(self, now: float) -> None:
        """Log when the clock of the computer was set."""
        ahead = time.time() - now
        if self._ahead is not None and abs(ahead - self._ahead) > _CLOCK_JUMP:
            jump = ahead - self._ahead
            log.warning("The clock of this computer jumped by %+.0f seconds.", jump)
        self._ahead = ahead


def _lower_priority() -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _timed(posterior: Posterior, *, seconds: float, **options: object) -> SearchResult:
    """Search pairs in random order within a time limit."""
    pairs = "all" if posterior.n_items <= _LISTED else _MOST_PAIRS
    return search(posterior, **{**options, "pairs": pairs, "seconds": seconds})  # type: ignore[arg-type]
