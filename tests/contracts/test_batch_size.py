"""Every batch-size policy, through the same invariants. A new policy adds one row."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando import batch_size as module
from accelerando.batch_size import (
    AdaDamp,
    BatchSizePolicy,
    Constant,
    Damping,
    FullBatch,
    GeoDamp,
    GeoDampLR,
    GradDamp,
    PadaDamp,
    RadaDamp,
    RadaDampLR,
    Schedule,
    Signals,
    as_policy,
    replay,
)
from accelerando.batch_size._policy import cap
from tests.nets import parameters_of, regressor

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
    "function": as_policy(lambda signals: 8 if signals.epoch < 1 else 24.5),
}
TWINS = {
    "GeoDamp": (GeoDamp(8, 1, 1.7), GeoDampLR(8, 1, 1.7)),
    "RadaDamp": (RadaDamp(8, memory=0.9), RadaDampLR(8, memory=0.9)),
}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def run_through(policy, losses, norms, state=None, first=0, n_examples=500):
    """Feed recorded signals and return (dampings, state)."""
    state = policy.start() if state is None else state
    dampings = []
    for update in range(first, len(losses)):
        wanted = policy.measures(update)
        signals = Signals(
            update=update,
            epoch=update // 5,
            examples=8 * update,
            batch_size=8,
            n_examples=n_examples,
            loss=losses[update] if update else None,
            grad_norm=norms[update] if update else None,
            full_loss=losses[update] if wanted and wanted.quantity == "loss" else None,
            full_grad_norm=norms[update] if wanted and wanted.quantity == "grad_norm" else None,
        )
        damping, state = policy.decide(signals, state)
        dampings.append(damping)
    return dampings, state


LOSSES = [2.0 / (1 + k / 3) for k in range(30)]
NORMS = [3.0 / (1 + k / 5) for k in range(30)]
positive = st.floats(min_value=1e-6, max_value=1e6)


def test_every_public_policy_has_a_row():
    classes = {
        name
        for name in module.__all__
        if isinstance(getattr(module, name), type)
        and issubclass(getattr(module, name), BatchSizePolicy)
        and name != "BatchSizePolicy"
    }
    assert classes <= {type(policy).__name__ for policy in POLICIES.values()}


@every_policy
@settings(max_examples=30, deadline=None)
@given(
    losses=st.lists(positive, min_size=2, max_size=20),
    cap_rows=st.one_of(st.none(), st.integers(1, 100)),
    n_examples=st.integers(1, 300),
)
def test_batch_is_a_whole_number_within_its_caps(policy, losses, cap_rows, n_examples):
    dampings, _ = run_through(policy, losses, losses, n_examples=n_examples)
    for damping in dampings:
        rows, lr_scale = cap(damping, max_batch_size=cap_rows, n_examples=n_examples)
        assert isinstance(rows, int)
        assert 1 <= rows <= min(n_examples, cap_rows or n_examples)
        assert 0 < lr_scale <= 1


@every_policy
def test_decisions_are_deterministic_and_leave_the_policy_alone(policy):
    before = repr(policy)
    assert run_through(policy, LOSSES, NORMS) == run_through(policy, LOSSES, NORMS)
    assert repr(policy) == before


@every_policy
def test_state_survives_json_and_resuming_changes_nothing(policy):
    whole, _ = run_through(policy, LOSSES, NORMS)
    head, state = run_through(policy, LOSSES[:11], NORMS[:11])
    tail, _ = run_through(policy, LOSSES, NORMS, json.loads(json.dumps(dict(state))), first=11)
    assert head + tail == whole


@every_policy
def test_settings_survive_pickle_and_replace(policy):
    if "function" in repr(policy):
        policy = as_policy(_half)
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert dataclasses.replace(policy) == policy


def _half(signals):
    return 4


@every_policy
def test_past_the_cap_the_learning_rate_falls_by_what_the_batch_would_have_grown(policy):
    dampings, _ = run_through(policy, LOSSES, NORMS, n_examples=10_000)
    for damping in dampings:
        free = cap(damping, max_batch_size=None, n_examples=None)
        capped = cap(damping, max_batch_size=10, n_examples=None)
        noise = free.lr_scale / free.batch_size
        assert capped.lr_scale / capped.batch_size == pytest.approx(noise, rel=1e-12)


@pytest.mark.parametrize(("grows", "decays"), TWINS.values(), ids=TWINS)
def test_lr_twin_has_the_same_noise_scale_and_the_initial_batch(grows, decays):
    for grown, decayed in zip(
        run_through(grows, LOSSES, NORMS)[0], run_through(decays, LOSSES, NORMS)[0], strict=True
    ):
        a = cap(grown, max_batch_size=None, n_examples=None)
        b = cap(decayed, max_batch_size=None, n_examples=None)
        assert b.batch_size <= 8
        assert a.lr_scale / a.batch_size == pytest.approx(b.lr_scale / b.batch_size, rel=1e-12)
    assert a.batch_size > b.batch_size == 8, "the batch never grew: this test shows nothing"


@every_policy
def test_trains_and_an_interrupted_run_continues_exactly(policy, line, tmp_path):
    X, y = line
    whole = regressor(batch_size=policy, max_epochs=4, max_batch_size=60).fit(X, y)

    broken = regressor(batch_size=policy, max_epochs=4, max_batch_size=60, callbacks=[StopAt(5)])
    broken.fit(X, y)
    broken.save_state(tmp_path / "state.pt")
    resumed = regressor(batch_size=policy, max_epochs=4, max_batch_size=60)
    resumed.load_state(tmp_path / "state.pt").partial_fit(X, y)

    assert torch.equal(parameters_of(resumed), parameters_of(whole))
    sizes = whole.updates_frame()["batch_size"].tolist()
    assert resumed.updates_frame()["batch_size"].tolist() == sizes
    assert max(sizes) <= 60
    assert whole.updates_frame().groupby("epoch")["batch_size"].sum().tolist() == [120] * 4


class StopAt:
    """A callback that interrupts training after so many updates, as Ctrl-C would."""

    def __new__(cls, updates):
        from skorch.callbacks import Callback

        class Stop(Callback):
            def on_batch_end(self, net, training=None, **kwargs):
                if training and net.run_.update == updates:
                    raise KeyboardInterrupt

        return Stop()


@every_policy
def test_replay_gives_the_sizes_without_training(policy):
    sizes = replay(policy, LOSSES, grad_norms=NORMS, updates_per_epoch=5, n_examples=500)
    assert len(sizes) == len(LOSSES) + 1
    assert all(isinstance(size, int) and 1 <= size <= 500 for size in sizes)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_policy_that_returns_nonsense_is_told_so(bad):
    with pytest.raises(ValueError, match="must return finite numbers"):
        cap(Damping(bad), max_batch_size=None, n_examples=10)
