"""The module that lists the batch-size policies."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from accelerando import batch_size, policies
from accelerando._decisions import Measure, Settings
from accelerando.policies._controller import Controller
from accelerando.policies._core import Damping


def test_it_re_exports_policies():
    assert len(batch_size.__all__) == 16
    for name in batch_size.__all__:
        kind = getattr(batch_size, name)
        assert kind is getattr(policies, name)
        assert issubclass(kind, policies.Policy)


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("BatchSizePolicy", policies.Policy, "Subclass accelerando.policies.Policy"),
        ("Damping", Damping, r"Return accelerando.policies.Decision\(batch_size="),
        ("Measure", Measure, "Use AdaDamp or GradDamp"),
        ("Signals", policies.Signals, "Use accelerando.policies.Signals"),
    ],
)
def test_old_names_warn(name, value, advice):
    with pytest.warns(FutureWarning, match=f"batch_size.{name} is deprecated.*{advice}"):
        assert getattr(batch_size, name) is value


def test_old_functions_warn():
    with pytest.warns(FutureWarning, match="batch_size.as_policy is deprecated"):
        assert batch_size.as_policy(64) == policies.Constant(64)
    with pytest.warns(FutureWarning, match="Use accelerando.policies.replay"):
        replay = batch_size.replay
    assert replay(policies.GeoDamp(8, 1, 2), losses=[1.0, 0.9]) == [8, 16, 32]


def test_a_policy_of_the_old_kind_still_works():
    with pytest.warns(FutureWarning, match="BatchSizePolicy is deprecated"):
        base = batch_size.BatchSizePolicy

    @dataclass(frozen=True)
    class Ratchet(base):
        initial: int = 16

        def decide(self, signals, state):
            size = 2 * self.initial if signals.loss < 1.0 else self.initial
            return Damping(size, 0.5), state

    controller = Controller.of(batch_size=Ratchet, batch_size_params={"initial": 8})
    with pytest.warns(FutureWarning, match="Damping is deprecated"):
        plan = controller.plan({"update": 1, "loss": 0.5}, controller.start(), Settings(), 0.1)
    assert (plan.batch_size, plan.lr_scale) == (16, 0.5)


def test_unknown_names_are_unknown():
    with pytest.raises(AttributeError, match="has no attribute 'GeoDump'"):
        batch_size.GeoDump  # noqa: B018
