"""Running counts of the answers of an experiment: each answer is read once, not at every look."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, func, select

from accelerando.crowd._forecast import Point
from accelerando.crowd._read import why_left_out
from accelerando.crowd.store.answers import newer
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.schema import answer, model, participant, served

__all__ = ["LATENCY_EDGES", "LOOK_BACK", "TIME_EDGES", "Curve", "Tallies", "Tally", "Timeline"]

# With PostgreSQL an answer may become visible after one with a larger sequence number, if two
# processes write at the same time. The newest ones are therefore counted again at every look.
LOOK_BACK = 1000
RECENT_SECONDS = 60.0
# Readable edges of the histograms, in seconds.
TIME_EDGES = [0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 20, 60]
LATENCY_EDGES = [0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5]
_BINS = 60
# Each divides the next, so that counts can be merged.
_BIN_SECONDS = [1, 2, 10, 30, 60, 120, 600, 1800, 3600, 7200, 14400, 43200, 86400]
_TESTED_PER_POINT = 40
_CHUNK = 5000
_MOST_KEPT = 50  # experiments

_answer = newer(_CHUNK).c
_ROWS = (
    select(
        _answer.seq,
        _answer.winner,
        _answer.response_time,
        _answer.network_latency,
        _answer.received,
        served.c.kind,
        served.c.head,
        served.c.left,
        served.c.right,
        served.c.winner.label("known"),
        served.c.sampler,
        served.c.score,
        served.c.fallback,
        participant.c.state,
        participant.c.withdrawn,
    )
    .join(
        served,
        (served.c.experiment_id == _answer.experiment_id) & (served.c.id == _answer.query_id),
    )
    .join(participant, participant.c.id == served.c.participant_id)
    .order_by(_answer.seq)
)
_POINTS = (
    select(model.c.version, model.c.n_answers, model.c.accuracy, model.c.tested)
    .where(
        model.c.experiment_id == bindparam("experiment"),
        model.c.version > bindparam("after"),
        model.c.tested > 0,
    )
    .order_by(model.c.version)
)


@dataclass
class Timeline:
    """Numbers of events over time, in at most sixty bins that grow with the time they cover.

    Examples
    --------
    >>> times = Timeline()
    >>> times.add([1000.0, 1000.5, 1030.0])
    >>> times.size, dict(times.counts)
    (1, {1000: 2, 1030: 1})
    >>> times.add([1100.0])
    >>> times.size, dict(times.counts)
    (2, {500: 2, 515: 1, 550: 1})
    """

    size: int = 1
    counts: Counter[int] = field(default_factory=Counter)

    def add(self, times: Sequence[float]) -> None:
        """Count more events."""
        if not len(times):
            return
        self._fit(min(times), max(times))
        places, counts = np.unique(
            np.floor(np.asarray(times) / self.size).astype(np.int64), return_counts=True
        )
        self.counts.update(dict(zip(places.tolist(), counts.tolist(), strict=True)))

    def merge(self, other: Timeline) -> None:
        """Count the events of another timeline."""
        if not other.counts:
            return
        self._fit(min(other.counts) * other.size, (max(other.counts) + 1) * other.size - 1)
        wider = Timeline(other.size, Counter(other.counts))
        wider._widen(self.size)
        if wider.size > self.size:
            self._widen(wider.size)
        self.counts.update(wider.counts)

    def _fit(self, first: float, last: float) -> None:
        if self.counts:
            first = min(first, min(self.counts) * self.size)
            last = max(last, (max(self.counts) + 1) * self.size - 1)
        size = self.size
        while last // size - first // size >= _BINS:
            size = next((one for one in _BIN_SECONDS if one > size), 2 * size)
        self._widen(size)

    def _widen(self, size: int) -> None:
        if size <= self.size:
            return
        merged: Counter[int] = Counter()
        for place, count in self.counts.items():
            merged[place * self.size // size] += count
        self.size, self.counts = size, merged

    def to_json(self, otherwise: float) -> dict[str, Any]:
        """Return bins without gaps; `otherwise` is where an empty timeline begins."""
        if not self.counts:
            return {"bin_seconds": 60, "start": otherwise, "counts": []}
        first, last = min(self.counts), max(self.counts)
        return {
            "bin_seconds": self.size,
            "start": float(first * self.size),
            "counts": [self.counts[place] for place in range(first, last + 1)],
        }


@dataclass
class Tally:
    """Counts over answers of an experiment.

    Attributes
    ----------
    heads, feet : array of int
        How often each item was asked about, on top or below.
    times, latencies : array of int
        Histograms of response times and network latencies, skips and practice included.
    samplers, fallbacks : Counter
        Answers by sampler, and those to queries drawn because no chosen one was ready.
    shares : Counter
        Answers by how their query was chosen: active, random, fallback or check.
    checks, passed : int
        Answers to attention checks, and right ones.
    usable : int
        Answers that the embedding uses.
    recent : int
        Answers of the last minute, skips and practice included.
    activity : Timeline
        All answers over time.
    """

    heads: NDArray[np.int64]
    feet: NDArray[np.int64]
    times: NDArray[np.int64] = field(default_factory=lambda: _zeros(len(TIME_EDGES)))
    latencies: NDArray[np.int64] = field(default_factory=lambda: _zeros(len(LATENCY_EDGES)))
    samplers: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    shares: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    passed: int = 0
    usable: int = 0
    recent: int = 0
    activity: Timeline = field(default_factory=Timeline)

    @classmethod
    def empty(cls, n_items: int) -> Tally:
        """Return a tally of no answers."""
        return cls(_zeros(n_items), _zeros(n_items))

    def add(self, rows: Sequence[Any], clock: float) -> None:
        """Count rows of answers, except withdrawn ones."""
        rows = [row for row in rows if row.withdrawn is None]
        self.activity.add([row.received for row in rows])
        self.recent += sum(0 <= clock - row.received < RECENT_SECONDS for row in rows)
        _add_times(self.times, [row.response_time for row in rows], TIME_EDGES)
        _add_times(self.latencies, [row.network_latency for row in rows], LATENCY_EDGES)
        real = [row for row in rows if row.winner is not None and row.kind != "practice"]
        for row in real:
            self.heads[row.head] += 1
            self.feet[row.left] += 1
            self.feet[row.right] += 1
            self.samplers[row.sampler] += 1
            self.fallbacks[row.sampler] += bool(row.fallback)
            self.shares[_how_chosen(row)] += 1
            if row.kind == "check":
                self.checks += 1
                self.passed += row.winner == row.known
            self.usable += why_left_out(row.kind, blocked=row.state == "blocked") is None

    def merge(self, other: Tally) -> Tally:
        """Return the sum of two tallies; `recent` is that of the other."""
        made = Tally(
            *(self.heads + other.heads, self.feet + other.feet),
            *(self.times + other.times, self.latencies + other.latencies),
            *(self.samplers + other.samplers, self.fallbacks + other.fallbacks),
            *(self.shares + other.shares, self.checks + other.checks),
            *(self.passed + other.passed, self.usable + other.usable, other.recent),
        )
        for one in (self, other):
            made.activity.merge(one.activity)
        return made


def _zeros(n: int) -> NDArray[np.int64]:
    return np.zeros(n, dtype=np.int64)


def _add_times(counts: NDArray[np.int64], times: list[float | None], edges: list[float]) -> None:
    known = np.array([time for time in times if time is not None], dtype=float)
    places = np.searchsorted(np.array(edges[1:]), known, side="right")
    counts += np.bincount(places, minlength=len(counts))


def _how_chosen(row: Any) -> str:
    if row.kind in ("check", "repeat"):
        return "check"
    if row.score is not None:
        return "active"
    return "fallback" if row.fallback else "random"


class Curve:
    """Held-out accuracies of the embeddings, merged until each point has enough tests."""

    def __init__(self) -> None:
        self.version = -1
        self.points: list[Point] = []
        self._total = 0  # tests of all points
        self._right = self._tested = self._weighted = 0.0

    def update(self, connection: Connection, snapshot: Snapshot) -> list[Point]:
        """Read what is new, and return all points."""
        where = {"experiment": snapshot.frame.id, "after": self.version}
        for row in connection.execute(_POINTS, where):
            self.version = row.version
            self._right += row.accuracy * row.tested
            self._tested += row.tested
            self._weighted += row.n_answers * row.tested
            # Later points merge more tests, so their number grows slowly.
            if self._tested >= max(_TESTED_PER_POINT, 0.02 * self._total):
                tested = self._tested
                self.points.append(
                    Point(self._weighted / tested, self._right / tested, int(tested))
                )
                self._total += int(tested)
                self._right = self._tested = self._weighted = 0.0
        return self.points


class _Kept:
    """Statistics of one revision of an experiment."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.revision = snapshot.revision
        self.tally = Tally.empty(snapshot.frame.n_items)
        self.after = 0  # all answers up to this number are in the tally
        self.curve = Curve()


class Tallies:
    """Running counts of several experiments, shared by the requests of a process.

    Counts of an experiment begin anew when its revision changes, because answers were deleted,
    withdrawn or reinstated, or a participant was blocked.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, float], _Kept] = {}
        self._lock = threading.Lock()

    def look(
        self, connection: Connection, snapshot: Snapshot, clock: float
    ) -> tuple[Tally, list[Point]]:
        """Return the counts of all answers that this transaction sees, and the accuracies."""
        key = snapshot.frame.id, snapshot.frame.created
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.revision != snapshot.revision:
                if len(self._kept) >= _MOST_KEPT:
                    self._kept.clear()
                kept = self._kept[key] = _Kept(snapshot)
            newest = connection.execute(
                select(func.coalesce(func.max(answer.c.seq), 0)).where(
                    answer.c.experiment_id == snapshot.frame.id
                )
            ).scalar_one()
            tail = Tally.empty(snapshot.frame.n_items)
            settling = True
            for rows in _in_chunks(connection, snapshot, kept.after):
                old = _n_settled(rows, newest - LOOK_BACK, clock) if settling else 0
                if old:
                    kept.tally.add(rows[:old], clock)
                    kept.after = rows[old - 1].seq
                settling = old == len(rows)
                tail.add(rows[old:], clock)
            return kept.tally.merge(tail), list(kept.curve.update(connection, snapshot))


def _in_chunks(connection: Connection, snapshot: Snapshot, after: int) -> Iterator[Sequence[Any]]:
    while True:
        place = {"experiment": snapshot.frame.id, "after": after}
        rows: Sequence[Any] = connection.execute(_ROWS, place).all()
        if rows:
            yield rows
        if len(rows) < _CHUNK:
            return
        after = rows[-1].seq


def _n_settled(rows: Sequence[Any], last: int, clock: float) -> int:
    """Return how many of the first rows need not be counted again at the next look."""
    for place, row in enumerate(rows):
        # A time in the future was written by a clock that was wrong.
        if row.seq > last or 0 <= clock - row.received < RECENT_SECONDS:
            return place
    return len(rows)
