"""skorch's own tests pass with our classes, except those that are listed with a reason."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def suite(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("_skorch_suite")


@pytest.mark.timeout(900)
def test_skorchs_tests_pass_with_our_classes(suite):
    outcomes = suite.run(ours=True)
    assert suite.differences(outcomes) == {}
    # The benchmark runs four more, which pass: 1,157 of the 1,168 that pass with skorch.
    assert Counter(outcomes.values())["passed"] >= 1153


def test_every_difference_is_noticed(suite):
    listed = dict.fromkeys([*suite.DIFFERENT, *suite.FAIL_WITH_SKORCH], "failed")
    assert suite.differences({**listed, "test_new": "passed", "test_old": "skipped"}) == {}
    assert suite.differences({**listed, "test_new": "failed"}) == {"test_new": "failed"}
    assert suite.differences({**listed, "test_new": "error"}) == {"test_new": "error"}
    first, *others = listed
    assert suite.differences({**listed, first: "passed"}) == {first: "passed"}
    assert suite.differences(dict.fromkeys(others, "failed")) == {first: "missing"}


def test_there_are_few_differences_and_each_has_a_reason(suite):
    assert len(suite.DIFFERENT) <= 11
    assert all(len(reason) > 20 for reason in suite.DIFFERENT.values())
