"""What single policies decide."""

from __future__ import annotations

import pandas as pd
import pytest

from accelerando.exceptions import UnknownSignalError
from accelerando.policies import (
    AdaScale,
    Decision,
    Every,
    GradualWarmup,
    LinearScaling,
    NoiseScale,
    NormTest,
    PlateauPolicy,
    Signals,
    WorkersForThroughput,
    as_policy,
    replay,
)
from accelerando.policies._decision import Wish
from accelerando.policies._policy import decide_all


def noise(update=100, size=64, scale=1000.0, error=0.1, low=800.0):
    return Signals(
        {
            "update": update,
            "batch_size": size,
            "noise_scale": scale,
            "noise_scale_error": error,
            "noise_scale_low": low,
        }
    )


@pytest.mark.parametrize(
    ("settings", "signals", "size"),
    [
        ({}, {}, 128),  # bounded growth
        ({"growth": 100.0}, {}, 1000),
        ({"growth": 100.0, "share": 0.5}, {}, 500),
        ({"growth": 100.0, "largest": 300}, {}, 300),
        ({}, {"update": 19}, None),  # dwell
        ({}, {"size": 980}, None),  # not worth it
        ({"smallest": 32}, {"size": 2000, "scale": 100.0}, 1000),  # shrinks, bounded
        ({"smallest": 90, "growth": 100.0}, {"size": 2000, "scale": 10.0}, 90),
        ({}, {"size": 2000, "scale": 100.0}, None),
        ({}, {"error": 0.9, "low": 100.0}, 100),  # at least that
        ({}, {"error": 0.9, "low": 50.0}, None),
        ({}, {"scale": float("nan"), "error": float("nan"), "low": 3000.0}, 128),
    ],
)
def test_the_batch_follows_the_noise_scale_within_bounds(settings, signals, size):
    decision = NoiseScale(**settings)(noise(**signals))
    assert (decision and decision.batch_size) == size


def test_noise_scale_dwells():
    policy = NoiseScale(dwell=30)
    _, state = policy.decide(noise(update=100), policy.start())
    assert policy.decide(noise(update=129, size=128), state)[0] is None
    assert policy.decide(noise(update=130, size=128), state)[0] == Decision(batch_size=256)


def test_the_norm_test_never_shrinks_the_batch():
    enough = Signals(
        {"update": 90, "batch_size": 64, "gradient_variance": 10.0, "gradient_square": 1.0}
    )
    assert NormTest()(enough) is None
    assert NormTest(theta=0.1)(enough).batch_size == 128


def test_learning_rate_policies_multiply_what_is_there():
    """Warm-up, scaling and a scheduler that halves the rate go together."""
    policies = [GradualWarmup(updates=4, start_share=0.5), LinearScaling()]
    states = [policy.start() for policy in policies]
    wish, rates = Wish(), []
    for update, base, size in [(0, 1.0, 8), (2, 1.0, 8), (4, 1.0, 16), (5, 0.5, 16), (6, 0.5, 8)]:
        signals = Signals(
            {"update": update, "batch_size": size, "lr": base * wish.lr_scale, "epoch": 0}
        )
        decision, states = decide_all(policies, signals, states)
        wish = wish.after(decision, base)
        rates.append(base * wish.lr_scale)
    assert rates == pytest.approx([0.5, 0.75, 2.0, 1.0, 0.5])


def test_adascale_lies_between_no_and_linear_scaling():
    for scale in (0.0, 10.0, 1e3, 1e9):
        signals = Signals({"update": 1, "batch_size": 256, "lr": 1.0, "noise_scale": scale})
        decision = AdaScale(reference=64)(signals)
        assert 1.0 <= (decision.lr if decision else 1.0) <= 4.0
    assert decision.lr == pytest.approx(4.0, rel=1e-6)


def test_later_policies_see_what_earlier_ones_decided():
    policies = [
        as_policy(lambda signals: Decision(batch_size=2 * signals.batch_size, workers=5)),
        LinearScaling(reference=8),
        as_policy(lambda signals: Decision(workers=7)),
    ]
    states = [policy.start() for policy in policies]
    decision, _ = decide_all(policies, Signals({"batch_size": 8, "lr": 0.1}), states)
    assert decision == Decision(batch_size=16, lr=0.2, workers=5)


def test_every_epoch_asks_once_per_epoch():
    policy = Every(lambda signals: Decision(lr=0.5), epochs=2)
    state, asked = policy.start(), []
    for update in range(12):
        decision, state = policy.decide(Signals({"update": update, "epoch": update // 3}), state)
        asked.append(decision is not None)
    assert [k for k, there in enumerate(asked) if there] == [0, 6]


def test_workers_begin_again_when_the_batch_has_doubled():
    policy = WorkersForThroughput(most=4, dwell=1)
    state = {"size": 64, "ranks": 2, "since": 0, "before": 1, "speed": 9.0, "settled": 1}
    signals = Signals({"update": 9, "ranks": 2, "batch_size": 64, "examples_per_second": 10.0})
    assert policy.decide(signals, state) == (None, state)
    decision, state = policy.decide(signals.but(batch_size=128), state)
    assert decision == Decision(workers=2)
    decision, state = policy.decide(signals.but(batch_size=128, update=10), state)
    assert decision == Decision(workers=4)


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Decision(batch_size=0), "batch_size=...\\) must be a number above 0"),
        (Decision(lr=float("nan")), "lr=...\\) must be a number of at least 0"),
        (Decision(momentum=1.0), "momentum=...\\) must be a number from 0 to below 1"),
        (Decision(workers=1.5), "workers=...\\) must be a whole number"),
        (Decision(period="x"), "period=...\\) must be a whole number"),
    ],
)
def test_a_decision_that_cannot_be_carried_out_is_refused(decision, message):
    with pytest.raises(ValueError, match=message):
        decide_all([as_policy(lambda signals: decision)], Signals({}), [{}])


def test_what_is_no_decision_or_no_policy_is_refused():
    with pytest.raises(TypeError, match="returns a Decision or None"):
        decide_all([as_policy(lambda signals: 64)], Signals({}), [{}])
    with pytest.raises(TypeError, match=r"Pass an instance: NoiseScale\(\)"):
        as_policy(NoiseScale)
    with pytest.raises(TypeError, match="policies must hold"):
        as_policy(3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NoiseScale(growth=1.0), "'growth' parameter of NoiseScale"),
        (lambda: NormTest(theta=0), "'theta' parameter of NormTest"),
        (lambda: LinearScaling(reference=-1), "'reference' parameter of LinearScaling"),
        (lambda: GradualWarmup(start_share=2), "'start_share' parameter of GradualWarmup"),
        (lambda: PlateauPolicy(decay=2.0), "'decay' parameter of PlateauPolicy"),
        (lambda: WorkersForThroughput(efficiency=0), "'efficiency' parameter"),
        (lambda: Every(NoiseScale()), "either updates= or epochs="),
        (lambda: Every(NoiseScale(), updates=1, epochs=1), "either updates= or epochs="),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


FRAME = pd.DataFrame(
    {
        "update": [1, 2, 3, 4],
        "epoch": [1, 1, 2, 2],
        "examples": [8, 16, 24, 32],
        "batch_size": 8,
        "lr": [0.1, 0.1, 0.05, 0.05],
        "loss": [1.0, 0.9, 0.8, 0.7],
        "noise": [1.0, 2.0, 3.0, 4.0],
    }
)


def test_replay_shows_the_signals_as_they_were_before_each_update():
    seen = []
    replay(FRAME, lambda signals: seen.append(dict(signals)), n_examples=16)
    assert [one["update"] for one in seen] == [0, 1, 2, 3, 4]
    assert [one["epoch"] for one in seen] == [0, 0, 1, 1, 1]
    assert [one["noise"] for one in seen[1:]] == [1, 2, 3, 4]
    assert {one["n_examples"] for one in seen} == {16}


def test_replay_carries_decisions_on():
    def decide(signals):
        if signals.update == 1:
            return Decision(lr=signals.lr * 2, workers=3)
        return Decision(batch_size=2 * signals.batch_size) if signals.update >= 3 else None

    told = replay(FRAME, decide)
    assert told["lr"].tolist() == pytest.approx([0.1, 0.2, 0.1, 0.1, 0.1])
    assert told["batch_size"].tolist() == [8, 8, 8, 16, 32]
    assert told["workers"].tolist()[1:] == [3] * 4
    assert told["decided"].tolist() == [False, True, False, True, True]


def test_replay_names_what_is_missing():
    with pytest.raises(UnknownSignalError, match=r"no signal 'noise_scale'.*Known signals: batch"):
        replay(FRAME, NoiseScale(dwell=1))
    with pytest.raises(ValueError, match="no column lr"):
        replay(FRAME.drop(columns="lr"), NoiseScale())
