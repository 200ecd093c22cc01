"""The worker: learns from answers and finds the next queries, beside the web processes."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sqlalchemy import Connection

from accelerando.crowd._posterior import Belief
from accelerando.crowd._sampler import Search
from accelerando.crowd._search import Found, search
from accelerando.crowd.serve.learner import LOOK_BACK, Study
from accelerando.crowd.store import Store, published
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.errors import Refused
from accelerando.crowd.store.experiments import Now

__all__ = ["Worker"]

_BEAT_SECONDS = 2.0
_NICE = 10
_EXHAUSTIVE = 300
# Beyond this many items a list of all pairs would need gigabytes; no turn gets through as many.
_LISTED = 2000
_MOST_PAIRS = 200_000

log = logging.getLogger("accelerando.crowd.worker")


class Worker:
    """Takes turns over all experiments of a store until it is told to stop.

    Parameters
    ----------
    store : Store
    turn_seconds : float, default=0.25
        A new turn begins this long after the last one did, if there is anything new; never before
        it has rested as long as it worked.
    scheduler : str, optional
        Address of a Dask scheduler, for the searches of large experiments.
    owner : str, optional
        Of several workers on one database only one works: whoever said last that it lives. One
        that follows another with the same owner need not wait until that one counts as dead.
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
        self._studies: dict[tuple[int, float], Study] = {}
        self._last_seconds: float | None = None
        self._errors: dict[str, str] = {}
        self._beat_at = 0.0
        self._cluster: Search | None = None
        # Who answers must not wait for who learns. The thread that writes keeps its priority: were
        # it starved while it holds the lock of a SQLite file, everybody would be.
        self._thinker = ThreadPoolExecutor(1, "thinker", initializer=_be_polite)

    def run(self) -> None:
        """Work until :attr:`stop` is set."""
        while not self.stop.is_set():
            begin = time.monotonic()
            try:
                if self._beat():
                    self.turn()
            except Exception as error:  # the database is away: participants go on without us
                log.warning("the worker waits: %s", error)
                self.stop.wait(2.0)
            spent = time.monotonic() - begin
            self.stop.wait(max(self.turn_seconds - spent, spent, 0.01))
        try:
            with self.store.write() as connection:
                published.release(connection, self.owner)
        except Exception as error:
            log.info("the worker could not say goodbye: %s", error)

    def turn(self) -> int:
        """One turn for every experiment; how many had something new."""
        with self.store.read() as connection:
            names = stored.names(connection)
        busy = 0
        for name in names:
            try:
                busy += self._turn(name)
                self._errors.pop(name, None)
            except Refused:
                continue  # deleted meanwhile
            except Exception as error:
                if name not in self._errors:
                    log.exception("the turn of %s failed", name)
                self._errors[name] = f"{name}: {type(error).__name__}: {error}"[:500]
                self._studies.clear()
        return busy

    def _turn(self, name: str) -> int:
        with self.store.read() as connection:
            now = stored.find(connection, name)
            study = self._study(connection, now)
            study.take(connection, 0 if self.store.is_sqlite else LOOK_BACK)
            ready = published.left_in_queue(connection, now)
        if not study.is_due(ready):
            return 0
        begin = time.monotonic()
        queues, fitted = self._thinker.submit(study.work, ready, self._search(study)).result()
        clock = time.time()
        with self.store.write() as connection:
            current = stored.find(connection, name)
            if (current.frame.id, current.revision) != (now.frame.id, now.revision):
                return 1  # answers were taken away meanwhile: this embedding must not be shown
            published.publish(connection, current, queues, study.states, fitted, clock)
        self._last_seconds = time.monotonic() - begin
        self.turns += 1
        return 1

    def _study(self, connection: Connection, now: Now) -> Study:
        key = now.frame.id, now.frame.created
        study = self._studies.get(key)
        if study is None or study.revision != now.revision:
            study = self._studies[key] = Study.open(connection, now)
        return study

    def _search(self, study: Study) -> Search:
        if study.frame.n_items <= _EXHAUSTIVE:
            # Compiling the faster kernel takes seconds, in which participants would be asked at
            # random; it saves a millisecond per turn.
            return partial(search, backend="numpy")
        if self.scheduler is not None:
            if self._cluster is None:
                from accelerando.crowd.serve.cluster import ClusterSearch

                self._cluster = ClusterSearch(self.scheduler, self.turn_seconds)
            return self._cluster
        # Until the next turn is due: the longer it looks the better the queries.
        return partial(_timed, seconds=self.turn_seconds)

    def _beat(self) -> bool:
        """Whether this worker is the one; said to the store every now and then."""
        now = time.monotonic()
        if now < self._beat_at:
            return True
        error = "; ".join(self._errors.values()) or None
        with self.store.write() as connection:
            mine = published.claim(
                connection, self.owner, time.time(), self.turns, self._last_seconds, error
            )
        self._beat_at = now + _BEAT_SECONDS if mine else 0.0
        if not mine:
            self._studies.clear()
            self.stop.wait(_BEAT_SECONDS)
        return mine


def _be_polite() -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _timed(belief: Belief, *, seconds: float, **options: object) -> Found:
    """Pairs in random order, as far as the time allows."""
    pairs = "all" if belief.n_items <= _LISTED else _MOST_PAIRS
    return search(belief, **{**options, "pairs": pairs, "seconds": seconds})  # type: ignore[arg-type]
