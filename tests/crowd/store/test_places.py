"""Places: who begins may finish, and the limits of an experiment hold."""

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import select

from accelerando.crowd.store import participants
from accelerando.crowd.store.schema import participant

LIMIT = "name: eggs\nitems: 8\nparticipants: {answers: 5, total_answers: 12}\n"


def outcomes(lab):
    """Outcome of every participant."""
    with lab.store.read() as connection:
        return list(connection.execute(select(participant.c.outcome)).scalars())


def test_who_begins_may_finish_and_the_limit_holds(lab):
    """A limit once ended everybody in the middle, without a code, and was exceeded."""
    lab = lab(LIMIT)
    came = [lab.come(participant=name) for name in "abcd"]
    assert [one.outcome for one in came] == [None, None, None, "full"]
    for _ in range(5):  # all at the same time, one answer each
        for one in came[:3]:
            lab.answer_all(lab.token(one), most=1)
    assert outcomes(lab) == ["done"] * 3
    assert lab.n_answers() == 12, "the last one was asked as many questions as were left"
    assert lab.come(participant="e").outcome == "full"


def test_the_places_of_dropouts_are_free_again_and_a_dropout_may_still_finish(lab):
    lab = lab(LIMIT.replace("12", "10, dropout_minutes: 30"))
    one, other = (lab.token(lab.come(participant=name)) for name in "ab")
    lab.answer_all(one)
    lab.answer_all(other, most=2)
    lab.clock += 29 * 60
    assert lab.come(participant="c").outcome == "full"
    lab.clock += 2 * 60
    third = lab.come(participant="c")
    assert third.outcome is None
    assert lab.answer_all(lab.token(third))[1].person.answered == 3
    asked, end = lab.answer_all(other)
    assert (len(asked), end.outcome) == (3, "done"), "late, and not sent away"


def test_somebody_who_comes_back_keeps_the_places(lab):
    lab = lab(LIMIT.replace("12", "5, dropout_minutes: 30"))
    token = lab.token(lab.come(participant="a"))
    for _ in range(3):
        lab.clock += 20 * 60
        lab.come(participant="a", shown=token)  # a reload, without an answer
    assert lab.come(participant="b").outcome == "full"


def test_the_places_of_a_dropout_are_free_again_after_a_clock_was_ahead(lab):
    """Such a dropout kept the places until the time that the wrong clock had shown."""
    lab = lab(LIMIT.replace("12", "5, dropout_minutes: 30"))
    now = lab.clock
    lab.clock += 7 * 86400
    lab.come(participant="a")
    lab.clock = now
    assert lab.come(participant="b").outcome is None
    lab.clock -= 60  # clocks of two servers differ a little: b is there
    assert lab.come(participant="c").outcome == "full"


def test_people_who_leave_or_are_blocked_are_replaced(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {answers: 2, total_participants: 2}\n")
    first, second = (lab.come(participant=name) for name in "ab")
    lab.answer_all(lab.token(first))
    lab.answer_all(lab.token(second))
    assert lab.come(participant="c").outcome == "full"
    lab.do(participants.set_blocked, lab.find(), second.person.id, True)
    assert lab.come(participant="c").outcome is None
    assert lab.come(participant="d").outcome == "full"
    lab.clock += 3700
    assert lab.come(participant="d").outcome is None, "c has dropped out"


def test_sessions_without_an_end_stop_at_the_limit_with_their_code(lab):
    lab = lab("name: eggs\nitems: 9\nparticipants: {answers: null, total_answers: 9}\n")
    tokens = [lab.token(lab.come(participant=name)) for name in "ab"]
    for _ in range(6):
        for token in tokens:
            lab.answer_all(token, most=1)
    assert lab.n_answers() == 9
    assert outcomes(lab) == ["done", "done"]
    late = lab.come(participant="c")
    assert late.outcome == "full"


def test_the_last_place_goes_to_one(lab):
    lab = lab(LIMIT)
    with ThreadPoolExecutor(6) as pool:
        came = list(pool.map(lambda k: lab.come(participant=f"p{k}"), range(8)))
    there = [one for one in came if one.outcome is None]
    assert sorted(one.person.quota for one in there) == [2, 5, 5]
