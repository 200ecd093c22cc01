"""Micro-batches change speed and memory, not results."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accelerando._engine.micro_batch import rows_for
from tests.nets import CNN, MLP, classifier, parameters_of, regressor


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
@pytest.mark.parametrize(
    ("criterion", "params"),
    [
        (nn.CrossEntropyLoss, {}),
        (nn.CrossEntropyLoss, {"criterion__weight": torch.linspace(0.1, 2, 10)}),
        (nn.CrossEntropyLoss, {"criterion__ignore_index": 4}),
        (nn.CrossEntropyLoss, {"criterion__label_smoothing": 0.1}),
        (nn.CrossEntropyLoss, {"criterion__reduction": "sum", "lr": 1e-3}),
    ],
)
def test_the_same_result_for_any_size(digits, rows, criterion, params):
    whole = classifier(batch_size=100, micro_batch_size=None, criterion=criterion, **params)
    parts = classifier(batch_size=100, micro_batch_size=rows, criterion=criterion, **params)
    whole.fit(*digits), parts.fit(*digits)
    assert torch.allclose(parameters_of(whole), parameters_of(parts), atol=2e-6)
    assert parts.history[:, "train_loss"] == pytest.approx(whole.history[:, "train_loss"], rel=1e-5)
    assert parts.updates_frame()["grad_norm"].tolist() == pytest.approx(
        whole.updates_frame()["grad_norm"].tolist(), rel=1e-4
    )


def test_every_part_goes_through_the_model(digits):
    sizes = []

    class Look(MLP):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    net = classifier(Look, batch_size=100, micro_batch_size=30, max_epochs=1, train_split=None)
    net.fit(*digits)
    # Before a batch is divided for the first time, it is compared with two parts of it; the second
    # part also shows what the rows before it leave behind. Then parts are compared whose sizes are
    # those of micro-batches.
    assert sizes == [100, 37, 63, 37] + [100, 70, 30, 70] + [30, 30, 30, 10] * 6


def test_auto_weighs_what_a_row_keeps(digits):
    """A micro-batch keeps 32 MiB: hundreds of rows of a convolutional net, more of a dense one."""
    images = digits[0].reshape(-1, 1, 8, 8)
    wide = nn.Sequential(nn.Conv2d(1, 700, 3, padding=1), nn.ReLU(), nn.Flatten(),
                         nn.Linear(700 * 64, 10))  # fmt: skip
    net = classifier(wide, batch_size=480, max_epochs=1, lr=1e-4, channels_last=False)
    net.fit(images, digits[1])
    per_row = 700 * 64 * 4  # the output of ReLU, which is all that is large
    assert net._state_.micro_batch.rows == rows_for(per_row) == 128
    dense = classifier(batch_size=480, max_epochs=1).fit(*digits)
    assert dense._state_.micro_batch.rows > 10_000


def test_auto_leaves_coupled_rows_together(digits):
    sizes = []

    class Look(MLP):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    classifier(Look, module__norm=True, batch_size=480, max_epochs=1, train_split=None).fit(*digits)
    assert sizes == [480, 120]
    sizes.clear()

    class Contrast(nn.Module):
        def forward(self, y_pred, y):
            return (y_pred @ y_pred.T).square().mean() * 1e-3

    net = classifier(Look, criterion=Contrast, batch_size=480, max_epochs=1, train_split=None)
    net.fit(*digits)
    assert sizes == [480, 120]


def test_batchnorm_with_a_given_size_warns(digits):
    net = classifier(module__norm=True, micro_batch_size=20, max_epochs=1)
    with pytest.warns(UserWarning, match="BatchNorm layers"):
        net.fit(*digits)


def test_a_seeded_run_is_not_timed():
    assert classifier(random_state=0).initialize()._state_.micro_batch.timed is False
    assert classifier(random_state=None).initialize()._state_.micro_batch.timed is True


def test_unseeded_training_settles(digits):
    images = digits[0].reshape(-1, 1, 8, 8)
    net = classifier(CNN, batch_size=300, max_epochs=8, random_state=None, train_split=None)
    net.micro_batch_size = "auto"
    net.fit(images, digits[1])
    assert net._state_.micro_batch.rows is not None


def test_choice_survives_saving(line, tmp_path):
    net = regressor().fit(*line)
    net._state_.micro_batch.rows = 77
    net.save_state(tmp_path / "s")
    assert regressor().load_state(tmp_path / "s")._state_.micro_batch.rows == 77
