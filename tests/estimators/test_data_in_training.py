"""Data of every kind that skorch accepts train."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from accelerando import NeuralNet
from accelerando.exceptions import UnsupportedError
from tests.nets import parameters_of, regressor

X = np.arange(60, dtype="float32").reshape(20, 3)
Y = np.arange(20, dtype="float32").reshape(20, 1)


def test_dict_inputs_train():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)

        def forward(self, left, right):
            return self.a(left) + self.b(right)

    scaled = {"left": X / 60, "right": -X / 60}
    net = regressor(Two, max_epochs=2).fit(scaled, Y / 20)
    assert net.predict(scaled).shape == (20, 1)
    assert net.position_.examples == 40


def test_pandas_frame_trains_by_column_name():
    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(2, 1)

        def forward(self, a, b):
            return self.last(torch.cat([a, b], 1))

    frame = pd.DataFrame({"a": X[:, 0] / 60, "b": X[:, 1] / 60})
    assert regressor(Columns, max_epochs=2).fit(frame, Y / 20).position_.examples == 40


def test_float64_data_and_module():
    module = nn.Linear(3, 1).double()
    net = regressor(module, max_epochs=1, lr=1e-5).fit(X.astype("float64"), Y.astype("float64"))
    assert parameters_of(net).dtype == torch.float64


def test_no_y_becomes_a_placeholder():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 1)

        def forward(self, x):
            return self.last(x).square().mean()

    class First(nn.Module):
        def forward(self, y_pred, y):
            return y_pred

    net = NeuralNet(Own, First, max_epochs=1, train_split=None, verbose=0, lr=1e-6, batch_size=5)
    net.fit(X)
    assert net.position_.update == 4


def test_what_a_loader_cannot_do_is_said_before_training(line):
    X, y = line
    with pytest.raises(UnsupportedError, match="iterator_train__batch_sampler decides"):
        regressor(iterator_train__batch_sampler=[[0, 1]]).fit(X, y)
    with pytest.raises(
        UnsupportedError, match="'iterator_train' parameter must be torch's DataLoader"
    ):
        regressor(iterator_train=list).fit(X, y)


def test_items_that_are_no_tensors_ask_for_a_collate_function():
    class Words(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return "word", torch.zeros(1)

    with pytest.raises(UnsupportedError, match="Pass iterator_train__collate_fn"):
        regressor(max_epochs=1).fit(Words(), None)


def test_no_examples_is_an_error():
    with pytest.raises(ValueError, match="no training examples"):
        regressor().fit(X[:0], Y[:0])
