"""The session of a participant, request by request."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from accelerando.crowd.store import export, people, session, statistics
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import participant, tables
from accelerando.crowd.web.schemas import session_json

SMALL = "name: eggs\nitems: 8\nparticipants: {answers: 5}\n"


def test_a_session_from_the_first_query_to_the_last(lab):
    lab = lab(SMALL)
    token = lab.token(lab.come(participant="anna"))
    asked, end = lab.answer_all(token)
    assert len(asked) == 5
    assert end.outcome == "done"
    assert end.person.answered == 5
    assert len({(q.head, q.low, q.high) for q in asked}) == 5, "nobody is asked the same twice"
    assert lab.n_answers() == 5


def test_tabs_at_once_get_the_same_queries_and_no_more_than_the_quota(lab):
    lab = lab(SMALL)
    token = lab.token(lab.come(count=0))
    with ThreadPoolExecutor(6) as pool:
        seen = list(pool.map(lambda _: [q.id for q in lab.look(token).queries], range(12)))
    assert len({tuple(map(int, ids)) for ids in seen}) == 1

    def all_of_it(_):
        return lab.answer_all(token)[0]

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(all_of_it, range(6)))
    assert lab.n_answers() == 5, "the quota holds however many tabs there are"


def test_consent_comes_first(lab):
    lab = lab(SMALL + "consent: {text: Please agree}\n")
    standing = lab.come()
    token = lab.token(standing)
    assert standing.consent_required
    assert not standing.queries
    agreed = lab.do(session.consent, lab.name, lab.secret, token, True, 5.0)
    assert agreed.person.consented == 5.0
    assert agreed.queries
    other = lab.come(participant="b")
    refused = lab.do(session.consent, lab.name, lab.secret, lab.token(other), False, 5.0)
    assert (refused.outcome, refused.person) == ("no_consent", None)


def test_of_people_who_refuse_only_the_number_is_kept(lab):
    lab = lab(SMALL + "consent: {text: Please agree}\n")
    known = lab.come(PROLIFIC_PID="5f3c", browser="b" * 22).person.id
    for who in ("5f3d", "5f3e"):
        token = lab.token(lab.come(PROLIFIC_PID=who, browser="c" * 22))
        lab.do(session.consent, lab.name, lab.secret, token, False, 5.0)
        with pytest.raises(ApiError, match="unknown"):
            lab.look(token)
    with lab.store.read() as connection:
        kept = connection.execute(select(participant)).all()
        text = str([connection.execute(select(t)).all() for t in tables.tables.values()])
        summary = statistics.summary(connection, "eggs", "")
    assert [row.id for row in kept] == [known]
    assert "5f3d" not in text
    assert "5f3e" not in text
    assert (summary["declined"], summary["participants"]) == (2, 1)


def test_consent_is_stored_with_its_version_and_time(lab):
    lab = lab(SMALL + "consent: {text: Please agree, version: 2026-b}\n")
    standing = lab.come()
    assert standing.queries == ()
    token = lab.token(standing)
    agreed = lab.do(session.consent, lab.name, lab.secret, token, True, 5.0)
    assert (agreed.person.consent_version, agreed.person.consented) == ("2026-b", 5.0)
    with lab.store.read() as connection:
        (row,) = connection.execute(select(participant)).all()
        (line,) = people.qualities(connection, lab.find())
        table = "".join(export.participants_csv(connection, lab.find(), [line]))
    assert (row.consent_version, row.consented) == ("2026-b", 5.0)
    assert "2026-b" in table


def test_who_agreed_before_and_refuses_new_conditions_has_ended_and_the_answers_stay(lab):
    lab = lab(SMALL + "consent: {text: Please agree, version: '2'}\n")
    token = lab.token(lab.come())
    lab.do(session.consent, lab.name, lab.secret, token, True, 5.0)
    lab.answer_all(token, most=2)
    on_screen = lab.look(token).queries[0]
    lab.do(lambda c: c.execute(update(participant).values(consent_version="1")))
    assert lab.look(token).consent_required
    refused = lab.do(session.consent, lab.name, lab.secret, token, False, 5.0)
    assert refused.outcome == "no_consent"
    assert refused.person.answered == 2
    with pytest.raises(ApiError, match="has ended"):  # from a tab that still shows a query
        lab.answer(token, on_screen)
    assert lab.n_answers() == 2
    shown = session_json(refused, [], lab.secret, "")
    assert "are kept" in shown["completion"]["text_html"]
    with lab.store.read() as connection:
        assert statistics.summary(connection, "eggs", "")["declined"] == 0


def test_while_paused_open_queries_are_taken_and_no_new_ones_asked(lab):
    from accelerando.crowd.store import experiments

    lab = lab(SMALL)
    standing = lab.come()
    token = lab.token(standing)
    lab.do(experiments.set_state, lab.find().frame.id, "paused")
    after = lab.answer(token, standing.queries[0])
    assert after.taken.stored
    assert (after.outcome, list(after.queries)) == ("paused", [])
    lab.do(experiments.set_state, lab.find().frame.id, "running")
    assert lab.look(token).queries[0].id == standing.queries[1].id
