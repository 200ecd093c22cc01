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
