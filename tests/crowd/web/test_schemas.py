"""JSON of sessions."""

import pytest

from tests.crowd.web.conftest import API, begin

EDGES = ["true", "false", "NaN", "Infinity", "1e400", "-1", "1.5", "9223372036854775808", "[1]"]


@pytest.mark.parametrize("value", EDGES)
def test_a_number_at_the_edge_is_refused_and_stores_nothing(visitor, value):
    """True once was item 1, on the fast path and on the other."""
    query = begin(visitor)["queries"][0]
    bodies = [
        ("answers", f'{{"query": "{query["id"]}", "winner": {value}}}'),
        ("queries", f'{{"count": {value}}}'),
        ("participants", f'{{"count": {value}}}'),
    ]
    if value not in ("-1", "1.5", "9223372036854775808"):  # an odd time is unknown, not refused
        given = f'"query": "{query["id"]}", "winner": {query["left"]["item"]}'
        bodies.append(("answers", f'{{{given}, "response_time": {value}}}'))
    for path, body in bodies:
        reply = visitor.post(
            f"{API}/{path}", content=body, headers={"content-type": "application/json"}
        )
        assert reply.status_code == 422, (path, body)
    assert visitor.get(f"{API}/queries").json()["progress"]["answered"] == 0


def test_the_completion_link_knows_what_the_first_link_said(site):
    redirect = "https://app.prolific.com/submissions/complete?cc=C1&p={PROLIFIC_PID}&s={STUDY_ID}"
    site.add(
        "name: paid\nitems: 5\nparticipants: {answers: 1}\n"
        f'completion: {{done: {{code: "C-{{participant}}", redirect: "{redirect}"}}}}\n'
    )
    client, path = site.visitor(), "/api/v1/experiments/paid"
    body = {"parameters": {"PROLIFIC_PID": "a&b=c", "STUDY_ID": "x y", "other": "z"}}
    session = client.post(f"{path}/participants", json=body).json()
    query = session["queries"][0]
    end = client.post(
        f"{path}/answers", json={"query": query["id"], "winner": query["left"]["item"]}
    ).json()
    assert end["completion"]["code"] == "C-a&b=c"
    assert end["completion"]["redirect"].endswith("cc=C1&p=a%26b%3Dc&s=x%20y")


def test_the_progress_does_not_tell_checks_from_other_questions(site):
    """Checks do not count, but a progress that stands still would show who they are."""
    checks = "checks: {every: 3, queries: [{head: 0, left: 1, right: 5, winner: 1}]}"
    site.add(f"name: c\nitems: 6\nparticipants: {{answers: 6}}\n{checks}\n")
    client, path = site.visitor(), "/api/v1/experiments/c"
    session = client.post(f"{path}/participants", json={}).json()
    shown = [session["progress"]]
    while not session["finished"]:
        query = session["queries"][0]
        wanted = [query[side]["item"] for side in ("left", "right")]
        body = {"query": query["id"], "winner": 1 if 1 in wanted else wanted[0]}
        session = client.post(f"{path}/answers", json=body).json()
        shown.append(session["progress"])
    assert [one["answered"] for one in shown] == list(range(9)), "six and two checks"
    assert {one["total"] for one in shown} == {8}


def test_who_is_not_a_participant_has_no_code(site):
    site.add(
        "name: full\nitems: 5\nparticipants: {answers: 1, total_answers: 1}\n"
        'completion: {full: {code: "F-{code}", redirect: "https://a.example/?c={code}"}}\n'
    )
    path = "/api/v1/experiments/full/participants"
    assert site.visitor().post(path, json={}).status_code == 200
    late = site.visitor().post(path, json={"parameters": {"code": "MINE"}}).json()
    assert late["outcome"] == "full"
    assert late["completion"]["code"] is None
    assert late["completion"]["redirect"] == "https://a.example/?c="
