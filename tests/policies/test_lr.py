"""Learning rates that scale with the batch, warm up, and decay on a plateau."""

from __future__ import annotations

import math

import pytest
import torch
from skorch.callbacks import Callback

from accelerando._decisions import Settings
from accelerando.exceptions import UnsupportedError
from accelerando.policies import (
    AdaScale,
    ConstantHalfLife,
    Decision,
    GeoDamp,
    GradualWarmup,
    LinearScaling,
    PlateauPolicy,
    Signals,
    SqrtScaling,
)
from accelerando.policies._controller import Controller
from tests.nets import regressor


def test_policies_multiply_the_rate_of_the_optimizer():
    """Warm-up, scaling and a scheduler that halves the rate work together."""
    policies = [GradualWarmup(updates=4, start_share=0.5), LinearScaling()]
    controller = Controller.of(policies=policies, batch_size=lambda signals: signals.size)
    memories, settings, rates = controller.start(), Settings(), []
    for update, base, size in [(0, 1.0, 8), (2, 1.0, 8), (4, 1.0, 16), (5, 0.5, 16), (6, 0.5, 8)]:
        plan = controller.plan({"update": update, "size": size}, memories, settings, base)
        memories.policies, settings = plan.policy_memories, plan.settings
        rates.append(base * plan.lr_scale)
    assert rates == pytest.approx([0.5, 0.75, 2.0, 1.0, 0.5])


def test_the_reference_is_the_first_batch_size_unless_it_is_given():
    signals = Signals({"wanted_batch_size": 32, "lr": 0.1})
    assert LinearScaling().decide(signals, {}) == (None, {"reference": 32})
    decision, state = LinearScaling().decide(signals.but(wanted_batch_size=64), {"reference": 32})
    assert decision == Decision(lr=0.2)
    assert state == {"reference": 32, "factor": 2.0}
    assert SqrtScaling(reference=8)(signals) == Decision(lr=0.2)


def test_adascale_lies_between_no_and_linear_scaling():
    for scale in (0.0, 10.0, 1e3, 1e9):
        signals = Signals.known(update=1, wanted_batch_size=256, lr=1.0, noise_scale=scale)
        decision = AdaScale(reference=64)(signals)
        assert 1.0 <= (decision.lr if decision else 1.0) <= 4.0
    assert decision.lr == pytest.approx(4.0, rel=1e-6)


def test_adascale_waits_unless_the_batch_changes():
    policy = AdaScale(reference=64, dwell=10)
    signals = Signals.known(update=1, wanted_batch_size=256, lr=1.0, noise_scale=64.0)
    _, state = policy.decide(signals, policy.start())
    assert policy.decide(signals.but(update=10, noise_scale=500.0), state)[0] is None
    assert policy.decide(signals.but(update=11, noise_scale=500.0), state)[0] is not None
    assert policy.decide(signals.but(update=2, wanted_batch_size=512), state)[0] is not None


@pytest.mark.parametrize(
    ("policy", "values", "share"),
    [
        (GradualWarmup(epochs=2, start_share=0.2), {"examples": 0, "n_examples": 100}, 0.2),
        (GradualWarmup(epochs=2, start_share=0.2), {"examples": 100, "n_examples": 100}, 0.6),
        (GradualWarmup(epochs=4, start_share=0.2), {"epoch": 2}, 0.6),  # a stream
        (GradualWarmup(updates=10, start_share=0.2), {"update": 5, "epoch": 9}, 0.6),
    ],
)
def test_warmup_counts_examples_epochs_or_updates(policy, values, share):
    assert policy(Signals.known(lr=1.0, **values)).lr == pytest.approx(share)


def test_warmup_ends():
    signals = Signals.known(lr=1.0, examples=900, n_examples=100)
    assert GradualWarmup(epochs=2)(signals) is None


def test_a_plateau_counts_from_the_last_progress():
    policy = PlateauPolicy(signal="loss", patience=2, progress=0.1, grow=2.0, decay=0.5)
    state, told = policy.start(), []
    for update, loss in enumerate([1.0, 0.95, 0.95, 0.8, 0.79, 0.79, 0.78, 0.77]):
        signals = Signals.known(update=update, loss=loss, wanted_batch_size=8, lr=0.4)
        decision, state = policy.decide(signals, state)
        told.append(decision)
    step = Decision(batch_size=16.0, lr=0.2)
    assert told == [None, None, step, None, None, step, None, step]


def test_a_plateau_needs_its_signal():
    assert PlateauPolicy(signal="loss").needs == ("loss",)
    assert PlateauPolicy(signal="loss").monitors() == ()
    assert PlateauPolicy().monitors()[0].signals == ("loss_average", "loss_trend")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LinearScaling(reference=-1), "'reference' parameter of LinearScaling"),
        (lambda: SqrtScaling(reference="8"), "'reference' parameter of SqrtScaling"),
        (lambda: AdaScale(dwell=0), "'dwell' parameter of AdaScale"),
        (lambda: GradualWarmup(start_share=2), "'start_share' parameter of GradualWarmup"),
        (lambda: GradualWarmup(epochs=0), "'epochs' parameter of GradualWarmup"),
        (lambda: PlateauPolicy(decay=2.0), "'decay' parameter of PlateauPolicy"),
        (lambda: PlateauPolicy(progress=-0.1), "'progress' parameter of PlateauPolicy"),
    ],
)
def test_bad_settings_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("beta2", "reference", "size", "expected"),
    [
        (0.95, 512, 1, 0.9999),  # the example of the paper: a batch of one
        (0.95, 512, 512, 0.95),
        (0.999, 64, 256, 0.996),
    ],
)
def test_beta2_keeps_its_half_life_in_examples(beta2, reference, size, expected):
    signals = Signals.known(update=1, wanted_batch_size=size, momentum=0.9, beta2=beta2)
    decision = ConstantHalfLife(reference=reference)(signals)
    assert round(decision.betas[1], 4) == expected
    half_life = [math.log(0.5) / math.log(b) for b in (beta2, decision.betas[1])]
    assert half_life[0] * reference == pytest.approx(half_life[1] * size)


def test_beta2_follows_the_batch_from_the_one_that_was_chosen():
    policy, state, found, beta2 = ConstantHalfLife(), {}, [], 0.99
    for update, size in enumerate([16, 32, 32, 64, 16]):
        signals = Signals.known(update=update, wanted_batch_size=size, momentum=0.9, beta2=beta2)
        decision, state = policy.decide(signals, state)
        beta2 = decision.betas[1] if decision else beta2
        found.append(round(beta2, 6))
    assert found == [0.99, 0.9801, 0.9801, 0.960596, 0.99]


def test_an_optimizer_without_betas_is_refused_in_its_first_update(line):
    net = regressor(policies=[ConstantHalfLife()])
    with pytest.raises(UnsupportedError, match=r"decided betas=.* SGD has none"):
        net.fit(*line)
    assert not len(net.updates_frame())


def test_the_second_beta_of_adam_follows_in_training(line):
    seen = []

    class Look(Callback):
        def on_batch_end(self, net, **kwargs):
            seen.append(net.optimizer_.param_groups[0]["betas"])

    growing = GeoDamp(initial=10, delay=1, factor=2)
    net = regressor(
        optimizer=torch.optim.Adam, batch_size=growing, policies=[ConstantHalfLife()],
        max_epochs=2, callbacks=[Look()],
    ).fit(*line)  # fmt: skip
    assert net._state_.settings.betas == pytest.approx((0.9, 0.999**2))
    assert set(seen) == {(0.9, 0.999)}, "what a scheduler sees is not changed"
