"""What users may pass for a policy."""

from __future__ import annotations

import pytest

from accelerando._decisions import Decision, Measure, Signals
from accelerando.monitor import GradientVariance
from accelerando.policies import (
    AdaDamp,
    Constant,
    Every,
    FullBatch,
    GeoDamp,
    NoiseScale,
    NormTest,
)
from accelerando.policies._controller import as_batch_policies
from accelerando.policies._core import Damping, FunctionPolicy, as_decision, as_policy


def mine(signals):
    return 3


# -- batch_size= ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "params", "policies"),
    [
        (7, None, (Constant(7),)),
        (-1, None, (FullBatch(),)),
        (GeoDamp, {"delay": 60, "factor": 5}, (GeoDamp(128, 60, 5),)),
        (GeoDamp(4), {"delay": 9}, (GeoDamp(4, 9),)),
        (GeoDamp(4), None, (GeoDamp(4),)),
        (mine, None, (FunctionPolicy(mine),)),
        (NoiseScale(initial=16), None, (Constant(16), NoiseScale(initial=16))),
        (NormTest, {"initial": 32}, (Constant(32), NormTest(initial=32))),
        (NormTest(), {"initial": 32}, (Constant(32), NormTest(initial=32))),
    ],
)
def test_what_a_batch_size_may_be(given, params, policies):
    assert as_batch_policies(given, params) == policies


@pytest.mark.parametrize(
    ("given", "params", "error", "message"),
    [
        (0, None, ValueError, "'batch_size' parameter.*an integer of at least 1, or -1"),
        (-2, None, ValueError, "Got -2 instead"),
        (64, {"delay": 2}, ValueError, r"batch_size__delay.*but batch_size=64"),
        (GeoDamp, {"dely": 2}, ValueError, r"no parameter 'dely'. Did you mean 'delay'\?.*Its par"),
        (Constant, {"initial": 2}, ValueError, "Its parameters: batch_size__size"),
        ("64", None, TypeError, "'batch_size' parameter must be an integer of at least 1, -1"),
        (6.5, None, TypeError, "'batch_size' parameter must be"),
        (None, None, TypeError, "'batch_size' parameter must be"),
        (True, None, TypeError, "'batch_size' parameter must be"),
    ],
)
def test_what_is_no_batch_size_says_so(given, params, error, message):
    with pytest.raises(error, match=message):
        as_batch_policies(given, params)


# -- policies= ------------------------------------------------------------------------------------


def test_functions_and_instances_are_policies():
    assert as_policy(mine) == FunctionPolicy(mine)
    assert as_policy(NoiseScale()) == NoiseScale()
    with pytest.raises(TypeError, match=r"Pass an instance: NoiseScale\(\)"):
        as_policy(NoiseScale)
    with pytest.raises(
        TypeError, match=r"'policies' parameter must be a list of policies.*Got 3 instead"
    ):
        as_policy(3)


# -- what a batch-size policy returns -------------------------------------------------------------


def test_numbers_and_decisions_are_decisions():
    assert as_decision(None, mine) is None
    assert as_decision(Decision(8), mine) == Decision(8)
    assert as_decision(8, mine) == Decision(8.0)
    with pytest.raises(TypeError, match=r"returns a number, a Decision or None; .*returned '8'"):
        as_decision("8", mine)
    with pytest.raises(TypeError, match="returned True"):
        as_decision(True, mine)


def test_the_old_damping_is_a_decision_for_one_version():
    with pytest.warns(FutureWarning, match=r"Return accelerando.policies.Decision"):
        assert as_decision(Damping(8, 0.5), mine) == Decision(8, lr_scale=0.5)


# -- Every ----------------------------------------------------------------------------------------


def test_every_epoch_asks_once_per_epoch():
    policy = Every(lambda signals: Decision(lr=0.5), epochs=2)
    state, asked = policy.start(), []
    for update in range(12):
        decision, state = policy.decide(Signals({"update": update, "epoch": update // 3}), state)
        asked.append(decision is not None)
    assert [k for k, there in enumerate(asked) if there] == [0, 6]


def test_every_so_many_updates():
    policy = Every(lambda signals: Decision(lr=0.5), updates=4)
    asked = [policy(Signals({"update": k, "epoch": 0})) is not None for k in range(9)]
    assert [k for k, there in enumerate(asked) if there] == [0, 4, 8]


def test_every_keeps_the_memory_of_the_policy_inside():
    policy = Every(NormTest(dwell=1), updates=2)
    signals = Signals.known(
        update=2, epoch=0, wanted_batch_size=8, gradient_variance=800.0, gradient_square=1.0
    )
    decision, state = policy.decide(signals, policy.start())
    assert decision == Decision(batch_size=16.0)
    assert state == {"inside": {"first": 8, "last": 2}, "epoch": 0}
    assert policy.decide(signals.but(update=3), state) == (None, state)


def test_every_passes_on_what_the_policy_inside_needs():
    assert Every(NormTest(), updates=2).needs == GradientVariance.signals
    assert Every(NormTest(), updates=2).monitors() == (GradientVariance(),)
    asked = [Every(AdaDamp(dwell=2), updates=3).measures(k) is not None for k in range(7)]
    assert asked == [True, False, False, False, False, False, True]
    assert Every(AdaDamp(dwell=2), epochs=3).measures(4) == Measure("loss", 1.0)


@pytest.mark.parametrize(
    "params", [{}, {"updates": 1, "epochs": 1}, {"updates": 0}, {"epochs": 1.5}]
)
def test_every_needs_one_interval(params):
    with pytest.raises(ValueError, match="either updates= or epochs=, an integer of at least 1"):
        Every(NoiseScale(), **params)
