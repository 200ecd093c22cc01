"""Every batch-size policy as ``batch_size=``, through the same invariants."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skorch.callbacks import Callback

from accelerando import batch_size as module
from accelerando._decisions import Settings
from accelerando.batch_size import (
    AdaDamp,
    Constant,
    FullBatch,
    GeoDamp,
    GeoDampLR,
    GradDamp,
    PadaDamp,
    RadaDamp,
    RadaDampLR,
    Schedule,
)
from accelerando.policies import Decision, replay
from accelerando.policies._controller import Controller
from tests.contracts.test_policies import POLICIES as ROWS_ELSEWHERE
from tests.nets import parameters_of, regressor


def grow(signals):
    return 8 if signals.epoch < 1 else 24.5


def grow_with_the_loss(signals):
    if signals.update % 4 == 0:  # None keeps the size
        return Decision(batch_size=24, lr_scale=0.5) if signals.loss < 0.5 else 8


POLICIES = {
    "Constant": Constant(12),
    "FullBatch": FullBatch(),
    "Schedule": Schedule({0: 8, 2: 40}),
    "GeoDamp": GeoDamp(initial=8, delay=1, factor=1.7),
    "GeoDampLR": GeoDampLR(initial=8, delay=1, factor=1.7),
    "PadaDamp": PadaDamp(initial=8, rate=0.3),
    "AdaDamp": AdaDamp(initial=8, dwell=3),
    "AdaDamp, sampled": AdaDamp(initial=8, dwell=2, fraction=0.3, best_loss=0.005),
    "GradDamp": GradDamp(initial=8, dwell=3),
    "GradDamp, sampled": GradDamp(initial=8, dwell=2, fraction=0.3),
    "RadaDamp": RadaDamp(initial=8, memory=0.9),
    "RadaDamp, dwell": RadaDamp(initial=8, memory=0.9, dwell=4),
    "RadaDampLR": RadaDampLR(initial=8, memory=0.9),
    "function": grow,
    "function, now and then": grow_with_the_loss,
}
COUNTERPARTS = {
    "GeoDamp": (GeoDamp(8, 1, 1.7), GeoDampLR(8, 1, 1.7)),
    "RadaDamp": (RadaDamp(8, memory=0.9), RadaDampLR(8, memory=0.9)),
}
EVERY = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
LOSSES = [2.0 / (1 + k / 3) for k in range(30)]
NORMS = [3.0 / (1 + k / 5) for k in range(30)]
positive = st.floats(min_value=1e-6, max_value=1e6)


def plans(policy, losses, norms, *, max_batch_size=None, n_examples=500):
    """Return the plans for recorded numbers."""
    controller = Controller.of(batch_size=policy, max_batch_size=max_batch_size)
    memories, held, found = controller.start(), Settings(), []
    for update in range(len(losses) + 1):
        values = {"update": update, "epoch": update // 5, "n_examples": float(n_examples)}
        if update:
            values |= {"loss": losses[update - 1], "grad_norm": norms[update - 1]}
        measure = controller.needs_measure(update)
        if measure is not None and update:
            values[f"full_{measure.quantity}"] = values[measure.quantity]
        plan = controller.plan(values, memories, held, 0.1)
        memories.policies, held = plan.policy_memories, plan.settings
        found.append(plan)
    return found


def test_every_public_policy_has_a_row():
    # Policies that follow monitors, examples or forks have their rows in test_policies.py.
    rows = {type(policy) for policy in (*POLICIES.values(), *ROWS_ELSEWHERE.values())}
    assert {getattr(module, name) for name in module.__all__} <= rows


@EVERY
@settings(max_examples=30, deadline=None)
@given(
    losses=st.lists(positive, min_size=2, max_size=20),
    most=st.one_of(st.none(), st.integers(1, 100)),
    n_examples=st.integers(1, 300),
)
def test_batch_is_an_integer_within_its_bounds(policy, losses, most, n_examples):
    for plan in plans(policy, losses, losses, max_batch_size=most, n_examples=n_examples):
        assert isinstance(plan.rows, int)
        assert 1 <= plan.rows <= min(n_examples, most or n_examples)
        assert 0 < plan.lr_scale <= 1


@EVERY
def test_past_the_largest_batch_the_rate_falls_by_the_factor_of_the_growth(policy):
    free = plans(policy, LOSSES, NORMS, n_examples=10_000)
    capped = plans(policy, LOSSES, NORMS, n_examples=10_000, max_batch_size=10)
    for one, other in zip(free, capped, strict=True):
        noise = one.lr_scale / one.batch_size
        assert other.lr_scale / other.batch_size == pytest.approx(noise, rel=1e-12)
    assert max(plan.batch_size for plan in capped) <= 10


@pytest.mark.parametrize(("grows", "decays"), COUNTERPARTS.values(), ids=COUNTERPARTS)
def test_lr_counterpart_has_the_same_noise_scale_and_the_initial_batch(grows, decays):
    for a, b in zip(plans(grows, LOSSES, NORMS), plans(decays, LOSSES, NORMS), strict=True):
        assert b.batch_size <= 8
        assert a.lr_scale / a.batch_size == pytest.approx(b.lr_scale / b.batch_size, rel=1e-12)
    assert a.batch_size > b.batch_size == 8, "the batch never grew: this test shows nothing"


@EVERY
def test_replay_gives_the_sizes_without_training(policy):
    run = {"loss": LOSSES, "grad_norm": NORMS}
    frame = replay(policy, run, updates_per_epoch=5, n_examples=500)
    assert frame["batch_size"].tolist() == [p.batch_size for p in plans(policy, LOSSES, NORMS)]
    assert frame["lr"].tolist() == [p.lr_scale for p in plans(policy, LOSSES, NORMS)]


# -- training -------------------------------------------------------------------------------------


class StopAfter(Callback):
    """Interrupt training after a number of updates, as Ctrl-C would."""

    def __init__(self, updates):
        self.updates = updates
        self.seen = 0

    def on_batch_end(self, net, training=None, **kwargs):
        self.seen += bool(training)
        if training and self.seen == self.updates:
            raise KeyboardInterrupt


@EVERY
def test_trains_and_an_interrupted_run_continues_exactly(policy, line, tmp_path):
    X, y = line
    whole = regressor(batch_size=policy, max_epochs=4, max_batch_size=60).fit(X, y)

    broken = regressor(batch_size=policy, max_epochs=4, max_batch_size=60, callbacks=[StopAfter(5)])
    broken.fit(X, y)
    broken.save_state(tmp_path / "state.pt")
    resumed = regressor(batch_size=policy, max_epochs=4, max_batch_size=60)
    resumed.load_state(tmp_path / "state.pt").partial_fit(X, y)

    assert torch.equal(parameters_of(resumed), parameters_of(whole))
    sizes = whole.updates_frame()["batch_size"].tolist()
    assert resumed.updates_frame()["batch_size"].tolist() == sizes
    assert max(sizes) <= 60
    assert whole.updates_frame().groupby("epoch")["batch_size"].sum().tolist() == [120] * 4
