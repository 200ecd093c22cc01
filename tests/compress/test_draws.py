"""Systematic sampling keeps probabilities, and nearly always draws as many."""

import torch

from accelerando.compress._draws import drawn


def test_every_atom_is_drawn_with_its_probability():
    chances = torch.tensor([1.0, 0.1, 0.0, 0.45, 0.9, 0.05, 1.0, 0.5])
    source, times = torch.Generator().manual_seed(0), 4000
    counts = torch.zeros(len(chances))
    for _ in range(times):
        counts[drawn(chances, source)] += 1
    # Six standard errors of a binomial.
    assert bool(((counts / times - chances).abs() <= 6 * 0.5 / times**0.5).all())
    assert counts[0] == counts[6] == times
    assert counts[2] == 0


def test_the_number_is_the_sum_rounded_up_or_down():
    chances = torch.rand(200, generator=torch.Generator().manual_seed(1)) * 0.05
    source, total = torch.Generator().manual_seed(2), float(chances.double().sum())
    counts = {len(drawn(chances, source)) for _ in range(200)}
    assert counts == {int(total), int(total) + 1}


def test_nothing_is_drawn_of_nothing():
    assert drawn(torch.zeros(0), torch.Generator()).tolist() == []
    assert drawn(torch.zeros(3), torch.Generator()).tolist() == []
