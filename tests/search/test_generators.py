"""Global random generators: the same numbers for the same call, and none of it left behind."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from accelerando.search._generators import _seed_torch, generators_restored, seed_generators


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


@pytest.mark.parametrize("accelerator", [True, False])
def test_a_seed_gives_the_numbers_that_pytorch_gives(accelerator):
    fake = SimpleNamespace(
        accelerator=SimpleNamespace(is_available=lambda: accelerator),
        manual_seed=torch.manual_seed,
        default_generator=torch.default_generator,
    )
    with generators_restored():
        torch.manual_seed(5)
        expected = torch.rand(3)
        _seed_torch(fake, 5)
        assert torch.equal(torch.rand(3), expected)


def test_the_generators_of_accelerators_are_seeded_too():
    seeded = []
    fake = SimpleNamespace(
        accelerator=SimpleNamespace(is_available=lambda: True), manual_seed=seeded.append
    )
    _seed_torch(fake, 7)
    assert seeded == [7]
