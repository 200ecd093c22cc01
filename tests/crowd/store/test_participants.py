"""Participants: who joins, who returns, who withdraws."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from accelerando.crowd.store import (
    export,
    participants,
    people,
    published,
    session,
    statistics,
)
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import audit, served

SMALL = "name: eggs\nitems: 8\nparticipants: {answers: 5}\n"


def test_a_token_of_another_experiment_opens_nothing(store, lab):
    one = lab(SMALL)
    token = one.token(one.come())
    two = lab(SMALL.replace("eggs", "shoes"))
    with pytest.raises(ApiError):
        two.look(token)


BROWSER = "b" * 32  # a number that one browser keeps


def test_one_browser_that_comes_twice_at_once_is_one(lab):
    lab = lab(SMALL)
    with ThreadPoolExecutor(6) as pool:
        found = list(
            pool.map(lambda _: lab.come(participant="anna", browser=BROWSER).person.id, range(12))
        )
    assert len(set(found)) == 1


def test_an_id_alone_opens_nobodys_session(lab):
    """Ids can be guessed. Twelve people who claim the same one at once get twelve sessions."""
    lab = lab(SMALL)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: lab.come(id="104").person, range(12)))
    assert len({person.id for person in found}) == 12
    assert sorted(person.external or "" for person in found)[-2:] == ["", "104"]
    assert all(person.name.startswith("104") for person in found)


def test_a_personal_link_continues_on_another_device_and_beats_a_squatter(lab):
    lab = lab(SMALL)
    squatter = lab.come(id="104")
    proof = participants.proof(lab.secret, lab.find(), "104")
    anna = lab.come(id="104", proof=proof)
    assert anna.person.id != squatter.person.id, "the squatter knows the token of that session"
    assert anna.person.name == "104"
    token = lab.token(anna)
    lab.answer_all(token, most=2)
    again = lab.come(id="104", proof=proof)
    assert (again.person.id, again.person.answered) == (anna.person.id, 2)
    for wrong in ("", "x", proof[:-1] + "A", participants.proof(lab.secret, lab.find(), "105")):
        if wrong != proof:
            assert lab.come(id="104", proof=wrong).person.id != anna.person.id


def test_a_study_may_admit_people_with_its_link_only(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {entry: link}\n")
    for parameters in ({}, {"id": "1"}, {"id": "1", "invitation": "x"}, {"id": "1", "proof": "x"}):
        with pytest.raises(ApiError, match="complete link"):
            lab.come(**parameters)
    key = participants.invitation(lab.secret, lab.find())
    first = lab.come(id="1", invitation=key)
    assert first.person.name == "1"
    assert lab.come(shown=lab.token(first)).person.id == first.person.id
    proof = participants.proof(lab.secret, lab.find(), "2")
    assert lab.come(id="2", proof=proof).person.name == "2"
    assert "proof" not in first.person.parameters
    assert "invitation" not in first.person.parameters


def test_places_are_counted(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {total_participants: 2}\n")
    first = lab.token(lab.come(participant="a"))
    assert lab.come(participant="b").person is not None
    third = lab.come(participant="c")
    assert (third.person, third.outcome) == (None, "full")
    assert lab.come(participant="a", shown=first).person.name == "a", "who was there may come back"


@pytest.mark.parametrize(("returning", "same"), [("resume", True), ("new", False)])
def test_who_comes_back(lab, returning, same):
    lab = lab(f"name: eggs\nitems: 8\nparticipants: {{returning: {returning}}}\n")
    proof = participants.proof(lab.secret, lab.find(), "x")
    first = lab.come(PROLIFIC_PID="x", proof=proof)
    assert (lab.come(PROLIFIC_PID="x", proof=proof).person.id == first.person.id) is same
    token = lab.token(first)
    assert lab.come(PROLIFIC_PID="x", shown=token).person.id == first.person.id, "a reload"


def test_who_has_finished_is_refused_and_a_dropout_continues(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {returning: refuse, answers: 4}\n")
    first = lab.come(PROLIFIC_PID="x", browser=BROWSER)
    token = lab.token(first)
    lab.answer_all(token, most=2)
    again = lab.come(PROLIFIC_PID="x", browser=BROWSER)
    assert (again.person.id, again.person.answered) == (first.person.id, 2)
    assert lab.come(PROLIFIC_PID="x", shown=token).person.id == first.person.id
    other = lab.come(PROLIFIC_PID="x")  # another device, without a proof: a session of its own
    assert other.person.id != first.person.id
    lab.answer_all(lab.token(other))
    with pytest.raises(ApiError, match="taken part"):
        lab.come(PROLIFIC_PID="x")
    assert lab.come(PROLIFIC_PID="x-ray").person.name == "x-ray", "another id that begins like it"
    assert lab.come(PROLIFIC_PID="x", shown=token).person.answered == 2, "who has begun may finish"


def test_a_dropout_continues_with_the_personal_link_where_returning_is_refused(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {returning: refuse, answers: 4}\n")
    proof = participants.proof(lab.secret, lab.find(), "x")
    first = lab.come(PROLIFIC_PID="x", proof=proof)
    lab.answer_all(lab.token(first), most=2)
    assert lab.come(PROLIFIC_PID="x", proof=proof).person.id == first.person.id
    lab.answer_all(lab.token(first))
    with pytest.raises(ApiError, match="taken part"):
        lab.come(PROLIFIC_PID="x", proof=proof)


def test_the_name_in_the_link_counts_more_than_the_cookie(lab):
    lab = lab(SMALL)
    anna = lab.come(participant="anna")
    bert = lab.come(participant="bert", shown=lab.token(anna))
    assert bert.person.name == "bert"
    assert lab.come(shown=lab.token(anna)).person.name == "anna"


def test_pseudonyms_keep_names_out_of_the_database(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {pseudonyms: true}\n")
    first = lab.come(PROLIFIC_PID="5f3c", STUDY_ID="s1", browser=BROWSER)
    assert first.person.parameters == {"STUDY_ID": "s1"}
    assert "5f3c" not in str(first.person)
    assert lab.come(PROLIFIC_PID="5f3c", browser=BROWSER).person.id == first.person.id


@pytest.mark.parametrize("name", ["a\x00b", "\ud800", "x" * 1000, "'; DROP TABLE answer; --", "é✓"])
def test_any_name_can_be_stored(lab, name):
    lab = lab(SMALL)
    first = lab.come(participant=name, browser=BROWSER)
    assert lab.come(participant=name, browser=BROWSER).person.id == first.person.id


def withdraw(lab, token, clock):
    return lab.do(session.withdraw, lab.name, lab.secret, token, clock)


def audited(lab):
    with lab.store.read() as connection:
        return list(connection.execute(select(audit.c.action).order_by(audit.c.id)).scalars())


def test_withdrawn_answers_count_nowhere_and_are_deleted_after_the_delay(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {answers: 5, withdrawn_days: 2}\n")
    token = lab.token(lab.come(participant="anna"))
    lab.answer_all(token, most=3)
    before = lab.find().revision
    gone = withdraw(lab, token, lab.clock)
    assert gone.outcome == "withdrawn"
    assert lab.find().revision == before + 1, "the worker starts without them"
    assert audited(lab) == ["withdraw"]
    assert lab.look(token).outcome == "withdrawn"
    with lab.store.read() as connection:
        snapshot = lab.find_in(connection)
        assert list(export.rows(lab.store.read, snapshot)) == []
        assert published.new_answers(connection, snapshot.frame.id, 0) == []
        assert statistics.summary(connection, "eggs", "")["answers"] == 0
        assert next(people.qualities(connection, snapshot))["median_response_time"] is None
    assert lab.n_answers() == 3, "marked, so that a mistake can be undone"
    day = 86400.0
    assert lab.do(participants.delete_withdrawn, lab.find(), lab.clock + 1.9 * day) == 0
    assert lab.do(participants.delete_withdrawn, lab.find(), lab.clock + 2.1 * day) == 1
    assert lab.n_answers() == 0
    with lab.store.read() as connection:
        assert connection.execute(select(func.count()).select_from(served)).scalar() == 0
    assert audited(lab) == ["withdraw", "delete withdrawn answers"]
    assert lab.do(participants.delete_withdrawn, lab.find(), lab.clock + 9 * day) == 0


def test_a_delay_of_zero_deletes_at_once(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {withdrawn_days: 0}\n")
    token = lab.token(lab.come())
    lab.answer_all(token, most=3)
    withdraw(lab, token, lab.clock)
    assert lab.n_answers() == 0


def test_the_experimenter_can_undo_a_withdrawal(lab):
    lab = lab(SMALL)
    token = lab.token(lab.come())
    lab.answer_all(token, most=3)
    person = withdraw(lab, token, lab.clock).person
    lab.do(participants.reinstate, lab.find(), person)
    assert lab.look(token).person.answered == 3
    assert lab.look(token).queries
    with pytest.raises(ApiError):
        lab.do(participants.reinstate, lab.find(), lab.look(token).person)


@pytest.mark.parametrize(("winner", "outcome"), [("right", "screened_out"), ("left", "done")])
def test_a_session_that_had_ended_has_ended_after_a_withdrawal_was_undone(lab, winner, outcome):
    """Who had failed the attention checks could go on and got the code of the others."""
    checks = "checks: {every: 2, fail_after: 1, queries: [{head: 0, left: 1, right: 7, winner: 1}]}"
    lab = lab(f"name: eggs\nitems: 8\nparticipants: {{answers: 2}}\n{checks}\n")
    token = lab.token(lab.come())
    assert lab.answer_all(token, winner)[1].outcome == outcome
    person = withdraw(lab, token, lab.clock).person
    lab.do(participants.reinstate, lab.find(), person)
    standing = lab.look(token)
    assert (standing.outcome, standing.person.outcome) == (outcome, outcome)


def test_a_clock_that_was_ahead_does_not_keep_withdrawn_answers_for_ever(lab):
    lab = lab(SMALL)
    token = lab.token(lab.come())
    lab.answer_all(token, most=3)
    now = lab.clock
    withdraw(lab, token, now + 1e9)
    lab.do(participants.delete_withdrawn, lab.find(), now)
    lab.do(participants.delete_withdrawn, lab.find(), now + 8 * 86400)
    assert lab.n_answers() == 0
