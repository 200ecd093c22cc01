"""Every policy for signals, through the same invariants. A new policy adds one row."""

from __future__ import annotations

import json
import math
import pickle

import pytest

from accelerando import policies as module
from accelerando.exceptions import UnknownSignalError
from accelerando.monitor import GradientNoiseScale, GradientVariance, LossTrend, Throughput
from accelerando.policies import (
    AdaScale,
    Decision,
    Every,
    GradualWarmup,
    LinearScaling,
    NoiseScale,
    NormTest,
    PlateauPolicy,
    Policy,
    Signals,
    SqrtScaling,
    WorkersForThroughput,
)

POLICIES = {
    "NoiseScale": NoiseScale(initial=8, dwell=3),
    "NormTest": NormTest(initial=8, dwell=3),
    "LinearScaling": LinearScaling(),
    "SqrtScaling": SqrtScaling(reference=4),
    "AdaScale": AdaScale(dwell=3),
    "GradualWarmup": GradualWarmup(epochs=2),
    "GradualWarmup, updates": GradualWarmup(updates=20),
    "PlateauPolicy": PlateauPolicy(patience=4),
    "PlateauPolicy, decay": PlateauPolicy(signal="loss", patience=4, grow=1.0, decay=0.5),
    "WorkersForThroughput": WorkersForThroughput(most=4, dwell=3),
    "Every, updates": Every(NoiseScale(initial=8, dwell=1), updates=5),
    "Every, epochs": Every(PlateauPolicy(patience=4), epochs=1),
}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def recorded(count=40):
    for k in range(count):
        known = k > 5
        yield Signals(
            {
                "update": k,
                "epoch": k // 10,
                "examples": 8 * k,
                "n_examples": 80,
                "batch_size": 8 if k < 20 else 12,
                "lr": 0.1,
                "momentum": 0.9,
                "ranks": 1 if k < 12 else 2,
                "loss": math.nan if k == 0 else 1 / min(k, 9),
                "grad_norm": math.nan if k == 0 else 1.0,
                "noise_scale": 10.0 * k if known else math.nan,
                "noise_scale_error": 0.1 if known else math.nan,
                "noise_scale_low": 5.0 * k if known else math.nan,
                "gradient_variance": 10.0 * k if known else math.nan,
                "gradient_square": 1.0 if known else math.nan,
                "loss_average": math.nan if k == 0 else 1 / min(k, 9),
                "loss_trend": math.nan,
                "examples_per_second": 100.0 * (1 if k < 12 else 2) if known else math.nan,
                "update_seconds": 0.1,
            }
        )


def run_through(policy, signals, state=None):
    state = policy.start() if state is None else state
    told = []
    for one in signals:
        decision, state = policy.decide(one, state)
        told.append(decision)
    return told, state


def test_every_public_policy_has_a_row():
    classes = {
        name
        for name in module.__all__
        if isinstance(getattr(module, name), type)
        and issubclass(getattr(module, name), Policy)
        and name != "Policy"
    }
    assert classes == {type(policy).__name__ for policy in POLICIES.values()}


@every_policy
def test_it_decides_something_and_the_same_again(policy):
    before = repr(policy)
    told, _ = run_through(policy, recorded())
    assert any(told)
    assert told == run_through(policy, recorded())[0]
    assert repr(policy) == before


@every_policy
def test_state_survives_json_and_resuming_changes_nothing(policy):
    signals = list(recorded())
    whole, _ = run_through(policy, signals)
    for cut in (1, 13, 27):
        head, state = run_through(policy, signals[:cut])
        tail, _ = run_through(policy, signals[cut:], json.loads(json.dumps(dict(state))))
        assert head + tail == whole


@every_policy
def test_settings_survive_pickle(policy):
    assert pickle.loads(pickle.dumps(policy)) == policy


@every_policy
def test_its_monitors_yield_what_it_needs(policy):
    always = {"update", "epoch", "examples", "n_examples", "loss", "grad_norm", "batch_size"}
    yielded = {name for monitor in policy.monitors() for name in monitor.signals}
    assert set(policy.needs) <= yielded | always


@every_policy
def test_an_unknown_signal_is_an_error_that_lists_the_known_ones(policy):
    missing = {
        name
        for monitor in (GradientNoiseScale, GradientVariance, LossTrend, Throughput)
        for name in monitor.signals
    } | {"lr", "examples"}
    few = [Signals({k: v for k, v in s.items() if k not in missing}) for s in recorded()]
    if "PlateauPolicy, decay" in POLICIES and policy is POLICIES["PlateauPolicy, decay"]:
        few = [Signals({k: v for k, v in s.items() if k != "loss"}) for s in few]
    with pytest.raises(UnknownSignalError, match=r"There is no signal '\w+'. Known signals: batch"):
        run_through(policy, few)


def test_nothing_is_decided_from_what_is_unknown():
    unknown = Signals(dict.fromkeys(next(recorded()), math.nan)).but(
        update=500, epoch=0, batch_size=8, lr=0.1
    )
    for policy in (NoiseScale(), NormTest(), AdaScale(), PlateauPolicy()):
        assert policy(unknown) is None
    assert Decision() == Decision(None, None, None, None, None)
