"""The base class of monitors, and the helpers that monitors share."""

import math

import pytest

from accelerando.monitor import LossTrend, Monitor, Setting, watch
from accelerando.monitor._monitor import blend, no_parts


class Count(Monitor):
    signals = ("count", "rows")

    def observe(self, seen, state):
        count = state.get("count", 0.0) + 1.0
        return (count, float(seen.batch_size)), {"count": count}


def test_watch_passes_the_memory_and_the_fields_on():
    rows = watch(Count(), losses=[1.0, 1.0], batch_size=7)
    assert rows == [{"count": 1.0, "rows": 7.0}, {"count": 2.0, "rows": 7.0}]


def test_blend_is_the_mean_and_then_an_exponential_average():
    mean = 0.0
    for count, value in enumerate([1.0, 2.0, 6.0], start=1):
        mean = blend(mean, value, count, memory=3)
    assert mean == pytest.approx(3.0)
    assert blend(mean, 6.0, 4, memory=3) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (Setting(True, False), None),
        (Setting(False, True), None),
        (Setting(False, False), "may not be divided"),
        (Setting(True, True, compressed=True), "compressed"),
        (Setting(True, True, averages_parameters=True), "own parameters"),
    ],
)
def test_parts_of_a_batch_can_be_compared_or_a_sentence_says_why_not(setting, reason):
    found = no_parts(setting)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("memory", [0.5, True, "10", math.nan])
def test_a_wrong_memory_is_named(memory):
    with pytest.raises(ValueError, match="'memory' parameter of LossTrend must be a number of at"):
        LossTrend(memory=memory)


def test_an_infinite_memory_never_forgets():
    rows = watch(LossTrend(memory=math.inf), losses=[1.0, 2.0, 6.0])
    assert rows[-1]["loss_average"] == pytest.approx(3.0)
