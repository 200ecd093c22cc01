"""Participants: who joins, who returns, who withdraws."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from accelerando.crowd.store import session
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import served

SMALL = "name: eggs\nitems: 8\nparticipants: {answers: 5}\n"


def test_a_token_of_another_experiment_opens_nothing(store, lab):
    one = lab(SMALL)
    token = one.token(one.come())
    two = lab(SMALL.replace("eggs", "shoes"))
    with pytest.raises(ApiError):
        two.look(token)


def test_one_person_who_comes_twice_at_once_is_one(lab):
    lab = lab(SMALL)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: lab.come(participant="anna").person.id, range(12)))
    assert len(set(found)) == 1


def test_places_are_counted(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {total_participants: 2}\n")
    assert lab.come(participant="a").person is not None
    assert lab.come(participant="b").person is not None
    third = lab.come(participant="c")
    assert (third.person, third.outcome) == (None, "full")
    assert lab.come(participant="a").person.name == "a", "who was there may come back"


@pytest.mark.parametrize(("returning", "same"), [("resume", True), ("new", False)])
def test_who_comes_back(lab, returning, same):
    lab = lab(f"name: eggs\nitems: 8\nparticipants: {{returning: {returning}}}\n")
    first = lab.come(PROLIFIC_PID="x")
    assert (lab.come(PROLIFIC_PID="x").person.id == first.person.id) is same
    token = lab.token(first)
    assert lab.come(PROLIFIC_PID="x", shown=token).person.id == first.person.id, "a reload"


def test_who_comes_back_may_be_refused(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {returning: refuse}\n")
    first = lab.come(PROLIFIC_PID="x")
    with pytest.raises(ApiError, match="taken part"):
        lab.come(PROLIFIC_PID="x")
    assert lab.come(PROLIFIC_PID="x", shown=lab.token(first)).person.id == first.person.id


def test_the_name_in_the_link_counts_more_than_the_cookie(lab):
    lab = lab(SMALL)
    anna = lab.come(participant="anna")
    bert = lab.come(participant="bert", shown=lab.token(anna))
    assert bert.person.name == "bert"
    assert lab.come(shown=lab.token(anna)).person.name == "anna"


def test_pseudonyms_keep_names_out_of_the_database(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {pseudonyms: true}\n")
    first = lab.come(PROLIFIC_PID="5f3c", STUDY_ID="s1")
    assert first.person.parameters == {"STUDY_ID": "s1"}
    assert "5f3c" not in str(first.person)
    assert lab.come(PROLIFIC_PID="5f3c").person.id == first.person.id


@pytest.mark.parametrize("name", ["a\x00b", "\ud800", "x" * 1000, "'; DROP TABLE answer; --", "é✓"])
def test_any_name_can_be_stored(lab, name):
    lab = lab(SMALL)
    first = lab.come(participant=name)
    assert lab.come(participant=name).person.id == first.person.id


def test_who_withdraws_leaves_nothing_behind(lab):
    lab = lab(SMALL)
    token = lab.token(lab.come(participant="anna"))
    lab.answer_all(token, most=3)
    before = lab.find().revision
    gone = lab.do(session.withdraw, lab.name, lab.secret, token, 9.0)
    assert gone.outcome == "withdrawn"
    assert lab.n_answers() == 0
    assert lab.find().revision == before + 1, "the worker starts without them"
    with lab.store.read() as connection:
        assert connection.execute(select(func.count()).select_from(served)).scalar() == 0
    assert lab.come(participant="anna").outcome == "withdrawn"
