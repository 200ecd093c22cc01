"""1, 2, 3 and 4 ranks give the parameters of the run in this process, up to summation order.

The tolerance is stated here once: after some thirty updates parameters of order one may differ by
2e-5 in float32, a few hundred times the rounding of one addition, and by 1e-12 in float64.
"""

from functools import partial

import numpy as np
import pytest
import torch
from skorch.callbacks import GradientNormClipping, LRScheduler
from torch import nn

from accelerando.batch_size import AdaDamp, GeoDamp, GradDamp, PadaDamp, RadaDamp
from accelerando.monitor import GradientNoiseScale, LossTrend, Throughput
from accelerando.policies import Every, GradualWarmup, LinearScaling, PlateauPolicy
from tests.nets import CNN, MLP, Gated, Items, ScaledLoss, TwoInputs, classifier, parameters_of

TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}


def _plain(X, y):
    return (X, y), {}


def _images(X, y):
    return (X.reshape(-1, 1, 8, 8), y), {}


def _ignored(X, y):
    y = y.copy()
    y[::3] = -100
    return (X, y), {}


def _weighted(X, y):
    return (X, y), {"sample_weight": np.linspace(0.1, 2.0, len(y))}


def _two(X, y):
    return ({"left": X[:, :32].copy(), "right": X[:, 32:].copy()}, y), {}


def _items(X, y):
    return (Items(X, y), None), {}


def _factory(X, y):
    return (partial(Items, X, y), None), {}


SGD = {"optimizer": torch.optim.SGD, "optimizer__momentum": 0.9, "lr": 0.05}
CASES = {
    "momentum": (_plain, SGD),
    "adam": (_plain, {"optimizer": torch.optim.Adam, "lr": 0.01}),
    "lbfgs": (_plain, {"optimizer": torch.optim.LBFGS, "optimizer__max_iter": 3, "lr": 0.1}),
    "batchnorm": (_plain, {**SGD, "module__norm": True}),
    "convolution": (_images, {**SGD, "module": CNN}),
    "class weights, ignored targets": (
        _ignored,
        {**SGD, "criterion__weight": torch.linspace(0.5, 2, 10), "train_split": None},
    ),
    "sample weights": (_weighted, SGD),
    "sum of losses": (_plain, {**SGD, "criterion__reduction": "sum", "lr": 0.001}),
    "unused parameters": (_plain, {**SGD, "module": Gated}),
    "criterion with a parameter": (_plain, {**SGD, "criterion": ScaledLoss}),
    "dictionary": (_two, {**SGD, "module": TwoInputs}),
    "data set": (_items, {**SGD, "train_split": None}),
    "function that returns a data set": (_factory, {**SGD, "train_split": None}),
    "micro-batches": (_plain, {**SGD, "micro_batch_size": 7}),
    "batches smaller than the ranks": (_plain, {**SGD, "batch_size": 2, "max_epochs": 1}),
    "scheduler": (_plain, {**SGD, "callbacks": [LRScheduler("StepLR", step_size=1, gamma=0.5)]}),
    "clipping": (_plain, {**SGD, "callbacks": [GradientNormClipping(0.1)]}),
    "GeoDamp": (_plain, {**SGD, "batch_size": GeoDamp(initial=32, delay=1, factor=2)}),
    "PadaDamp": (_plain, {**SGD, "batch_size": PadaDamp(initial=32, rate=2.0)}),
    "AdaDamp": (_plain, {**SGD, "batch_size": AdaDamp(initial=32, dwell=5)}),
    "GradDamp": (_plain, {**SGD, "batch_size": GradDamp(initial=32, dwell=5, fraction=0.5)}),
    "RadaDamp": (_plain, {**SGD, "batch_size": RadaDamp(initial=32, dwell=5)}),
    "monitors": (_plain, {**SGD, "monitors": [GradientNoiseScale(), LossTrend(), Throughput()]}),
    "policies": (
        _plain,
        {
            **SGD,
            "batch_size": 16,
            "policies": [
                GradualWarmup(epochs=1),
                Every(PlateauPolicy(patience=3), epochs=1),
                LinearScaling(),
            ],
        },
    ),
    "max_batch_size": (
        _plain,
        {**SGD, "batch_size": GeoDamp(initial=32, delay=1, factor=2), "max_batch_size": 48},
    ),
}


def fitted(case, digits, **params):
    prepare, settings = CASES[case]
    (X, y), fit_params = prepare(digits[0][:300], digits[1][:300])
    net = classifier(**{"module": MLP, "max_epochs": 3, "batch_size": 32, **settings, **params})
    return net.fit(X, y, **fit_params)


@pytest.mark.parametrize("case", CASES)
def test_ranks_do_not_change_the_result(case, digits, client):
    alone = fitted(case, digits)
    for ranks in (1, 2, 3, 4) if case in ("momentum", "batchnorm") else (3,):
        net = fitted(case, digits, client=client, min_workers=ranks, max_workers=ranks)
        assert set(net.updates_frame()["ranks"]) == {ranks}, net.world_log_
        torch.testing.assert_close(parameters_of(net), parameters_of(alone), **TOLERANCE)
        for name, buffer in alone.module_.named_buffers():
            torch.testing.assert_close(dict(net.module_.named_buffers())[name], buffer, **TOLERANCE)
        told, expected = net.updates_frame(), alone.updates_frame()
        for column in ("update", "epoch", "examples", "batch_size"):
            assert told[column].tolist() == expected[column].tolist()
        for column in ("lr", "loss", "grad_norm"):
            np.testing.assert_allclose(told[column], expected[column], rtol=1e-3, atol=1e-5)
        seen, wanted = net.history_frame(), alone.history_frame()
        assert list(seen.columns) == list(wanted.columns)
        for column in ("train_loss", "valid_loss", "valid_acc"):
            if column in wanted:
                np.testing.assert_allclose(seen[column], wanted[column], rtol=1e-3, atol=1e-5)


def test_double_precision_agrees_to_twelve_digits(digits, client):
    X, y = digits[0].astype("float64"), digits[1]

    def fit(**params):
        torch.set_default_dtype(torch.float64)
        try:
            return classifier(DoubleMLP, **SGD, **params).fit(X, y)
        finally:
            torch.set_default_dtype(torch.float32)

    alone, together = fit(), fit(client=client, min_workers=3, max_workers=3)
    torch.testing.assert_close(
        parameters_of(together), parameters_of(alone), rtol=1e-12, atol=1e-12
    )


class DoubleMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = MLP().double()

    def forward(self, x):
        return self.net(x)


def test_dropout_is_reproducible_for_a_number_of_ranks(digits, client):
    def fit():
        return classifier(module__dropout=0.5, client=client, min_workers=2, max_workers=2).fit(
            *digits
        )

    first, second = fit(), fit()
    assert torch.equal(parameters_of(first), parameters_of(second))
