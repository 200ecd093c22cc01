"""Gradient norms of single rows against gradients that autograd computes row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from accelerando._engine.model import Components
from accelerando._engine.row_norms import RowNorms
from accelerando.batch_size import GeoDamp
from accelerando.monitor import GradientNoiseScale, GradientVariance
from tests.nets import classifier


class Squares(nn.Module):
    """Layers whose outputs are squared and summed, one number per row."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x).flatten(1).pow(2).sum(1)


def exact(module, x):
    """Return the sum of the squared gradient norms of the rows, one backward pass each."""
    total = 0.0
    for row in x.split(1):
        module.zero_grad()
        module(row).mean().backward()
        total += sum(float((p.grad**2).sum()) for p in module.parameters() if p.grad is not None)
    return total


def found(module, x):
    norms = RowNorms(module, [p for p in module.parameters() if p.requires_grad])
    assert norms.complete
    with norms.measuring():
        module(x).mean().backward()
    return norms.square() * len(x) ** 2


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


LAYERS = {
    "Linear": ([nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2, bias=False)], (5, 4)),
    "Linear on positions, outer products": (
        [nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)],
        (5, 7, 4),
    ),
    "Linear on positions, inner products": ([nn.Linear(40, 30)], (5, 2, 3, 40)),
    "LayerNorm": ([nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)], (5, 3, 4)),
    "LayerNorm over two axes": ([nn.LayerNorm((3, 4)), nn.Linear(4, 2)], (5, 2, 3, 4)),
    "GroupNorm": ([nn.GroupNorm(2, 4), nn.Conv1d(4, 2, 3)], (5, 4, 9)),
    "Conv1d": ([nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.Conv1d(4, 4, 2, groups=4)], (5, 2, 19)),
    "Conv2d": (
        [
            nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=2, groups=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 3, 2, bias=False),
        ],
        (5, 2, 9, 8),
    ),
    "Conv2d on few positions": ([nn.Conv2d(30, 20, 2)], (5, 30, 2, 3)),
    "Conv3d": (
        [nn.Conv3d(2, 4, 3, padding=1, groups=2), nn.Conv3d(4, 2, 2, stride=2)],
        (5, 2, 5, 6, 4),
    ),
}


@pytest.mark.parametrize("layers", LAYERS)
def test_every_layer_against_gradients_of_single_rows(layers):
    torch.manual_seed(0)
    made, shape = LAYERS[layers]
    module, x = Squares(*made).double(), numbers(*shape)
    assert found(module, x) == pytest.approx(exact(module, x), rel=1e-12)


def test_an_index_that_occurs_twice_in_a_row_and_padding():
    torch.manual_seed(0)
    module = Squares(nn.Embedding(6, 3, padding_idx=1), nn.LayerNorm(3), nn.Linear(3, 2)).double()
    x = torch.tensor([[0, 0, 2, 1], [1, 1, 1, 1], [5, 4, 5, 5], [3, 2, 1, 0]])
    assert found(module, x) == pytest.approx(exact(module, x), rel=1e-12)


def test_frozen_parameters_do_not_count():
    torch.manual_seed(0)
    module = Squares(nn.Linear(4, 3), nn.LayerNorm(3), nn.Conv1d(5, 2, 2)).double()
    for parameter in (module.layers[0].weight, module.layers[1].bias, module.layers[2].weight):
        parameter.requires_grad_(False)
    x = numbers(5, 5, 4)
    assert found(module, x) == pytest.approx(exact(module, x), rel=1e-12)


class Odd(nn.Module):
    """Everything that must be noticed."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.places = nn.Embedding(3, 3) if how == "places" else None
        if how == "shared":
            self.second.weight = self.first.weight
        if how == "own parameter":
            self.scale = nn.Parameter(torch.ones(3))
        if how == "unknown layer":
            self.bilinear = nn.Bilinear(3, 3, 3)
        if how == "batch statistics":
            self.norm = nn.BatchNorm1d(3, affine=False)
        if how == "altered output":
            self.first.register_forward_hook(lambda _, given, output: 2.0 * output)

    def forward(self, x):
        if self.how == "places":  # as many positions as there are rows
            x = x + self.places(torch.arange(3))
        if self.how == "twice":
            x = self.first(x).tanh()
        if self.how == "transposed":
            return self.second(self.first(x.T).tanh()).T
        if self.how == "own parameter":
            x = x * self.scale
        x = self.second(self.first(x).tanh())
        if self.how == "unknown layer":
            x = self.bilinear(x, x)
        return self.norm(x) if self.how == "batch statistics" else x


class Plain:
    """As much of a model as a trial needs."""

    def __init__(self, module):
        self.module, self.criterion = module, nn.MSELoss()
        self.components = Components({"module": module}, {"criterion": self.criterion}, {})
        self.parameters = list(module.parameters())

    def train(self, mode):
        self.module.train(mode)

    def forward(self, X, call):
        return call(X)

    def loss(self, y_pred, y, X, *, training=True):
        return self.criterion(y_pred, y)


def settled(how):
    torch.manual_seed(0)
    model = Plain(Odd(how))
    norms = RowNorms(model.module, model.parameters)
    return norms.settle(model, torch.randn(8, 3), torch.randn(8, 3), sums=False)


@pytest.mark.parametrize(
    "how",
    [
        "places",
        "shared",
        "own parameter",
        "unknown layer",
        "batch statistics",
        "twice",
        "transposed",
        "altered output",
    ],
)
def test_what_the_formulas_do_not_cover_is_noticed(how):
    assert settled("nothing")
    assert not settled(how)


def test_a_trial_leaves_no_hook_and_no_gradient():
    model = Plain(Odd("nothing"))
    norms = RowNorms(model.module, model.parameters)
    norms.settle(model, torch.randn(8, 3), torch.randn(8, 3), sums=False)
    assert not any(part._forward_hooks for part in model.module.modules())
    assert not model.module._forward_pre_hooks
    assert all(parameter.grad is None for parameter in model.parameters)


def test_large_dense_layers_are_measured_in_every_update_and_small_ones_now_and_then():
    def interval(module, x):
        model = Plain(module)
        norms = RowNorms(module, model.parameters)
        assert norms.settle(model, x, torch.zeros_like(module(x)).detach(), sums=False)
        return norms.interval(len(x))

    assert interval(nn.Linear(2000, 2000), torch.randn(256, 2000)) == 1
    assert 20 < interval(nn.Linear(10, 10), torch.randn(16, 10)) < 100
    assert 20 < interval(nn.Conv2d(8, 16, 3), torch.randn(16, 8, 14, 14)) < 100


def test_the_interval_depends_on_the_whole_batch_and_not_on_the_rows_that_were_tried():
    found = set()
    for rows in (3, 40):
        model = Plain(nn.Linear(50, 50))
        norms = RowNorms(model.module, model.parameters)
        norms.settle(model, torch.randn(rows, 50), torch.zeros(rows, 50), sums=False)
        found.add((norms.interval(64), norms.interval(6400)))
    assert len(found) == 1
    ((few, many),) = found
    assert many < few


def test_arguments_that_are_no_tensors_do_not_count_rows():
    class Options(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1, bias=False)

        def forward(self, scale, *, x):
            return scale * self.layer(x)

    module = Options()
    norms = RowNorms(module, list(module.parameters()))
    with norms.measuring():
        module(2.0, x=torch.eye(3)).sum().backward()
    assert norms.square() == pytest.approx(12.0)


# -- in training ----------------------------------------------------------------------------------


def signals(digits, **params):
    X, y = digits[0][:240], digits[1][:240]
    settings = {"batch_size": 40, "max_epochs": 2, "monitors": [GradientVariance(memory=1.0)]}
    settings["train_split"] = None
    net = classifier(**{**settings, **params}).fit(X, y)
    return net, net.updates_frame()


def test_the_variance_of_a_batch_is_that_of_its_rows(digits):
    X, y = digits[0][:40], digits[1][:40]
    _, frame = signals((X, y), max_epochs=1)
    other = classifier(batch_size=40, max_epochs=1, lr=1e-12, train_split=None).fit(
        X, y
    )  # the first parameters
    rows = []
    for x, target in zip(torch.as_tensor(X), torch.as_tensor(y), strict=True):
        other.module_.zero_grad()
        other.criterion_(other.module_(x[None]), target[None]).backward()
        rows.append(torch.cat([p.grad.flatten() for p in other.module_.parameters()]))
    grads = torch.stack(rows).double()
    exact_variance = float(grads.var(0).sum())
    assert frame["gradient_variance"].iloc[0] == pytest.approx(exact_variance, rel=1e-4)


@pytest.mark.parametrize(
    "params", [{"micro_batch_size": 7}, {"virtual_ranks": 2, "batch_size": 20}]
)
def test_micro_batches_and_virtual_ranks_do_not_change_it(digits, params):
    _, whole = signals(digits)
    _, divided = signals(digits, **params)
    np.testing.assert_allclose(divided["gradient_variance"], whole["gradient_variance"], rtol=1e-4)


def test_every_update_of_the_first_hundred_is_measured(digits):
    _, frame = signals(digits, batch_size=16, max_epochs=3)
    assert frame["gradient_variance"].diff().iloc[1:].ne(0.0).all()


def test_training_is_the_same_with_and_without_a_look(digits):
    watched, _ = signals(digits)
    plain, _ = signals(digits, monitors=[])
    for one, other in zip(watched.module_.parameters(), plain.module_.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_noise_scale_of_digits_is_known_within_fifty_updates_at_batch_16(digits):
    net = classifier(batch_size=16, max_epochs=2, monitors=[GradientNoiseScale()]).fit(*digits)
    known = net.updates_frame()["noise_scale"].notna()
    assert known.iloc[:50].any()
    assert math.isfinite(net.signals()["noise_scale_low"])


def test_a_layer_that_is_called_twice_in_one_update_only_is_noticed_there():
    class Again(nn.Module):
        again = True

        def forward(self, x):
            return layer(x) if self.again else x

    layer, outer = nn.Linear(3, 3), Again()
    module = nn.Sequential(layer, nn.Tanh(), outer)
    norms = RowNorms(module, list(layer.parameters()))
    for outer.again in (True, False):
        with norms.measuring():
            module(torch.randn(4, 3)).sum().backward()
        assert math.isnan(norms.square()) == outer.again


def test_a_resumed_run_measures_in_the_same_updates(digits, tmp_path):
    """Also when the batch has grown meanwhile, on which the interval depends."""

    def net(epochs):
        return classifier(
            batch_size=GeoDamp(initial=8, delay=2, factor=3),
            monitors=[GradientNoiseScale()],
            max_epochs=epochs,
        )

    whole = net(5).fit(*digits).updates_frame()
    half = net(3).fit(*digits)
    half.save_state(tmp_path / "state.pt")
    resumed = net(2)
    resumed.initialize()
    resumed.load_state(tmp_path / "state.pt")
    resumed.partial_fit(*digits)
    found = resumed.updates_frame()
    assert found["noise_scale_low"].equals(whole["noise_scale_low"])
    assert found["noise_scale_low"].diff().eq(0.0).any(), "not every update was measured"
