"""Every monitor, through the same invariants. A new monitor adds one row."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest

from accelerando import monitor as module
from accelerando.monitor import (
    CommunicationTime,
    Curvature,
    GradientDiversity,
    GradientNoiseScale,
    GradientVariance,
    LossTrend,
    Monitor,
    Observation,
    ParameterSpread,
    Throughput,
)
from accelerando.monitor._monitor import CurvatureSeen, Setting

MONITORS = {
    "GradientNoiseScale": GradientNoiseScale(),
    "GradientNoiseScale, now and then": GradientNoiseScale(every=3),
    "GradientVariance": GradientVariance(memory=10),
    "GradientDiversity": GradientDiversity(memory=10),
    "Curvature": Curvature(every=5, iterations=3),
    "LossTrend": LossTrend(memory=10),
    "ParameterSpread": ParameterSpread(),
    "Throughput": Throughput(memory=10),
    "CommunicationTime": CommunicationTime(memory=10),
}
every_monitor = pytest.mark.parametrize("monitor", MONITORS.values(), ids=MONITORS)


def recorded(count=60):
    rng = np.random.default_rng(0)
    for update in range(1, count + 1):
        square = 5.0 + float(rng.chisquare(5))
        yield Observation(
            update=update,
            batch_size=32 if update < 20 else 48,
            n_examples=500,
            loss=float(2 / update + rng.random()),
            grad_square=square,
            parts=int(update % 3),
            parts_square=square + float(rng.chisquare(5)),
            seconds=math.nan if update == 1 else 0.01 + 0.001 * float(rng.random()),
            wait_seconds=math.nan if update == 1 else 0.001,
            ranks=2,
            spread=None if update % 4 else 0.1 * update,
            curvature=None if update % 5 else CurvatureSeen(1.0 * update, 0.5 * update, 0.01),
        )


def run_through(monitor, seen, state=None):
    state = monitor.start() if state is None else state
    found = []
    for one in seen:
        values, state = monitor.observe(one, state)
        found.append(values)
    return found, state


def same(first, second):
    return repr(first) == repr(second)  # nan is nan


def test_every_public_monitor_has_a_row():
    classes = {
        name
        for name in module.__all__
        if isinstance(getattr(module, name), type)
        and issubclass(getattr(module, name), Monitor)
        and name != "Monitor"
    }
    assert classes == {type(monitor).__name__ for monitor in MONITORS.values()}


def test_no_two_monitors_share_a_signal():
    names = [name for kind in {type(m) for m in MONITORS.values()} for name in kind.signals]
    assert len(names) == len(set(names))


@every_monitor
def test_it_returns_one_number_for_each_signal_and_learns_something(monitor):
    found, _ = run_through(monitor, recorded())
    assert {len(values) for values in found} == {len(monitor.signals)}
    assert all(isinstance(value, float) for values in found for value in values)
    assert all(math.isfinite(value) for value in found[-1])
    assert found[-1] != found[40]


@every_monitor
def test_it_is_deterministic_and_a_resumed_one_says_the_same(monitor):
    seen = list(recorded())
    whole, _ = run_through(monitor, seen)
    head, state = run_through(monitor, seen[:17])
    tail, _ = run_through(monitor, seen[17:], json.loads(json.dumps(dict(state))))
    assert same(head + tail, whole)


@every_monitor
def test_settings_survive_pickle(monitor):
    assert pickle.loads(pickle.dumps(monitor)) == monitor


@every_monitor
def test_what_is_undefined_is_said_before_training(monitor):
    averaging = Setting(several_ranks=True, divisible=True, averages_parameters=True)
    own = monitor.looks_at_parts or isinstance(monitor, Curvature)
    assert bool(monitor.undefined(averaging)) == own
    usual = Setting(several_ranks=True, divisible=True)
    assert bool(monitor.undefined(usual)) == isinstance(monitor, ParameterSpread)
    nothing = Setting(several_ranks=False, divisible=False, averages_parameters=False)
    why = monitor.undefined(nothing)
    assert bool(why) == (monitor.looks_at_parts or isinstance(monitor, ParameterSpread))


@pytest.mark.parametrize(
    "kind", [GradientVariance, GradientDiversity, LossTrend, Throughput, CommunicationTime]
)
def test_a_memory_of_less_than_an_update_is_refused(kind):
    with pytest.raises(ValueError, match=f"'memory' parameter of {kind.__name__}"):
        kind(memory=0.5)


@pytest.mark.parametrize(
    "monitor", [one for one in MONITORS.values() if one.looks_at_parts], ids=repr
)
def test_one_that_looks_at_parts_learns_nothing_without_them(monitor):
    """So that training need not ask it after every update."""
    found, state = run_through(monitor, recorded())
    values, after = monitor.observe(next(recorded())._replace(parts=0), state)
    assert same(after, state)
    assert same(values, found[-1])
