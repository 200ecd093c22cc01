"""Samplers, collate functions, frames, mapped files, weights and half precision.

By the rules of test_unlisted.py.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    Dataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    default_collate,
)

from accelerando import NeuralNetRegressor
from accelerando.exceptions import UnsupportedError
from tests.contracts.test_unlisted import N, Net, X, Y, assert_equal, net_of, tensors

WEIGHTS = np.linspace(0.0, 2.0, N)
FRAME = pd.DataFrame(X, columns=list("abcdef"), index=np.arange(N)[::-1])


def mapped(folder):
    """Return X in a file that every process maps by itself."""
    made = np.lib.format.open_memmap(folder / "x.npy", "w+", X.dtype, X.shape)
    made[:] = X
    made.flush()
    return np.load(folder / "x.npy", mmap_mode="r")


class Mapped(Dataset):
    """It opens the file when the first row is read."""

    def __init__(self, folder):
        mapped(folder)
        self.path, self.rows = str(folder / "x.npy"), None

    def __len__(self):
        return N

    def __getitem__(self, number):
        if self.rows is None:
            self.rows = np.load(self.path, mmap_mode="r")
        return torch.tensor(self.rows[number]), torch.as_tensor(Y[number])


class Named(Net):
    """It gets a dictionary of arguments."""

    def forward(self, left, right):
        return super().forward(torch.cat([left, right], dim=1))


def name(rows):
    x, y = default_collate(rows)
    return {"left": x[:, :2], "right": x[:, 2:]}, y


def normalize_rows(rows):
    x, y = default_collate(rows)
    return x / (1 + x.norm(dim=1, keepdim=True)), y


def keep_dtype(rows):
    return tuple(torch.stack(part) for part in zip(*rows, strict=True))


COLLATE = "iterator_train__collate_fn"
SMOOTH = {"criterion__label_smoothing": 0.1}
EQUAL = {
    "frame": ({}, lambda net, folder: net.fit(FRAME, pd.Series(Y))),
    "frame with weights": (SMOOTH, lambda net, folder: net.fit(FRAME, Y, sample_weight=WEIGHTS)),
    "mapped file": ({}, lambda net, folder: net.fit(mapped(folder), Y)),
    "mapped file with weights": (
        {},
        lambda net, folder: net.fit(mapped(folder), Y, sample_weight=WEIGHTS),
    ),
    "data set on a mapped file": ({}, lambda net, folder: net.fit(Mapped(folder), None)),
    "classes and rows with weights": (
        {},
        lambda net, folder: net.fit(X, Y, sample_weight=WEIGHTS, class_weight={0: 0.3, 1: 1.7}),
    ),
    "weights in stages": (
        {"max_epochs": 2},
        lambda net, folder: net.partial_fit(X, Y, sample_weight=WEIGHTS).partial_fit(X, Y),
    ),
    "regression with weights": (
        {"kind": NeuralNetRegressor, "criterion": nn.MSELoss},
        lambda net, folder: net.fit(X, X[:, :2], sample_weight=WEIGHTS),
    ),
    "a dictionary is collated": (
        {COLLATE: name, "module": Named},
        lambda net, folder: net.fit(tensors(), None),
    ),
    "every row is normalized": (
        {COLLATE: normalize_rows},
        lambda net, folder: net.fit(X, Y),
    ),
    "tensors are stacked": (
        {COLLATE: keep_dtype},
        lambda net, folder: net.fit(Mapped(folder), None),
    ),
    "the last batch is left out": (
        {"iterator_train__drop_last": True, "batch_size": 25},
        lambda net, folder: net.fit(FRAME, Y, sample_weight=WEIGHTS),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_data_are_the_same_on_ranks(name, client, tmp_path):
    params, fit = EQUAL[name]
    assert_equal(
        lambda where, ranks: net_of(where, ranks, **params),
        lambda net: fit(net, tmp_path),
        client,
    )


# -- samplers -------------------------------------------------------------------------------------

SAMPLERS = {
    "by weight": lambda: WeightedRandomSampler(WEIGHTS.tolist(), 40),
    "with replacement": lambda: RandomSampler(range(N), replacement=True, num_samples=30),
    "in order": lambda: SequentialSampler(range(N)),
    "a list": lambda: list(range(0, N, 2)),
}


@pytest.mark.parametrize("ranks", [1, 2])
def test_samplers_are_refused_on_ranks(ranks, client):
    for name, make in SAMPLERS.items():
        net = net_of(client, ranks, iterator_train__sampler=make())
        with pytest.raises(UnsupportedError, match="iterator_train__sampler draws its own order"):
            net.fit(X, Y)
        assert net.position_.update == 0, name


@pytest.mark.parametrize("own", [False, True], ids=["global", "its own generator"])
def test_a_sampler_continues_inside_an_epoch(own, tmp_path):
    def net(**params):
        generator = torch.Generator().manual_seed(3) if own else None
        drawn = WeightedRandomSampler(WEIGHTS.tolist(), 50, generator=generator)
        return net_of(None, 0, iterator_train__sampler=drawn, **params)

    folder = {"checkpoint": tmp_path, "checkpoint_every": 1, "checkpoint_keep": 99}
    whole = net(**folder).fit(X, Y)
    within = 0
    for path in tmp_path.glob("state-*.pt"):
        rest = net().initialize().load_state(path)
        if rest.position_.update in (2, 4):
            rest.partial_fit(X, Y)
            assert rest.position_.update == whole.position_.update == 9
            assert torch.equal(rest.module_.first.weight, whole.module_.first.weight)
            within += 1
    assert within == 2


@pytest.mark.parametrize("ranks", [0, 1, 2])
def test_samplers_of_batches_are_refused_everywhere(ranks, client):
    batches = BatchSampler(SequentialSampler(range(N)), 10, drop_last=False)
    net = net_of(client if ranks else None, ranks, iterator_train__batch_sampler=batches)
    with pytest.raises(UnsupportedError, match="batch_sampler decides the batches itself"):
        net.fit(X, Y)
    assert net.position_.update == 0


# -- half precision -------------------------------------------------------------------------------


class Half(Net):
    def __init__(self):
        super().__init__()
        self.half()


def test_half_precision_is_the_same_up_to_its_rounding(client):
    """Sums over ranks are rounded like those over rows; one rank has the bits of this process."""
    params = {"module": Half, "max_epochs": 1}
    alone, one, two = (
        net_of(*where, **params).fit(X.astype("float16"), Y)
        for where in ((None, 0), (client, 1), (client, 2))
    )
    for expected, same, close in zip(
        *(net.module_.parameters() for net in (alone, one, two)), strict=True
    ):
        assert expected.dtype == torch.float16
        assert torch.equal(same, expected)
        torch.testing.assert_close(close, expected, rtol=0, atol=2e-2)
