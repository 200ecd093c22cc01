"""Nothing lost, nothing doubled: the same promises on both databases."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from accelerando.crowd._sampler import Query
from accelerando.crowd.store import published, session
from accelerando.crowd.store.errors import Refused
from accelerando.crowd.store.schema import answer, participant, served

SMALL = "name: eggs\nitems: 8\nparticipants: {answers: 5}\n"


def answers(lab):
    with lab.store.read() as connection:
        return connection.execute(select(func.count()).select_from(answer)).scalar_one()


def test_a_session_from_the_first_query_to_the_last(lab):
    lab = lab(SMALL)
    token = lab.token(lab.come(participant="anna"))
    asked, end = lab.answer_all(token)
    assert len(asked) == 5
    assert end.outcome == "done"
    assert end.person.answered == 5
    assert len({(q.head, q.low, q.high) for q in asked}) == 5, "nobody is asked the same twice"
    assert answers(lab) == 5


def test_a_reload_gives_the_same_queries(lab):
    lab = lab(SMALL)
    first = lab.come()
    again = lab.look(lab.token(first))
    assert [q.id for q in first.queries] == [q.id for q in again.queries]


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
    with pytest.raises(Refused) as refused:
        lab.do(session.answer, lab.name, lab.secret, token, number, chosen, 1.0, 0.1, 2, 1.0)
    assert refused.value.code == code
    assert answers(lab) == 0
    assert lab.look(token).queries[0].id == asked.id, "and the query is still open"


def test_nobody_answers_for_somebody_else(lab):
    lab = lab(SMALL)
    anna, bert = lab.come(participant="anna"), lab.come(participant="bert")
    with pytest.raises(Refused, match="not asked"):
        lab.answer(lab.token(bert), anna.queries[0])
    forged = lab.token(anna)[:-1] + ("0" if lab.token(anna)[-1] != "0" else "1")
    for token in (forged, "", None, "1.1", f"1.{anna.person.id}.", "a.b.c", "1.²." + "0" * 64):
        with pytest.raises(Refused) as refused:
            lab.look(token)
        assert refused.value.code == "no_participant"


def test_a_token_of_another_experiment_opens_nothing(store, lab):
    one = lab(SMALL)
    token = one.token(one.come())
    two = lab(SMALL.replace("eggs", "shoes"))
    with pytest.raises(Refused):
        two.look(token)


def test_many_at_once_store_an_answer_once(lab):
    """Two tabs, a double click, a retry while the first try is still on its way."""
    lab = lab(SMALL)
    standing = lab.come()
    token, query = lab.token(standing), standing.queries[0]
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: lab.answer(token, query).taken.stored, range(16)))
    assert sum(done) == 1
    assert answers(lab) == 1
    assert lab.look(token).person.answered == 1


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
    assert answers(lab) == 5, "the quota holds however many tabs there are"


def test_one_person_who_comes_twice_at_once_is_one(lab):
    lab = lab(SMALL)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: lab.come(participant="anna").person.id, range(12)))
    assert len(set(found)) == 1


def test_each_queued_query_is_asked_once_however_many_ask(lab):
    lab = lab("name: eggs\nitems: 30\nparticipants: {answers: null}\n")
    queue = [Query(k, (k + 1) % 30, (k + 2) % 30, 1.0 - k / 30) for k in range(30)]
    lab.do(published.publish, lab.find(), {"arr": queue}, {}, None, 1.0)
    tokens = [lab.token(lab.come(count=0)) for _ in range(10)]
    with ThreadPoolExecutor(10) as pool:
        asked = list(pool.map(lambda token: lab.look(token, 2).queries, tokens))
    heads = [q.head for queries in asked for q in queries]
    assert sorted(heads) == list(range(20)), "the best ones first, each to one person"
    assert not any(q.fallback for queries in asked for q in queries)


def test_without_a_queue_people_are_asked_at_random(lab):
    lab = lab(SMALL)
    standing = lab.come()
    assert all(q.fallback and q.score is None for q in standing.queries)


def test_a_query_of_the_queue_that_this_person_knows_goes_to_the_next(lab):
    lab = lab("name: eggs\nitems: 9\nparticipants: {answers: null}\n")
    best = [Query(0, 1, 2, 0.9)]
    lab.do(published.publish, lab.find(), {"arr": best}, {}, None, 1.0)
    anna = lab.token(lab.come(count=1, participant="anna"))
    lab.do(published.publish, lab.find(), {"arr": [Query(0, 2, 1, 0.9)]}, {}, None, 2.0)
    second = lab.look(anna, 2).queries[1]
    assert (second.head, second.low, second.high) != (0, 1, 2)
    bert = lab.come(count=1, participant="bert")
    assert (bert.queries[0].head, bert.queries[0].left) == (0, 2)


def test_skips_are_recorded_and_do_not_count(lab):
    lab = lab(SMALL + "skip: true\n")
    standing = lab.come()
    after = lab.answer(lab.token(standing), standing.queries[0], None)
    assert (after.person.skipped, after.person.answered) == (1, 0)
    asked, end = lab.answer_all(lab.token(standing))
    assert len(asked) == 5
    assert end.person.skipped == 1
    assert answers(lab) == 6


def test_who_has_been_asked_everything_is_done(lab):
    lab = lab("name: eggs\nitems: 3\nparticipants: {answers: null}\n")
    asked, end = lab.answer_all(lab.token(lab.come()))
    assert len(asked) == 3
    assert end.outcome == "done"


def test_an_experiment_with_all_its_answers_asks_no_more(lab):
    lab = lab("name: eggs\nitems: 8\nparticipants: {answers: 5, total_answers: 7}\n")
    lab.answer_all(lab.token(lab.come(participant="a")))
    _, end = lab.answer_all(lab.token(lab.come(count=1, participant="b")))
    assert end.outcome == "full"
    assert answers(lab) in (7, 8), "a query on a screen may still be answered"


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
    with pytest.raises(Refused, match="taken part"):
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
    assert refused.outcome == "no_consent"
    assert not lab.look(lab.token(other)).queries


def test_practice_is_first_and_does_not_count(lab):
    lab = lab(SMALL + "practice: [{head: 0, left: 1, right: 2, winner: 1}]\n")
    asked, end = lab.answer_all(lab.token(lab.come()))
    assert [q.kind for q in asked] == ["practice"] + ["query"] * 5
    assert end.person.answered == 5


def test_attention_checks_come_every_so_often_and_end_the_session(lab):
    checks = "checks: {every: 2, fail_after: 2, queries: [{head: 0, left: 1, right: 7, winner: 1}]}"
    lab = lab(f"name: eggs\nitems: 8\nparticipants: {{answers: 50}}\n{checks}\n")
    token = lab.token(lab.come())
    kinds, sides = [], []
    standing = lab.look(token)
    while standing.queries:
        query = standing.queries[0]
        kinds.append(query.kind)
        if query.kind == "check":
            sides.append(query.left)
        standing = lab.answer(token, query, 7 if query.kind == "check" else "left")
    assert kinds == ["query", "check", "query", "check"]
    assert sides == [1, 7], "sides are swapped the second time"
    assert standing.outcome == "screened_out"


def test_repeats_swap_the_sides_of_what_this_person_answered(lab):
    lab = lab("name: eggs\nitems: 9\nparticipants: {answers: 20}\nchecks: {repeat_every: 6}\n")
    asked, _ = lab.answer_all(lab.token(lab.come()))
    again = [q for q in asked if q.kind == "repeat"]
    assert [q.number for q in again] == [6, 12, 18]
    before = {(q.head, q.left, q.right) for q in asked if q.kind == "query"}
    assert all((q.head, q.right, q.left) in before for q in again)


def test_fixed_queries_are_where_they_were_put(lab):
    fixed = "fixed: {2: {query: [3, 4, 5]}, 3: {sampler: random}}"
    samplers = "samplers: {arr: {class: ARR}, random: {class: Random}}"
    lab = lab(SMALL + f"{samplers}\n{fixed}\nshares: {{arr: 1, random: 0}}\n")
    asked, _ = lab.answer_all(lab.token(lab.come()))
    assert (asked[1].head, asked[1].left, asked[1].right) == (3, 4, 5)
    assert [q.sampler for q in asked] == ["arr", "fixed", "random", "arr", "arr"]


def test_one_sampler_per_participant(lab):
    samplers = "samplers: {a: {class: Random}, b: {class: RoundRobin}}"
    lab = lab(f"name: e\nitems: 20\nparticipants: {{answers: 6, one_sampler: true}}\n{samplers}\n")
    used = []
    for name in "abcdefgh":
        asked, _ = lab.answer_all(lab.token(lab.come(participant=name)))
        assert len({q.sampler for q in asked}) == 1
        used.append(asked[0].sampler)
    assert set(used) == {"a", "b"}


def test_round_robin_goes_round_for_each_person_and_after_a_restart(lab):
    lab = lab("name: e\nitems: 6\nparticipants: {answers: 6}\nsamplers: {r: {class: RoundRobin}}\n")
    asked, _ = lab.answer_all(lab.token(lab.come()))
    assert sorted(q.head for q in asked) == [0, 1, 2, 3, 4, 5]


def test_who_withdraws_leaves_nothing_behind(lab):
    lab = lab(SMALL)
    token = lab.token(lab.come(participant="anna"))
    lab.answer_all(token, most=3)
    before = lab.find().revision
    gone = lab.do(session.withdraw, lab.name, lab.secret, token, 9.0)
    assert gone.outcome == "withdrawn"
    assert answers(lab) == 0
    assert lab.find().revision == before + 1, "the worker starts without them"
    with lab.store.read() as connection:
        assert connection.execute(select(func.count()).select_from(served)).scalar() == 0
    assert lab.come(participant="anna").outcome == "withdrawn"


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


def test_the_database_itself_refuses_a_second_answer(lab):
    from sqlalchemy.exc import IntegrityError

    lab = lab(SMALL)
    standing = lab.come()
    lab.answer(lab.token(standing), standing.queries[0])
    row = {
        "experiment_id": lab.find().frame.id,
        "query_id": standing.queries[0].id,
        "winner": 1,
        "received": 1.0,
    }
    with pytest.raises(IntegrityError), lab.store.write() as connection:
        connection.execute(answer.insert().values(**row))
    with pytest.raises(IntegrityError), lab.store.write() as connection:
        connection.execute(answer.insert().values(**{**row, "query_id": 1}))


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
