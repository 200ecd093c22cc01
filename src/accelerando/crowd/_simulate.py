"""Simulation of an experiment in virtual time: assign, answer, refit, choose queries."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from accelerando._validation import check_integer, check_number
from accelerando.crowd._assignment import AssignedQuery, QueryAssigner
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._refit import Refitter
from accelerando.crowd._respond import ResponseModel
from accelerando.crowd._sampler import Sampler
from accelerando.crowd._triplets import Triplets

__all__ = ["Simulation", "simulate"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Simulation:
    """The record of a simulated experiment: one entry per answer, in order of arrival.

    Attributes
    ----------
    queries, triplets : array of shape (n_answers, 3)
        As asked ``(head, left, right)`` and as answered ``(head, winner, loser)``.
    sampler : list of str
        Name of the sampler that proposed each query.
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
        Number of refits; number of queries the response model had no answer to.
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
class _Log:
    assigned: list[AssignedQuery] = field(default_factory=list)
    participant: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    skipped: int = 0

    def record(
        self, assigned: AssignedQuery, left_won: bool, participant: int, time: float
    ) -> None:
        head, left, right, _ = assigned.query
        self.assigned.append(assigned)
        self.participant.append(participant)
        self.seconds.append(time)
        self.rows.append((head, left, right) if left_won else (head, right, left))

    @property
    def triplets(self) -> Triplets:
        return np.array(self.rows, dtype=np.intp).reshape(-1, 3)

    @property
    def chosen(self) -> NDArray[np.bool_]:
        return np.array([one.query.score is not None for one in self.assigned], dtype=bool)


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

    Participants answer independently of each other, with exponential waiting times and a total of
    ``rate`` answers per second. As in the service, a refit starts when the worker is free and at
    least ``refit_every`` new answers have arrived. It takes ``refit_seconds``, during which
    participants get queries of the previous posterior.

    Parameters
    ----------
    items : int
        Number of items.
    sampler : Sampler or mapping of str to Sampler
        One sampler, such as :class:`ARR`, or several by name.
    response_model : callable
        ``(queries, rng) -> answers``: an array of queries ``(head, left, right)`` in, and for each
        of them 1 (left), 0 (right) or −1 (no answer) out; for example :class:`AlienEggs`.
    n_answers : int
        Number of answers after which the run ends.
    participants : int, default=10
        Number of participants.
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
        New answers before a refit starts.
    refit_seconds : float, default=0.05
        Duration of a refit, in virtual time.
    queue_length : int, optional
        Queries proposed after each refit; twice the number of items by default.
    snapshots : sequence of int
        Numbers of answers at which to keep the positions.
    stop : callable, optional
        ``(triplets, positions) -> bool``, called at each snapshot with the answers so far and the
        running positions (None before the first fit). The run ends when it returns True.
    random_state : int, default=0
        Seed of the participants and the samplers.

    Examples
    --------
    >>> from accelerando.crowd import ARR, AlienEggs, simulate
    >>> run = simulate(20, ARR(), AlienEggs(range(20)), n_answers=200)
    >>> run.triplets.shape, run.n_refits > 10
    ((200, 3), True)
    """
    check_integer("simulate", "n_answers", n_answers)
    check_integer("simulate", "participants", participants)
    check_number("simulate", "rate", rate, above=0)
    check_integer("simulate", "refit_every", refit_every)
    check_number("simulate", "refit_seconds", refit_seconds, minimum=0)
    named = {"sampler": sampler} if isinstance(sampler, Sampler) else dict(sampler)
    assigner = QueryAssigner(items, named, shares, queue_length)
    state = assigner.start(random_state)
    assigner.refill(state, None)
    base = OrdinalEmbedding() if embedding is None else clone(embedding)
    base.set_params(n_items=items, random_state=random_state)
    refitter = Refitter(base, items if warmup is None else warmup, temper)
    rng = np.random.default_rng([random_state, 1])
    wanted, kept = set(snapshots), {}
    log = _Log()

    # Heap of (time of the next answer, participant).
    waiting = [(rng.exponential(participants / rate), who) for who in range(participants)]
    heapq.heapify(waiting)
    refit_ends: float | None = None
    known = 0  # number of answers that the running refit uses
    while len(log.rows) < n_answers:
        time, who = heapq.heappop(waiting)
        if refit_ends is not None and refit_ends <= time:
            assigner.refill(state, refitter.update(log.triplets[:known], log.chosen[:known]))
            refit_ends = None
        try:
            assigned = assigner.assign(state, str(who))
        except LookupError:
            if not waiting:
                break
            continue
        answer = int(response_model(np.array([assigned.query[:3]], dtype=np.intp), rng)[0])
        heapq.heappush(waiting, (time + rng.exponential(participants / rate), who))
        if answer < 0:
            log.skipped += 1
            continue
        log.record(assigned, answer == 1, who, time)
        if len(log.rows) in wanted:
            positions = getattr(refitter.model, "embedding_", None)
            if positions is not None:
                kept[len(log.rows)] = positions.copy()
            if stop is not None and stop(log.triplets, positions):
                break
        if assigner.adaptive and refit_ends is None and len(log.rows) - known >= refit_every:
            known = len(log.rows)
            refit_ends = time + refit_seconds
    return _result(log, refitter, kept)


def _result(log: _Log, refitter: Refitter, snapshots: dict[int, Array]) -> Simulation:
    queries = np.array([one.query[:3] for one in log.assigned], dtype=np.intp).reshape(-1, 3)
    return Simulation(
        queries=queries,
        triplets=log.triplets,
        sampler=[one.sampler for one in log.assigned],
        at_random=~log.chosen,
        fallback=np.array([one.fallback for one in log.assigned], dtype=bool),
        participant=np.array(log.participant, dtype=np.intp),
        seconds=np.array(log.seconds),
        embedding=refitter.model if refitter.n_refits else None,
        snapshots=snapshots,
        n_refits=refitter.n_refits,
        n_skipped=log.skipped,
    )
