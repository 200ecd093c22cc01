"""The third set of what nobody has planned for, by the rules of test_unlisted.py."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from skorch.callbacks import Callback
from torch import nn
from torch.utils.data import Dataset

from accelerando import NeuralNetClassifier
from accelerando.exceptions import UnsupportedError
from tests.contracts.test_unlisted import (
    BN,
    AdamNet,
    Net,
    X,
    Y,
    assert_equal,
    change,
    loss_of,
    net_of,
    setting,
    sgd,
)

# -- changes --------------------------------------------------------------------------------------


class Scaled(Net):
    """It reads what somebody has attached to a parameter."""

    def forward(self, x):
        return super().forward(x) * getattr(self.first.weight, "scale", 1.0)


class Attach(Callback):
    """The second time together with a new layer; then the attribute goes."""

    def on_epoch_end(self, net, **kwargs):
        module = net.module_
        if len(net.history) == 3:
            del module.first.weight.scale
            return
        module.first.weight.scale = 1.0 + len(net.history)
        if len(net.history) == 2:
            module.more = nn.Linear(2, 2).double()
            net.optimizer_.add_param_group({"params": list(module.more.parameters())})


class Annealed(Callback):
    """It reads the history of the net, and an attribute that it sets there."""

    def on_epoch_begin(self, net, **kwargs):
        net.strength_ = 1.0 / len(net.history)

    def on_grad_computed(self, net, named_parameters, **kwargs):
        batches = net.history[-1, "batches"]
        before = batches[-2]["train_loss"] if len(batches) > 1 else 2.0
        for _, p in named_parameters:
            p.grad.mul_(net.strength_ * before * len(batches) / len(net.history))


def forget_statistics(net):
    net.module_.norm.running_mean = net.module_.norm.running_var = None


def amsgrad(net):
    net.optimizer_.param_groups[0].update(amsgrad=True, foreach=False)
    for state in net.optimizer_.state.values():
        state["max_exp_avg_sq"] = state["exp_avg_sq"].clone()


def old_weight_norm(net):
    torch.nn.utils.weight_norm(net.module_.first)
    sgd(net)


class OwnWeights(nn.Module):
    """Equal weights are a mean over rows; others divide by what is in the batch."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.ones(2).double())

    def forward(self, p, y):
        return F.cross_entropy(p, y, weight=self.weights)


class Reading(NeuralNetClassifier):
    """Its loss reads where the run is, as a schedule of a penalty does."""

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        loss = super().get_loss(y_pred, y_true, *args, **kwargs)
        batches = len(self.history[-1, "batches"])
        return loss * batches / (1 + self.position_.update) / len(self.history)


class Counting(NeuralNetClassifier):
    """It counts by itself: on one rank only, since the rows of others are not counted."""

    calls = 0

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        self.calls += 1
        return super().get_loss(y_pred, y_true, *args, **kwargs) / self.calls


EQUAL = {
    "a loss that reads the position": {"kind": Reading},
    "attributes of a parameter": {
        "module": Scaled, "callbacks": [Attach()], "max_epochs": 4,
    },
    "a callback that reads the history": {"callbacks": [Annealed()]},
    "BatchNorm stops to remember": change(
        setting("module_.norm.track_running_stats", False), module__norm=BN
    ),
    "BatchNorm forgets": change(forget_statistics, module__norm=BN),
    "AMSGrad": change(amsgrad, kind=AdamNet),
    "the old weight norm": change(old_weight_norm),
    "learning rate that is a tensor": change(
        lambda net: net.optimizer_.param_groups[0].update(lr=torch.tensor(0.02)), kind=AdamNet
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", EQUAL)
def test_a_change_is_the_same_on_ranks(name, client):
    assert_equal(
        lambda where, ranks: net_of(where, ranks, **EQUAL[name]),
        lambda net: net.fit(X, Y),
        client,
    )


def test_a_callback_reads_the_history_of_an_epoch_that_another_rank_began(client, tmp_path):
    params = {"callbacks": [Annealed()], "max_epochs": 2}
    alone = net_of(None, 0, **params).fit(X, Y)
    folder = {"checkpoint": tmp_path, "checkpoint_every": 1, "checkpoint_keep": 99}
    net_of(client, 2, **params, **folder).fit(X, Y)
    for path in tmp_path.glob("state-*.pt"):
        net = net_of(client, 1, **params).initialize().load_state(path)
        if net.position_.update == 5:
            net.partial_fit(X, Y)
            for mine, other in zip(
                net.module_.parameters(), alone.module_.parameters(), strict=True
            ):
                torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)
            return
    raise AssertionError("no checkpoint inside the second epoch")


# -- refusals -------------------------------------------------------------------------------------


class Detached(Net):
    def forward(self, x):
        return super().forward(x).detach()


class ManyRows(Net):
    """The number of rows decides, as it does about the way of an attention."""

    def forward(self, x):
        return super().forward(x) * (1.0 if len(x) > 12 else 0.5)


class ShortWords(nn.Module):
    """It shortens the words that it looks up, as ``nn.Embedding(max_norm=1)`` does."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Parameter(3 * torch.ones(10, 4)), nn.Linear(24, 2)
        self.double()

    def forward(self, x):
        number = (x.abs() * 3).long() % 10
        return self.last(F.embedding(number, self.words, max_norm=1.0).flatten(1))


class Frequent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4, scale_grad_by_freq=True)
        self.last = nn.Linear(24, 2)
        self.double()

    def forward(self, x):
        return self.last(self.words((x.abs() * 3).long() % 10).flatten(1))


class Initialized(Net):
    """The first batch decides about the scale of the inputs."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6).double())
        self.register_buffer("is_set", torch.tensor(False))

    def forward(self, x):
        if self.training and not self.is_set:
            with torch.no_grad():
                self.scale.copy_(1 / (x.std(0) + 0.001))
                self.is_set.fill_(True)
        return super().forward(x * self.scale)


class ReadsBatch(Callback):
    def on_grad_computed(self, net, named_parameters, batch, **kwargs):
        for _, p in named_parameters:
            p.grad.mul_(1.0 + batch[0].mean())


def balanced(p, y):
    count = torch.bincount(y, minlength=2).double().clamp(min=1.0)
    return F.cross_entropy(p, y, weight=len(y) / count)


def focal(p, y):
    rows = F.cross_entropy(p, y, reduction="none")
    weight = (1 - torch.exp(-rows)) ** 2
    return (weight * rows).sum() / weight.sum()


def two_losses(p, y):
    return F.cross_entropy(p, y), 0.0


class Penalized(NeuralNetClassifier):
    """The norm of the gradient of a batch is no mean over its rows."""

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        loss = super().get_loss(y_pred, y_true, *args, **kwargs)
        found = torch.autograd.grad(loss, list(self.module_.parameters()), create_graph=True)
        return loss + 0.1 * sum(one.square().sum() for one in found)


class Keeps(Dataset):
    """Rows are augmented once, by the process that reads them first."""

    def __init__(self):
        self.kept = {}

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        if number not in self.kept:
            self.kept[number] = X[number] + np.random.normal(size=6)
        return self.kept[number], Y[number]


NOWHERE = {
    "nothing to learn": (change(lambda net: net.module_.requires_grad_(False)), "no parameter", 3),
    "a loss without a graph": ({"module": Detached}, "depends on no parameter", 0),
    "two losses": (loss_of(two_losses), "The loss is a tuple", 0),
}
ON_TWO = {
    "the number of rows": ({"module": ManyRows}, "other rows"),
    "words that are shortened": ({"module": ShortWords}, "remembers something"),
    "gradients by frequency": ({"module": Frequent}, "the loss of a row depends"),
    "the first batch decides": ({"module": Initialized}, "remembers something"),
    "a callback that reads the batch": ({"callbacks": [ReadsBatch()]}, "reads the batch"),
    "classes balanced by batch": (loss_of(balanced), "couples_rows"),
    "focal weights that add up to one": (loss_of(focal), "couples_rows"),
    "the norm of the gradient": ({"kind": Penalized}, "couples_rows"),
}


@pytest.mark.parametrize("ranks", [0, 1, 2])
@pytest.mark.parametrize("name", NOWHERE)
def test_what_nobody_can_train_is_refused_everywhere(name, ranks, client):
    params, words, updates = NOWHERE[name]
    net = net_of(client if ranks else None, ranks, **params)
    with pytest.raises(UnsupportedError, match=words):
        net.fit(X, Y)
    assert net.position_.update == updates


@pytest.mark.parametrize("name", ON_TWO)
def test_what_depends_on_the_rows_of_a_rank_is_refused(name, client):
    params, words = ON_TWO[name]
    net = net_of(client, 2, **params)
    with pytest.raises(UnsupportedError, match=words):
        net.fit(X, Y)
    assert net.position_.update == 0
    if name == "a callback that reads the batch":
        assert_equal_on_one_rank(params, client)


def test_class_weights_of_a_criterion_that_change_are_looked_at(client):
    unequal = change(lambda net: net.criterion_.weights.copy_(torch.tensor([0.2, 1.8])))
    net = net_of(client, 2, criterion=OwnWeights, **unequal)
    with pytest.raises(UnsupportedError, match="couples_rows"):
        net.fit(X, Y)
    assert net.position_.update == 3
    assert_equal_on_one_rank({"criterion": OwnWeights, **unequal}, client)


def test_an_estimator_that_counts_is_the_same_on_one_rank(client):
    assert_equal_on_one_rank({"kind": Counting}, client)
    with pytest.raises(UnsupportedError, match="couples_rows"):
        net_of(client, 2, kind=Counting).fit(X, Y)


class CountsInModule(NeuralNetClassifier):
    """It counts in the module, whose attributes come back."""

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        self.module_.calls = getattr(self.module_, "calls", 0) + self.module_.training
        return super().get_loss(y_pred, y_true, *args, **kwargs)


def test_what_an_estimator_counts_stays_on_the_rank_unless_the_module_keeps_it(client):
    net = net_of(client, 1, kind=Counting).fit(X, Y)
    assert net.calls == 0
    there, here = (net_of(*where, kind=CountsInModule) for where in ((client, 1), (None, 0)))
    for one in (there, here):
        one.fit(X, Y).partial_fit(X, Y)
    assert there.module_.calls == here.module_.calls >= 18


def test_rows_that_keep_their_augmentation_are_refused(client):
    net = net_of(client, 1)
    with pytest.raises(UnsupportedError, match="keeps what it drew"):
        net.fit(Keeps(), None)
    assert net.position_.update == 0
    net_of(None, 0).fit(Keeps(), None)


def assert_equal_on_one_rank(params, client):
    alone, rank = (net_of(*where, **params).fit(X, Y) for where in ((None, 0), (client, 1)))
    for mine, other in zip(rank.module_.parameters(), alone.module_.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_a_trial_changes_no_parameter():
    """The look at the rows evaluates a module that writes to its parameters."""
    net = net_of(None, 0, module=ShortWords, micro_batch_size="auto")
    net.initialize()
    before = net.module_.words.detach().clone()
    from accelerando._engine.trial import changed_by_forward
    from accelerando.estimators._skorch import SkorchModel

    assert changed_by_forward(SkorchModel(net, {}), torch.as_tensor(X[:4])) is None
    assert torch.equal(net.module_.words, before)
