"""What a participant's page says and hears."""

import pytest

from tests.crowd.web.conftest import API, answer, begin


def test_a_whole_session(visitor):
    session = begin(visitor, PROLIFIC_PID="abc")
    assert session["participant"] == "abc"
    while not session["finished"]:
        assert len(session["queries"]) <= 2
        session = answer(visitor, session["queries"][0], response_time=0.8).json()
        assert session["stored"] is True
    assert session["outcome"] == "done"
    assert session["progress"] == {"answered": 5, "skipped": 0, "total": 5}
    assert session["completion"]["text_html"] == "<b>Thank you!</b>"


def test_a_reload_goes_on_where_it_was(site, visitor):
    session = begin(visitor)
    answer(visitor, session["queries"][0])
    again = begin(visitor)
    assert again["participant"] == session["participant"]
    assert again["progress"]["answered"] == 1
    assert again["queries"][0]["id"] == session["queries"][1]["id"]
    assert begin(site.visitor())["participant"] != session["participant"]


def test_a_token_in_the_header_wins_over_the_cookie(site, visitor):
    anna, bert = begin(visitor, participant="anna"), begin(site.visitor(), participant="bert")
    found = visitor.get(
        f"{API}/queries", headers={"authorization": f"Bearer {bert['token']}"}
    ).json()
    assert found["participant"] == "bert"
    assert "set-cookie" not in found
    assert visitor.get(f"{API}/queries").json()["participant"] == anna["participant"]


def test_an_answer_sent_twice_is_stored_once(visitor):
    query = begin(visitor)["queries"][0]
    assert answer(visitor, query).json()["stored"] is True
    again = answer(visitor, query, "right")
    assert again.status_code == 200
    assert (again.json()["stored"], again.json()["reason"]) == (False, "already_answered")
    assert again.json()["progress"]["answered"] == 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"query": "123", "winner": 1}, 404, "unknown_query"),
        ({"query": "abc", "winner": 1}, 422, "invalid"),
        ({"query": "9" * 30, "winner": 1}, 422, "invalid"),
        ({"winner": 1}, 422, "invalid"),
        ({"query": "1", "winner": -1}, 422, "invalid"),
        ({"query": "1", "winner": 10**30}, 422, "invalid"),
        ({"query": "1", "winner": 1, "response_time": "soon"}, 422, "invalid"),
        ([], 422, "invalid"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(visitor, body, status, code):
    begin(visitor)
    found = visitor.post(f"{API}/answers", json=body)
    assert found.status_code == status
    assert found.json()["error"]["code"] == code
    assert found.json()["error"]["message"]


@pytest.mark.parametrize("seconds", [-5, 1e300, None, "1e400", "NaN", "-Infinity"])
def test_a_strange_clock_does_not_cost_the_answer(visitor, seconds):
    query = begin(visitor)["queries"][0]
    if isinstance(seconds, str):
        body = f'{{"query": "{query["id"]}", "winner": {query["left"]["item"]}, '
        found = visitor.post(
            f"{API}/answers",
            content=body + f'"response_time": {seconds}}}',
            headers={"content-type": "application/json"},
        )
        assert found.status_code in (200, 422)
    else:
        found = answer(visitor, query, response_time=seconds)
        assert found.json()["stored"] is True


def test_without_a_session_there_are_no_queries(visitor):
    found = visitor.get(f"{API}/queries")
    assert found.status_code == 401
    assert found.json()["error"]["code"] == "no_participant"
    assert visitor.get("/api/v1/experiments/other/queries").status_code == 404


def test_skips_are_taken(visitor):
    query = begin(visitor)["queries"][0]
    session = answer(visitor, query, None).json()
    assert session["progress"] == {"answered": 0, "skipped": 1, "total": 5}


def test_checks_look_like_any_other_query(site):
    known = "checks: {every: 2, queries: [{head: 0, left: 1, right: 2, winner: 1}]}"
    site.add(f"name: watched\nitems: 5\n{known}\n")
    client = site.visitor()
    path = "/api/v1/experiments/watched/participants"
    session = client.post(path, json={"count": 5}).json()
    assert {query["kind"] for query in session["queries"]} == {"query"}
    assert {tuple(query) for query in session["queries"]} == {
        ("id", "kind", "head", "left", "right", "feedback")
    }
    assert all(query["feedback"] is None for query in session["queries"])


def test_who_refuses_consent_leaves_no_cookie_and_may_change_their_mind(site):
    site.add("name: asks\nitems: 5\nconsent: {text: Please agree}\n")
    client, path = site.visitor(), "/api/v1/experiments/asks"
    client.post(f"{path}/participants", json={"parameters": {"PROLIFIC_PID": "5f3c"}})
    assert len(client.cookies) == 1
    refused = client.post(f"{path}/consent", json={"agreed": False}).json()
    assert (refused["outcome"], refused["token"], refused["participant"]) == ("no_consent", "", "")
    assert len(client.cookies) == 0
    again = client.post(f"{path}/participants", json={}).json()
    assert again["consent_required"]
    assert client.post(f"{path}/consent", json={"agreed": True}).json()["queries"]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("answers", {"winner": True}),
        ("answers", {"count": True}),
        ("answers", {"response_time": True}),
        ("queries", {"count": True}),
        ("queries/replace", {"count": True}),
        ("queries/replace", {"failed": [True]}),
        ("participants", {"count": True}),
    ],
)
def test_true_is_not_a_number(visitor, route, body):
    query = begin(visitor)["queries"][0]
    item = query["left"]["item"]
    whole = {"query": query["id"], "winner": item, "failed": [item], **body}
    found = visitor.post(f"{API}/{route}", json=whole)
    assert (found.status_code, found.json()["error"]["code"]) == (422, "invalid")
