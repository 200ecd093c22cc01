"""Samplers that ask what the present embedding knows least: ARR, Greedy, Uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from accelerando.crowd._posterior import Belief
from accelerando.crowd._sampler import Query, Sampler, SamplerState, Search, deal, draw_queries
from accelerando.crowd._search import Score, search

__all__ = ["ARR", "Greedy", "Uncertainty"]


@dataclass(frozen=True, kw_only=True)
class _Deck(Sampler):
    """Heads come from a shuffled deck; each gets its best feet. A share of queries is random.

    Parameters
    ----------
    random_share : float in [0, 1]
        Share of queries drawn at random. They are a fair held-out set at any moment, and keep the
        embedding right where the noise model is wrong.
    pairs : "auto", "all" or int
        Pairs of feet to look at; see :func:`accelerando.crowd.search`.
    """

    random_share: float = 0.2
    pairs: int | Literal["auto", "all"] = "auto"
    adaptive: ClassVar[bool] = True
    _score: ClassVar[Score]

    def __post_init__(self) -> None:
        _require_share(self.random_share)

    def propose(
        self,
        state: SamplerState,
        count: int,
        belief: Belief | None = None,
        search: Search = search,
    ) -> tuple[list[Query], SamplerState]:
        rng = np.random.default_rng([state.seed, state.turn])
        items = self._items(state.n_items)
        at_random = rng.random(count) < (1.0 if belief is None else self._share(belief))
        heads, deck = deal(items, state.deck, int((~at_random).sum()), rng)
        queries = draw_queries(items, count, rng)
        if heads and belief is not None:
            repeats = max(heads.count(head) for head in heads)
            found = search(
                belief,
                heads=heads,
                items=items,
                score=self._score,
                pairs=self.pairs,
                top=repeats,
                random_state=rng,
            )
            best: dict[int, list[Query]] = {head: [] for head in heads}
            for row, score in zip(found.queries.tolist(), found.scores.tolist(), strict=True):
                best[row[0]].append(_either_side(row, score, rng))
            for place, head in zip(np.flatnonzero(~at_random).tolist(), heads, strict=True):
                if best[head]:
                    queries[place] = best[head].pop(0)
        return queries, replace(state, turn=state.turn + 1, deck=deck)

    def _share(self, belief: Belief) -> float:
        del belief
        return self.random_share

    def put_back(self, state: SamplerState, queries: Sequence[Query]) -> SamplerState:
        """Heads that were not asked go on top of the deck: no item is passed over."""
        heads = tuple(query.head for query in queries if query.score is not None)
        return replace(state, deck=heads + state.deck)


@dataclass(frozen=True, kw_only=True)
class ARR(_Deck):
    """Adaptive round robin: a shuffled deck of heads, the most informative feet for each.

    The recommended sampler. Going round the heads is what keeps the search from asking again
    and again about the few items that look most interesting now.

    Parameters
    ----------
    items : sequence of int, optional
    random_share : float, default=0.2
    pairs : "auto", "all" or int, default=111
        Pairs of feet to look at. The best of about a hundred random ones is among the best one
        per cent of all; the very best of all are often alike, and crowd around the head.
    cautious : bool, default=True
        Ask more at random, up to a share of ``1 − 0.2 (1 − random_share)``, as long as answers to
        the chosen queries do not bear the embedding out (:mod:`accelerando.crowd._calibration`).

    References
    ----------
    Sievert, "Efficient deployment of active machine learning", dissertation 2021, section 4.3.

    Examples
    --------
    >>> positions = np.random.default_rng(0).normal(size=(8, 2))
    >>> from accelerando.crowd import TSTE
    >>> belief = Belief(positions, positions, np.zeros((8, 8)), TSTE())
    >>> sampler = ARR(random_share=0.0)
    >>> queries, state = sampler.propose(sampler.start(n_items=8), 8, belief)
    >>> sorted(query.head for query in queries)
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    pairs: int | Literal["auto", "all"] = 111
    cautious: bool = True
    _score: ClassVar[Score] = "information gain"

    def _share(self, belief: Belief) -> float:
        trust = belief.trust if self.cautious else 1.0
        return 1.0 - (1.0 - self.random_share) * trust


@dataclass(frozen=True, kw_only=True)
class Uncertainty(_Deck):
    """A shuffled deck of heads, for each the feet whose answer is hardest to predict.

    For comparison: it likes pairs that are truly equally far, where an answer says little.
    """

    random_share: float = 0.0
    _score: ClassVar[Score] = "uncertainty"


@dataclass(frozen=True, kw_only=True)
class Greedy(Sampler):
    """The most informative queries of all, whatever their heads.

    Parameters
    ----------
    items : sequence of int, optional
    random_share : float, default=0
    pairs : "auto", "all" or int, default="auto"
    include_head : bool, default=True
        False scores as Salmon and NEXT do and asks about one head for ever; for comparison.
    """

    random_share: float = 0.0
    pairs: int | Literal["auto", "all"] = "auto"
    include_head: bool = True
    adaptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_share(self.random_share)

    def propose(
        self,
        state: SamplerState,
        count: int,
        belief: Belief | None = None,
        search: Search = search,
    ) -> tuple[list[Query], SamplerState]:
        rng = np.random.default_rng([state.seed, state.turn])
        items = self._items(state.n_items)
        at_random = rng.random(count) < (1.0 if belief is None else self.random_share)
        queries = draw_queries(items, count, rng)
        wanted = np.flatnonzero(~at_random).tolist()
        if wanted and belief is not None:
            found = search(
                belief,
                heads=items,
                items=items,
                pairs=self.pairs,
                top=len(wanted),
                include_head=self.include_head,
                random_state=rng,
            )
            order = np.argsort(-found.scores, kind="stable")
            for place, best in zip(wanted, order.tolist(), strict=False):
                row, score = found.queries[best].tolist(), float(found.scores[best])
                queries[place] = _either_side(row, score, rng)
        return queries, replace(state, turn=state.turn + 1)


def _either_side(row: list[int], score: float, rng: np.random.Generator) -> Query:
    head, left, right = row
    return (
        Query(head, right, left, score) if rng.random() < 0.5 else Query(head, left, right, score)
    )


def _require_share(share: float) -> None:
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"random_share must lie in [0, 1]; got {share!r}.")
