"""An estimator and its table of epochs fit on a screen of 80 columns and 24 lines."""

from __future__ import annotations

import pandas as pd
import pytest
from skorch.callbacks import EarlyStopping
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.batch_size import GeoDamp
from tests.nets import classifier, regressor


class Deep(nn.Module):
    def __init__(self, layers=60):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(3, 3) for _ in range(layers)])

    def forward(self, x):
        return self.layers(x)


def test_a_net_shows_its_module_and_what_is_not_the_default():
    net = NeuralNetClassifier(Deep, module__layers=2, lr=0.5, callbacks=[EarlyStopping()])
    assert repr(net) == (
        "NeuralNetClassifier[uninitialized](\n"
        f"  module={Deep},\n"
        "  module__layers=2,\n"
        "  lr=0.5,\n"
        "  callbacks=[EarlyStopping(…)],\n"
        ")"
    )


def test_a_fitted_net_shows_the_module_that_was_trained(line):
    net = regressor(max_epochs=1).fit(*line)
    assert str(net).startswith(
        "NeuralNetRegressor[initialized](\n"
        "  module_=Linear(in_features=3, out_features=1, bias=True),\n"
    )
    assert "module__in_features" not in str(net)


@pytest.mark.parametrize("initialized", [False, True])
def test_a_long_module_is_cut(initialized):
    net = classifier(Deep(), batch_size=GeoDamp(initial=8))
    lines = str(net.initialize() if initialized else net).split("\n")
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 102
    assert "      … 53 more lines" in lines or "    … 53 more lines" in lines
    assert any(line.startswith("  batch_size=GeoDamp(initial=8") for line in lines)


def test_a_search_over_a_long_module_fits_on_a_screen():
    from accelerando.search import HyperbandSearchCV

    search = HyperbandSearchCV(classifier(Deep()), {"lr": [0.1, 0.2]}, max_iter=9)
    assert len(str(search).split("\n")) <= 24


def test_the_table_of_epochs_shows_batch_size_and_lr(digits):
    net = classifier(batch_size=GeoDamp(initial=32, delay=1), lr=0.123456).fit(*digits)
    frame = net.history_frame()
    with pd.option_context("display.width", 80, "display.max_columns", 0):
        shown = repr(frame).split("\n")
    assert shown[0].split()[:3] == ["epoch", "batch_size", "lr"]
    assert shown[0].split()[-1] == "valid_acc"
    assert max(map(len, shown)) <= 80
