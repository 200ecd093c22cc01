"""How many ranks should train: pure decisions, no cluster."""

from types import SimpleNamespace

import pytest

from accelerando.batch_size import Constant, as_policy
from accelerando.sync import AllReduce, ModelAveraging, PeriodicAveraging
from accelerando.train.cluster.checkpoints import Checkpoints
from accelerando.train.cluster.demand import Demand
from accelerando.train.run import Run


def demand(strategy, *, batch=256, workers=4, chunks=None, examples=1000, **settings):
    net = SimpleNamespace(
        **{
            "strategy_": strategy,
            "examples_per_worker": 64,
            "min_workers": 1,
            "max_workers": None,
            **settings,
        }
    )
    training = SimpleNamespace(
        policy=as_policy(batch),
        run=Run(until=2, n_examples=examples),
        max_batch_size=None,
        fewest_rows=2,
    )
    return Demand(net, training, chunks, lambda: workers)


@pytest.mark.parametrize(
    ("strategy", "settings", "ranks", "why"),
    [
        (AllReduce(), {}, 4, "batch 256, 64 rows per rank"),
        (AllReduce(), {"max_workers": 3}, 3, "batch 256"),
        (AllReduce(), {"chunks": 2}, 2, "2 chunks"),
        (AllReduce(), {"batch": 64, "min_workers": 2}, 2, "batch 64"),
        (PeriodicAveraging(4), {"batch": 16}, 4, "the cluster has 4 workers"),
        (PeriodicAveraging(4), {"workers": 0}, 1, "the cluster has 1 worker"),
        (PeriodicAveraging(4), {"max_workers": 3}, 3, "max_workers=3"),
        (PeriodicAveraging(4), {"examples": 5}, 2, "X has 5 rows"),
        (PeriodicAveraging(4), {"examples": 5, "min_workers": 3}, 2, "X has 5 rows"),
        (ModelAveraging(3), {"workers": 8}, 3, "3 replicas are wanted"),
        (ModelAveraging(3), {"max_workers": 2}, 2, "3 replicas are wanted"),
        (ModelAveraging("auto"), {}, 1, "more than 1 are not known to pay"),
        (ModelAveraging("auto"), {"min_workers": 2}, 2, "min_workers=2"),
    ],
)
def test_the_tightest_bound_decides(strategy, settings, ranks, why):
    found = demand(strategy, **settings).bound(members=0)
    assert found.ranks == ranks
    assert why in found.why


def test_what_policies_allow_counts_too():
    wanted = demand(PeriodicAveraging(4))
    wanted.allowed = 2
    assert wanted.bound(members=4) == (2, "a policy allows 2")


def test_replicas_are_added_while_rows_per_second_grow():
    wanted = demand(ModelAveraging("auto"), workers=8)
    assert wanted.learn_speed(ranks=1, rows=64, seconds=0.010) is None
    assert wanted.bound(members=1).ranks == 2
    assert wanted.learn_speed(ranks=2, rows=128, seconds=0.012) is None  # 1.7 times the rows
    assert wanted.bound(members=2).ranks == 4
    told = wanted.learn_speed(ranks=4, rows=256, seconds=0.025)  # 1.04 times the rows of a moment
    assert told == (
        "Rows per second by the number of replicas - 1: 6400, 2: 10667, 4: 10240; training goes "
        "on with 2."
    )
    assert wanted.bound(members=4).ranks == 2
    assert [ranks for ranks, _ in wanted.throughput()] == [1, 2, 4]


def test_nobody_learns_from_speed_where_nothing_is_tried():
    wanted = demand(AllReduce())
    assert wanted.learn_speed(ranks=4, rows=256, seconds=1.0) is None
    assert wanted.ahead() == 4
    assert demand(AllReduce(), max_workers="auto").ahead() == 0


def test_parts_of_checkpoints_that_never_become_whole_are_thrown_away():
    kept, places = Checkpoints(), ["a", "b"]

    def note(name, place, update, segment=1):
        return {"name": name, "place": place, "update": update, "segment": segment}

    assert kept.complete(note("a10", "a", 10), 1, places) == []
    assert kept.complete(note("b20", "b", 20), 1, places) == []  # b10 is lost
    assert kept.complete(note("a20", "a", 20), 1, places) == ["a20", "b20"]
    assert kept.complete(note("late", "a", 20, segment=0), 1, places) == []
    assert kept.stale() == ["a10", "late"]
    assert kept.stale() == []


def test_a_constant_batch_is_known_beforehand():
    assert demand(AllReduce(), batch=Constant(32)).batch_size == 32
