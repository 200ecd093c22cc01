"""Samplers without an embedding."""

import numpy as np

from accelerando.crowd import (
    Random,
    RoundRobin,
)


def test_random_asks_about_every_item_equally_often():
    queries, _ = Random().propose(Random().start(6), 3_000)
    heads = np.bincount([query.head for query in queries], minlength=6)
    assert heads.min() > 400


def test_round_robin_goes_through_all_heads_before_any_comes_again():
    sampler = RoundRobin()
    state = sampler.start(7)
    heads = []
    for _ in range(7):
        (query,), state = sampler.propose(state, 1)
        heads.append(query.head)
    assert sorted(heads) == list(range(7))
