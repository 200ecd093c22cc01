"""Losses that couple rows, layers that are skipped: as in one process, or refused before training.

A row of the table is a module or a loss; the columns are this process, one rank and two ranks.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from accelerando import NeuralNet
from accelerando.compress import QSGD, ErrorFeedback, TopK
from accelerando.exceptions import UnsupportedError
from accelerando.monitor import GradientNoiseScale
from accelerando.policies import AdaDamp, RadaDamp
from accelerando.sync import PeriodicAveraging

EXACT = {"rtol": 1e-12, "atol": 1e-12}


class Double(NeuralNet):
    """A net in double precision, wherever it is initialized."""

    def initialize_module(self):
        super().initialize_module()
        self.module_ = self.module_.double()
        return self

    def initialize_criterion(self):
        super().initialize_criterion()
        if isinstance(self.criterion_, nn.Module):
            self.criterion_ = self.criterion_.double()
        return self


class Body(nn.Module):
    def __init__(self, norm=False, dropout=0.0):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


class Centered(Body):
    """Batch statistics in `forward`."""

    def forward(self, x):
        return super().forward((x - x.mean(0)) / (1.0 + x.std(0)))


class Experts(nn.Module):
    """A mixture of experts: a rank may have no row for one of them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(6))

    def forward(self, x):
        found = self.first(x)
        chosen = (x[:, 0].abs() * 4).long().clamp(max=5)
        for number, expert in enumerate(self.experts):
            rows = chosen == number
            if rows.any():
                found = found.index_add(0, rows.nonzero()[:, 0], expert(x[rows]))
        return found


class Skipping(nn.Module):
    """A layer is left out in every third forward pass, as on all ranks."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if self.training:
            self.calls += 1
            x = x if self.calls % 3 == 0 else torch.tanh(self.middle(x))
        return self.last(x)


class Contrastive(nn.Module):
    """Every row is compared with every other one; the order of the rows matters, too."""

    def __init__(self, learns=False):
        super().__init__()
        scale = torch.tensor(2.0)
        self.scale = nn.Parameter(scale) if learns else scale

    def forward(self, p, y):
        p = F.normalize(p, dim=1)
        scores = p @ p.T * self.scale - 1e3 * torch.eye(len(p), dtype=p.dtype)
        same = (y[:, None] == y[None]).to(p) / len(p)
        order = torch.arange(1, len(p) + 1, dtype=p.dtype) / len(p)
        return -((scores.log_softmax(1) * same).mean(1) * order).sum()


class Dice(nn.Module):
    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, p, y):
        p, t = p.sigmoid(), F.one_hot(y, 3).to(p)
        if self.reduction == "none":
            return 1 - 2 * (p * t).sum(1) / (p.sum() + t.sum())
        return 1 - 2 * (p * t).sum() / (p.sum() + t.sum())


def problem(rows=50, ignored=False):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(rows, 4))
    y = (X.sum(1) > 0).astype(np.int64) + (X[:, 1] > 1)
    if ignored:
        y[::3] = -100
    return X, y


def net_of(client=None, ranks=1, net=Double, **params):
    defaults = {
        "module": Body,
        "criterion": nn.CrossEntropyLoss,
        "optimizer": torch.optim.Adam,
        "lr": 0.02,
        "batch_size": 12,
        "max_epochs": 2,
        "train_split": None,
        "random_state": 0,
        "verbose": 0,
        "client": client,
        **({} if client is None else {"min_workers": ranks, "max_workers": ranks}),
    }
    return net(**{**defaults, **params})


def fitted(client=None, ranks=1, *, ignored=False, weighted=False, rows=50, **params):
    X, y = problem(rows, ignored)
    weights = {"sample_weight": np.linspace(0.1, 2.0, rows)} if weighted else {}
    net = net_of(client, ranks, **params).fit(X, y, **weights)
    tensors = [*net.module_.state_dict().values()]
    if isinstance(net.criterion_, nn.Module):
        tensors += net.criterion_.parameters()
    return tensors, net


SGD = {"optimizer": torch.optim.SGD, "optimizer__momentum": 0.9}
WEIGHT = torch.tensor([0.3, 1.7, 11.0])
GATHER = {"couples_rows": "gather"}
EQUAL = {
    "class weights": {"criterion__weight": WEIGHT},
    "class weights, ignored targets, smoothing": {
        "criterion__weight": WEIGHT,
        "criterion__label_smoothing": 0.2,
        "ignored": True,
    },
    "ignored targets in micro-batches": {"ignored": True, "micro_batch_size": 5},
    "mixture of experts": {"module": Experts},
    "mixture of experts, momentum": {"module": Experts, **SGD},
    "mixture of experts in micro-batches": {"module": Experts, "micro_batch_size": 4},
    "skipped layer": {"module": Skipping},
    "skipped layer, momentum": {"module": Skipping, **SGD},
    "contrastive, gathered": {"criterion": Contrastive, **GATHER},
    "learnable contrastive, gathered": {
        "criterion": Contrastive,
        "criterion__learns": True,
        **GATHER,
    },
    "Dice, gathered, BatchNorm": {"criterion": Dice, "module__norm": True, **SGD, **GATHER},
    "Dice, gathered, weighted": {"criterion": Dice, "weighted": True, **GATHER},
    "contrastive, gathered, few rows": {
        "criterion": Contrastive,
        "batch_size": 7,
        "rows": 15,
        **GATHER,
    },
    "experts, gathered": {"module": Experts, "criterion": Contrastive, **GATHER},
    "AdaDamp, weighted": {"batch_size": AdaDamp(initial=8, dwell=2), "weighted": True},
    "mean loss, gathered": {"ignored": True, "criterion__weight": WEIGHT, **GATHER},
}


@pytest.mark.parametrize("name", EQUAL)
def test_ranks_compute_what_one_process_does(name, client):
    expected, here = fitted(**EQUAL[name])
    for ranks in (1, 2):
        found, net = fitted(client, ranks, **EQUAL[name])
        assert set(net.updates_frame()["ranks"]) == {ranks}
        torch.testing.assert_close(found, expected, **EXACT)
        losses = [one.updates_frame()["loss"].to_numpy() for one in (net, here)]
        np.testing.assert_allclose(*losses, rtol=1e-12)


COUPLED = {
    "contrastive": ({"criterion": Contrastive}, r'couples_rows="gather"'),
    "Dice": ({"criterion": Dice}, r'couples_rows="gather"'),
    "statistics in forward": ({"module": Centered}, "GroupNorm"),
    "statistics in forward, gathered": ({"module": Centered, **GATHER}, "cannot help inside"),
}


@pytest.mark.parametrize("name", COUPLED)
def test_coupled_rows_are_refused_on_two_ranks_before_training(name, client):
    params, remedy = COUPLED[name]
    expected, _ = fitted(**params)
    found, _ = fitted(client, 1, **params)
    torch.testing.assert_close(found, expected, **EXACT)  # one rank divides nothing
    net = net_of(client, 2, **params).initialize()
    before = [p.detach().clone() for p in net.module_.parameters()]
    generator = torch.get_rng_state()
    with pytest.raises(UnsupportedError, match=remedy):
        net.partial_fit(*problem())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(map(torch.equal, net.module_.parameters(), before))
    assert len(net.updates_frame()) == 0


class NormedExpert(nn.Module):
    """BatchNorm in a layer that only some rows need: its statistics are those of all ranks."""

    def __init__(self, limit=1.0):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(4, 3)
        self.norm, self.after, self.limit = nn.BatchNorm1d(4), nn.BatchNorm1d(3), limit
        self.double()

    def forward(self, x):
        found, rows = self.first(x), x[:, 0] > self.limit
        if rows.any():
            found = found.index_add(0, rows.nonzero()[:, 0], self.last(self.norm(x[rows])))
        return self.after(found)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_batchnorm_in_layers_that_ranks_skip_differently_is_that_of_all_rows(ranks, client):
    """Two rows of eight need the layer: the first and the third, or the second and the fourth."""
    X, y = problem(48)
    place = np.arange(48) % 16
    X[:, 0] = np.where(np.isin(place, [0, 2, 9, 11]), 2.0, -1.0)
    params = {"module": NormedExpert, "batch_size": 8, "iterator_train__shuffle": False, **SGD}
    alone = net_of(**params).fit(X, y)
    net = net_of(client, ranks, **params).fit(X, y)
    assert set(net.updates_frame()["ranks"]) == {ranks}
    found, expected = (list(one.module_.state_dict().values()) for one in (net, alone))
    torch.testing.assert_close(found, expected, **EXACT)
    assert net.module_.norm.num_batches_tracked == 12


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, X, y):
        self.X, self.y = X, y

    def __iter__(self):
        return zip(self.X, self.y, strict=True)


def test_the_rows_of_a_stream_are_looked_at_by_the_ranks(client):
    stream = Stream(*problem())
    with pytest.raises(UnsupportedError, match=r'couples_rows="gather"'):
        net_of(client, 2, criterion=Contrastive).fit(stream, None)
    net_of(client, 2, max_epochs=1).fit(stream, None)


def test_a_user_who_knows_better_is_believed(client):
    fitted(client, 2, criterion=Contrastive, couples_rows=False, max_epochs=1)
    fitted(criterion=Contrastive, couples_rows=False, micro_batch_size=5, max_epochs=1)


@pytest.mark.parametrize("module", [Body, Centered])
def test_micro_batches_do_not_divide_coupled_rows(module):
    params = {"module": module, "rows": 200, "batch_size": 100, "max_epochs": 1}
    whole, _ = fitted(micro_batch_size=None, **params)
    found, net = fitted(micro_batch_size="auto", **params)
    torch.testing.assert_close(found, whole, **EXACT)
    assert net._state_.micro_batch.whole == (module is Centered)
    if module is Centered:
        with pytest.raises(UnsupportedError, match="micro_batch_size=7 divides a batch"):
            fitted(micro_batch_size=7, **params)
        with pytest.raises(UnsupportedError, match="A monitor compares"):
            fitted(monitors=[GradientNoiseScale()], **params)


REFUSED = {
    "micro-batches": ({"micro_batch_size": 5}, "micro_batch_size=5 divides it"),
    "averaging": ({"sync": PeriodicAveraging(2), "virtual_ranks": 2}, "its own batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_gathering_cannot_be_combined_with(name):
    params, why = REFUSED[name]
    with pytest.raises(UnsupportedError, match=why):
        net_of(**GATHER, **params).fit(*problem())
    with pytest.raises(ValueError, match="couples_rows"):
        net_of(couples_rows="yes").fit(*problem())


def test_what_looks_at_parts_cannot_be_gathered(client):
    for params, why in (
        ({"batch_size": AdaDamp(initial=8)}, "Use RadaDamp"),
        ({"monitors": [GradientNoiseScale()]}, "Leave the monitor"),
    ):
        with pytest.raises(UnsupportedError, match=why):
            net_of(client, 2, criterion=Dice, **GATHER, **params).fit(*problem())


def test_gathering_works_with_codecs_and_virtual_ranks_and_policies(client):
    expected, _ = fitted(criterion=Dice, **GATHER)
    for params in ({"virtual_ranks": 2, "batch_size": 6}, {"micro_batch_size": None}):
        torch.testing.assert_close(fitted(criterion=Dice, **GATHER, **params)[0], expected, **EXACT)
    sizes = RadaDamp(initial=5, memory=0.5)
    expected, _ = fitted(criterion=Dice, batch_size=sizes, **GATHER)
    found, _ = fitted(client, 2, criterion=Dice, batch_size=sizes, **GATHER)
    torch.testing.assert_close(found, expected, **EXACT)
    fitted(client, 2, criterion=Dice, compression=QSGD(), max_epochs=1, **GATHER)
    fitted(client, 2, module=Experts, compression=ErrorFeedback(TopK(0.5)), max_epochs=1)


class Words(nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        self.words = nn.Embedding(20, 3, sparse=sparse)

    def forward(self, x):
        return self.words((x[:, 0].abs() * 5).long())


@pytest.mark.parametrize(
    "params", [{"optimizer": torch.optim.SparseAdam}, SGD], ids=["Adam", "SGD"]
)
def test_sparse_gradients_train_here_and_are_refused_elsewhere(params, client):
    params = {**params, "module": Words}
    fitted(**params)
    fitted(**params, micro_batch_size=5)
    for more in ({"client": client}, {"compression": QSGD()}):
        with pytest.raises(UnsupportedError, match="sparse"):
            net_of(**{**params, **more}).fit(*problem())


def test_adadamp_follows_the_weighted_loss():
    """With all the weight on a few rows, the batch follows the loss of those."""
    X, y = problem()
    weights = np.where(np.arange(50) < 5, 1.0, 1e-9)
    params = {"batch_size": AdaDamp(initial=4, dwell=1), "lr": 0.05, "max_epochs": 4}
    weighted = net_of(**params).fit(X, y, sample_weight=weights)
    plain = net_of(**params).fit(X, y)
    sizes = [one.updates_frame()["batch_size"].max() for one in (weighted, plain)]
    assert sizes[0] > 2 * sizes[1]
