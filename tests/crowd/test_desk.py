import numpy as np
import pytest

from accelerando.crowd import ARR, TSTE, Belief, Desk, Random, RoundRobin, Validation


@pytest.fixture
def belief():
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(10, 2))
    return Belief(positions, positions, -rng.gamma(1.0, 3.0, size=(10, 10)), TSTE())


@pytest.mark.parametrize("sampler", [Random(), RoundRobin(), ARR()], ids=lambda s: type(s).__name__)
def test_nobody_is_asked_the_same_query_twice_until_nothing_is_left(sampler):
    desk = Desk(5, {"only": sampler})
    state = desk.open(seed=0)
    keys = [desk.ask(state, "anna").query.key for _ in range(5 * 4 * 3 // 2)]
    assert len(set(keys)) == 30
    with pytest.raises(LookupError, match="every query"):
        desk.ask(state, "anna")
    assert desk.ask(state, "ben").query.key in keys


def test_validation_queries_come_back_on_purpose():
    desk = Desk(5, {"check": Validation(queries=[(0, 1, 2)])})
    state = desk.open()
    rows = [tuple(desk.ask(state, "anna").query[:3]) for _ in range(3)]
    assert rows == [(0, 1, 2), (0, 2, 1), (0, 1, 2)]


def test_shares_are_kept():
    desk = Desk(30, {"a": Random(), "b": Random()}, {"a": 80, "b": 20})
    state = desk.open(seed=1)
    names = [desk.ask(state, "anna").sampler for _ in range(1_000)]
    assert 760 < names.count("a") < 840


def test_a_queue_is_served_in_order_and_then_random_queries_fall_back(belief):
    desk = Desk(10, {"arr": ARR(random_share=0.0)}, queue_length=3)
    state = desk.open()
    desk.refill(state, belief)
    planned = list(state.queues["arr"])
    served = [desk.ask(state, f"p{k}") for k in range(4)]
    assert [one.query for one in served[:3]] == planned
    assert [one.fallback for one in served] == [False, False, False, True]


def test_a_query_seen_by_one_participant_waits_for_another(belief):
    desk = Desk(10, {"arr": ARR(random_share=0.0)}, queue_length=2)
    state = desk.open()
    desk.refill(state, belief)
    first, second = state.queues["arr"]
    state.asked["anna"] = {first.key}
    assert desk.ask(state, "anna").query == second
    assert desk.ask(state, "ben").query == first


def test_heads_that_were_not_served_come_first_after_a_refill(belief):
    desk = Desk(10, {"arr": ARR(random_share=0.0)}, queue_length=10)
    state = desk.open()
    desk.refill(state, belief)
    heads = [query.head for query in state.queues["arr"]]
    for k in range(4):
        desk.ask(state, f"p{k}")
    desk.refill(state, belief)
    assert [query.head for query in state.queues["arr"]][:6] == heads[4:]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"samplers": {}}, "at least one sampler"),
        ({"samplers": {"a": Random()}, "shares": {"b": 1}}, r"same samplers, \['a'\]; got \['b'\]"),
        ({"samplers": {"a": Random()}, "shares": {"a": 0}}, "not all 0"),
        ({"samplers": {"a": Random()}, "queue_length": 0}, "queue_length must be at least 1"),
    ],
)
def test_wrong_settings_are_named(settings, says):
    with pytest.raises(ValueError, match=says):
        Desk(n_items=10, **settings)
