"""Nothing lost, nothing doubled: the same promises on both databases."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import select

from accelerando.crowd._sampler import Query
from accelerando.crowd.store import published
from accelerando.crowd.store.schema import served

SMALL = "name: eggs\nitems: 8\nparticipants: {answers: 5}\n"


def test_a_reload_gives_the_same_queries(lab):
    lab = lab(SMALL)
    first = lab.come()
    again = lab.look(lab.token(first))
    assert [q.id for q in first.queries] == [q.id for q in again.queries]


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


def test_who_has_been_asked_everything_is_done(lab):
    lab = lab("name: eggs\nitems: 3\nparticipants: {answers: null}\n")
    asked, end = lab.answer_all(lab.token(lab.come()))
    assert len(asked) == 3
    assert end.outcome == "done"


def test_attention_checks_and_repeats_come_in_addition_to_the_participants_answers(lab):
    checks = (
        "checks: {every: 3, repeat_every: 5, queries: [{head: 0, left: 1, right: 7, winner: 1}]}"
    )
    lab = lab(f"name: eggs\nitems: 9\nparticipants: {{answers: 20}}\n{checks}\n")
    asked, end = lab.answer_all(lab.token(lab.come()))
    kinds = Counter(q.kind for q in asked)
    assert kinds["query"] == end.person.answered == 20
    assert kinds["check"] > 5
    assert kinds["repeat"] > 2
    assert end.person.extra == kinds["check"] + kinds["repeat"]
    assert end.outcome == "done"


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


def heads_in_rounds(rows, n_items):
    """True if each complete round has every head once."""
    heads = [row.head for row in sorted(rows, key=lambda row: row.number)]
    rounds = [heads[k : k + n_items] for k in range(0, len(heads) - n_items + 1, n_items)]
    return all(len(set(one)) == n_items for one in rounds) and len(set(heads)) == len(
        heads[:n_items]
    )


def test_round_robin_keeps_its_rounds_for_many_people_dropouts_and_restarts(lab):
    """A query that a person had seen once cost its head the turn."""
    lab = lab(
        "name: e\nitems: 6\nparticipants: {answers: 45}\nsamplers: {r: {class: RoundRobin}}\n"
    )
    for number in range(12):
        token = lab.token(lab.come(participant=f"p{number}"))
        lab.answer_all(token, most=45 if number % 3 else 7 * number)
        if number % 4 == 0:
            lab.store.engine.dispose()
            lab.answer_all(token)
    with lab.store.read() as connection:
        rows = connection.execute(select(served)).all()
    by_person = {}
    for row in rows:
        by_person.setdefault(row.participant_id, []).append(row)
    assert len(by_person) == 12
    assert max(map(len, by_person.values())) == 45
    broken = [person for person, theirs in by_person.items() if not heads_in_rounds(theirs, 6)]
    assert broken == []


def test_round_robin_keeps_its_rounds_when_people_answer_at_once(lab):
    lab = lab(
        "name: e\nitems: 5\nparticipants: {answers: 25}\nsamplers: {r: {class: RoundRobin}}\n"
    )
    tokens = [lab.token(lab.come(count=0, participant=f"p{k}")) for k in range(4)]
    with ThreadPoolExecutor(8) as pool:  # two tabs of each person
        list(pool.map(lab.answer_all, tokens * 2))
    with lab.store.read() as connection:
        rows = connection.execute(select(served)).all()
    for token in tokens:
        theirs = [row for row in rows if row.participant_id == int(token.split(".")[1])]
        assert len(theirs) == 25
        assert heads_in_rounds(theirs, 5)
