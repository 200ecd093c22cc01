"""What follows from coupled rows: ranks refuse them, micro-batches are as large as the batch."""

import typing

import pytest
from torch import nn

from accelerando._engine.division import refuse_on_ranks, settle_division
from accelerando._engine.micro_batch import MicroBatch
from accelerando._engine.trial import Where
from accelerando.exceptions import UnsupportedError
from tests._engine.coupled import FEATURES, LABELS, Statistics, dice
from tests._engine.fits import plain_fit, plain_model

ROWS, SIZE = len(FEATURES), 16


def fit_of(module, criterion, **spec):
    fit = plain_fit(plain_model(module, criterion), (FEATURES, LABELS), **spec)
    fit.state.micro_batch = MicroBatch()
    return fit


@pytest.mark.parametrize("where", typing.get_args(Where))
def test_ranks_refuse_every_kind_of_coupling_with_its_remedy(where):
    with pytest.raises(UnsupportedError, match=r"number of ranks\. .*couples_rows=False"):
        refuse_on_ranks(where, gathers=False)


def test_gathering_outputs_helps_a_loss_only():
    refuse_on_ranks("loss", gathers=True)
    with pytest.raises(UnsupportedError, match="cannot help inside the module"):
        refuse_on_ranks("module", gathers=True)


class ManyRows(nn.Linear):
    """The number of rows decides, and both parts of the batch have enough."""

    def forward(self, x):
        return super().forward(x) * (1.0 if len(x) > SIZE else 2.0)


@pytest.mark.parametrize(
    ("module", "criterion", "size"),
    [
        (nn.Linear(8, 5), nn.CrossEntropyLoss(), SIZE),
        (nn.Linear(8, 5), dice, ROWS),
        (Statistics(), nn.CrossEntropyLoss(), ROWS),
        (ManyRows(8, 5), nn.CrossEntropyLoss(), ROWS),
    ],
)
def test_a_batch_with_coupled_rows_stays_whole(module, criterion, size):
    fit = fit_of(module, criterion)
    assert settle_division(fit, FEATURES, LABELS, ROWS, SIZE) == size
    assert fit.state.micro_batch.verified
    assert fit.state.micro_batch.whole == (size == ROWS)


def test_nobody_looks_if_the_user_knows_better():
    fit = fit_of(Statistics(), nn.CrossEntropyLoss(), couples_rows=False)
    assert settle_division(fit, FEATURES, LABELS, ROWS, SIZE) == SIZE


def test_a_size_that_the_user_passed_is_refused_and_not_ignored():
    fit = fit_of(nn.Linear(8, 5), dice)
    fit.state.micro_batch = MicroBatch(fixed=SIZE)
    with pytest.raises(UnsupportedError, match="micro_batch_size=16 divides a batch"):
        settle_division(fit, FEATURES, LABELS, ROWS, SIZE)


def test_a_rank_that_looks_refuses_for_all_ranks():
    fit = fit_of(nn.Linear(8, 5), dice, probes=True)
    with pytest.raises(UnsupportedError, match="Ranks divide a batch, and the loss of a row"):
        settle_division(fit, FEATURES, LABELS, ROWS, SIZE)
    fit = fit_of(nn.Linear(8, 5), dice, probes=True, couples_rows="gather")
    assert settle_division(fit, FEATURES, LABELS, ROWS, SIZE) == ROWS
