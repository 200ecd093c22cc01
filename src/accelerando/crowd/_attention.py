"""Attention checks: queries with known answers, and repeats with swapped sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from accelerando._validation import check
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._sampler import Query, Sampler, SamplerState, Search, deal
from accelerando.crowd._search import search

__all__ = ["Validation", "repeat_agreement"]


@dataclass(frozen=True, kw_only=True)
class Validation(Sampler):
    """A fixed list of queries in a new order each round, with swapped sides in every other round.

    Parameters
    ----------
    queries : sequence of (head, left, right)
        The queries.
    winners : sequence of int, optional
        The known answer to each query: its left or its right item.

    Examples
    --------
    >>> sampler = Validation(queries=[(0, 1, 9)], winners=[1])
    >>> first, state = sampler.propose(sampler.start(n_items=10), count=2)
    >>> [tuple(query)[:3] for query in first]
    [(0, 1, 9), (0, 9, 1)]
    >>> sampler.passed((0, 9, 1), winner=1)
    True
    """

    queries: Sequence[tuple[int, int, int]] = field(default=())
    winners: Sequence[int] | None = None
    personal: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    def __post_init__(self) -> None:
        allowed = "a sequence of at least one query (head, left, right)"
        check(bool(self.queries), self, "queries", allowed, self.queries)
        if self.winners is None:
            return
        allowed = "None or the left or right item of each query"
        check(
            len(self.winners) == len(self.queries)
            and all(w in q[1:] for q, w in zip(self.queries, self.winners, strict=True)),
            self,
            "winners",
            f"{allowed}, {[tuple(query) for query in self.queries]}",
            self.winners,
        )

    def start(self, n_items: int, seed: int = 0) -> SamplerState:
        """Return the initial state; raise ValueError if a query names an unknown item."""
        allowed = set(self._items(n_items).tolist())
        for query in self.queries:
            what = f"rows of three different items of the {len(allowed)} items to ask about"
            check(len(set(query)) == 3 and set(query) <= allowed, self, "queries", what, query)
        return SamplerState(n_items, seed)

    def propose(
        self,
        state: SamplerState,
        count: int,
        model: OrdinalEmbedding | Posterior | None = None,
        search: Search = search,
    ) -> tuple[list[Query], SamplerState]:
        del model, search
        total = len(self.queries)
        # Cards are indices of queries, plus `total` in every other round, where sides are swapped.
        proposed: list[Query] = []
        turn, deck = state.turn, state.deck
        while len(proposed) < count:
            if not deck:
                rng = np.random.default_rng([state.seed, turn])
                numbers, _ = deal(np.arange(total), (), total, rng)
                deck = tuple(number + total * (turn % 2) for number in numbers)
                turn += 1
            card, deck = deck[0], deck[1:]
            head, left, right = self.queries[card % total]
            swapped = card >= total
            proposed.append(Query(head, right, left) if swapped else Query(head, left, right))
        return proposed, replace(state, turn=turn, deck=deck)

    def passed(self, query: tuple[int, int, int], winner: int) -> bool | None:
        """Return True if the answer is the known one; None if no answer is known."""
        if self.winners is None:
            return None
        asked = Query(*query).key
        for known, right_answer in zip(self.queries, self.winners, strict=True):
            if Query(*known).key == asked:
                return bool(winner == right_answer)
        return None


def repeat_agreement(
    queries: Sequence[tuple[int, int, int]], winners: Sequence[int]
) -> float | None:
    """Return the share of repeated queries with the same winner as before; None without repeats.

    Parameters
    ----------
    queries : sequence of (head, left, right)
        One participant's queries in the order in which they were asked. The order of the feet does
        not matter.
    winners : sequence of int
        The chosen item of each query.

    Examples
    --------
    >>> repeat_agreement([(0, 1, 9), (0, 9, 1), (3, 4, 5)], [1, 1, 4])
    1.0
    """
    last: dict[tuple[int, int, int], int] = {}
    same: list[bool] = []
    for query, winner in zip(queries, winners, strict=True):
        key = Query(*query).key
        if key in last:
            same.append(last[key] == winner)
        last[key] = winner
    return float(np.mean(same)) if same else None
