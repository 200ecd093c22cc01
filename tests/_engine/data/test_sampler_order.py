"""The order of a user's sampler."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, WeightedRandomSampler

from accelerando._engine.data.sampler_order import SamplerOrder
from accelerando._engine.runtime.process import get_rng


class ByNumPy:
    def __iter__(self):
        return iter(np.random.permutation(9).tolist())


class ByPython:
    def __iter__(self):
        return iter(random.sample(range(9), 9))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


SAMPLERS = {
    "PyTorch": lambda: RandomSampler(range(9)),
    "NumPy": ByNumPy,
    "Python": ByPython,
    "weights": lambda: WeightedRandomSampler([1.0] * 9, 20),
    "its own generator": lambda: WeightedRandomSampler([1.0] * 9, 20, generator=seeded(3)),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_order_depends_on_seed_and_epoch_only(name):
    one, other = (SamplerOrder(SAMPLERS[name]()) for _ in range(2))
    found = {place: one(*place, 9).tolist() for place in ((0, 0), (0, 1), (1, 0))}
    assert len({tuple(order) for order in found.values()}) == 3
    for place in reversed(found):  # in another process, which begins there
        assert other(*place, 9).tolist() == found[place]


def test_the_seed_of_a_sampler_counts():
    orders = [
        SamplerOrder(RandomSampler(range(9), generator=seeded(seed)))(0, 0, 9).tolist()
        for seed in (3, 4, 3)
    ]
    assert orders[0] == orders[2] != orders[1]


def test_generators_are_as_before():
    own = seeded(3)
    states = get_rng()[0], np.random.get_state()[1].copy(), own.get_state()
    SamplerOrder(RandomSampler(range(9), generator=own))(0, 0, 9)
    SamplerOrder(ByNumPy())(0, 0, 9)
    assert torch.equal(get_rng()[0], states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(own.get_state(), states[2])
    assert own.initial_seed() == 3


def test_positions_are_taken_as_they_are():
    assert SamplerOrder([5, 3])(0, 0, 9).tolist() == [5, 3]
