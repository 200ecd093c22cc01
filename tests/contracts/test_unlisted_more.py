"""More of what nobody has planned for; see test_unlisted.py, whose rules hold here, too."""

import copy
import functools
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from skorch.callbacks import Callback, Checkpoint
from skorch.dataset import ValidSplit
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.data import Dataset, IterableDataset, Subset

from accelerando import NeuralNet, NeuralNetClassifier
from accelerando.exceptions import UnsupportedError
from tests.contracts.test_unlisted import (
    BN,
    Net,
    X,
    Y,
    assert_equal,
    change,
    loss_of,
    net_of,
    pair,
    sgd,
)

N = len(X)
HALF = ValidSplit(5, stratified=False)


def fit(net, rows=(X, Y), **params):
    return net.fit(*rows, **params)


# -- what callbacks and users do ------------------------------------------------------------------


class Each(Callback):
    """Change the net after every epoch."""

    def __init__(self, act):
        self.act = act

    def on_epoch_end(self, net, **kwargs):
        with torch.no_grad():
            self.act(net)


class OnGradients(Callback):
    def __init__(self, act):
        self.act = act

    def on_grad_computed(self, net, named_parameters, **kwargs):
        with torch.no_grad():
            self.act(net, list(named_parameters))


def normalize_spectrum(net):
    parametrizations.spectral_norm(net.module_.first)
    sgd(net)


def new_module(net):
    torch.manual_seed(5)
    net.module_ = Net(functools.partial(nn.LayerNorm, 8)).double()
    sgd(net)


class Chain(nn.Module):
    """A list says in which order its layers are called; two names are one layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.again, self.last = self.layers[0], nn.Linear(6, 2)
        self.order = [0, 1]
        self.double()

    def forward(self, x):
        for number in self.order:
            x = torch.tanh(self.layers[number](x))
        return self.last(self.again(x))


def append_layer(net):
    torch.manual_seed(3)
    net.module_.layers.append(nn.Linear(6, 6).double())
    net.module_.order.append(2)
    net.optimizer_.add_param_group({"params": list(net.module_.layers[2].parameters())})


def untie(net):
    net.module_.again = copy.deepcopy(net.module_.again)
    sgd(net)


def rescale_groups(net):
    for number, group in enumerate(net.optimizer_.param_groups):
        group["lr"] *= 0.4 * (number + 1)


def drop_large_gradients(net, named):
    if sum(float(p.grad.square().sum()) for _, p in named) > 0.05:
        for _, p in named:
            p.grad = None


def clamp_weights(net, named):
    net.module_.first.weight.clamp_(-0.2, 0.2)


def clip_groups(net, named):
    for group in net.optimizer_.param_groups:
        nn.utils.clip_grad_norm_(group["params"], 0.1)
        group["lr"] *= 0.9


class Momentum(Callback):
    """It remembers gradients by itself."""

    def on_grad_computed(self, net, named_parameters, **kwargs):
        kept = vars(self).setdefault("kept", {})
        for name, p in named_parameters:
            now = p.grad.clone()
            p.grad.add_(kept.get(name, 0.0))
            kept[name] = now


class Averaging(Callback):
    """Stochastic weight averaging."""

    def on_train_begin(self, net, **kwargs):
        self.average = torch.optim.swa_utils.AveragedModel(net.module_)

    def on_epoch_end(self, net, **kwargs):
        self.average.update_parameters(net.module_)

    def on_train_end(self, net, **kwargs):
        net.module_.load_state_dict(self.average.module.state_dict())


class Stops(Callback):
    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 2:
            raise KeyboardInterrupt


class EverySecond(torch.optim.SGD):
    """It counts its steps, and keeps gradients by the identity of parameters."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps, self.kept = 0, {}

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                before = self.kept.get(id(p), 0.0)
                if self.steps % 2:
                    self.kept[id(p)] = p.grad.clone()
                else:
                    p.sub_(group["lr"] * (before + p.grad))


class Langevin(torch.optim.SGD):
    """It draws from all global generators in every step."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                noise = torch.randn_like(p) * np.random.random()
                p.sub_(group["lr"] * (p.grad + noise))


class Ascent(torch.optim.SGD):
    """It evaluates the closure, as SAM does, and draws before and after that."""

    def step(self, closure=None):
        parameters = self.param_groups[0]["params"]
        with torch.no_grad():
            for p in parameters:
                p.add_(p.grad, alpha=0.01 * float(torch.rand(())))
        closure()
        with torch.no_grad():
            for p in parameters:
                p.sub_((p.grad + 0.1 * torch.randn_like(p)) * self.param_groups[0]["lr"])


class Tempered(NeuralNetClassifier):
    """Its `infer` reads the module, calls it twice, and reads the history."""

    def infer(self, x, **kwargs):
        scale = 2.0 if self.module_.training else 1.0
        x = x * (1.0 + self.module_.last.bias.detach().abs().sum())
        both = super().infer(x, **kwargs) + super().infer(x * 0.5, **kwargs)
        return both * scale / (1 + len(self.history))


GROUPS = [("first*", {"lr": 0.01}), ("last*", {"lr": 0.1, "momentum": 0.5})]
EQUAL = {
    "spectral norm": change(normalize_spectrum),
    "another module": change(new_module),
    "a longer list of layers": change(append_layer, module=Chain),
    "a shorter list of layers": change(lambda net: net.module_.order.pop(), module=Chain),
    "an untied layer": change(untie, module=Chain),
    "rates of groups": {"callbacks": [Each(rescale_groups)], "optimizer__param_groups": GROUPS},
    "batch size of the next epoch": change(lambda net: net.set_params(batch_size=30)),
    "fewer epochs": change(lambda net: net.set_params(max_epochs=2)),
    "no gradients": {"callbacks": [OnGradients(drop_large_gradients)]},
    "clamped weights": {"callbacks": [OnGradients(clamp_weights)]},
    "clipping by group, and other rates": {"callbacks": [OnGradients(clip_groups)]},
    "a callback with momentum": {"callbacks": [Momentum()]},
    "stochastic weight averaging": {"callbacks": [Averaging()]},
    "a callback that stops": {"callbacks": [Stops()]},
    "an optimizer that counts": {"optimizer": EverySecond},
    "an optimizer that draws": {"optimizer": Langevin},
    "an optimizer with a closure that draws": {"optimizer": Ascent},
    "infer with attributes of the module": {"kind": Tempered},
    "two rows in the last batch, BatchNorm": {"batch_size": 29, "module__norm": BN},
}


def run_equal(client, act, **params):
    assert_equal(lambda where, ranks: net_of(where, ranks, **params), act, client)


@pytest.mark.parametrize("name", EQUAL)
def test_a_change_is_the_same_on_ranks(name, client):
    run_equal(client, fit, **EQUAL[name])


def twice(net):
    return net.fit(X, Y).fit(X, Y)


def other_settings(net):
    net.fit(X, Y).set_params(lr=0.2, batch_size=13, optimizer__nesterov=True)
    return net.set_params(criterion__label_smoothing=0.1).partial_fit(X[:44], Y[:44])


def other_module(net):
    torch.manual_seed(4)
    return net.fit(X, Y).set_params(module__norm=BN).partial_fit(X, Y)


def through_pickle(net):
    client = net.fit(X, Y).client
    found = pickle.loads(pickle.dumps(net.set_params(client=None)))
    return found.set_params(client=client).partial_fit(X, Y)


def best_of_files(net, tmp_path):
    net.set_params(callbacks=[Checkpoint(dirname=str(tmp_path), load_best=True)])
    return net.fit(X, Y)


STEPS = {
    "fit twice": (twice, {}),
    "warm start": (twice, {"warm_start": True}),
    "other settings": (other_settings, {}),
    "other module": (other_module, {}),
    "through pickle": (through_pickle, {"lr": 0.01}),
}


@pytest.mark.parametrize("name", STEPS)
def test_calls_in_a_row_are_the_same_on_ranks(name, client):
    act, params = STEPS[name]
    run_equal(client, act, max_epochs=2, **params)


def test_the_best_model_of_a_checkpoint(client, tmp_path):
    act = functools.partial(best_of_files, tmp_path=tmp_path)
    run_equal(client, act, train_split=HALF, lr=2.0, max_epochs=5)


# -- modules --------------------------------------------------------------------------------------


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Binary(Net):
    def forward(self, x):
        return self.last(Sign.apply(self.first(x)))


class Reversed(Net):
    """A hook on an activation, row by row."""

    def forward(self, x):
        hidden = self.first(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: -0.1 * gradient)
        return self.last(hidden)


class Functional(Net):
    def forward(self, x):
        smaller = {name: p * 0.9 for name, p in self.first.named_parameters()}
        return self.last(torch.func.functional_call(self.first, smaller, (x,)))


class Shared(Net):
    """Two parameters in one storage, one without elements, and one without dimensions."""

    def __init__(self):
        super().__init__()
        both = torch.linspace(-0.1, 0.1, 16).double()
        self.first.bias, self.second = nn.Parameter(both[:8]), nn.Parameter(both[8:])
        self.nothing, self.scale = nn.Parameter(both[:0]), nn.Parameter(both.sum() + 1.0)

    def forward(self, x):
        return self.last(self.act(self.first(x)) * (1 + self.second)) * self.scale


class OneFactor(Net):
    """One number per batch, from a generator of its own: the same on all ranks."""

    def __init__(self):
        super().__init__()
        self.generator = np.random.default_rng(0)

    def forward(self, x):
        return super().forward(x) * (1 + 0.1 * self.generator.random())


class Listed(NeuralNet):
    """The module returns a list with one output per row."""

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        return F.cross_entropy(torch.stack(y_pred), y_true)


class ListOfRows(Net):
    def forward(self, x):
        return list(super().forward(x))


class Divergence(NeuralNetClassifier):
    def get_loss(self, y_pred, y_true, *args, **kwargs):
        return super().get_loss(y_pred[0], y_true, *args, **kwargs) + 0.01 * y_pred[1]


class MeanOutput(Net):
    """A number for all rows: their mean."""

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden), hidden.square().sum(1).mean()


class SumOutput(MeanOutput):
    def forward(self, x):
        outputs, number = super().forward(x)
        return outputs, number * len(x)


MODULES = {
    "a straight-through gradient": {"module": Binary},
    "a hook on an activation": {"module": Reversed},
    "functional_call": {"module": Functional},
    "parameters of all kinds": {"module": Shared},
    "a factor for the batch": {"module": OneFactor},
    "a list of rows": {"module": ListOfRows, "kind": Listed},
    "the mean of a number": {"module": MeanOutput, "kind": Divergence},
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_the_same_on_ranks(name, client):
    run_equal(client, fit, **MODULES[name])


# -- data -----------------------------------------------------------------------------------------


class Rows(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, number):
        return pair(number)


class Weighted(Rows):
    def __getitem__(self, number):
        x, y = pair(number)
        return x, (y, 1.0 + number / N)


class WeightedNet(NeuralNet):
    def get_loss(self, y_pred, y_true, *args, **kwargs):
        y, weight = y_true
        return (F.cross_entropy(y_pred, y, reduction="none") * weight).mean()


class Growing(IterableDataset):
    """Every epoch is longer than the one before."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return map(pair, range(40 + 7 * self.epoch))


class Reservoir(IterableDataset):
    """A buffer for shuffling, as libraries of streams have it."""

    def __iter__(self):
        held = []
        for number in range(N):
            held.append(number)
            if len(held) > 10:
                yield pair(held.pop(np.random.randint(len(held))))
        np.random.shuffle(held)  # Dask's threads draw from Python's generator, too
        yield from map(pair, held)


class Opens(Rows):
    """It opens its file when the first row is read."""

    def __init__(self):
        self.file = None

    def __getitem__(self, number):
        self.file = self.file or [X, Y]
        return tuple(torch.as_tensor(part[number]) for part in self.file)


class DrawsTogether(Rows):
    def __getitems__(self, rows):
        factor = 1 + torch.rand(()).item()
        return [(x * factor, y) for x, y in map(pair, rows)]


class Augmented(Rows):
    def __getitem__(self, number):
        x, y = pair(number)
        return x + 0.1 * torch.randn(6).double() * np.random.random(), y


DATA = {
    "rows that are read together": (DrawsTogether, {}),
    "augmentation in a subset": (lambda: Subset(Augmented(), range(5, 55)), {}),
    "augmentation and validation": (Augmented, {"train_split": HALF}),
    "weights in y": (Weighted, {"kind": WeightedNet}),
    "epochs that grow": (Growing, {}),
    "a shuffle buffer": (Reservoir, {}),
    "a file that is opened late": (Opens, {}),
}


@pytest.mark.parametrize("name", DATA)
def test_data_are_the_same_on_ranks(name, client):
    data, params = DATA[name]
    run_equal(client, lambda net: net.fit(data(), None), **params)


def test_weights_of_which_a_rank_has_none(client):
    weights = (np.arange(N) % 4 == 0) * 2.5
    run_equal(client, functools.partial(fit, sample_weight=weights), criterion__label_smoothing=0.1)


# -- refusals -------------------------------------------------------------------------------------


class Normalized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / (gradient.norm() + 1e-6)


class NormalizedGradient(Net):
    def forward(self, x):
        return self.last(Normalized.apply(self.first(x)))


class CenteredGradient(Net):
    def forward(self, x):
        hidden = self.first(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient - gradient.mean(0))
        return self.last(hidden)


class OwnNoise(Net):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        noise = torch.randn(x.shape, generator=self.generator).double()
        return super().forward(x + 0.1 * noise)


class FixedNoise(Net):
    def forward(self, x):
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(3)).double()
        return super().forward(x + 0.1 * noise)


class Recalls(Net):
    """A hidden state of the batch before."""

    hidden = None

    def forward(self, x):
        first = self.first(x)
        if self.hidden is not None and self.hidden.shape == first.shape:
            first = first + 0.1 * self.hidden
        self.hidden = first.detach()
        return self.last(self.act(first))


class Queue(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.zeros(0, 6).double())

    def forward(self, x):
        if self.training:
            self.queue = torch.cat([x.detach(), self.queue])[:32]
        return super().forward(x)


class Makes(Net):
    def forward(self, x):
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(6).double())
        return super().forward(x * self.scale)


class Thaws(Net):
    passes = 0

    def forward(self, x):
        self.passes += self.training
        self.first.weight.requires_grad_(self.passes > 4)
        return super().forward(x)


class ThawsLate(Thaws):
    def forward(self, x):
        self.passes += self.training
        if self.passes > 1:
            self.first.weight.requires_grad_(False)
        return Net.forward(self, x)


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.InstanceNorm1d(1, track_running_stats=True).double()
        self.last = nn.Linear(6, 2).double()

    def forward(self, x):
        return self.last(self.norm(x[:, None])[:, 0])


class Mixing(NeuralNetClassifier):
    def infer(self, x, **kwargs):
        if self.module_.training:
            x = 0.7 * x + 0.3 * x.flip(0)
        return super().infer(x, **kwargs)


class GoesAround(NeuralNetClassifier):
    """It calls the layers of the module, not the module."""

    def infer(self, x, **kwargs):
        module = self.module_
        return module.last(module.act(module.first(x)))


class Accumulates(NeuralNetClassifier):
    """Gradient accumulation as in skorch's documentation."""

    def train_step(self, batch, **kwargs):
        step = self.train_step_single(batch, **kwargs)
        if len(self.history[-1, "batches"]) % 2 == 0:
            self.optimizer_.step()
            self.optimizer_.zero_grad()
        return step


class Counts(Rows):
    """Rows fade with every reading."""

    def __init__(self):
        self.seen = {}

    def __getitem__(self, number):
        self.seen[number] = self.seen.get(number, 0) + 1
        x, y = pair(number)
        return x / self.seen[number], y


def mean_by_class(p, y):
    return torch.stack([F.cross_entropy(p[y == c], y[y == c]) for c in y.unique()]).mean()


def diverse(p, y):
    return F.cross_entropy(p, y) - torch.special.entr(p.softmax(1).mean(0)).sum()


LOSSES = {
    "hard rows": lambda p, y: F.cross_entropy(p, y, reduction="none").topk(len(y) // 2)[0].mean(),
    "a root of the mean": lambda p, y: F.cross_entropy(p, y).sqrt(),
    "a logarithm of the mean": lambda p, y: F.cross_entropy(p, y).log1p(),
    "a loss that divides by the root of the rows": (
        lambda p, y: F.cross_entropy(p, y, reduction="sum") / len(y) ** 0.5
    ),
    "the mean of the classes": mean_by_class,
    "the mean prediction": diverse,
    "neighbors": lambda p, y: F.cross_entropy(p, y) + F.relu(p[1:] - p[:-1]).mean(),
    "the first row": lambda p, y: F.cross_entropy(p, y) + p[0].square().mean(),
    "the largest loss": lambda p, y: F.cross_entropy(p, y, reduction="none").max(),
}
REFUSED = {
    **{name: (2, loss_of(loss), "couples_rows") for name, loss in LOSSES.items()},
    "the sum of a number": (2, {"module": SumOutput, "kind": Divergence}, "couples_rows"),
    "a gradient that is normalized": (2, {"module": NormalizedGradient}, "other rows"),
    "a gradient that is centered": (2, {"module": CenteredGradient}, "other rows"),
    "noise of an own generator": (2, {"module": OwnNoise}, "generator of the module's own"),
    "the same noise": (2, {"module": FixedNoise}, "generator of the module's own"),
    "the batch before": (2, {"module": Recalls}, "remembers"),
    "statistics of instances": (2, {"module": Statistics}, "remembers"),
    "a queue": (1, {"module": Queue}, "the shape of module.queue"),
    "a parameter that forward makes": (1, {"module": Makes}, "adds module.scale"),
    "a layer that forward thaws": (1, {"module": Thaws}, "requires_grad of module.first.weight"),
    "rows that infer mixes": (2, {"kind": Mixing}, "other rows"),
    "infer without the module": (1, {"kind": GoesAround}, "does not call self.module_"),
    "a step of one's own": (1, {"kind": Accumulates}, "train_step"),
    "rows that fade": (1, {"rows": Counts}, "how often rows have been read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_the_same_is_refused(name, client):
    ranks, params, words = REFUSED[name]
    params = dict(params)
    data = params.pop("rows", None)
    net = net_of(client, ranks, **params)
    with pytest.raises(UnsupportedError, match=words):
        fit(net, (X, Y) if data is None else (data(), None))
    assert net.position_.update == 0
    here = net_of(None, 0, **params)  # a single process trains it
    fit(here, (X, Y) if data is None else (data(), None))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_layer_that_freezes_later_ends_with_a_sentence(ranks, client):
    """No look before training shows it."""
    net = net_of(client, ranks, module=ThawsLate)
    with pytest.raises(UnsupportedError, match="changed requires_grad"):
        net.fit(X, Y)
