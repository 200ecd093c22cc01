"""Monitors and policies in this process: what is seen is true, what is decided is done."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from accelerando.batch_size import GeoDamp, RadaDamp
from accelerando.compress import TernGrad
from accelerando.exceptions import UnknownSignalError, UnsupportedError
from accelerando.monitor import (
    CommunicationTime,
    GradientDiversity,
    GradientNoiseScale,
    GradientVariance,
    LossTrend,
    Monitor,
    ParameterSpread,
    Throughput,
)
from accelerando.policies import (
    Decision,
    Every,
    LinearScaling,
    NoiseScale,
    NormTest,
    PlateauPolicy,
    replay,
)
from tests.contracts.test_batch_size import StopAfter
from tests.nets import classifier, parameters_of, regressor

ALL = [
    GradientNoiseScale(every=2),
    GradientVariance(),
    GradientDiversity(),
    LossTrend(),
    Throughput(),
    CommunicationTime(),
]


def test_monitors_change_nothing_and_are_columns_of_the_frame(digits):
    plain = classifier().fit(*digits)
    watched = classifier(monitors=ALL).fit(*digits)
    torch.testing.assert_close(parameters_of(watched), parameters_of(plain), rtol=1e-5, atol=1e-6)
    frame = watched.updates_frame()
    for monitor in ALL:
        for name in monitor.signals:
            assert np.isfinite(frame[name].iloc[-1]), name
    assert (frame["communication_seconds"] == 0).all()
    always = list(plain.updates_frame().columns)
    assert always == list(frame.columns[: len(always)])


class Still(nn.Module):
    """A linear model; with lr=0 every update sees the same parameters."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(x)


def per_row_gradients(net, X, y):
    error = 2 * (net.module_(torch.from_numpy(X)).detach() - torch.from_numpy(y))
    return torch.cat([error * torch.from_numpy(X), error], dim=1).double()


@pytest.mark.parametrize(
    "settings",
    [
        {},  # halves
        {"micro_batch_size": 5},  # micro-batches that are there anyway, the last one shorter
        {"criterion__reduction": "sum"},
    ],
)
def test_the_noise_scale_of_training_is_the_exact_one(settings, line):
    X, y = line
    monitors = [GradientNoiseScale(every=1), GradientVariance(memory=1e6)]
    net = regressor(
        Still, lr=0.0, batch_size=24, max_epochs=200, monitors=monitors, **settings
    ).fit(X, y)
    rows = per_row_gradients(net, X, y)
    mean = rows.mean(dim=0)
    variance = float(((rows - mean) ** 2).sum() / (len(rows) - 1))
    last = net.updates_frame().iloc[-1]
    assert last["gradient_variance"] == pytest.approx(variance, rel=0.05)
    assert last["noise_scale"] == pytest.approx(variance / float(mean.dot(mean)), rel=0.1)


def test_weights_and_ignored_targets_count_by_their_mass(digits):
    X, y = digits[0][:200], digits[1][:200].copy()
    y[::4] = -100
    monitors = [GradientVariance(memory=1e6)]
    half = classifier(
        lr=0.0, max_epochs=30, batch_size=40, train_split=None, monitors=monitors,
        micro_batch_size=20,
    ).fit(X, y)  # fmt: skip
    kept = y != -100
    full = classifier(
        lr=0.0, max_epochs=30, batch_size=30, train_split=None, monitors=monitors,
        micro_batch_size=15,
    ).fit(X[kept], y[kept])  # fmt: skip
    a, b = (net.updates_frame()["gradient_variance"].iloc[-1] for net in (half, full))
    # Rows of a batch count 40 where 30 have mass: the variance is that of a row of mean mass.
    assert a * 30 / 40 == pytest.approx(b, rel=0.1)


def test_decisions_are_carried_out_before_the_next_update(line):
    def decide(signals):
        if signals.update == 3:
            return Decision(batch_size=30, lr=0.01, momentum=0.5, workers=3)
        return Decision(lr=signals.lr * 2) if signals.update == 5 else None

    seen = []

    def watch(signals):
        seen.append((signals.update, signals.batch_size, signals.lr, signals.momentum))

    net = regressor(
        policies=[decide, watch], optimizer__momentum=0.9, batch_size=20, max_epochs=2
    ).fit(*line)
    frame = net.updates_frame()
    assert frame["batch_size"].tolist()[:5] == [20, 20, 20, 30, 30]
    assert frame["lr"].tolist()[:7] == pytest.approx([0.05] * 3 + [0.01] * 2 + [0.02] * 2)
    assert frame["workers"].fillna(0).tolist()[:5] == [0, 0, 0, 3, 3]
    assert seen[0] == (0, 20, 0.05, 0.9)
    assert seen[3] == (3, 30, 0.01, 0.5)
    assert net.optimizer_.param_groups[0]["momentum"] == 0.9
    assert net.optimizer_.param_groups[0]["lr"] == 0.05


def test_momentum_decided_is_momentum_used(line):
    low = regressor(policies=[lambda signals: Decision(momentum=0.0)], optimizer__momentum=0.9)
    none = regressor(optimizer__momentum=0.0)
    assert torch.equal(parameters_of(low.fit(*line)), parameters_of(none.fit(*line)))


def test_the_cap_damps_the_learning_rate_of_a_decision_too(line):
    net = regressor(
        policies=[lambda signals: Decision(batch_size=80)], max_batch_size=40, max_epochs=1
    ).fit(*line)
    assert net.updates_frame()["batch_size"].tolist() == [40, 40, 40]
    assert net.updates_frame()["lr"].tolist() == pytest.approx([0.025] * 3)


@pytest.mark.parametrize("how", ["instance", "class", "policies"])
def test_the_noise_scale_policy_grows_the_batch(how, digits):
    settings = {
        "instance": {"batch_size": NoiseScale(initial=16, dwell=5)},
        "class": {
            "batch_size": NoiseScale,
            "batch_size__initial": 16,
            "batch_size__dwell": 5,
        },
        "policies": {"batch_size": 16, "policies": [NoiseScale(dwell=5)]},
    }[how]
    net = classifier(monitors=[GradientNoiseScale(every=1)], max_epochs=6, **settings).fit(*digits)
    sizes = net.updates_frame()["batch_size"]
    assert sizes.iloc[0] == 16
    assert sizes.max() >= 64
    assert net.updates_frame().groupby("epoch")["batch_size"].sum().tolist() == [480] * 6


CONTINUED = {
    "noise scale and linear rate": {
        "batch_size": NoiseScale(initial=2, dwell=3, share=20.0),
        "policies": [LinearScaling()],
        "monitors": [GradientNoiseScale(every=1), LossTrend()],
    },
    "norm test": {
        "batch_size": NormTest(initial=2, dwell=3, theta=0.2),
        "monitors": [GradientNoiseScale(every=1)],
    },
    "plateau every epoch": {
        "batch_size": RadaDamp(initial=8),
        "policies": [Every(PlateauPolicy(patience=3, grow=1.5, decay=0.9), epochs=1)],
    },
}


@pytest.mark.parametrize("settings", CONTINUED.values(), ids=CONTINUED)
def test_an_interrupted_run_continues_exactly(settings, line, tmp_path):
    whole = regressor(max_epochs=4, **settings).fit(*line)
    broken = regressor(max_epochs=4, callbacks=[StopAfter(14)], **settings)
    broken.fit(*line)
    broken.save_state(tmp_path / "state.pt")
    resumed = regressor(max_epochs=4, **settings)
    resumed.load_state(tmp_path / "state.pt").partial_fit(*line)
    assert torch.equal(parameters_of(resumed), parameters_of(whole))
    clocks = ["seconds"]
    left, right = (net.updates_frame().drop(columns=clocks) for net in (resumed, whole))
    assert left.equals(right)
    assert whole.updates_frame()[["batch_size", "lr"]].nunique().max() > 1, "nothing was decided"


def test_other_monitors_start_without_a_memory(line, tmp_path):
    net = regressor(monitors=[LossTrend()], max_epochs=1).fit(*line)
    net.save_state(tmp_path / "state.pt")
    other = regressor(monitors=[GradientVariance()], max_epochs=1)
    with pytest.warns(UserWarning, match="other monitors or policies"):
        other.load_state(tmp_path / "state.pt")
    frame = other.partial_fit(*line).updates_frame()
    assert len(frame) == 16
    assert frame["gradient_variance"].isna().tolist()[:8] == [True] * 8
    net.set_params(monitors=[LossTrend(), Throughput()]).partial_fit(*line)
    frame = net.updates_frame()
    assert frame["examples_per_second"].isna().tolist() == [True] * 8 + [False] * 8
    assert frame["loss_trend"].iloc[1:8].notna().all()


def test_estimators_with_policies_are_cloned_and_pickled(line):
    net = regressor(policies=[NoiseScale()], monitors=[LossTrend()], max_epochs=1)
    for twin in (clone(net), pickle.loads(pickle.dumps(net.fit(*line)))):
        assert twin.policies == [NoiseScale()]
        assert twin.monitors == [LossTrend()]
    assert len(twin.partial_fit(*line).updates_frame()) == 16


def test_a_recorded_run_can_be_replayed(digits):
    settings = {"monitors": [GradientNoiseScale(every=1)], "max_epochs": 4}
    policy = NoiseScale(dwell=5)
    net = classifier(batch_size=16, policies=[policy], **settings).fit(*digits)
    replayed = replay([policy], net.updates_frame(), n_examples=480)
    first = net.updates_frame()["batch_size"].diff().ne(0).to_numpy().nonzero()[0][1]
    assert replayed["decided"].to_numpy().nonzero()[0][0] == first
    assert replayed["batch_size"].iloc[first] == net.updates_frame()["batch_size"].iloc[first]


# -- errors -------------------------------------------------------------------------------------


def test_an_unknown_signal_is_an_error_with_the_known_ones(line):
    with pytest.raises(UnknownSignalError, match=r"no signal 'noise'.*grad_norm.*loss_trend"):
        regressor(monitors=[LossTrend()], policies=[lambda signals: signals.noise]).fit(*line)
    with pytest.raises(UnknownSignalError, match=r"needs the signal 'valid_loss'.*Known signals"):
        regressor(policies=[PlateauPolicy(signal="valid_loss")]).fit(*line)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"policies": NoiseScale()}, TypeError, r"'policies' parameter must be a list"),
        ({"monitors": LossTrend()}, TypeError, r"'monitors' parameter must be a list"),
        ({"monitors": [LossTrend]}, TypeError, r"Pass an instance: LossTrend\(\)"),
        ({"monitors": [LossTrend(), LossTrend(5)]}, ValueError, "Two of the monitors"),
        ({"monitors": [ParameterSpread()]}, UnsupportedError, "always have the same parameters"),
        (
            {"monitors": [GradientNoiseScale()], "compression": TernGrad()},
            UnsupportedError,
            "without compression",
        ),
        ({"policies": [lambda signals: Decision(period=4)]}, UnsupportedError, "period=4"),
        (
            {
                "policies": [lambda signals: Decision(momentum=0.5)],
                "optimizer": torch.optim.Adagrad,
            },
            UnsupportedError,
            "Adagrad has none",
        ),
        (
            {"monitors": [GradientNoiseScale()], "micro_batch_size": None},
            UnsupportedError,
            "GradientNoiseScale compares the gradients of parts",
        ),
    ],
)
def test_what_cannot_work_is_said(settings, error, message, line):
    with pytest.raises(error, match=message):
        regressor(**settings).fit(*line)


def test_batchnorm_alone_has_no_parts(digits):
    with pytest.raises(UnsupportedError, match="BatchNorm"):
        classifier(module__norm=True, monitors=[GradientVariance()]).fit(*digits)


def test_an_own_monitor(line):
    class Lowest(Monitor):
        signals = ("lowest",)

        def observe(self, seen, state):
            lowest = min(seen.loss, state.get("lowest", math.inf))
            return (lowest,), {"lowest": lowest}

    frame = regressor(monitors=[Lowest()], batch_size=GeoDamp(8, 1, 2)).fit(*line).updates_frame()
    assert frame["lowest"].tolist() == frame["loss"].cummin().tolist()


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (Decision(precision="bfloat16"), "precision='bfloat16'"),
        (Decision(betas=(0.9, 0.99)), "SGD has none"),
        (Decision(period=3), "no period"),
    ],
)
@pytest.mark.parametrize("place", ["policies", "batch_size"])
def test_a_decision_that_the_fit_cannot_carry_out_is_refused(line, place, decision, text):
    sized = decision._replace(batch_size=16)
    given = [lambda signals: decision] if place == "policies" else lambda signals: sized
    with pytest.raises(UnsupportedError, match=text):
        regressor(**{place: given}).fit(*line)


def test_a_batch_size_function_may_set_the_learning_rate(line):
    net = regressor(batch_size=lambda s: Decision(batch_size=16, lr=0.01), lr=0.05).fit(*line)
    assert net.updates_frame()["lr"].tolist() == pytest.approx([0.01] * 24)
