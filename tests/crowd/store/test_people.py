"""Statistics of participants' attention."""

from accelerando.crowd.store import people


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
    assert careful["checks"] == {"passed": 10, "asked": 10}
    assert careful["flags"] == []
    assert lefty["left_share"] == 1.0
    assert set(lefty["flags"]) >= {"one_sided"}
    assert lefty["checks"]["passed"] == 5
