"""Adaptive samplers: ARR, Greedy and Uncertainty, which choose queries with the embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from accelerando._validation import check_number
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._posterior import Posterior, as_posterior
from accelerando.crowd._sampler import (
    Query,
    Sampler,
    SamplerState,
    Search,
    cover,
    deal,
    draw_queries,
)
from accelerando.crowd._search import Score, search

__all__ = ["ARR", "Greedy", "Uncertainty"]


@dataclass(frozen=True, kw_only=True)
class _Deck(Sampler):
    """Best feet for each head of a shuffled deck, and a share of random queries.

    Parameters
    ----------
    random_share : float in [0, 1]
        Share of queries drawn at random. They are a fair held-out set at any time, and they correct
        the embedding where the noise model is wrong.
    pairs : "auto", "all" or int
        Pairs of feet to score; see :func:`accelerando.crowd.search`.
    """

    random_share: float = 0.2
    pairs: int | Literal["auto", "all"] = "auto"
    adaptive: ClassVar[bool] = True
    _score: ClassVar[Score]

    def __post_init__(self) -> None:
        check_number(self, "random_share", self.random_share, minimum=0, maximum=1)

    def propose(
        self,
        state: SamplerState,
        count: int,
        model: OrdinalEmbedding | Posterior | None = None,
        search: Search = search,
    ) -> tuple[list[Query], SamplerState]:
        posterior = None if model is None else as_posterior(model)
        rng = np.random.default_rng([state.seed, state.turn])
        items = self._items(state.n_items)
        at_random = rng.random(count) < (1.0 if posterior is None else self._share(posterior))
        heads, deck = deal(items, state.deck, int((~at_random).sum()), rng)
        covering, rest = cover(items, state.cover, int(at_random.sum()), rng)
        queries = draw_queries(items, count, rng)
        for place, query in zip(np.flatnonzero(at_random).tolist(), covering, strict=True):
            queries[place] = query
        if heads and posterior is not None:
            repeats = max(heads.count(head) for head in heads)
            found = search(
                posterior,
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
        return queries, replace(state, turn=state.turn + 1, deck=deck, cover=rest)

    def _share(self, posterior: Posterior) -> float:
        del posterior
        return self.random_share

    def put_back(self, state: SamplerState, queries: Sequence[Query]) -> SamplerState:
        """Put what was not asked back on top of the decks, so that no item is skipped."""
        heads = tuple(query.head for query in queries if query.score is not None)
        cards = tuple(item for query in queries if query.score is None for item in query[:3])
        return replace(state, deck=heads + state.deck, cover=cards + state.cover)


@dataclass(frozen=True, kw_only=True)
class ARR(_Deck):
    """Adaptive round robin: the most informative feet for each head of a shuffled deck.

    The recommended sampler. The round robin over heads prevents repeated queries about the few
    items with the highest scores.

    Parameters
    ----------
    items : sequence of int, optional
        Ask about these items only; about all items by default.
    random_share : float, default=0.35
        Share of queries drawn at random. With a fifth, human answers about shoes were predicted
        worse than after random queries alone; with a half, answers about eggs saved less.
    pairs : "auto", "all" or int, default=111
        Pairs of feet to score. The best of about a hundred random pairs is among the best one
        percent of all; the very best of all pairs are often similar and near the head.
    cautious : bool, default=True
        Choose no query until the embedding beats chance, and fewer where random queries are worth
        more (:mod:`accelerando.crowd._guard`). False always chooses a share of
        ``1 − random_share``.

    References
    ----------
    Sievert, "Efficient deployment of active machine learning", dissertation 2021, section 4.3.

    Examples
    --------
    >>> model = OrdinalEmbedding(n_items=8, random_state=0).fit([[0, 1, 7], [4, 3, 0], [6, 5, 2]])
    >>> sampler = ARR(random_share=0.0)
    >>> queries, state = sampler.propose(sampler.start(n_items=8), 8, model)
    >>> sorted(query.head for query in queries)
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    random_share: float = 0.35
    pairs: int | Literal["auto", "all"] = 111
    cautious: bool = True
    _score: ClassVar[Score] = "information gain"

    def _share(self, posterior: Posterior) -> float:
        trust = posterior.trust if self.cautious else 1.0
        return 1.0 - (1.0 - self.random_share) * trust


@dataclass(frozen=True, kw_only=True)
class Uncertainty(_Deck):
    """The feet with the least predictable answer for each head of a shuffled deck.

    For comparison: it prefers pairs that are truly equally far, where an answer says little.
    """

    random_share: float = 0.0
    _score: ClassVar[Score] = "uncertainty"


@dataclass(frozen=True, kw_only=True)
class Greedy(Sampler):
    """The most informative queries of all, for any head.

    Parameters
    ----------
    items : sequence of int, optional
        Ask about these items only; about all items by default.
    random_share : float, default=0
        Share of queries drawn at random.
    pairs : "auto", "all" or int, default="auto"
        Pairs of feet to score; see :func:`accelerando.crowd.search`.
    include_head : bool, default=True
        False uses the score of Salmon and NEXT, which repeats one head; for comparison.
    """

    random_share: float = 0.0
    pairs: int | Literal["auto", "all"] = "auto"
    include_head: bool = True
    adaptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self, "random_share", self.random_share, minimum=0, maximum=1)

    def propose(
        self,
        state: SamplerState,
        count: int,
        model: OrdinalEmbedding | Posterior | None = None,
        search: Search = search,
    ) -> tuple[list[Query], SamplerState]:
        posterior = None if model is None else as_posterior(model)
        rng = np.random.default_rng([state.seed, state.turn])
        items = self._items(state.n_items)
        at_random = rng.random(count) < (1.0 if posterior is None else self.random_share)
        queries = draw_queries(items, count, rng)
        wanted = np.flatnonzero(~at_random).tolist()
        if wanted and posterior is not None:
            found = search(
                posterior,
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
