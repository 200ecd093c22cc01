"""Known answers and repeats with sides swapped: is a participant paying attention?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from accelerando.crowd._posterior import Belief
from accelerando.crowd._sampler import Query, Sampler, SamplerState, Search, deal
from accelerando.crowd._search import search

__all__ = ["Validation", "repeat_agreement"]


@dataclass(frozen=True, kw_only=True)
class Validation(Sampler):
    """A fixed list of queries, in a new order each time round, the sides swapped every other time.

    Parameters
    ----------
    queries : sequence of (head, left, right)
        What to ask.
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
        if not self.queries:
            raise ValueError("queries must hold at least one (head, left, right); got none.")
        if self.winners is None:
            return
        if len(self.winners) != len(self.queries):
            raise ValueError(
                f"winners must hold one item per query, {len(self.queries)}; "
                f"got {len(self.winners)}."
            )
        for query, winner in zip(self.queries, self.winners, strict=True):
            if winner not in query[1:]:
                raise ValueError(
                    f"winners must be the left or right item of their query; got {winner} "
                    f"for query {tuple(query)}."
                )

    def start(self, n_items: int, seed: int = 0) -> SamplerState:
        """The state to begin with; every item of the queries must exist."""
        allowed = set(self._items(n_items).tolist())
        for query in self.queries:
            if len(set(query)) != 3 or not set(query) <= allowed:
                raise ValueError(
                    f"queries must name three different items of the allowed ones; got {query}."
                )
        return SamplerState(n_items, seed)

    def propose(
        self,
        state: SamplerState,
        count: int,
        belief: Belief | None = None,
        search: Search = search,
    ) -> tuple[list[Query], SamplerState]:
        del belief, search
        total = len(self.queries)
        # Cards are numbers of queries, plus `total` in every other round: those are swapped.
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
        """Whether this answer is the known one; None if the query or its answer is not known."""
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
    """Share of queries answered again with the same winner as before; None without repeats.

    Parameters
    ----------
    queries : sequence of (head, left, right)
        One participant's queries in the order in which they were asked. The same feet in the other
        order are the same query.
    winners : sequence of int
        The item that was chosen in each.

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
