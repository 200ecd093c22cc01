"""Training with every strategy of ``sync=``. A new one adds one row.

``tests/contracts/test_strategies.py`` has the invariants of their decisions.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback, LRScheduler
from torch import nn

from accelerando.batch_size import AdaDamp
from accelerando.exceptions import NotFiniteError
from accelerando.monitor import ParameterSpread
from accelerando.policies import Decision
from accelerando.sync import (
    AdaptiveAveraging,
    AllReduce,
    Average,
    DecreasingAveraging,
    ElasticAveraging,
    ModelAveraging,
    OuterOptimizer,
    PeriodicAveraging,
    Pull,
    ring_bytes,
)
from accelerando.sync._make import as_strategy
from tests.nets import (
    Items,
    ScaledLoss,
    TwoInputs,
    classifier,
    parameters_of,
    regressor,
)

RANKS = 4
STRATEGIES = {
    "periodic": PeriodicAveraging(3),
    "periodic, momentum averaged": PeriodicAveraging(3, optimizer_state="average"),
    "periodic, momentum reset": PeriodicAveraging(3, optimizer_state="reset"),
    "adaptive": AdaptiveAveraging(2, sample=0.4),
    "decreasing": DecreasingAveraging(6, every_epochs=1),
    "model": ModelAveraging(RANKS, momentum=0.3),
    "model, now and then": ModelAveraging(RANKS, momentum=0.0, correction=0.5, period=3),
    "elastic": ElasticAveraging(period=3, beta=0.8),
    "outer": OuterOptimizer(inner_steps=3, lr=0.8, momentum=0.5),
}
EVERY = pytest.mark.parametrize("name", STRATEGIES)


def ranks(sync, **params):
    settings = {
        "batch_size": 20,
        "virtual_ranks": RANKS,
        "optimizer__momentum": 0.9,
        "lr": 0.02,
        "module__norm": True,
        "module__dropout": 0.2,
        "max_epochs": 3,
        **params,
    }
    return classifier(sync=sync, **settings)


class Rows(torch.utils.data.IterableDataset):
    def __init__(self, X, y):
        self.X, self.y = X, y

    def __iter__(self):
        return iter(zip(self.X, self.y, strict=True))


class At(Callback):
    """Do something after a given update."""

    def __init__(self, update, action):
        self.update = update
        self.action = action

    def on_batch_end(self, net, training=None, **kwargs):
        if training and net.position_.update == self.update:
            self.action(net)


# -- decisions ------------------------------------------------------------------------------------


def test_the_number_of_updates_is_foreseen_by_every_update(digits):
    asked = []

    class Asking(AdaptiveAveraging):
        def next_period(self, signals, state):
            asked.append(signals)
            return super().next_period(signals, state)

    net = ranks(Asking(), max_epochs=2).fit(*digits)
    assert {signals.total_updates for signals in asked} == {len(net.updates_frame())}
    assert [signals.update for signals in asked] == list(range(len(asked)))


# -- training -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {"optimizer__momentum": 0.0},
        {"optimizer__momentum": 0.9, "optimizer__nesterov": True, "optimizer__weight_decay": 0.01},
        {"criterion": ScaledLoss, "optimizer__momentum": 0.5},
    ],
    ids=["plain", "nesterov", "a criterion with parameters"],
)
def test_period_1_with_sgd_is_all_reduce(params, digits):
    """Also where the last batch is short, and not all ranks have as many rows of it."""
    settings = {"module__norm": False, "module__dropout": 0.0, **params}
    one = classifier(batch_size=80, lr=0.02, **{**settings, "max_epochs": 3}).fit(*digits)
    averaged = ranks(PeriodicAveraging(1), **settings).fit(*digits)
    reduced = ranks(None, **settings).fit(*digits)
    torch.testing.assert_close(parameters_of(averaged), parameters_of(one), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(parameters_of(reduced), parameters_of(one), rtol=0, atol=0)
    assert averaged.updates_frame()["loss"].to_numpy() == pytest.approx(
        one.updates_frame()["loss"].to_numpy(), rel=1e-3
    )


@pytest.mark.parametrize("kind", ["weights", "two inputs", "data set", "stream", "drop last"])
def test_every_kind_of_data_is_divided(kind, digits):
    X, y = digits[0][:230], digits[1][:230]
    settings = {"module__norm": False, "module__dropout": 0.0, "train_split": None, "max_epochs": 2}
    extra, data = {}, (X, y)
    if kind == "weights":
        extra = {"sample_weight": [1.0 + row % 3 for row in range(len(X))]}
    elif kind == "two inputs":
        data = ({"left": X[:, :32].copy(), "right": X[:, 32:].copy()}, y)
        settings = {"module": TwoInputs, "train_split": None, "max_epochs": 2}
    elif kind == "data set":
        data = (Items(X, y), None)
    elif kind == "stream":
        data = (Rows(X, y), None)
    else:
        settings["iterator_train__drop_last"] = True
    several = {"batch_size": 20, "virtual_ranks": RANKS, "sync": PeriodicAveraging(1)}
    momentum = {"optimizer__momentum": 0.9, "lr": 0.02}
    averaged = classifier(**settings, **momentum, **several).fit(*data, **extra)
    one = classifier(**settings, **momentum, batch_size=80).fit(*data, **extra)
    torch.testing.assert_close(parameters_of(averaged), parameters_of(one), rtol=1e-4, atol=2e-5)


def test_rows_left_over_count_as_much_as_the_others(line):
    X, y = line[0][:118], line[1][:118]  # 4 ranks of 10: two updates of 40, then 38
    averaged = regressor(batch_size=10, virtual_ranks=4, sync=PeriodicAveraging(1)).fit(X, y)
    one = regressor(batch_size=40).fit(X, y)
    torch.testing.assert_close(parameters_of(averaged), parameters_of(one), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "name", [name for name, row in STRATEGIES.items() if not isinstance(row.rule(RANKS), Pull)]
)
def test_all_ranks_are_one_after_an_average(name, digits):
    strategy = STRATEGIES[name]
    between, averaged = [], []

    class Look(Callback):
        def on_batch_end(self, net, training=None, **kwargs):
            if training:
                first, *others = [
                    torch.cat([t.flatten() for t in r]) for r in net._state_.replicas.tensors
                ]
                same = all(torch.equal(first, other) for other in others)
                (between if net._state_.averaging.since else averaged).append(same)

    net = ranks(strategy, callbacks=[Look()]).fit(*digits)
    assert all(averaged)
    assert not any(between)
    assert len(averaged) == net.updates_frame()["averagings"].iloc[-1] > 0


@EVERY
def test_the_estimator_holds_the_average(name, digits):
    net = ranks(STRATEGIES[name]).fit(*digits)
    replicas = net._state_.replicas
    numbers = replicas.flat.numbers
    means = [torch.stack([rank[n] for rank in replicas.tensors]).mean(0) for n in numbers]
    shown = [
        *net.module_.parameters(),
        *(b for b in net.module_.buffers() if b.is_floating_point()),
    ]
    pulled = isinstance(net._pieces_[1].rule(RANKS), Pull)
    if pulled:
        center = replicas.flat.unflatten(replicas.center)
        expected = [*center, *means[len(center) :]]
    elif net._state_.averaging.since == 0:
        expected = [replicas.tensors[0][n] for n in numbers]
    else:
        expected = means
    for one, other in zip(shown, expected, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=1e-5, atol=1e-6)
    assert net.score(*digits) > 0.3


def test_the_spread_is_the_one_of_the_definition(line):
    seen = []

    class Look(Callback):
        def on_batch_end(self, net, training=None, **kwargs):
            if net._state_.averaging.since == 1:
                stacked = torch.stack(
                    [torch.cat([t.flatten() for t in r]) for r in net._state_.replicas.tensors]
                )
                seen.append(float(((stacked - stacked.mean(0)) ** 2).sum(1).mean()))

    watch = ParameterSpread(every=1)
    settings = {"virtual_ranks": 4, "sync": PeriodicAveraging(2), "batch_size": 5}
    net = regressor(monitors=[watch], callbacks=[Look()], max_epochs=1, **settings).fit(*line)
    frame = net.updates_frame()
    assert frame["parameter_spread"][::2].to_numpy() == pytest.approx(seen, rel=1e-4)
    assert frame["spread"].notna().tolist() == [False, True] * 3
    assert (frame["spread"] == frame["parameter_spread"])[1::2].all()


@EVERY
def test_bytes_are_those_of_a_ring(name, digits):
    strategy = STRATEGIES[name]
    frame = ranks(strategy).fit(*digits).updates_frame()
    parameters = 64 * 32 + 32 + 2 * 32 + 32 * 10 + 10
    statistics = 2 * 32  # running mean and variance
    numbers = 4 * (parameters + statistics)
    if strategy.rule(RANKS) == Average("average"):
        numbers += 4 * parameters  # SGD's momentum
    averaged = frame["spread"].notna()
    assert averaged.any()
    assert (frame["bytes"][averaged] == ring_bytes(numbers + 8, RANKS)).all()
    assert (frame["bytes"][~averaged] == 0).all()
    assert frame["averagings"].tolist() == averaged.cumsum().tolist()


def test_bytes_of_virtual_ranks_that_average_gradients(line):
    frame = regressor(virtual_ranks=3, max_epochs=1).fit(*line).updates_frame()
    assert set(frame["bytes"]) == {2 * 2 * 4 * 4}
    assert set(frame["ranks"]) == {3}
    assert frame["batch_size"].tolist() == [48, 48, 24]


@pytest.mark.parametrize("way", [torch.Tensor.detach, lambda tensor: tensor.data])
def test_parameters_that_a_callback_changes_reach_all_ranks(way, digits):
    class Zero(Callback):
        def on_epoch_end(self, net, **kwargs):
            for parameter in net.module_.parameters():
                way(parameter).zero_()

    net = ranks(PeriodicAveraging(50), callbacks=[Zero()], lr=1e-12, max_epochs=2).fit(*digits)
    assert all(float(t.abs().max()) < 1e-6 for r in net._state_.replicas.tensors for t in r[:6])


def test_momentum_at_an_average(line):
    def remembered(how):
        strategy = PeriodicAveraging(1, optimizer_state=how)
        settings = {"optimizer__momentum": 0.9, "batch_size": 10, "virtual_ranks": 3}
        net = regressor(sync=strategy, max_epochs=1, **settings).fit(*line)
        return [
            [m.get("momentum_buffer") for m in memory[0]]
            for memory in net._state_.replicas.optimizer_state
        ]

    kept, averaged, reset = (remembered(how) for how in ("keep", "average", "reset"))
    assert not torch.equal(kept[0][0], kept[1][0])
    assert torch.equal(averaged[0][0], averaged[1][0])
    torch.testing.assert_close(averaged[0][0], sum(rank[0] for rank in kept) / 3)
    assert reset == [[None, None]] * 3


def test_outer_steps_of_length_one_are_averages(digits):
    plain = ranks(PeriodicAveraging(3)).fit(*digits)
    outer = ranks(OuterOptimizer(3, lr=1.0, momentum=0.0)).fit(*digits)
    torch.testing.assert_close(parameters_of(outer), parameters_of(plain), rtol=1e-3, atol=1e-4)


def test_the_rules_by_hand():
    """One parameter, two ranks, gradients of 1 and 3, whatever the parameter is."""

    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1, 1))

        def forward(self, x):
            return x @ self.w

    class Linear(nn.Module):
        def forward(self, y_pred, y):
            return y_pred.mean()

    X = torch.tensor([[1.0], [3.0]] * 3)
    settings = {
        "criterion": Linear,
        "iterator_train__shuffle": False,
        "batch_size": 1,
        "virtual_ranks": 2,
        "lr": 1.0,
        "max_epochs": 1,
    }

    def trained(strategy):
        net = regressor(One, sync=strategy, **settings).fit(X, torch.zeros(6, 1))
        return net.module_.w.item(), [float(rank[0]) for rank in net._state_.replicas.tensors]

    # Update 1: ranks at -1, -3. Update 2 corrects by where they were before it: by -½ and -1½, to
    # -1½, -4½, and the center goes to -2. Update 3: by ¼ and -1¼ to -2¾, -6¼; the center to -3,
    # and with momentum by half of its last step, too.
    assert trained(ModelAveraging(2, momentum=0.5)) == (-4.0, [-2.75, -6.25])
    # The same with β = 1 and no momentum.
    assert trained(ElasticAveraging(1, beta=1.0)) == (-3.0, [-2.75, -6.25])
    # In update 3 for the first time; ranks at -2, -6 by then.
    assert trained(ElasticAveraging(2, beta=0.5)) == (-2.0, [-2.5, -7.5])
    # Update 1: Δ = 2, v = 2, z = -0.5 (2 + 0.5 · 2) = -1.5. Update 2: mean -3.5, Δ = 2, v = 3,
    # z = -1.5 - 0.5 (2 + 1.5) = -3.25. Update 3: Δ = 2, v = 3.5, z = -3.25 - 0.5 (2 + 1.75).
    assert trained(OuterOptimizer(1, lr=0.5, momentum=0.5)) == (-5.125, [-5.125, -5.125])
    assert trained(PeriodicAveraging(2)) == (-6.0, [-5.0, -7.0])


@pytest.mark.parametrize(("factor", "same_model"), [(0.5, True), (0.6, False)])
def test_replicas_begin_anew_when_the_rate_falls(digits, factor, same_model):
    fall = LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=factor)
    whole = {"batch_size": len(digits[0]), "max_epochs": 3, "train_split": None}  # one update each
    net = ranks(ModelAveraging(RANKS), callbacks=[fall], **whole).fit(*digits)
    replicas = net._state_.replicas
    for parameters, *_ in replicas.flatten():
        same = torch.equal(parameters, *replicas.center)
        assert same == same_model


def test_predictions_reach_callbacks_in_the_order_of_the_rows(digits):
    from skorch.callbacks import EpochScoring

    scoring = EpochScoring("accuracy", on_train=True, lower_is_better=False, name="train_acc")
    net = ranks(PeriodicAveraging(2), callbacks=[scoring], max_epochs=8).fit(*digits)
    assert net.history_frame()["train_acc"].iloc[-1] > 0.6


def test_policies_see_and_set_the_period(digits):
    seen = []

    def lengthen(signals):
        seen.append(signals.period)
        return Decision(period=4) if signals.update == 3 else None

    net = ranks(PeriodicAveraging(2), policies=[lengthen], max_epochs=2).fit(*digits)
    assert net.updates_frame()["period"].tolist() == [2, 2, 2] + [4] * 9
    assert seen[:6] == [2.0] * 4 + [4.0] * 2
    assert net.updates_frame()["spread"].notna().to_numpy().nonzero()[0].tolist() == [1, 5, 9]


def test_a_policy_that_measures_measures_the_average(digits):
    policy = AdaDamp(10, dwell=1)
    net = ranks(PeriodicAveraging(4), batch_size=policy, max_epochs=2).fit(*digits)
    assert net.updates_frame()["batch_size"].iloc[0] == 40
    assert net.updates_frame()["batch_size"].iloc[-2] > 40


def test_sync_parameters_and_strategies_of_ones_own(digits):
    net = ranks(PeriodicAveraging, sync__period=2, max_epochs=1)
    assert net._strategy() == PeriodicAveraging(2)
    net.fit(*digits).set_params(sync__period=5).partial_fit(*digits)
    assert net.updates_frame()["period"].tolist() == [2.0] * 6 + [5.0] * 6
    assert as_strategy(None) == AllReduce()
    net.set_params(sync=None).partial_fit(*digits)
    assert "period" not in net.updates_frame().columns


def test_a_loss_that_is_not_finite_leaves_the_last_average(line):
    X, y = line[0].copy(), line[1].copy()
    y[60] = np.finfo(y.dtype).max  # its square is infinite
    net = regressor(batch_size=5, virtual_ranks=4, sync=PeriodicAveraging(2), random_state=3)
    with pytest.raises(NotFiniteError, match=r"holds the average of update \d+, the last one"):
        net.fit(X, y)
    assert torch.isfinite(parameters_of(net)).all()
    net.partial_fit(line[0], line[1])  # goes on from it
    assert torch.isfinite(parameters_of(net)).all()
