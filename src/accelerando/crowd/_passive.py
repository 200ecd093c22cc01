"""Passive samplers: Random and RoundRobin, which need no embedding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._sampler import Query, Sampler, SamplerState, Search, deal, draw_queries
from accelerando.crowd._search import search

__all__ = ["Random", "RoundRobin"]


@dataclass(frozen=True, kw_only=True)
class Random(Sampler):
    """Random queries, all equally likely.

    Examples
    --------
    >>> sampler = Random()
    >>> queries, state = sampler.propose(sampler.start(n_items=10, seed=1), count=2)
    >>> len(queries), state.turn
    (2, 1)
    """

    def propose(
        self,
        state: SamplerState,
        count: int,
        model: OrdinalEmbedding | Posterior | None = None,
        search: Search = search,
    ) -> tuple[list[Query], SamplerState]:
        del model, search
        rng = np.random.default_rng([state.seed, state.turn])
        items = self._items(state.n_items)
        return draw_queries(items, count, rng), replace(state, turn=state.turn + 1)


@dataclass(frozen=True, kw_only=True)
class RoundRobin(Sampler):
    """Random feet for every item in turn, in a random order of heads per participant.

    In each round a participant is asked about each head once. When there are no more feet for a
    head that the participant has not seen, its turn is skipped.
    """

    personal: ClassVar[bool] = True
    _in_rounds: ClassVar[bool] = True

    def propose(
        self,
        state: SamplerState,
        count: int,
        model: OrdinalEmbedding | Posterior | None = None,
        search: Search = search,
    ) -> tuple[list[Query], SamplerState]:
        del model, search
        rng = np.random.default_rng([state.seed, state.turn])
        items = self._items(state.n_items)
        heads, deck = deal(items, state.deck, count, rng)
        queries = [draw_queries(items, 1, rng, head=head)[0] for head in heads]
        return queries, replace(state, turn=state.turn + 1, deck=deck)
