"""Query assignment: which query a participant gets next.

A :class:`QueryAssigner` mixes several samplers in given proportions. It never assigns the same
query to a participant twice, except for attention checks, which repeat on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from accelerando._validation import check, check_integer
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._sampler import Query, Sampler, SamplerState, Search, draw_queries
from accelerando.crowd._search import search

__all__ = ["AssignedQuery", "AssignmentState", "QueryAssigner", "QueryList"]

_TRIES = 50

Key = tuple[int, int, int]


class SeenQueries(Protocol):
    """The queries that one participant has seen: a set, or a lookup in a database."""

    def __contains__(self, key: object, /) -> bool: ...

    def add(self, key: Key, /) -> None:
        """Record that the participant has seen the query with this key."""


class QueryQueue(Protocol):
    """Queries that are ready to be assigned, best first."""

    def pop(self, seen: SeenQueries) -> Query | None:
        """Remove and return the first query that is not in `seen`; None if there is none."""


@dataclass
class QueryList:
    """A :class:`QueryQueue` in memory.

    Examples
    --------
    >>> queue = QueryList([Query(0, 1, 2), Query(3, 1, 2)])
    >>> queue.pop(seen={(0, 1, 2)})
    Query(head=3, left=1, right=2, score=None)
    >>> len(queue.queries)
    1
    """

    queries: list[Query] = field(default_factory=list)

    def pop(self, seen: SeenQueries) -> Query | None:
        """Remove and return the first query that is not in `seen`; None if there is none."""
        for index, query in enumerate(self.queries):
            if query.key not in seen:
                return self.queries.pop(index)
        return None


@dataclass(frozen=True)
class AssignedQuery:
    """A query that was assigned to a participant.

    Attributes
    ----------
    query : Query
    sampler : str
        Name of the sampler that proposed it.
    fallback : bool
        True if the queue was empty and the query is a random one.
    """

    query: Query
    sampler: str
    fallback: bool = False


@dataclass
class AssignmentState:
    """State that changes while queries are assigned; :class:`QueryAssigner` holds settings only.

    :meth:`QueryAssigner.start` creates one.

    Parameters
    ----------
    seed : int
        Seed of the random numbers; the next ones follow from `seed` and `assigned`.
    assigned : int, default=0
        Number of queries assigned so far.
    samplers : dict of str to SamplerState
        State of each sampler, by its name.
    personal : dict of (str, str) to SamplerState
        State of samplers that order their queries per participant, by sampler and participant.
    queues : dict of str to QueryQueue
        Ready queries of each adaptive sampler.
    seen : dict of str to SeenQueries
        Keys of the queries that each participant has seen.
    """

    seed: int
    assigned: int = 0
    samplers: dict[str, SamplerState] = field(default_factory=dict)
    personal: dict[tuple[str, str], SamplerState] = field(default_factory=dict)
    queues: dict[str, QueryQueue] = field(default_factory=dict)
    seen: dict[str, SeenQueries] = field(default_factory=dict)


@dataclass(frozen=True)
class QueryAssigner:
    """Assign queries of several samplers to participants.

    Parameters
    ----------
    n_items : int
    samplers : mapping of str to Sampler
        By name.
    shares : mapping of str to float, optional
        Proportion of each sampler; equal by default.
    queue_length : int, optional
        Ready queries per adaptive sampler after each refill; twice the number of items by default.

    Examples
    --------
    >>> from accelerando.crowd import Random, RoundRobin
    >>> samplers = {"random": Random(), "robin": RoundRobin()}
    >>> assigner = QueryAssigner(12, samplers, {"random": 3, "robin": 1})
    >>> state = assigner.start(seed=0)
    >>> names = [assigner.assign(state, "anna").sampler for _ in range(400)]
    >>> 250 < names.count("random") < 350
    True
    """

    n_items: int
    samplers: Mapping[str, Sampler]
    shares: Mapping[str, float] | None = None
    queue_length: int | None = None

    def __post_init__(self) -> None:
        check(
            bool(self.samplers),
            self,
            "samplers",
            "a mapping with at least one sampler",
            self.samplers,
        )
        if self.shares is not None:
            check(
                set(self.shares) == set(self.samplers)
                and min(self.shares.values()) >= 0
                and sum(self.shares.values()) > 0,
                self,
                "shares",
                f"a number of at least 0 for each of the samplers {sorted(self.samplers)}, not all "
                "of them 0",
                dict(self.shares),
            )
        check_integer(self, "queue_length", self.queue_length, also={None: "None (2 * n_items)"})

    @property
    def adaptive(self) -> bool:
        """True if any sampler needs a posterior."""
        return any(sampler.adaptive for sampler in self.samplers.values())

    def start(self, seed: int = 0) -> AssignmentState:
        """Return the initial state."""
        state = AssignmentState(seed)
        for number, (name, sampler) in enumerate(self.samplers.items()):
            state.samplers[name] = sampler.start(self.n_items, seed=1000 * seed + number)
        return state

    def refill(
        self, state: AssignmentState, posterior: Posterior | None, search: Search = search
    ) -> None:
        """Replace the queues of the adaptive samplers by the best queries of this posterior.

        The queues must be of type :class:`QueryList`: samplers get the remaining queries back.
        """
        count = 2 * self.n_items if self.queue_length is None else self.queue_length
        for name, sampler in self.samplers.items():
            if sampler.adaptive:
                queue = state.queues.get(name)
                remaining = queue.queries if isinstance(queue, QueryList) else []
                queries, state.samplers[name] = sampler.propose(
                    sampler.put_back(state.samplers[name], remaining), count, posterior, search
                )
                state.queues[name] = QueryList(queries)

    def assign(self, state: AssignmentState, participant: str) -> AssignedQuery:
        """Return the next query for this participant, one that they have not seen.

        Only :class:`Validation` repeats queries, on purpose.

        Raises
        ------
        LookupError
            The participant has seen every query there is.
        """
        rng = np.random.default_rng([state.seed, state.assigned])
        state.assigned += 1
        name = self._draw_sampler(rng)
        sampler = self.samplers[name]
        seen = state.seen.setdefault(participant, set())
        if sampler.adaptive:
            assigned = self._from_queue(state, name, seen, rng)
        else:
            assigned = self._from_sampler(state, name, participant, seen, rng)
        seen.add(assigned.query.key)
        return assigned

    def _draw_sampler(self, rng: np.random.Generator) -> str:
        names = list(self.samplers)
        if len(names) == 1:
            return names[0]
        weights = np.array([1.0 if self.shares is None else self.shares[name] for name in names])
        return names[int(rng.choice(len(names), p=weights / weights.sum()))]

    def _from_queue(
        self,
        state: AssignmentState,
        name: str,
        seen: SeenQueries,
        rng: np.random.Generator,
    ) -> AssignedQuery:
        queue = state.queues.get(name)
        query = None if queue is None else queue.pop(seen)
        if query is not None:
            return AssignedQuery(query, name)
        return AssignedQuery(self._unseen(self.samplers[name], seen, rng), name, fallback=True)

    def _from_sampler(
        self,
        state: AssignmentState,
        name: str,
        participant: str,
        seen: SeenQueries,
        rng: np.random.Generator,
    ) -> AssignedQuery:
        sampler = self.samplers[name]
        key = name, participant
        if sampler.personal and key not in state.personal:
            # Each participant gets a different order, and the same one again after a restart.
            seed = int(rng.integers(2**31))
            state.personal[key] = sampler.start(self.n_items, seed=seed)
        before = state.personal[key] if sampler.personal else state.samplers[name]
        assigned = None
        tries = max(_TRIES, self.n_items) if sampler._in_rounds else _TRIES
        for _ in range(tries):
            (query,), before = sampler.propose(before, 1)
            if sampler.repeats or query.key not in seen:
                assigned = AssignedQuery(query, name)
                break
            if sampler._in_rounds:
                # Other feet for the same head, which would otherwise lose its turn.
                with suppress(LookupError):
                    other = self._unseen(sampler, seen, rng, query.head)
                    assigned = AssignedQuery(other, name)
                    break
        if sampler.personal:
            state.personal[key] = before
        else:
            state.samplers[name] = before
        return assigned or AssignedQuery(self._unseen(sampler, seen, rng), name, fallback=True)

    def _unseen(
        self,
        sampler: Sampler,
        seen: SeenQueries,
        rng: np.random.Generator,
        head: int | None = None,
    ) -> Query:
        """Return a random query that this participant has not seen, perhaps with a given head."""
        items = self._items(sampler)
        for _ in range(_TRIES):
            query = draw_queries(items, 1, rng, head=head)[0]
            if query.key not in seen:
                return query
        # Random draws keep hitting seen queries, so few are left: list them.
        left = [
            Query(one, *feet)
            for one in (items.tolist() if head is None else [head])
            for feet in combinations(items[items != one].tolist(), 2)
            if (one, *feet) not in seen
        ]
        if not left:
            raise LookupError("This participant has seen every query there is.")
        top, *feet = left[int(rng.integers(len(left)))][:3]
        return Query(top, *rng.permutation(feet).tolist())  # the list has the smaller item first

    def _items(self, sampler: Sampler) -> NDArray[np.intp]:
        return np.arange(self.n_items) if sampler.items is None else np.unique(sampler.items)
