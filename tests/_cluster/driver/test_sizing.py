"""How many ranks should train: pure decisions, no cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando._cluster.driver.sizing import (
    Bound,
    Limits,
    Sizing,
    plural,
    ranks_for,
    tightest,
)


def sizing(averages=None, *, batch=256, examples=1000, **limits):
    """`averages` is the number of replicas that a strategy wants; None for all-reduce."""
    if averages is not None:
        limits |= {"averages": True, "replicas": averages if averages != "workers" else None}
    limits = {"examples_per_worker": 64, "min_rows": 2, **limits}
    return Sizing(Limits(**limits), batch, n_examples=examples)


@pytest.mark.parametrize(
    ("averages", "settings", "workers", "ranks", "why"),
    [
        (None, {}, 4, 4, "batch 256, 64 rows per rank"),
        (None, {"max_workers": 3}, 4, 3, "batch 256"),
        (None, {"chunks": 2}, 4, 2, "2 chunks"),
        (None, {"chunks": 1, "min_workers": 2}, 4, 1, "1 chunk with rows"),
        (None, {"batch": 64, "min_workers": 2}, 4, 2, "batch 64"),
        (None, {"batch": 256, "examples": 2}, 4, 4, "batch 256"),
        (None, {"max_workers": "auto"}, 4, 1, "more than 1 are not known to pay"),
        ("workers", {"batch": 16}, 4, 4, "the cluster has 4 workers"),
        ("workers", {}, 0, 1, "the cluster has 1 worker"),
        ("workers", {"max_workers": 3}, 4, 3, "max_workers=3"),
        ("workers", {"examples": 5}, 4, 2, "X has 5 rows"),
        ("workers", {"examples": 5, "min_workers": 3}, 4, 2, "X has 5 rows"),
        ("workers", {"examples": None}, 4, 4, "the cluster has 4 workers"),
        (3, {}, 8, 3, "3 replicas are wanted"),
        (3, {"max_workers": 2}, 8, 2, "3 replicas are wanted"),
        ("auto", {}, 4, 1, "more than 1 are not known to pay"),
        ("auto", {"min_workers": 2}, 4, 2, "min_workers=2"),
    ],
)
def test_the_tightest_bound_decides(averages, settings, workers, ranks, why):
    found = sizing(averages, **settings).bound(members=0, workers=workers)
    assert found.ranks == ranks
    assert why in found.why


def test_a_policy_is_one_of_the_bounds():
    allowed = Sizing(Limits(averages=True), 16, allowed=2)
    assert allowed.bound(members=4, workers=4) == (2, "a policy allows 2")
    generous = Sizing(Limits(averages=True), 16, allowed=9)
    assert generous.bound(members=4, workers=4).ranks == 4


def test_replicas_are_added_while_rows_per_second_grow():
    wanted = sizing("auto")
    wanted, found = wanted.observe(ranks=1, rows=64, seconds=0.010, workers=8)
    assert found is None
    assert wanted.bound(members=1, workers=8).ranks == 2
    wanted, found = wanted.observe(ranks=2, rows=128, seconds=0.012, workers=8)  # 1.7 times
    assert found is None
    assert wanted.bound(members=2, workers=8).ranks == 4
    before = wanted
    wanted, found = wanted.observe(ranks=4, rows=256, seconds=0.025, workers=8)  # 1.04 times less
    assert found == (
        "Rows per second by the number of replicas - 1: 6400, 2: 10667, 4: 10240; training "
        "continues with 2."
    )
    assert wanted.bound(members=4, workers=8).ranks == 2
    assert [ranks for ranks, _ in wanted.throughput()] == [1, 2, 4]
    assert before.bound(members=4, workers=8).ranks == 4, "sizing is immutable"


def test_ranks_are_added_while_updates_become_faster():
    wanted = sizing(batch=512, max_workers="auto")
    seconds = {1: 1.0, 2: 0.6, 4: 0.58, 8: 0.2}
    ranks = 1
    for _ in range(6):
        wanted, _ = wanted.observe(ranks, 512, seconds[ranks], workers=8)
        ranks = wanted.bound(ranks, workers=8).ranks
    assert ranks == 2
    wanted, _ = wanted.observe(2, 1024, 1.2, workers=8)  # a batch twice as large: another try
    assert wanted.bound(2, workers=8).ranks == 4


def test_speed_is_not_used_if_the_number_of_ranks_is_given():
    wanted = sizing()
    assert wanted.observe(ranks=4, rows=256, seconds=1.0, workers=4) == (wanted, None)
    assert wanted.throughput() == []


def test_a_schedule_is_looked_at_one_epoch_ahead():
    assert sizing().ahead(None, workers=4) == 4
    assert sizing().ahead(512, workers=4) == 8
    assert sizing().ahead(64, workers=4) == 4, "the present batch needs more"
    assert sizing(max_workers="auto").ahead(512, workers=4) == 0
    assert Sizing(Limits(64, min_workers=2), 256, allowed=1).ahead(512, workers=4) == 2


@given(st.integers(1, 10**6), st.integers(1, 1000), st.integers(1, 50), st.integers(1, 50))
def test_ranks_stay_within_their_bounds(batch, per_worker, fewest, most):
    fewest, most = min(fewest, most), max(fewest, most)
    ranks = ranks_for(batch, per_worker, fewest, most)
    assert fewest <= ranks <= most
    if fewest < ranks < most:
        assert (ranks - 1) * per_worker < batch <= ranks * per_worker


def test_ties_go_to_the_first_bound():
    assert tightest([Bound(2, "a"), Bound(2, "b")], fewest=1).why == "a"


def test_plurals():
    assert [plural(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
