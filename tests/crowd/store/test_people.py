"""Statistics of participants' attention."""

from accelerando.crowd.serve.worker import Worker
from accelerando.crowd.store import participants, people
from accelerando.crowd.store.people import People
from tests.crowd.conftest import EGGS


def test_quality_shows_who_does_not_read(lab):
    checks = "checks: {every: 3, queries: [{head: 0, left: 1, right: 7, winner: 1}]}"
    lab = lab(f"name: eggs\nitems: 8\nparticipants: {{answers: 30}}\n{checks}\n")
    careful = lab.token(lab.come(participant="careful"))
    standing = lab.look(careful)
    while standing.queries:
        query = standing.queries[0]
        side = "left" if int(query.id) % 2 else "right"
        standing = lab.answer(careful, query, 1 if query.kind == "check" else side)
    lab.answer_all(lab.token(lab.come(participant="lefty")))
    with lab.store.read() as connection:
        lefty, careful = people.qualities(connection, lab.find())
    assert careful["checks"] == {"passed": 14, "asked": 14}
    assert careful["flags"] == []
    assert lefty["left_share"] == 1.0
    assert set(lefty["flags"]) >= {"one_sided"}
    assert lefty["checks"]["passed"] == 7


def test_a_look_computes_those_who_changed(lab, monkeypatch):
    lab = lab(EGGS)
    computed = []
    describe = people._quality
    monkeypatch.setattr(
        people, "_quality", lambda one, *rest: (computed.append(one.name), describe(one, *rest))[1]
    )
    kept = People()

    def look():
        computed.clear()
        with lab.store.read() as connection:
            found = kept.look(connection, lab.find_in(connection))
            names = sorted(computed)
            assert found == list(people.qualities(connection, lab.find_in(connection)))
        return names

    tokens = {name: lab.token(lab.come(participant=name)) for name in ("anna", "bert", "cleo")}
    for token in tokens.values():
        lab.answer_all(token, most=5)
    assert look() == ["anna", "bert", "cleo"]
    assert look() == []
    lab.answer_all(tokens["bert"], most=1)
    assert look() == ["bert"]
    lab.do(participants.set_blocked, lab.find(), 1, True)
    assert look() == ["anna"]
    lab.do(participants.remove, lab.find(), 2)
    assert look() == []


def test_a_new_embedding_reaches_everybody_some_at_a_time(lab, monkeypatch):
    monkeypatch.setattr(people, "_PER_LOOK", 2)
    lab = lab(EGGS)
    for name in "abcde":
        lab.answer_all(lab.token(lab.come(participant=name)))
    kept = People()

    def known():
        with lab.store.read() as connection:
            found = kept.look(connection, lab.find_in(connection))
        return sum(one["agreement"] is not None for one in found)

    assert known() == 0
    Worker(lab.store).turn()
    assert [known() for _ in range(4)] == [2, 4, 5, 5]
