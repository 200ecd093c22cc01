"""Growth policies of 2024 to 2026, against numbers of their papers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accelerando.cost import plan
from accelerando.policies import (
    Constant,
    CriticalBatchSize,
    Decision,
    GeoDamp,
    LateSwitch,
    NoiseScale,
    RadaDamp,
    Seesaw,
    Signals,
    WithWarmup,
    replay,
)


def updates(policy, n_examples=100_000, epochs=10):
    return plan(
        policy, n_examples=n_examples, max_epochs=epochs, parameters=1, seconds_per_example=1.0
    ).updates


# -- Seesaw ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cut", "saved"), [(1.05, 0.36), (2.0, 0.22)])
def test_seesaw_saves_the_updates_of_the_paper(cut, saved):
    """36 % with a cosine, which is 1 - 2 / pi in the limit of many small cuts."""
    seesaw = updates(Seesaw(initial=100, epochs=10, cut=cut))
    constant = updates(Constant(100))
    assert 1 - seesaw / constant == pytest.approx(saved, abs=0.015)
    assert 1 - 2 / math.pi == pytest.approx(0.36, abs=0.005)


def at(done, **settings):
    signals = Signals.known(epoch=0, examples=1000 * done, n_examples=100)
    return Seesaw(initial=64, epochs=10, **settings)(signals)


def test_when_a_schedule_halves_the_rate_the_batch_doubles_and_the_rate_falls_by_the_root():
    """The abstract of the paper."""
    assert at(0.49, schedule="linear") == Decision(64.0, lr_scale=1.0)
    assert at(0.5, schedule="linear") == Decision(128.0, lr_scale=2**-0.5)
    assert at(0.75, schedule="linear") == Decision(256.0, lr_scale=0.5)
    assert at(2 / 3).batch_size == 128.0  # cos(60 degrees)
    assert at(0.5, schedule="half-cosine").batch_size == 128.0


@pytest.mark.parametrize("done", np.linspace(0.0, 1.0, 21))
def test_learning_rate_times_root_of_the_batch_falls_as_the_schedule_does(done):
    """What normalized gradients keep: lr / sqrt(batch) is the schedule, up to one cut."""
    decision = at(done, schedule="linear", cut=1.1)
    effective = decision.lr_scale / math.sqrt(decision.batch_size / 64)
    assert 1.0 - done <= effective + 1e-9
    assert effective <= 1.1 * max(1e-4, 1.0 - done) + 1e-9


def test_past_its_largest_batch_the_rate_falls_as_the_schedule_does():
    decision = at(0.9375, schedule="linear", largest=128)
    assert decision.batch_size == 128.0
    effective = decision.lr_scale / math.sqrt(decision.batch_size / 64)
    assert effective == pytest.approx(1 / 16)


def test_a_stream_counts_epochs():
    assert Seesaw(initial=8, epochs=4, schedule="linear")(
        Signals.known(epoch=2, examples=1e9)
    ) == Decision(16.0, lr_scale=2**-0.5)


# -- late switching -------------------------------------------------------------------------------


def test_a_late_switch_needs_more_examples_with_the_small_batch():
    frame = replay(
        LateSwitch(initial=10, final=50, epochs=2, share=0.75),
        {"loss": [1.0] * 18},
        n_examples=100,
        updates_per_epoch=10,
    )
    assert frame["batch_size"].tolist() == [10] * 15 + [50] * 4


def loss_at_the_end(sizes, budget, hardness):
    """Return the loss of the functional scaling law for batches of these sizes.

    The signal decays as t^-s, and noise of an update is forgotten as (1 + age)^-(2 - 1/b): the
    kernel of a power-law spectrum (arXiv:2509.19189, on which 2602.14208 rests).
    """
    spent, noise = 0, []
    for size in sizes:
        spent += size
        noise.append(1.0 / size)
    assert spent == budget
    age = np.arange(len(noise))[::-1]
    return len(noise) ** -hardness + 0.3 * float((np.array(noise) * (1.0 + age) ** -1.5).sum())


def test_on_hard_tasks_the_late_switch_is_best_and_on_easy_ones_it_is_not():
    """The claim of the paper, in its own model; its tables have no number for a policy alone."""
    budget, small, large = 64_000, 8, 64

    def switched(share, hardness):
        few, many = round(budget * share / small), round(budget * (1 - share) / large)
        return loss_at_the_end([small] * few + [large] * many, budget, hardness)

    hard = [switched(share, 0.4) for share in (0.0, 0.2, 0.8, 1.0)]
    easy = [switched(share, 1.5) for share in (0.0, 0.2, 0.8, 1.0)]
    assert hard.index(min(hard)) == 2
    assert easy == sorted(easy)


# -- branches -------------------------------------------------------------------------------------


def test_warm_up_by_branches_doubles_while_nothing_is_lost():
    policy, state, sizes, rates = CriticalBatchSize(initial=32, every=10, power=0.5), {}, [], []
    gaps = {10: 0.0, 20: -0.01, 30: 0.02, 40: math.inf, 50: 0.01}
    for update in range(60):
        gap = gaps.get(update, math.nan)
        signals = Signals.known(update=update, full_branch_gap=gap)
        decision, state = policy.decide(signals, state)
        sizes.append(decision.batch_size)
        rates.append(decision.lr_scale)
    assert sizes[::10] == [32, 64, 128, 128, 128, 256]
    assert rates[-1] == pytest.approx(math.sqrt(8))


def test_it_measures_now_and_then_and_stops_at_its_largest():
    policy = CriticalBatchSize(initial=32, every=10, largest=64)
    assert [k for k in range(31) if policy.measures(k)] == [10, 20, 30]
    state = {}
    for update in (10, 20):
        signals = Signals.known(update=update, full_branch_gap=0.0)
        decision, state = policy.decide(signals, state)
    assert decision.batch_size == 64


def test_what_another_policy_measures_is_not_used():
    policy = CriticalBatchSize(initial=32, every=10)
    assert policy(Signals.known(update=7, full_branch_gap=0.0)).batch_size == 32


# -- warm-up --------------------------------------------------------------------------------------


def test_the_rate_rises_on_top_of_what_the_policy_inside_decides():
    seesaw = Seesaw(initial=8, epochs=4, schedule="linear")
    policy = WithWarmup(seesaw, updates=4, start_share=0.2)
    frame = replay(policy, {"loss": [1.0] * 4, "examples": [8, 210, 220, 230]}, n_examples=100)
    assert frame["lr"].round(3).tolist()[:2] == [0.2, 0.4]
    assert frame["lr"].iloc[-1] == pytest.approx(2**-0.5)


def test_one_that_decides_now_and_then_keeps_its_rate_afterwards():
    policy = WithWarmup(NoiseScale(initial=16, dwell=2), updates=3, start_share=0.25)
    assert policy.occasional
    assert policy.initial == 16
    assert policy.monitors() == NoiseScale().monitors()
    run = {"loss": [1.0] * 6, "noise_scale": [64.0] * 6, "noise_scale_error": [0.1] * 6}
    frame = replay(policy, {**run, "noise_scale_low": [30.0] * 6})
    assert frame["lr"].round(2).tolist() == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]
    assert frame["batch_size"].max() == 64


def test_integers_functions_and_policies_may_be_warmed_up():
    assert WithWarmup(32).initial == 32
    assert WithWarmup(32).scheduled
    assert not WithWarmup(RadaDamp(8)).scheduled
    assert WithWarmup(lambda signals: 12, updates=2)(Signals.known(update=1)).batch_size == 12


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Seesaw(cut=1.0), "'cut' parameter of Seesaw"),
        (lambda: Seesaw(schedule="step"), "'schedule' parameter of Seesaw"),
        (lambda: Seesaw(largest=64), "'largest' parameter of Seesaw"),
        (lambda: Seesaw(epochs=0), "'epochs' parameter of Seesaw"),
        (lambda: LateSwitch(share=1.0), "'share' parameter of LateSwitch"),
        (lambda: LateSwitch(final=0), "'final' parameter of LateSwitch"),
        (lambda: CriticalBatchSize(every=0), "'every' parameter of CriticalBatchSize"),
        (lambda: CriticalBatchSize(growth=1), "'growth' parameter of CriticalBatchSize"),
        (lambda: CriticalBatchSize(power=2), "'power' parameter of CriticalBatchSize"),
        (lambda: CriticalBatchSize(fraction=0), "'fraction' parameter of CriticalBatchSize"),
        (lambda: WithWarmup(GeoDamp(), updates=0), "'updates' parameter of WithWarmup"),
        (lambda: WithWarmup(GeoDamp(), start_share=0), "'start_share' parameter of WithWarmup"),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
