"""Which queries to ask next.

A sampler holds settings only. Its state is a small value that the caller keeps — one per
experiment, or one per participant where ``Sampler.personal`` says so — and hands back with every
call, so that a service can store it, restart and go on where it was. All randomness comes
from that state: the same state proposes the same queries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accelerando.crowd._posterior import Belief
from accelerando.crowd._search import Found, search

__all__ = ["Query", "Sampler", "SamplerState", "Search", "deal", "draw_queries"]

Search = Callable[..., Found]


class Query(NamedTuple):
    """Is ``left`` or ``right`` more like ``head``? With the score that chose the query.

    Queries drawn at random have no score; they double as the held-out set.

    Attributes
    ----------
    head : int
        The item that the two others are compared with.
    left, right : int
        The feet, in the order in which they are shown.
    score : float or None, default=None
        What chose the query.
    """

    head: int
    left: int
    right: int
    score: float | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """The same for both orders of the feet."""
        return self.head, min(self.left, self.right), max(self.left, self.right)


@dataclass(frozen=True)
class SamplerState:
    """Everything a sampler remembers: plain numbers, ready for JSON.

    Attributes
    ----------
    n_items : int
    seed : int
    turn : int
        Calls so far; together with the seed it decides the next random numbers.
    deck : tuple of int
        Cards not yet dealt: heads, or the numbers of validation queries.
    """

    n_items: int
    seed: int = 0
    turn: int = 0
    deck: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sampler(ABC):
    """What all samplers share.

    Parameters
    ----------
    items : sequence of int, optional
        Ask about these items only; about all by default.
    """

    items: Sequence[int] | None = None
    adaptive: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    repeats: ClassVar[bool] = False

    def start(self, n_items: int, seed: int = 0) -> SamplerState:
        """The state to begin with."""
        self._items(n_items)
        return SamplerState(n_items, seed)

    @abstractmethod
    def propose(
        self,
        state: SamplerState,
        count: int,
        belief: Belief | None = None,
        search: Search = search,
    ) -> tuple[list[Query], SamplerState]:
        """The next ``count`` queries and the state after them.

        ``belief`` is None as long as there is no embedding; adaptive samplers then ask at random.
        ``search`` finds the best queries, by default :func:`accelerando.crowd.search`: a service
        may give one that stops in time or that runs elsewhere.
        """

    def put_back(self, state: SamplerState, queries: Sequence[Query]) -> SamplerState:
        """Take back proposals that nobody was asked: a newer belief will choose better ones."""
        del queries
        return state

    def _items(self, n_items: int) -> NDArray[np.intp]:
        if self.items is None:
            chosen = np.arange(n_items)
        else:
            chosen = np.unique(np.asarray(self.items, dtype=np.intp))
        if len(chosen) < 3 or chosen[0] < 0 or chosen[-1] >= n_items:
            raise ValueError(
                f"items must name at least 3 of the items 0 to {n_items - 1}; "
                f"got {chosen.tolist()}."
            )
        return chosen


def draw_queries(
    items: NDArray[np.intp], count: int, rng: np.random.Generator, *, head: int | None = None
) -> list[Query]:
    """Three different items each, the head given or random."""
    queries = []
    for _ in range(count):
        if head is None:
            drawn = rng.choice(items, size=3, replace=False).tolist()
        else:
            drawn = [head, *rng.choice(items[items != head], size=2, replace=False).tolist()]
        queries.append(Query(*drawn))
    return queries


def deal(
    items: NDArray[np.intp], deck: tuple[int, ...], count: int, rng: np.random.Generator
) -> tuple[list[int], tuple[int, ...]]:
    """``count`` cards from the top; an empty deck is replaced by all items, shuffled."""
    cards = list(deck)
    while len(cards) < count:
        cards.extend(rng.permutation(items).tolist())
    return cards[:count], tuple(cards[count:])
