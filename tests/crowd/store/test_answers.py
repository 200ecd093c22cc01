"""Answers: each query is answered once, on both databases."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from accelerando.crowd.store import session
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import answer, participant

SMALL = "name: eggs\nitems: 8\nparticipants: {answers: 5}\n"


def test_an_answer_sent_again_is_stored_once(lab):
    lab = lab(SMALL)
    standing = lab.come()
    token, query = lab.token(standing), standing.queries[0]
    assert lab.answer(token, query).taken.stored
    again = lab.answer(token, query, "right")
    assert not again.taken.stored
    assert again.taken.reason == "already_answered"
    assert again.person.answered == 1
    with lab.store.read() as connection:
        assert connection.execute(select(answer.c.winner)).scalars().all() == [query.left]


@pytest.mark.parametrize(
    ("query", "winner", "code"),
    [
        (None, "head", "bad_winner"),
        (None, 10_000, "bad_winner"),
        (None, None, "bad_winner"),  # skipping is not allowed here
        (12345, 0, "unknown_query"),
    ],
)
def test_what_cannot_be_an_answer_is_refused_and_nothing_is_stored(lab, query, winner, code):
    lab = lab(SMALL)
    standing = lab.come()
    token, asked = lab.token(standing), standing.queries[0]
    number = int(asked.id) if query is None else query
    chosen = asked.head if winner == "head" else winner
    with pytest.raises(ApiError) as refused:
        lab.do(session.answer, lab.name, lab.secret, token, number, chosen, 1.0, 0.1, 2, 1.0)
    assert refused.value.code == code
    assert lab.n_answers() == 0
    assert lab.look(token).queries[0].id == asked.id, "and the query is still open"


def test_nobody_answers_for_somebody_else(lab):
    lab = lab(SMALL)
    anna, bert = lab.come(participant="anna"), lab.come(participant="bert")
    with pytest.raises(ApiError, match="not asked"):
        lab.answer(lab.token(bert), anna.queries[0])
    forged = lab.token(anna)[:-1] + ("0" if lab.token(anna)[-1] != "0" else "1")
    for token in (forged, "", None, "1.1", f"1.{anna.person.id}.", "a.b.c", "1.²." + "0" * 64):
        with pytest.raises(ApiError) as refused:
            lab.look(token)
        assert refused.value.code == "no_participant"


def test_many_at_once_store_an_answer_once(lab):
    """Two tabs, a double click, a retry while the first try is still on its way."""
    lab = lab(SMALL)
    standing = lab.come()
    token, query = lab.token(standing), standing.queries[0]
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: lab.answer(token, query).taken.stored, range(16)))
    assert sum(done) == 1
    assert lab.n_answers() == 1
    assert lab.look(token).person.answered == 1


def test_skips_are_recorded_and_do_not_count(lab):
    lab = lab(SMALL + "skip: true\n")
    standing = lab.come()
    after = lab.answer(lab.token(standing), standing.queries[0], None)
    assert (after.person.skipped, after.person.answered) == (1, 0)
    asked, end = lab.answer_all(lab.token(standing))
    assert len(asked) == 5
    assert end.person.skipped == 1
    assert lab.n_answers() == 6


def test_a_skipped_practice_query_is_no_skip(lab):
    """It is not in the export of skips, and the limit of skips is for the study's queries."""
    lab = lab(SMALL + "skip: true\npractice: [{head: 0, left: 1, right: 2}]\n")
    standing = lab.come()
    assert standing.queries[0].kind == "practice"
    after = lab.answer(lab.token(standing), standing.queries[0], None).person
    assert (after.practised, after.skipped, after.answered, after.extra) == (1, 0, 0, 0)


def test_counters_agree_with_the_answers(lab):
    lab = lab(SMALL + "skip: true\n")
    for name in "abc":
        token = lab.token(lab.come(participant=name))
        lab.answer(token, lab.look(token).queries[0], None)
        lab.answer_all(token, most=3)
    with lab.store.read() as connection:
        counted = connection.execute(
            select(func.sum(participant.c.answered), func.sum(participant.c.skipped))
        ).one()
        there = connection.execute(
            select(func.count(answer.c.winner), func.count() - func.count(answer.c.winner))
        ).one()
    assert tuple(counted) == tuple(there) == (9, 3)
