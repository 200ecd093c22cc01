"""Samplers: which queries to ask next.

A sampler holds settings only. Its state is a small value that the caller keeps and passes to every
call: one per experiment, or one per participant if ``Sampler.personal`` is True. A service can
store it, restart and continue. All randomness comes from the state: the same state proposes the
same queries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accelerando._validation import parameter_error
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._search import SearchResult, search

__all__ = ["Query", "Sampler", "SamplerState", "Search", "cover", "deal", "draw_queries"]

Search = Callable[..., SearchResult]


class Query(NamedTuple):
    """The question "is ``left`` or ``right`` more like ``head``?", with the score of the query.

    Queries drawn at random have no score; they also are the held-out set.

    Attributes
    ----------
    head : int
        The item that the other two are compared with.
    left, right : int
        The feet, in the order in which the page shows them.
    score : float or None, default=None
        The score by which the query was chosen.
    """

    head: int
    left: int
    right: int
    score: float | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """Identifier of the query; equal for both orders of the feet."""
        return self.head, min(self.left, self.right), max(self.left, self.right)


@dataclass(frozen=True)
class SamplerState:
    """State of a sampler: plain numbers that JSON can represent.

    Attributes
    ----------
    n_items : int
    seed : int
    turn : int
        Number of calls so far; the next random numbers follow from it and the seed.
    deck : tuple of int
        Cards not yet dealt: heads, or the indices of validation queries.
    cover : tuple of int
        Cards of the coverage design not yet dealt; see :func:`cover`.
    """

    n_items: int
    seed: int = 0
    turn: int = 0
    deck: tuple[int, ...] = ()
    cover: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("deck", "cover"):  # JSON has lists only
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True, kw_only=True)
class Sampler(ABC):
    """Base class of samplers.

    Parameters
    ----------
    items : sequence of int, optional
        Ask about these items only; about all items by default.
    """

    items: Sequence[int] | None = None
    adaptive: ClassVar[bool] = False
    personal: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    _in_rounds: ClassVar[bool] = False  # each item is the head once per round

    def start(self, n_items: int, seed: int = 0) -> SamplerState:
        """Return the initial state."""
        self._items(n_items)
        return SamplerState(n_items, seed)

    @abstractmethod
    def propose(
        self,
        state: SamplerState,
        count: int,
        model: OrdinalEmbedding | Posterior | None = None,
        search: Search = search,
    ) -> tuple[list[Query], SamplerState]:
        """Return the next ``count`` queries and the state after them.

        ``model`` is None before the first fit; adaptive samplers then propose random queries.
        ``search`` finds the best queries, by default :func:`accelerando.crowd.search`. A service
        may pass one with a time limit or one that runs on a cluster.
        """

    def put_back(self, state: SamplerState, queries: Sequence[Query]) -> SamplerState:
        """Return the state after taking back queries that nobody was asked.

        A newer posterior will propose better ones.
        """
        del queries
        return state

    def _items(self, n_items: int) -> NDArray[np.intp]:
        if self.items is None:
            chosen = np.arange(n_items)
        else:
            chosen = np.unique(np.asarray(self.items, dtype=np.intp))
        if len(chosen) < 3 or chosen[0] < 0 or chosen[-1] >= n_items:
            allowed = f"at least 3 of the item numbers 0 to {n_items - 1}"
            raise parameter_error(self, "items", allowed, chosen.tolist())
        return chosen


def draw_queries(
    items: NDArray[np.intp], count: int, rng: np.random.Generator, *, head: int | None = None
) -> list[Query]:
    """Return ``count`` queries of three different random items, or with this head."""
    queries = []
    for _ in range(count):
        if head is None:
            drawn = rng.choice(items, size=3, replace=False).tolist()
        else:
            drawn = [head, *rng.choice(items[items != head], size=2, replace=False).tolist()]
        queries.append(Query(*drawn))
    return queries


def cover(
    items: NDArray[np.intp], deck: tuple[int, ...], count: int, rng: np.random.Generator
) -> tuple[list[Query], tuple[int, ...]]:
    """Return ``count`` queries of a coverage design and the cards that are left.

    The items are shuffled and dealt three at a time, again and again: after any number of queries
    no item was asked about more than twice as often as another plus once, and two rounds connect
    nearly all items. Each query by itself is uniformly random, so that its answer is a fair test.

    Examples
    --------
    >>> queries, rest = cover(np.arange(6), (), 4, np.random.default_rng(0))
    >>> sorted(item for query in queries for item in query[:3])
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    """
    cards = list(deck)
    queries = []
    for _ in range(count):
        if len(set(cards)) < 3:
            # What is left of the last round comes first, and not twice in one query.
            again = rng.permutation(items).tolist()
            left = set(cards)
            cards += [item for item in again if item not in left]
            cards += [item for item in again if item in left]
        places = sorted(cards.index(item) for item in list(dict.fromkeys(cards))[:3])
        queries.append(Query(*(cards[place] for place in places)))
        for place in reversed(places):
            del cards[place]
    return queries, tuple(cards)


def deal(
    items: NDArray[np.intp], deck: tuple[int, ...], count: int, rng: np.random.Generator
) -> tuple[list[int], tuple[int, ...]]:
    """Return ``count`` cards from the top and the rest; an empty deck is refilled and shuffled."""
    cards = list(deck)
    while len(cards) < count:
        cards.extend(rng.permutation(items).tolist())
    return cards[:count], tuple(cards[count:])
