"""Closures for optimizers of other libraries, which evaluate the loss again."""

from __future__ import annotations

import torch

from accelerando._engine.closures import offered, outside
from accelerando._engine.runtime.process import Draws
from tests._engine.fits import plain_model


def test_the_gradient_is_computed_again_only_after_something_has_moved():
    model, calls = plain_model(), []

    def gradient():
        calls.append(len(calls))
        return torch.tensor(2.0)

    closure = offered(model, gradient, torch.tensor(1.0))
    assert float(closure()) == 1.0
    assert not calls
    with torch.no_grad():
        model.parameters[0].add_(1.0)
    assert float(closure()) == 2.0
    assert calls == [0]


def test_a_closure_draws_as_outside_the_step():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    draws = Draws(1, 2, 3)
    with draws():
        torch.rand(5)
        found = outside(draws, lambda: torch.rand(1))()
    assert torch.equal(found, expected)
