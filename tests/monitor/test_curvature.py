"""Signals of the Hessian."""

from __future__ import annotations

import math

import pytest

from accelerando.monitor import Curvature, Observation
from accelerando.monitor._monitor import CurvatureSeen


def test_it_keeps_what_was_seen_last():
    monitor, state = Curvature(every=2), {}
    seen = Observation(1, 8, None, 1.0, 1.0)
    values, state = monitor.observe(seen, state)
    assert all(math.isnan(value) for value in values)
    values, state = monitor.observe(seen._replace(curvature=CurvatureSeen(3.0, 1.0, 0.1)), state)
    assert values == (3.0, 1.0, 0.1)
    assert monitor.observe(seen, state)[0] == (3.0, 1.0, 0.1)


@pytest.mark.parametrize("settings", [{"every": 0}, {"samples": 0}, {"iterations": -1}])
def test_bad_settings_are_named(settings):
    with pytest.raises(ValueError, match=f"'{next(iter(settings))}' parameter of Curvature"):
        Curvature(**settings)
