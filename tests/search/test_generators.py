"""Global random generators: the same numbers for the same call, and none of it left behind."""

import random

import numpy as np
import torch

from accelerando.search._generators import generators_restored, seed_generators


def drawn():
    return random.random(), np.random.random(), torch.rand(1).item()


def test_a_call_has_its_own_numbers():
    with generators_restored():
        seed_generators(0, 3, 1)
        first = drawn()
        seed_generators(0, 3, 2)
        assert not set(first) & set(drawn())
        seed_generators(0, 3, 1)
        assert drawn() == first


def test_the_generators_are_what_they_were_before():
    with generators_restored():
        seed_generators(1)
        expected = drawn()
        seed_generators(1)
        with generators_restored():
            seed_generators(2)
            drawn()
        assert drawn() == expected


def test_pytorch_draws_what_its_own_seed_gives():
    with generators_restored():
        seed_generators(4)
        found = torch.rand(3)
        torch.manual_seed(hash((4,)) % (2**32 - 1))
        assert torch.equal(torch.rand(3), found)
