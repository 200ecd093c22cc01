"""What callbacks change on the driver of a cluster changes the training there.

A row is a change. Its result in this process, on one rank and on two ranks is the same to 1e-12 in
float64, and it differs from a fit without the change. Or it is refused before training goes on.
"""

import copy
import threading

import numpy as np
import pytest
import torch
from skorch.callbacks import (
    Callback,
    Freezer,
    GradientNormClipping,
    LRScheduler,
    ParamMapper,
    Unfreezer,
)
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from accelerando import NeuralNetClassifier
from accelerando.exceptions import UnsupportedError
from tests.nets import parameters_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 6))
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)


class Net(nn.Module):
    def __init__(self, lock=False):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.slope = nn.LeakyReLU(0.1)
        self.dropout = nn.Dropout(0.0)
        self.last = nn.Linear(8, 2)
        self.scale = 1.0
        self.shift = torch.zeros(8, dtype=torch.float64)
        self.activation = None
        self.steps = 0
        self.register_buffer("mask", torch.ones(8), persistent=False)
        self.register_buffer("gain", torch.ones(8))
        if lock:
            self.lock = threading.Lock()
        self.double()

    def forward(self, x):
        x = self.slope(self.norm(self.first(x))) * self.mask * self.gain + self.shift
        if self.activation is not None:
            x = self.activation(x)
        if self.training:
            self.steps += 1
        return self.last(self.dropout(x)) * self.scale


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.CrossEntropyLoss()
        self.power = 1.0

    def forward(self, y_pred, y):
        return self.inner(y_pred, y) * self.power


class At(Callback):
    """Change the net at an event of the second epoch, or of the first."""

    def __init__(self, change, event="on_epoch_end", epoch=1):
        self.change, self.event, self.epoch = change, event, epoch

    def _maybe(self, event, net):
        if event == self.event and len(net.history) == self.epoch:
            with torch.no_grad():
                self.change(net)

    def on_train_begin(self, net, **kwargs):
        self._maybe("on_train_begin", net)

    def on_epoch_begin(self, net, **kwargs):
        self._maybe("on_epoch_begin", net)

    def on_epoch_end(self, net, **kwargs):
        self._maybe("on_epoch_end", net)


def net_with(callbacks=(), kind=NeuralNetClassifier, **params):
    defaults = {
        "module": Net,
        "criterion": Loss,
        "optimizer": torch.optim.SGD,
        "optimizer__momentum": 0.9,
        "lr": 0.1,
        "batch_size": 20,
        "max_epochs": 3,
        "train_split": None,
        "random_state": 0,
        "verbose": 0,
        "callbacks": copy.deepcopy(list(callbacks)),  # some changes are to callbacks
    }
    return kind(**{**defaults, **params})


def set_to(path, value):
    """Return a change that sets an attribute of the net."""

    def change(net):
        owner = net
        *owners, name = path.split(".")
        for one in owners:
            owner = getattr(owner, one)
        setattr(owner, name, value)

    return change


def scale_data(net):
    net.module_.first.weight.data.mul_(0.5)


def scale_numpy(net):
    values = net.module_.first.weight.numpy()
    values *= 0.5


def swap_rows(net):
    weight = net.module_.first.weight
    weight.data = weight.data.flip(0)


def reset_momentum(net):
    net.optimizer_.state.clear()


def scale_momentum(net):
    for memory in net.optimizer_.state.values():
        memory["momentum_buffer"].mul_(-1)


def replace_optimizer(net):
    net.optimizer_ = torch.optim.Adam(net.module_.parameters(), lr=0.01, eps=0.01)


def replace_by_settings(net):
    net.set_params(optimizer__momentum=0.5, lr=0.05)


def split_groups(net):
    first, *rest = net.optimizer_.param_groups[0]["params"]
    net.optimizer_.param_groups[0]["params"] = rest
    net.optimizer_.add_param_group({"params": [first], "lr": 0.001})


def replace_layer(net):
    net.module_.slope = nn.Tanh()


def replace_trained_layer(net):
    layer = nn.Linear(8, 2).double()
    layer.weight.fill_(0.1)
    layer.bias.fill_(0.2)
    net.module_.last = layer
    net.optimizer_ = torch.optim.SGD(net.module_.parameters(), lr=0.1)


def swap_weight(net):
    """The optimizer keeps the former one: the new weight is not trained."""
    net.module_.first.weight = nn.Parameter(net.module_.first.weight.detach() * 0.5)


def tie(net):
    net.module_.norm.weight = net.module_.norm.bias


def freeze_first(net):
    net.module_.first.requires_grad_(False)


def evaluate_norm(net):
    net.module_.norm.eval()


def import_hook(net):
    nn.utils.spectral_norm(net.module_.last)
    net.optimizer_ = torch.optim.SGD(net.module_.parameters(), lr=0.1)


def parametrize(net):
    nn.utils.parametrizations.weight_norm(net.module_.last)
    net.optimizer_ = torch.optim.SGD(net.module_.parameters(), lr=0.1)


def add_parameter(net):
    net.criterion_.weight = nn.Parameter(torch.ones(2, dtype=torch.float64))


def change_clipping(net):
    dict(net.callbacks_)["clip"].gradient_clip_value = 0.01


class MixedNet(NeuralNetClassifier):
    """Its loss reads an attribute of the estimator."""

    penalty = 0.0

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        loss = super().get_loss(y_pred, y_true, *args, **kwargs)
        return loss + self.penalty * y_pred.square().mean()


def warm_up(update):
    return min(1.0, (update + 1) / 4)


def warm_up_then_cosine(optimizer, last_epoch):
    first = LinearLR(optimizer, 0.1, total_iters=3)
    return SequentialLR(optimizer, [first, CosineAnnealingLR(optimizer, 6)], milestones=[3])


BATCH = {"step_every": "batch"}
CHANGES = {
    "Freezer": [Freezer("first*")],
    "Unfreezer": [Freezer("first*"), Unfreezer("first*", at=3)],
    "frozen at the end of an epoch": [At(freeze_first)],
    "ParamMapper with a schedule": [
        ParamMapper(
            "last.bias", schedule=lambda net: nn.init.zeros_ if len(net.history) == 2 else id
        )
    ],
    "attribute of a layer": [At(set_to("module_.slope.negative_slope", 0.7))],
    "attribute at the beginning": [
        At(set_to("module_.slope.negative_slope", 0.7), "on_train_begin", 0)
    ],
    "attribute of the module": [At(set_to("module_.scale", 0.3), "on_epoch_begin", 2)],
    "attribute of a nested criterion": [At(set_to("criterion_.inner.label_smoothing", 0.4))],
    "attribute of the criterion": [At(set_to("criterion_.power", 1.5))],
    "new criterion": [At(set_to("criterion_", nn.CrossEntropyLoss(label_smoothing=0.3)))],
    "function": [At(set_to("module_.activation", torch.tanh))],
    "lambda": [At(set_to("module_.activation", lambda x: x.sin()))],
    "tensor that is an attribute": [At(set_to("module_.shift", torch.ones(8).double()))],
    "buffer that is not saved": [At(lambda net: net.module_.mask[:4].zero_())],
    "buffer": [At(lambda net: net.module_.gain.mul_(2))],
    "statistics": [At(lambda net: net.module_.norm.reset_running_stats())],
    "weight": [At(lambda net: net.module_.first.weight.mul_(0.5))],
    "weight.data": [At(scale_data)],
    "weight through NumPy": [At(scale_numpy)],
    "order of weights": [At(swap_rows)],
    "momentum cleared": [At(reset_momentum)],
    "momentum changed": [At(scale_momentum)],
    "optimizer replaced": [At(replace_optimizer)],
    "optimizer by set_params": [At(replace_by_settings)],
    "weight decay": [At(lambda net: net.optimizer_.param_groups[0].update(weight_decay=0.3))],
    "parameter groups": [At(split_groups)],
    "layer replaced": [At(replace_layer)],
    "trained layer replaced": [At(replace_trained_layer)],
    "weight replaced": [At(swap_weight)],
    "weights tied": [At(tie)],
    "layer in evaluation mode": [At(evaluate_norm, "on_epoch_begin", 2)],
    "hook that can be imported": [At(import_hook)],
    "parametrization": [At(parametrize)],
    "clipping changed": [("clip", GradientNormClipping(1.0)), At(change_clipping)],
    "LambdaLR": [LRScheduler(LambdaLR, lr_lambda=warm_up, **BATCH)],
    "OneCycleLR": [LRScheduler(OneCycleLR, max_lr=0.5, total_steps=9, **BATCH)],
    "warm-up and cosine": [LRScheduler(warm_up_then_cosine, **BATCH)],
    "plateau in every update": [LRScheduler(ReduceLROnPlateau, patience=0, **BATCH)],
    "two schedulers": [
        LRScheduler(CosineAnnealingLR, T_max=5, **BATCH),
        ("epochs", LRScheduler("StepLR", step_size=1)),
    ],
}


def fit(callbacks, ranks=0, client=None, **params):
    if ranks:
        params.update(client=client, min_workers=ranks, max_workers=ranks)
    torch.manual_seed(1)
    return net_with(callbacks, **params).fit(X, Y)


def assert_same(one, other):
    torch.testing.assert_close(parameters_of(one), parameters_of(other), rtol=0, atol=1e-12)
    for mine, yours in zip(one.module_.buffers(), other.module_.buffers(), strict=True):
        torch.testing.assert_close(mine, yours, rtol=0, atol=1e-12)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_the_same_on_ranks(change, client):
    alone = fit(CHANGES[change])
    plain = fit([])
    if change not in ("statistics",):
        same = parameters_of(alone).shape == parameters_of(plain).shape
        assert not (same and torch.allclose(parameters_of(alone), parameters_of(plain), atol=1e-6))
    for ranks in (1, 2):
        net = fit(CHANGES[change], ranks, client)
        assert set(net.updates_frame()["ranks"]) == {ranks}
        assert_same(net, alone)
        assert net.module_.steps == alone.module_.steps
        assert net.optimizer_.param_groups[0]["lr"] == alone.optimizer_.param_groups[0]["lr"]


def test_an_attribute_of_a_subclass_reaches_its_loss_on_ranks(client):
    def fitted(ranks=0):
        change = At(set_to("penalty", 0.5))
        return fit([change], ranks, client, kind=MixedNet)

    alone = fitted()
    assert not torch.allclose(parameters_of(alone), parameters_of(fit([], kind=MixedNet)))
    for ranks in (1, 2):
        assert_same(fitted(ranks), alone)


def test_with_validation_a_layer_in_evaluation_mode_is_trained_again_everywhere(client):
    callbacks = [At(evaluate_norm, "on_epoch_begin", 2)]
    split = {"train_split": NeuralNetClassifier(Net).train_split}
    alone = fit(callbacks, **split)
    for ranks in (1, 2):
        assert_same(fit(callbacks, ranks, client, **split), alone)


BETWEEN = {
    "attribute": set_to("module_.scale", 0.3),
    "weight": scale_data,
    "momentum": reset_momentum,
    "layer": replace_layer,
    "frozen": freeze_first,
}


@pytest.mark.parametrize("change", BETWEEN)
@pytest.mark.parametrize("when", ["after initialize", "between two calls"])
def test_a_change_before_partial_fit_reaches_ranks(change, when, client):
    def fitted(ranks=0):
        params = {"client": client, "min_workers": ranks, "max_workers": ranks} if ranks else {}
        net = net_with(max_epochs=2, **params).initialize()
        if when == "between two calls":
            net.partial_fit(X, Y)
        with torch.no_grad():
            BETWEEN[change](net)
        return net.partial_fit(X, Y)

    alone = fitted()
    for ranks in (1, 2):
        assert_same(fitted(ranks), alone)


def test_the_driver_keeps_its_objects(client):
    seen = []
    note = At(lambda net: seen.append((net.module_, net.module_.first.weight, net.optimizer_)))
    net = fit([note, LRScheduler(OneCycleLR, max_lr=0.5, total_steps=9, **BATCH)], 2, client)
    module, weight, optimizer = seen[0]
    assert net.module_ is module
    assert net.module_.first.weight is weight
    assert net.optimizer_ is optimizer
    assert dict(net.callbacks_)["LRScheduler"].lr_scheduler_.optimizer is optimizer


def test_what_a_gradient_callback_notes_on_ranks_comes_back(client):
    class Norms(Callback):
        def __init__(self):
            self.norms = []

        def on_grad_computed(self, net, named_parameters, **kwargs):
            self.norms.append(sum(float(p.grad.square().sum()) for _, p in named_parameters))

    def noted(ranks):
        return dict(fit([("norms", Norms())], ranks, client).callbacks_)["norms"].norms

    assert len(noted(0)) == 9
    np.testing.assert_allclose(noted(2), noted(0), rtol=1e-12)


# -- refusals -------------------------------------------------------------------------------------


def hook_of_this_process(net):
    net.module_.last.register_forward_hook(lambda module, args, output: output * 0.5)


def hook_of_a_gradient(net):
    net.module_.last.weight.register_hook(lambda gradient: gradient * 0.5)


class Recorder:
    def __init__(self):
        self.outputs = []

    def look(self, module, args, output):
        self.outputs.append(output)


def hook_of_an_object(net):
    net.module_.last.register_forward_hook(Recorder().look)


def hook_of_the_optimizer(net):
    net.optimizer_.register_step_post_hook(lambda *args: None)


def lock(net):
    net.module_.lock = threading.Lock()


REFUSALS = {
    "hook": (hook_of_this_process, "module.last._forward_hooks"),
    "gradient hook": (hook_of_a_gradient, "module.last.weight.gradient_hooks"),
    "hook of an object": (hook_of_an_object, "module.last._forward_hooks"),
    "hook of the optimizer": (hook_of_the_optimizer, "optimizer._optimizer_step_post_hooks"),
    "lock": (lock, "module.lock"),
}


@pytest.mark.parametrize("change", REFUSALS)
@pytest.mark.parametrize("event", [("on_train_begin", 0), ("on_epoch_end", 1)], ids=lambda e: e[0])
def test_a_change_that_cannot_be_sent_is_refused(change, event, client):
    act, name = REFUSALS[change]
    net = net_with([At(act, *event)], client=client, min_workers=2, max_workers=2)
    with pytest.raises(UnsupportedError, match=name) as caught:
        net.fit(X, Y)
    assert "client=None" in str(caught.value)
    assert net.position_.epoch == event[1]
    assert len(net.updates_frame()) == 3 * event[1]


class Hooked(Net):
    """What the constructor makes, every rank makes."""

    def __init__(self):
        super().__init__(lock=True)
        self.last.register_forward_hook(lambda module, args, output: output * 0.5)
        self.last.weight.register_hook(lambda gradient: gradient * 0.5)


@pytest.mark.parametrize("change", [[], [Freezer("first*")], [At(replace_layer)]])
def test_what_cannot_be_sent_may_be_made_by_the_module_itself(change, client):
    alone = fit(change, module=Hooked)
    for ranks in (1, 2):
        assert_same(fit(change, ranks, client, module=Hooked), alone)


class EveryBatch(Callback):
    def on_batch_end(self, net, **kwargs):
        net.module_.scale *= 0.9


class EveryBatchNet(NeuralNetClassifier):
    def on_grad_computed(self, net, **kwargs):
        pass


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"callbacks": [EveryBatch()]}, "EveryBatch.*on_batch_end"),
        (
            {"callbacks": [LRScheduler(ReduceLROnPlateau, monitor="valid_loss", **BATCH)]},
            "monitor='train_loss'",
        ),
        ({"kind": EveryBatchNet}, "EveryBatchNet overrides on_grad_computed"),
    ],
)
def test_what_needs_every_batch_in_this_process_is_refused(params, words, client):
    net = net_with(client=client, **params)
    with pytest.raises(UnsupportedError, match=words):
        net.fit(X, Y)
    assert net.position_.update == 0
