"""What nobody has planned for: changes, losses, layers and data, tried as a user would.

A row is equal in this process, on one rank and on two ranks to 1e-12 in float64, or it is refused
with one of our exceptions before an update is made.
"""

import copy
import functools
import math
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from skorch.callbacks import Callback, EarlyStopping
from skorch.dataset import ValidSplit
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from accelerando import NeuralNetClassifier
from accelerando.exceptions import UnsupportedError

N = 60
X = np.random.default_rng(0).normal(size=(N, 6))
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)


class Net(nn.Module):
    def __init__(self, norm=nn.Identity):
        super().__init__()
        self.first, self.norm, self.act = nn.Linear(6, 8), norm(), nn.ReLU()
        self.last = nn.Linear(8, 2)
        self.double()

    def forward(self, x):
        return self.last(self.act(self.norm(self.first(x))))


class At(Callback):
    """Change the net at the end of the first epoch."""

    def __init__(self, change):
        self.change = change

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 1:
            with torch.no_grad():
                self.change(net)


def net_of(client, ranks, kind=NeuralNetClassifier, **params):
    defaults = {
        "module": Net,
        "criterion": nn.CrossEntropyLoss,
        "optimizer__momentum": 0.9,
        "lr": 0.05,
        "batch_size": 20,
        "max_epochs": 3,
        "train_split": None,
        "random_state": 0,
        "verbose": 0,
    }
    where = {"client": client, "min_workers": ranks, "max_workers": ranks} if ranks else {}
    torch.manual_seed(1)
    return kind(**copy.deepcopy({**defaults, **params}), **where)


def change(act, **params):
    return {"callbacks": [At(act)], **params}


# -- what callbacks do ----------------------------------------------------------------------------


def setting(path, value):
    def act(net):
        *owners, name = path.split(".")
        setattr(functools.reduce(getattr, owners, net), name, value)

    return act


def replace_forward(net):
    net.module_.act.forward = lambda x: x.clamp(-1, 1)


def replace_method(net):
    net.module_.forward = types.MethodType(lambda self, x: self.last(self.first(x)), net.module_)


def replace_class(net):
    class Half(Net):
        def forward(self, x):
            return super().forward(x) * 0.5

    net.module_.__class__ = Half


def sgd(net):
    net.optimizer_ = torch.optim.SGD(net.module_.parameters(), lr=0.05)


def make_orthogonal(net):
    parametrizations.orthogonal(net.module_.first)
    sgd(net)


def remove_parametrization(net):
    parametrize.remove_parametrizations(net.module_.first, "weight")
    sgd(net)


def prune_half(net):
    prune.l1_unstructured(net.module_.first, "weight", amount=0.5)
    sgd(net)


def add_group(net):
    net.module_.extra = nn.Linear(2, 2).double()
    net.optimizer_.add_param_group({"params": list(net.module_.extra.parameters()), "lr": 0.01})


class Rollback(Callback):
    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 1:
            self.kept = copy.deepcopy(net.module_.state_dict())
        if len(net.history) == 2:
            net.module_.load_state_dict(self.kept)


class Lookahead(Callback):
    def on_train_begin(self, net, **kwargs):
        self.slow = [p.detach().clone() for p in net.module_.parameters()]

    def on_epoch_end(self, net, **kwargs):
        with torch.no_grad():
            for p, slow in zip(net.module_.parameters(), self.slow, strict=True):
                slow.add_(p - slow, alpha=0.5)
                p.copy_(slow)


class GradientNoise(Callback):
    """It draws from all three global generators."""

    def on_grad_computed(self, net, named_parameters, **kwargs):
        for _, p in named_parameters:
            p.grad.add_(torch.randn_like(p) * 0.1 * np.random.random())


class WeightNormed(Net):
    def __init__(self):
        super().__init__()
        parametrizations.weight_norm(self.first)


class Configured(Net):
    """Its settings are in objects inside of objects, and in its class."""

    temperature = 1.0

    def __init__(self):
        super().__init__()
        self.settings = {"scales": [1.0, types.SimpleNamespace(last=1.0)]}

    def forward(self, x):
        first, second = self.settings["scales"]
        return super().forward(x) * first * second.last / self.temperature


class ChangeClass(Callback):
    """It leaves the class as it was."""

    def on_train_begin(self, net, **kwargs):
        Configured.temperature = 1.0

    def on_epoch_end(self, net, **kwargs):
        Configured.temperature = 1.0 + len(net.history)

    def on_train_end(self, net, **kwargs):
        Configured.temperature = 1.0


class AdamNet(NeuralNetClassifier):
    def initialize_optimizer(self, *args, **kwargs):
        self.optimizer_ = torch.optim.Adam(self.module_.parameters(), lr=0.01)
        return self


class LastLayerFirst(NeuralNetClassifier):
    def initialize_optimizer(self, *args, **kwargs):
        self.module_.first.requires_grad_(False)
        self.optimizer_ = torch.optim.Adam(self.module_.last.parameters(), lr=0.05)
        return self


def unfreeze(net):
    first = net.module_.first.requires_grad_(True)
    net.optimizer_.add_param_group({"params": list(first.parameters()), "lr": 0.02})


def change_inside(net):
    net.module_.settings["scales"][1].last = 0.3


BN = functools.partial(nn.BatchNorm1d, 8)
CHANGES = {
    "betas": change(
        lambda net: net.optimizer_.param_groups[0].update(betas=(0.5, 0.9)), kind=AdamNet
    ),
    "settings inside of settings": change(change_inside, module=Configured),
    "attribute of the class": {"module": Configured, "callbacks": [ChangeClass()]},
    "unfrozen in a group of its own": change(unfreeze, kind=LastLayerFirst),
    "ignored class": change(setting("criterion_.ignore_index", 1)),
    "class weights": change(setting("criterion_.weight", torch.tensor([0.3, 1.7]).double())),
    "loss becomes a sum": change(setting("criterion_.reduction", "sum")),
    "another loss": change(setting("criterion_", nn.MultiMarginLoss())),
    "forward of a layer": change(replace_forward),
    "forward of the module": change(replace_method),
    "class of the module": change(replace_class),
    "LayerNorm instead of nothing": change(setting("module_.norm", nn.LayerNorm(8).double())),
    "BatchNorm instead of nothing": change(setting("module_.norm", nn.BatchNorm1d(8).double())),
    "momentum of BatchNorm": change(setting("module_.norm.momentum", None), module__norm=BN),
    "a buffer": change(lambda net: net.module_.register_buffer("more", torch.ones(3))),
    "orthogonal weights": change(make_orthogonal),
    "parametrization removed": change(remove_parametrization, module=WeightNormed),
    "pruning": change(prune_half),
    "a parameter group": change(add_group),
    "a parameter less": change(lambda net: net.optimizer_.param_groups[0]["params"].pop()),
    "order of parameters": change(lambda net: net.optimizer_.param_groups[0]["params"].reverse()),
    "Nesterov": change(lambda net: net.optimizer_.param_groups[0].update(nesterov=True)),
    "rollback": {"callbacks": [Rollback()]},
    "lookahead": {"callbacks": [Lookahead()]},
    "noise on gradients": {"callbacks": [GradientNoise()]},
    "best weights": {
        "callbacks": [EarlyStopping(patience=2, load_best=True)],
        "train_split": ValidSplit(5, stratified=False),
        "max_epochs": 6,
        "lr": 2.0,
    },
}

# -- losses, modules and estimators ---------------------------------------------------------------


def loss_of(function):
    class Loss(nn.Module):
        def forward(self, p, y):
            return function(p, y)

    return {"criterion": Loss}


def focal(p, y):
    rows = F.cross_entropy(p, y, reduction="none")
    return ((1 - torch.exp(-rows)) ** 2 * rows).mean()


def ctc(p, y):
    n = len(p)
    return F.ctc_loss(
        p.transpose(0, 1), y[:, None] + 1, torch.full((n,), 6), torch.ones(n, dtype=torch.long)
    )


class Frames(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 4).double()

    def forward(self, x):
        return self.last(x[..., None]).log_softmax(-1)


class Annealed(NeuralNetClassifier):
    """The epoch decides about the loss, as in a variational autoencoder."""

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        loss = super().get_loss(y_pred, y_true, *args, **kwargs)
        return loss + len(self.history) * 0.1 * y_pred.square().mean()


class Penalized(NeuralNetClassifier):
    """The gradient with respect to the inputs is a part of the loss."""

    def get_loss(self, y_pred, y_true, X=None, *args, **kwargs):
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.module_(x).sum(), x, create_graph=True)
        loss = super().get_loss(y_pred, y_true, X, *args, **kwargs)
        return loss + 0.1 * gradient.square().sum(1).mean()


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.LazyLinear(8, dtype=torch.float64)
        self.norm = nn.LazyBatchNorm1d(dtype=torch.float64)
        self.last = nn.LazyLinear(2, dtype=torch.float64)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


class Checkpointed(Net):
    def __init__(self, reentrant=False):
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x):
        def first(z):
            return self.act(self.first(z))

        x = x.requires_grad_(self.reentrant)
        return self.last(checkpoint(first, x, use_reentrant=self.reentrant))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.second.weight = self.first.weight
        self.double()

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()))


class Teacher(nn.Module):
    """An average of the student's weights, updated in every forward pass."""

    def __init__(self):
        super().__init__()
        self.student = Net()
        self.teacher = Net().requires_grad_(False)

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                for mine, other in zip(
                    self.teacher.parameters(), self.student.parameters(), strict=True
                ):
                    mine.lerp_(other, 0.1)
        return self.student(x) + 0.3 * self.teacher(x)


class Warming(Net):
    """A counter in a dictionary decides about the temperature."""

    def __init__(self):
        super().__init__()
        self.kept = {"passes": 0}

    def forward(self, x):
        self.kept["passes"] += self.training
        return super().forward(x) / (1 + 0.1 * self.kept["passes"])


MODELS = {
    "a teacher": {"module": Teacher},
    "a counter in a dictionary": {"module": Warming},
    "focal loss": loss_of(focal),
    "CTC": {"module": Frames, **loss_of(ctc)},
    "a loss with one element": loss_of(lambda p, y: F.cross_entropy(p, y).reshape(1)),
    "annealing by the epoch": {"kind": Annealed},
    "gradient penalty": {"kind": Penalized},
    "lazy layers": {"module": Lazy},
    "checkpointing": {"module": Checkpointed},
    "tied weights": {"module": Tied},
    "weight norm": {"module": WeightNormed},
    "GroupNorm": {"module__norm": functools.partial(nn.GroupNorm, 2, 8)},
    "BatchNorm, cumulative": {"module__norm": functools.partial(nn.BatchNorm1d, 8, momentum=None)},
    "BatchNorm without memory": {
        "module__norm": functools.partial(nn.BatchNorm1d, 8, track_running_stats=False)
    },
    "class weights around one": {"criterion__weight": torch.tensor([0.3, 1.7]).double()},
}


def result_of(net):
    found = {f"module {k}": v for k, v in net.module_.state_dict().items()}
    return {**found, "loss": torch.tensor(net.history[:, "train_loss"], dtype=torch.float64)}


def assert_equal(make, fit, client):
    expected = result_of(fit(make(None, 0)))
    for ranks in (1, 2):
        net = fit(make(client, ranks))
        assert set(net.updates_frame()["ranks"]) == {ranks}
        torch.testing.assert_close(result_of(net), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", {**CHANGES, **MODELS})
def test_a_model_is_the_same_on_ranks(name, client):
    params = {**CHANGES, **MODELS}[name]
    assert_equal(
        lambda where, ranks: net_of(where, ranks, **params), lambda net: net.fit(X, Y), client
    )


# -- data -----------------------------------------------------------------------------------------


def tensors():
    return TensorDataset(torch.as_tensor(X), torch.as_tensor(Y))


def nested():
    data = tensors()
    return ConcatDataset([Subset(Subset(data, range(40)), range(5, 30)), Subset(data, range(30))])


def pair(number):
    return torch.as_tensor(X[number]), torch.as_tensor(Y[number])


class Shuffled(IterableDataset):
    """The order is drawn from a global generator, when the first row is read."""

    def __iter__(self):
        for number in np.random.permutation(N):
            yield pair(number)


class ShuffledAtOnce(Shuffled):
    """The order is drawn when the stream is opened."""

    def __iter__(self):
        return map(pair, torch.randperm(N).tolist())


class Noisy(IterableDataset):
    """Every row draws, and ranks read their own rows only."""

    def shard(self, rank, size):
        for number in range(rank, N, size):
            x, y = pair(number)
            yield x + 0.1 * torch.randn(6).double() * np.random.random(), y

    def __iter__(self):
        return self.shard(0, 1)


def scale_batch(rows):
    """One random number for the whole batch."""
    x, y = default_collate(rows)
    return x * (1 + torch.rand(1).double()), y


def cut(number):
    """A sequence of its own length."""
    return X[number, : 2 + number % 4]


class Sequences(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, number):
        return cut(number), Y[number]


def pad(rows):
    x = nn.utils.rnn.pad_sequence([torch.as_tensor(x) for x, _ in rows], batch_first=True)
    return x, torch.tensor([y for _, y in rows])


class Uneven(Sequences):
    """Few sequences are long."""

    def __getitem__(self, number):
        return X[number, : 6 if number % 11 == 0 else 2], Y[number]


def pack(rows):
    x = nn.utils.rnn.pack_sequence(
        [torch.as_tensor(x)[:, None] for x, _ in rows], enforce_sorted=False
    )
    return x, torch.tensor([y for _, y in rows])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.last = nn.LSTM(1, 4, batch_first=True).double(), nn.Linear(4, 2).double()

    def forward(self, x):
        return self.last(self.rnn(x)[1][0][0])


class Padded(Recurrent):
    """What it returns depends on the padding."""

    def forward(self, x):
        return super().forward(x[..., None])


class SumOfAll(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(1, 2).double()

    def forward(self, x):
        return self.last(x.sum(1, keepdim=True))


DATA = {
    "nested subsets": (nested, {}),
    "a stream that shuffles": (Shuffled, {}),
    "a stream that shuffles when opened": (ShuffledAtOnce, {}),
    "a stream of shards with noise": (Noisy, {}),
    "a random batch": (tensors, {"iterator_train__collate_fn": scale_batch}),
    "padding": (Sequences, {"iterator_train__collate_fn": pad, "module": SumOfAll}),
    "packed sequences": (Uneven, {"iterator_train__collate_fn": pack, "module": Recurrent}),
}


@pytest.mark.parametrize("name", DATA)
def test_data_are_the_same_on_ranks(name, client):
    data, params = DATA[name]
    assert_equal(
        lambda where, ranks: net_of(where, ranks, **params),
        lambda net: net.fit(data(), None),
        client,
    )


# -- refusals -------------------------------------------------------------------------------------


def mix(rows):
    x, y = default_collate(rows)
    return 0.7 * x + 0.3 * x.flip(0), y


class Scaled(Dataset):
    scale = 1.0

    def __init__(self):
        self.scale = 1.0

    def __len__(self):
        return N

    def __getitem__(self, number):
        x, y = pair(number)
        return x * self.scale, y


class Curriculum(Callback):
    def on_epoch_end(self, net, dataset_train=None, **kwargs):
        dataset_train.scale *= 0.5


class Overwrite(Callback):
    def on_epoch_end(self, net, dataset_train=None, **kwargs):
        dataset_train.X[:] *= 0.5


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(10, 4, max_norm=1.0), nn.Linear(24, 2)
        self.double()

    def forward(self, x):
        return self.last(self.words((x.abs() * 3).long() % 10).flatten(1))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 2, dtype=torch.complex128))

    def forward(self, x):
        return (x.to(torch.complex128) @ self.weight).abs()


def pairs_loss(p, y):
    return F.softplus((p[:, None, 0] - p[None, :, 0]) * (y[:, None] - y[None, :])).mean()


class PairsLoss(nn.Module):
    def forward(self, p, y):
        return pairs_loss(p, y)


def flooding(p, y):
    return (F.cross_entropy(p, y) - 0.3).abs() + 0.3


class Relative(nn.Module):
    """The loss is relative to the mean of those before."""

    mean = 1.0

    def forward(self, p, y):
        loss = F.cross_entropy(p, y)
        before, self.mean = self.mean, 0.9 * self.mean + 0.1 * loss.item()
        return loss / before


class Pairs(Net):
    """Two neighboring rows belong together."""

    def forward(self, x):
        first = self.first(x).view(-1, 2, 8)
        return self.last((first + first.flip(1)).reshape(-1, 8))


SYNCHRONIZED = functools.partial(nn.SyncBatchNorm, 8)
REFUSED = {
    "a loss that bends": (2, None, loss_of(flooding), "couples_rows", 0),
    "a running mean": (2, None, {"criterion": Relative}, "remembers", 0),
    "pairs of rows": (2, None, {"module": Pairs}, "output for a row", 0),
    "padding that is not masked": (
        2, Uneven, {"iterator_train__collate_fn": pad, "module": Padded}, "pads", 0,
    ),
    "rows that are mixed": (2, tensors, {"iterator_train__collate_fn": mix}, "collate_fn", 0),
    "a loss per row": (1, None, {"criterion__reduction": "none"}, "one loss per row", 0),
    "SyncBatchNorm": (1, None, {"module__norm": SYNCHRONIZED}, "SyncBatchNorm", 0),
    "max_norm": (2, None, {"module": Words}, "max_norm", 0),
    "complex parameters": (1, None, {"module": Complex}, "complex", 0),
    "reentrant checkpointing": (
        2, None, {"module": Checkpointed, "module__reentrant": True}, "use_reentrant", 0,
    ),
    "a loss that couples rows, later": (
        2, None, change(setting("criterion_", PairsLoss())), "couples_rows", 3,
    ),
    "a layer with max_norm, later": (
        2, None, change(setting("module_.more", nn.Embedding(1, 1, max_norm=1.0))), "max_norm", 3,
    ),
    "data set that changes": (1, Scaled, {"callbacks": [Curriculum()]}, r"dataset\.scale", 3),
    "arrays that change": (1, None, {"callbacks": [Overwrite()]}, r"dataset\.X", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_the_same_is_refused(name, client):
    """Before the first update, or before the one that would be wrong."""
    ranks, data, params, words, updates = REFUSED[name]
    net = net_of(client, ranks, **params)
    rows = (X.copy(), Y) if data is None else (data(), None)
    with pytest.raises(UnsupportedError, match=words):
        net.fit(*rows)
    assert net.position_.update == updates


def test_unknown_chunks_are_refused(client):
    da = pytest.importorskip("dask.array")
    x, y = da.from_array(X, chunks=(20, 6)), da.from_array(Y, chunks=20)
    net = net_of(client, 2, data="shard")
    with pytest.raises(UnsupportedError, match="compute_chunk_sizes"):
        net.fit(x[y >= 0], y[y >= 0])


# -- what differs between ranks -------------------------------------------------------------------


class Watching(Net):
    """It notes a plain number about the rows that it has seen."""

    def __init__(self):
        super().__init__()
        self.largest, self.calls = 0.0, 0

    def forward(self, x):
        self.calls += self.training
        self.largest = max(self.largest, float(x.detach().abs().max()))
        return super().forward(x)


def test_an_attribute_that_differs_between_ranks_is_named_once(client, caplog):
    net = net_of(client, 2, module=Watching).fit(X, Y)
    said = [entry["text"] for entry in net.world_log_ if entry["event"] == "differ"]
    assert len(said) == 1
    assert "module.largest" in said[0]
    assert "calls" not in said[0]
    assert said[0] in caplog.text
    alone = net_of(client, 1, module=Watching).fit(X, Y)
    assert not [entry for entry in alone.world_log_ if entry["event"] == "differ"]
    assert math.isclose(alone.module_.largest, np.abs(X).max())
