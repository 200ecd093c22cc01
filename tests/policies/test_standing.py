"""Decisions are checked, merged, and hold until the next one."""

import math

import pytest

from accelerando._decisions import NOTHING, Decision, Memories, Settings
from accelerando.policies._standing import Bounds, after, ask_standing, checked


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Decision(batch_size=0), "batch_size=...\\) must be a number above 0"),
        (Decision(batch_size=math.inf), "batch_size=...\\) must be a number above 0"),
        (Decision(batch_size=True), "decided True"),
        (Decision(lr=math.nan), "lr=...\\) must be a number of at least 0"),
        (Decision(lr_scale=-0.1), "lr_scale=...\\) must be a number of at least 0"),
        (Decision(momentum=1.0), "momentum=...\\) must be a number of at least 0 and below 1"),
        (Decision(betas=0.9), "betas=...\\) must be two numbers of at least 0 and below 1"),
        (Decision(betas=(0.9, 1.0)), "betas=...\\) must be two numbers"),
        (Decision(betas=(0.9,)), "betas=...\\) must be two numbers"),
        (Decision(workers=1.5), "workers=...\\) must be an integer"),
        (Decision(workers=0), "workers=...\\) must be an integer of at least 1"),
        (Decision(period="x"), "period=...\\) must be an integer"),
        (Decision(precision="int8"), "precision=...\\) must be 'float32', 'bfloat16' or 'float16'"),
    ],
)
def test_a_decision_that_cannot_be_carried_out_is_refused(decision, message):
    with pytest.raises(ValueError, match=message):
        checked(decision, "a policy")


def test_a_good_decision_passes():
    good = Decision(8.5, 0.1, 0.0, 0.0, (0.9, 0.999), 2, 4, "bfloat16")
    assert checked(good, "a policy") is good
    assert checked(NOTHING, "a policy") is NOTHING
    with pytest.raises(TypeError, match="returns a Decision or None; 'mine' returned 64"):
        checked(64, "mine")


def test_decisions_hold_until_the_next_one():
    settings = after(Settings(), Decision(batch_size=64, workers=3), base_lr=0.1)
    settings = after(settings, Decision(lr=0.2, period=4), base_lr=0.1)
    settings = after(settings, Decision(momentum=0.5, precision="float16"), base_lr=0.1)
    assert settings == Settings(64.0, 2.0, (), 0.5, None, 3, 4, "float16")
    assert after(settings, NOTHING, base_lr=0.1) == settings


def test_a_learning_rate_is_a_ratio_to_the_rate_of_the_optimizer():
    assert after(Settings(), Decision(lr=0.3), base_lr=0.2).lr_scale == 0.3 / 0.2
    assert after(Settings(lr_scale=7.0), Decision(lr=0.3), base_lr=0.0).lr_scale == 1.0


def test_betas_override_momentum_and_a_later_momentum_changes_the_first_beta():
    settings = after(Settings(), Decision(momentum=0.1, betas=(0.8, 0.99)), base_lr=1.0)
    assert settings.betas == (0.8, 0.99)
    assert after(settings, Decision(momentum=0.5), base_lr=1.0).betas == (0.5, 0.99)


# -- several policies -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "wanted", "size"),
    [
        (Bounds(None, 100), 1000.0, 100.0),
        (Bounds(10, 100), 1000.0, 100.0),
        (Bounds(10, None), 1000.0, 640.0),
        (Bounds(None, None), 1e9, 2.0**16),
        (Bounds(None, 100), 0.25, 1.0),
    ],
)
def test_a_size_is_one_that_exists(bounds, wanted, size):
    assert bounds.within(Decision(wanted)) == Decision(size)
    assert bounds.within(Decision(lr=0.5)) == Decision(lr=0.5)


def test_later_policies_see_what_will_be_carried_out():
    seen = Bounds(10, 100).seen(Decision(batch_size=20.0, lr=0.5, betas=(0.9, 0.99), period=3))
    assert seen == {
        "batch_size": 10.0,
        "wanted_batch_size": 20.0,
        "lr": 0.5,
        "momentum": 0.9,
        "beta2": 0.99,
        "period": 3.0,
    }
    assert Bounds(10, 100).seen(Decision(workers=2)) == {}


class Says:
    """A policy that decides what it is told to, and counts."""

    def __init__(self, *decisions):
        self.decisions = decisions

    def decide(self, signals, state):
        return self.decisions[state["asked"]], {"asked": state["asked"] + 1}


def test_decisions_are_merged_and_hold():
    policies = (
        Says(Decision(lr_scale=0.5, workers=4), None),
        Says(Decision(lr=0.2, workers=2), None),
    )
    memories = Memories([{}, {"asked": 0}, {"asked": 0}])
    asked = policies, {"lr": 0.1}, 8, Bounds(None, 100), memories
    settings, states = ask_standing(*asked, Settings(), 0.1)
    assert (settings.workers, settings.lr_scale, settings.scales) == (2, 2.0, (0.5, 1.0))
    assert states == [{"asked": 1}, {"asked": 1}]
    again = Memories([{}, *states])
    assert ask_standing(*asked[:-1], again, settings, 0.1)[0] == settings
