"""Hand out queries: several samplers by proportion, nobody asked the same thing twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol

import numpy as np

from accelerando.crowd._posterior import Belief
from accelerando.crowd._sampler import Query, Sampler, SamplerState, Search, draw_queries
from accelerando.crowd._search import search

__all__ = ["Desk", "DeskState", "Served"]

_TRIES = 50

Key = tuple[int, int, int]


class Asked(Protocol):
    """What one participant has been asked: a set, or something that looks it up elsewhere."""

    def __contains__(self, key: object, /) -> bool: ...

    def add(self, key: Key, /) -> None:
        """Remember."""


class Queue(Protocol):
    """Ready queries, best first: a list, or something that takes them from elsewhere."""

    def __iter__(self) -> Iterator[Query]: ...

    def __delitem__(self, place: int, /) -> None: ...


@dataclass(frozen=True)
class Served:
    """A query on its way to a participant.

    Attributes
    ----------
    query : Query
    sampler : str
        Who proposed it.
    fallback : bool
        True if the queue was empty and the query is a random one.
    """

    query: Query
    sampler: str
    fallback: bool = False


@dataclass
class DeskState:
    """What changes while queries are handed out; the desk itself holds settings only.

    :meth:`Desk.open` makes one.

    Parameters
    ----------
    seed : int
        Together with ``served`` it decides the next random numbers.
    served : int, default=0
        How many queries have been handed out.
    samplers : dict of str to SamplerState
        What each sampler remembers, by its name.
    personal : dict of (str, str) to SamplerState
        The same for samplers that give everybody an own order, by sampler and participant.
    queues : dict of str to list of Query
        Ready queries of each adaptive sampler, best first; or an object that takes them from
        elsewhere, with ``__iter__`` and ``__delitem__``.
    asked : dict of str to set
        Keys of the queries that each participant has seen; or an object that looks them up
        elsewhere, with ``__contains__`` and ``add``.
    """

    seed: int
    served: int = 0
    samplers: dict[str, SamplerState] = field(default_factory=dict)
    personal: dict[tuple[str, str], SamplerState] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)


@dataclass(frozen=True)
class Desk:
    """Several samplers at once.

    Parameters
    ----------
    n_items : int
    samplers : mapping of str to Sampler
        By name.
    shares : mapping of str to float, optional
        Proportion of each; equal by default.
    queue_length : int, optional
        Ready queries per adaptive sampler after each refill; twice the number of items by default.

    Examples
    --------
    >>> from accelerando.crowd import Random, RoundRobin
    >>> desk = Desk(12, {"random": Random(), "robin": RoundRobin()}, {"random": 3, "robin": 1})
    >>> state = desk.open(seed=0)
    >>> served = [desk.ask(state, "anna").sampler for _ in range(400)]
    >>> 250 < served.count("random") < 350
    True
    """

    n_items: int
    samplers: Mapping[str, Sampler]
    shares: Mapping[str, float] | None = None
    queue_length: int | None = None

    def __post_init__(self) -> None:
        if not self.samplers:
            raise ValueError("samplers must name at least one sampler; got none.")
        if self.shares is not None:
            if set(self.shares) != set(self.samplers):
                raise ValueError(
                    f"shares must name the same samplers, {sorted(self.samplers)}; "
                    f"got {sorted(self.shares)}."
                )
            if min(self.shares.values()) < 0 or sum(self.shares.values()) <= 0:
                raise ValueError(
                    f"shares must be at least 0 and not all 0; got {dict(self.shares)}."
                )
        if self.queue_length is not None and self.queue_length < 1:
            raise ValueError(f"queue_length must be at least 1; got {self.queue_length}.")

    @property
    def adaptive(self) -> bool:
        """Whether any sampler needs a belief."""
        return any(sampler.adaptive for sampler in self.samplers.values())

    def open(self, seed: int = 0) -> DeskState:
        """The state to begin with."""
        state = DeskState(seed)
        for number, (name, sampler) in enumerate(self.samplers.items()):
            state.samplers[name] = sampler.start(self.n_items, seed=1000 * seed + number)
        return state

    def refill(self, state: DeskState, belief: Belief | None, search: Search = search) -> None:
        """Replace the queues of the adaptive samplers by what this belief finds best."""
        count = 2 * self.n_items if self.queue_length is None else self.queue_length
        for name, sampler in self.samplers.items():
            if sampler.adaptive:
                kept = sampler.put_back(state.samplers[name], list(state.queues.get(name, [])))
                state.queues[name], state.samplers[name] = sampler.propose(
                    kept, count, belief, search
                )

    def ask(self, state: DeskState, participant: str) -> Served:
        """The next query for this participant, never one that this participant has seen.

        Only :class:`Validation` repeats itself, on purpose. LookupError: nothing is left to ask.
        """
        rng = np.random.default_rng([state.seed, state.served])
        state.served += 1
        name = self._draw_sampler(rng)
        sampler = self.samplers[name]
        seen = state.asked.setdefault(participant, set())
        if sampler.adaptive:
            served = self._from_queue(state, name, seen, rng)
        else:
            served = self._from_sampler(state, name, participant, seen, rng)
        seen.add(served.query.key)
        return served

    def _draw_sampler(self, rng: np.random.Generator) -> str:
        names = list(self.samplers)
        if len(names) == 1:
            return names[0]
        weights = np.array([1.0 if self.shares is None else self.shares[name] for name in names])
        return names[int(rng.choice(len(names), p=weights / weights.sum()))]

    def _from_queue(
        self,
        state: DeskState,
        name: str,
        seen: Asked,
        rng: np.random.Generator,
    ) -> Served:
        queue = state.queues.get(name, [])
        for place, query in enumerate(queue):
            if query.key not in seen:
                del queue[place]
                return Served(query, name)
        return Served(self._unseen(self.samplers[name], seen, rng), name, fallback=True)

    def _from_sampler(
        self,
        state: DeskState,
        name: str,
        participant: str,
        seen: Asked,
        rng: np.random.Generator,
    ) -> Served:
        sampler = self.samplers[name]
        key = name, participant
        if sampler.personal and key not in state.personal:
            # Everybody gets an own order, the same one after a restart.
            own = int(rng.integers(2**31))
            state.personal[key] = sampler.start(self.n_items, seed=own)
        before = state.personal[key] if sampler.personal else state.samplers[name]
        served = None
        for _ in range(_TRIES):
            (query,), before = sampler.propose(before, 1)
            if sampler.repeats or query.key not in seen:
                served = Served(query, name)
                break
        if sampler.personal:
            state.personal[key] = before
        else:
            state.samplers[name] = before
        return served or Served(self._unseen(sampler, seen, rng), name, fallback=True)

    def _unseen(self, sampler: Sampler, seen: Asked, rng: np.random.Generator) -> Query:
        """A random query this participant has not been asked, if there is one."""
        items = np.arange(self.n_items) if sampler.items is None else np.unique(sampler.items)
        for _ in range(_TRIES):
            query = draw_queries(items, 1, rng)[0]
            if query.key not in seen:
                return query
        # Luck has run out, so most queries have been asked: list the few that are left.
        left = [
            Query(head, *feet)
            for head in items.tolist()
            for feet in combinations(items[items != head].tolist(), 2)
            if (head, *feet) not in seen
        ]
        if not left:
            raise LookupError("this participant has been asked every query there is.")
        return left[int(rng.integers(len(left)))]
