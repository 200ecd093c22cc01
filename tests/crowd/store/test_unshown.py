"""Queries whose items did not load are replaced, and nothing is stored but a count."""

import pytest
from sqlalchemy import func, select

from accelerando.crowd.store import experiments, session
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import served
from accelerando.crowd.store.unshown import unshown_items

EGGS = (
    "name: eggs\nitems: 7\nparticipants: {answers: 12}\nsamplers: {r: {class: Random}}\n"
    "practice: [{head: 0, left: 1, right: 2}]\n"
)


def replace(lab, token, query, failed, count=2):
    return lab.do(
        session.replace, lab.name, lab.secret, token, int(query), failed, count, lab.tick()
    )


def counted(lab):
    with lab.store.read() as connection:
        return unshown_items(connection, lab.find_in(connection).frame.id)


@pytest.fixture
def at_work(lab):
    """A participant after the practice query."""
    lab = lab(EGGS)
    token = lab.token(lab.come(participant="anna"))
    first = lab.look(token).queries[0]
    lab.answer(token, first)
    return lab, token


def test_the_items_that_failed_are_not_asked_about_again(at_work):
    lab, token = at_work
    first = lab.look(token).queries[0]
    after = replace(lab, token, first.id, [first.head])
    assert first.id not in [row.id for row in after.queries]
    # The second query was assigned before; all later ones avoid the item.
    standing = lab.answer(token, after.queries[0])
    while standing.queries:
        row = standing.queries[-1]
        if row.id != after.queries[-1].id or first.head not in (row.head, row.left, row.right):
            assert first.head not in (row.head, row.left, row.right)
        standing = lab.answer(token, standing.queries[0])
    assert standing.outcome == "done"
    assert standing.person.answered == 12
    assert counted(lab) == [{"item": first.head, "times": 1, "participants": 1}]
    with lab.store.read() as connection:
        rows = connection.execute(select(func.count()).where(served.c.id == first.id)).scalar_one()
    assert rows == 0


def test_a_request_that_comes_twice_counts_once(at_work):
    lab, token = at_work
    first = lab.look(token).queries[0]
    for _ in range(2):
        replace(lab, token, first.id, [first.left, first.right])
    assert {row["times"] for row in counted(lab)} == {1}
    assert len(counted(lab)) == 2


def test_practice_is_passed_over_and_a_pause_does_not_matter(lab):
    lab = lab(EGGS)
    token = lab.token(lab.come(participant="ben"))
    first = lab.look(token).queries[0]
    assert first.kind == "practice"
    lab.do(_pause)
    assert replace(lab, token, first.id, [0]).outcome == "paused"
    lab.do(_resume)
    assert [row.kind for row in lab.look(token).queries] == ["query", "query"]


def _pause(connection):
    _set(connection, "paused")


def _resume(connection):
    _set(connection, "running")


def _set(connection, state):
    found = experiments.find(connection, "eggs")
    experiments.set_state(connection, found.frame.id, state)


def test_only_one_s_own_queries_and_their_items(at_work):
    lab, token = at_work
    first = lab.look(token).queries[0]
    other = next(k for k in range(7) if k not in (first.head, first.left, first.right))
    with pytest.raises(ApiError, match="not part of the query"):
        replace(lab, token, first.id, [other])
    stranger = lab.token(lab.come(participant="eve"))
    replace(lab, stranger, first.id, [first.head])
    assert first.id in [row.id for row in lab.look(token).queries]
    assert counted(lab) == []


def test_nobody_leafs_through_all_queries(at_work):
    lab, token = at_work
    with pytest.raises(ApiError, match="Too many items"):
        for _ in range(400):
            first = lab.look(token).queries[0]
            replace(lab, token, first.id, [first.head], count=1)
    assert sum(row["times"] for row in counted(lab)) == 300
