import numpy as np
import pytest

from accelerando.crowd import ARR, TSTE, Random, RoundRobin, Validation
from accelerando.crowd._assignment import QueryAssigner
from accelerando.crowd._posterior import Posterior


@pytest.fixture
def posterior():
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(10, 2))
    return Posterior(positions, positions, -rng.gamma(1.0, 3.0, size=(10, 10)), TSTE())


@pytest.mark.parametrize("sampler", [Random(), RoundRobin(), ARR()], ids=lambda s: type(s).__name__)
def test_nobody_is_asked_the_same_query_twice_until_nothing_is_left(sampler):
    assigner = QueryAssigner(5, {"only": sampler})
    state = assigner.start(seed=0)
    keys = [assigner.assign(state, "anna").query.key for _ in range(5 * 4 * 3 // 2)]
    assert len(set(keys)) == 30
    with pytest.raises(LookupError, match="every query"):
        assigner.assign(state, "anna")
    assert assigner.assign(state, "ben").query.key in keys


def test_validation_queries_come_back_on_purpose():
    assigner = QueryAssigner(5, {"check": Validation(queries=[(0, 1, 2)])})
    state = assigner.start()
    rows = [tuple(assigner.assign(state, "anna").query[:3]) for _ in range(3)]
    assert rows == [(0, 1, 2), (0, 2, 1), (0, 1, 2)]


def test_shares_are_kept():
    assigner = QueryAssigner(30, {"a": Random(), "b": Random()}, {"a": 80, "b": 20})
    state = assigner.start(seed=1)
    names = [assigner.assign(state, "anna").sampler for _ in range(1_000)]
    assert 760 < names.count("a") < 840


def test_a_queue_is_served_in_order_and_then_random_queries_fall_back(posterior):
    assigner = QueryAssigner(10, {"arr": ARR(random_share=0.0)}, queue_length=3)
    state = assigner.start()
    assigner.refill(state, posterior)
    planned = list(state.queues["arr"].queries)
    served = [assigner.assign(state, f"p{k}") for k in range(4)]
    assert [one.query for one in served[:3]] == planned
    assert [one.fallback for one in served] == [False, False, False, True]


def test_a_query_seen_by_one_participant_waits_for_another(posterior):
    assigner = QueryAssigner(10, {"arr": ARR(random_share=0.0)}, queue_length=2)
    state = assigner.start()
    assigner.refill(state, posterior)
    first, second = state.queues["arr"].queries
    state.seen["anna"] = {first.key}
    assert assigner.assign(state, "anna").query == second
    assert assigner.assign(state, "ben").query == first


def test_heads_that_were_not_served_come_first_after_a_refill(posterior):
    assigner = QueryAssigner(10, {"arr": ARR(random_share=0.0)}, queue_length=10)
    state = assigner.start()
    assigner.refill(state, posterior)
    heads = [query.head for query in state.queues["arr"].queries]
    for k in range(4):
        assigner.assign(state, f"p{k}")
    assigner.refill(state, posterior)
    assert [query.head for query in state.queues["arr"].queries][:6] == heads[4:]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"samplers": {}}, "at least one sampler"),
        (
            {"samplers": {"a": Random()}, "shares": {"b": 1}},
            r"each of the samplers \['a'\].* Got {'b': 1}",
        ),
        ({"samplers": {"a": Random()}, "shares": {"a": 0}}, "not all of them 0"),
        ({"samplers": {"a": Random()}, "queue_length": 0}, "'queue_length' .* at least 1"),
    ],
)
def test_wrong_settings_are_named(settings, says):
    with pytest.raises(ValueError, match=says):
        QueryAssigner(n_items=10, **settings)
