"""The whole circle without the web, in virtual time: ask, answer, refit, choose queries."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from accelerando.crowd._assignment import Desk, Served
from accelerando.crowd._calibration import Claims
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._posterior import Belief
from accelerando.crowd._respond import ResponseModel
from accelerando.crowd._sampler import Sampler
from accelerando.crowd._triplets import Triplets

__all__ = ["Simulation", "simulate"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Simulation:
    """What happened; one entry per answer, in order of arrival.

    Attributes
    ----------
    queries, triplets : array of shape (n_answers, 3)
        As asked ``(head, left, right)`` and as answered ``(head, winner, loser)``.
    sampler : list of str
        Who proposed each query.
    at_random : array of bool
        Queries that no score chose: a fair held-out set.
    fallback : array of bool
        Queries asked at random because the queue was empty.
    participant : array of int
    seconds : array of float
        Virtual time of arrival.
    embedding : OrdinalEmbedding or None
        As of the last refit; None if no sampler needed one.
    snapshots : dict of int to array
        Positions of the running embedding when that many answers had arrived.
    n_refits, n_skipped : int
        Refits made; queries the response model had no answer to.
    """

    queries: Triplets
    triplets: Triplets
    sampler: list[str]
    at_random: NDArray[np.bool_]
    fallback: NDArray[np.bool_]
    participant: NDArray[np.intp]
    seconds: Array
    embedding: OrdinalEmbedding | None
    snapshots: dict[int, Array]
    n_refits: int
    n_skipped: int


@dataclass
class Refitter:
    """The worker's turn: take in new answers, refit warm, rebuild the posterior.

    Cold starts join whenever the number of answers has doubled since they last did: early
    embeddings sit in poor local minima, late ones are not worth leaving.
    """

    model: OrdinalEmbedding
    warmup: int
    temper: float
    cold_at: int = 0
    n_refits: int = 0
    claims: Claims = field(default_factory=Claims)

    def turn(self, triplets: Triplets, chosen: NDArray[np.bool_] | None = None) -> Belief | None:
        """The belief after all these answers, or None while there are too few.

        ``chosen`` marks answers to queries that a score chose; without it, the embedding is trusted
        whatever they say.
        """
        if len(triplets) < self.warmup:
            return None
        self.n_refits += 1
        if chosen is not None and hasattr(self.model, "embedding_"):
            known = self.model.n_answers_
            self.claims.add(self.model, triplets[known:], chosen[known:])
        if len(triplets) >= 2 * self.cold_at:
            self.cold_at = len(triplets)
            self.model.set_params(warm_start=True).fit(triplets)
        else:
            self.model.partial_fit(triplets[self.model.n_answers_ :])
        n_items, d = self.model.embedding_.shape
        # Shifting and turning the whole embedding changes nothing.
        trust = self.claims.trust(len(triplets), n_items * d - d * (d + 1) // 2)
        return Belief.from_embedding(self.model, triplets, temper=self.temper, trust=trust)


@dataclass
class _Log:
    served: list[Served] = field(default_factory=list)
    left_won: list[bool] = field(default_factory=list)
    participant: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    skipped: int = 0

    def record(self, served: Served, left_won: bool, participant: int, now: float) -> None:
        head, left, right, _ = served.query
        self.served.append(served)
        self.left_won.append(left_won)
        self.participant.append(participant)
        self.seconds.append(now)
        self.rows.append((head, left, right) if left_won else (head, right, left))

    @property
    def triplets(self) -> Triplets:
        return np.array(self.rows, dtype=np.intp).reshape(-1, 3)

    @property
    def chosen(self) -> NDArray[np.bool_]:
        return np.array([served.query.score is not None for served in self.served], dtype=bool)


def simulate(
    items: int,
    sampler: Sampler | Mapping[str, Sampler],
    response_model: ResponseModel,
    *,
    n_answers: int,
    participants: int = 10,
    rate: float = 1.0,
    shares: Mapping[str, float] | None = None,
    embedding: OrdinalEmbedding | None = None,
    warmup: int | None = None,
    temper: float = 0.3,
    refit_every: int = 10,
    refit_seconds: float = 0.05,
    queue_length: int | None = None,
    snapshots: Sequence[int] = (),
    stop: Callable[[Triplets, Array | None], bool] | None = None,
    random_state: int = 0,
) -> Simulation:
    """Run an experiment in virtual time.

    Participants answer independently, each with exponential waiting times, ``rate`` answers per
    second all together. As in the service, a refit starts when the worker is free and at least
    ``refit_every`` new answers are there; it takes ``refit_seconds``, during which queries
    of the older belief are handed out.

    Parameters
    ----------
    items : int
        How many items there are.
    sampler : Sampler or mapping of str to Sampler
    response_model : callable
        ``(queries, rng) -> answers``; see :mod:`accelerando.crowd._respond`.
    n_answers : int
        When to stop.
    participants : int, default=10
    rate : float, default=1
        Answers per second.
    shares : mapping of str to float, optional
        Proportions of several samplers.
    embedding : OrdinalEmbedding, optional
        The model that is refitted; t-STE in two dimensions with lapse 0.05 by default.
    warmup : int, optional
        Random answers before the first fit; one per item by default.
    temper : float, default=0.3
        Exponent of the posterior.
    refit_every : int, default=10
    refit_seconds : float, default=0.05
    queue_length : int, optional
        Queries proposed after each refit; twice the number of items by default.
    snapshots : sequence of int
        Numbers of answers at which to keep the positions.
    stop : callable, optional
        ``(triplets, positions) -> bool``, called at each snapshot with the answers so far and the
        running positions (None as long as there are none); true ends the run.
    random_state : int, default=0

    Examples
    --------
    >>> from accelerando.crowd import ARR, AlienEggs, simulate
    >>> run = simulate(20, ARR(), AlienEggs(range(20)), n_answers=200)
    >>> run.triplets.shape, run.n_refits > 10
    ((200, 3), True)
    """
    _require(n_answers >= 1, "n_answers", "at least 1", n_answers)
    _require(participants >= 1, "participants", "at least 1", participants)
    _require(rate > 0, "rate", "positive", rate)
    _require(refit_every >= 1, "refit_every", "at least 1", refit_every)
    _require(refit_seconds >= 0, "refit_seconds", "at least 0", refit_seconds)
    named = {"sampler": sampler} if isinstance(sampler, Sampler) else dict(sampler)
    desk = Desk(items, named, shares, queue_length)
    state = desk.open(random_state)
    desk.refill(state, None)
    base = OrdinalEmbedding() if embedding is None else clone(embedding)
    base.set_params(n_items=items, random_state=random_state)
    refitter = Refitter(base, items if warmup is None else warmup, temper)
    rng = np.random.default_rng([random_state, 1])
    wanted, kept = set(snapshots), {}
    log = _Log()

    # Who answers next, and when: (time, participant).
    waiting = [(rng.exponential(participants / rate), who) for who in range(participants)]
    heapq.heapify(waiting)
    finished: float | None = None  # when the worker's present turn ends
    known = 0  # answers it has started to work on
    while len(log.rows) < n_answers:
        now, who = heapq.heappop(waiting)
        if finished is not None and finished <= now:
            desk.refill(state, refitter.turn(log.triplets[:known], log.chosen[:known]))
            finished = None
        try:
            served = desk.ask(state, str(who))
        except LookupError:
            if not waiting:
                break
            continue
        answer = int(response_model(np.array([served.query[:3]], dtype=np.intp), rng)[0])
        heapq.heappush(waiting, (now + rng.exponential(participants / rate), who))
        if answer < 0:
            log.skipped += 1
            continue
        log.record(served, answer == 1, who, now)
        if len(log.rows) in wanted:
            positions = getattr(refitter.model, "embedding_", None)
            if positions is not None:
                kept[len(log.rows)] = positions.copy()
            if stop is not None and stop(log.triplets, positions):
                break
        if desk.adaptive and finished is None and len(log.rows) - known >= refit_every:
            known = len(log.rows)
            finished = now + refit_seconds
    return _result(log, refitter, kept)


def _result(log: _Log, refitter: Refitter, snapshots: dict[int, Array]) -> Simulation:
    queries = np.array([served.query[:3] for served in log.served], dtype=np.intp).reshape(-1, 3)
    return Simulation(
        queries=queries,
        triplets=log.triplets,
        sampler=[served.sampler for served in log.served],
        at_random=~log.chosen,
        fallback=np.array([served.fallback for served in log.served], dtype=bool),
        participant=np.array(log.participant, dtype=np.intp),
        seconds=np.array(log.seconds),
        embedding=refitter.model if refitter.n_refits else None,
        snapshots=snapshots,
        n_refits=refitter.n_refits,
        n_skipped=log.skipped,
    )


def _require(holds: bool, name: str, allowed: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {allowed}; got {value!r}.")
