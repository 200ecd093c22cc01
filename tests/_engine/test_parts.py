"""Rows and their parts: what is computed for each, and how far both are apart."""

import math

import pytest
import torch
from torch import nn

from accelerando._engine.model import PlainModel
from accelerando._engine.parts import (
    RaisesError,
    Rows,
    cut_rows,
    differ,
    evaluate,
    norm,
    try_losses,
)
from accelerando._engine.snapshot import nothing_changes

X = torch.arange(24, dtype=torch.float64).reshape(8, 3) / 10
Y = torch.linspace(-1, 1, 8, dtype=torch.float64)[:, None]
BATCH = Rows(X, Y, cut_rows([X, Y], [0, 3, 8]))


def model_of(criterion, module=None):
    torch.manual_seed(0)
    module = nn.Linear(3, 1).double() if module is None else module
    return PlainModel(module, criterion, torch.optim.SGD(module.parameters(), lr=0.1))


def test_rows_are_cut_without_a_rest():
    assert BATCH.rows == 8
    assert [rows for _, _, rows in BATCH.parts] == [3, 5]
    assert torch.equal(torch.cat([x for x, _, _ in BATCH.parts]), X)
    assert torch.equal(torch.cat([y for _, y, _ in BATCH.parts]), Y)


def test_rows_become_double_and_integers_stay():
    rows = Rows(X.float(), torch.arange(8), cut_rows([X.float(), torch.arange(8)], [0, 3, 8]))
    wide = rows.in_double_precision()
    assert (wide.X.dtype, wide.y.dtype) == (torch.float64, torch.int64)
    assert [(x.dtype, rows) for x, _, rows in wide.parts] == [
        (torch.float64, 3),
        (torch.float64, 5),
    ]


def test_the_gradient_of_a_batch_is_the_mean_of_those_of_its_rows():
    model = model_of(nn.MSELoss())
    with nothing_changes(model) as reset:
        whole = evaluate(model, X, Y, reset)
        parts = [evaluate(model, x, y, reset) for x, y, _ in BATCH.parts]
    mean = [3 / 8 * a + 5 / 8 * b for a, b in zip(*(part.gradient for part in parts), strict=True)]
    assert not differ(whole.gradient, mean)
    assert torch.isclose(whole.loss, 3 / 8 * parts[0].loss + 5 / 8 * parts[1].loss)


def test_random_numbers_are_the_same_for_every_part():
    model = model_of(nn.MSELoss(), nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1)).double())
    with nothing_changes(model) as reset:
        first, again = (evaluate(model, X, Y, reset).loss for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("where", ["module", "loss"])
def test_who_raises_is_named(where):
    def fail(*given):
        raise KeyError("rows that are not here")

    model = model_of(fail if where == "loss" else nn.MSELoss())
    if where == "module":
        model.module.forward = fail
    with nothing_changes(model) as reset, pytest.raises(RaisesError) as caught:
        evaluate(model, X, Y, reset)
    assert caught.value.where == where


def test_rounding_is_no_difference():
    one = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert not differ([one], [one + 1e-10])
    assert differ([one], [one + 1e-8])
    assert not differ([one.float()], [one.float() + 1e-4])
    assert differ([one], [one[:1]])
    assert norm([one, 2 * one]) == pytest.approx(5.0)
    assert norm([]) == 0.0


def flooded(y_pred, y):
    return (((y_pred - y) ** 2).mean() - 0.5).abs() + 0.5


@pytest.mark.parametrize(("criterion", "apart"), [(nn.MSELoss(), False), (flooded, True)])
def test_losses_that_bend_are_found_with_other_predictions(criterion, apart):
    model = model_of(criterion)
    with nothing_changes(model) as reset, torch.no_grad():
        found = try_losses(model, BATCH, model.module(X), False, reset)
    assert math.isfinite(found)
    assert (found > 1e-6) == apart
