"""What an experimenter can do, over HTTP."""

import csv
import io

import pytest

from tests.crowd.web.conftest import API, PASSWORD, answer, begin, png, zipped

ALL = [
    ("GET", "/api/v1/experiments"),
    ("POST", "/api/v1/experiments"),
    ("POST", "/api/v1/restore"),
    ("GET", API),
    ("DELETE", API),
    ("POST", f"{API}/pause"),
    ("POST", f"{API}/resume"),
    ("GET", f"{API}/dashboard"),
    ("GET", f"{API}/embedding"),
    ("GET", f"{API}/participants"),
    ("POST", f"{API}/participants/1/block"),
    ("POST", f"{API}/participants/1/unblock"),
    ("DELETE", f"{API}/participants/1"),
    ("GET", f"{API}/downloads/answers.csv"),
    ("GET", "/api/v1/health"),
    ("DELETE", "/api/v1/session"),
]


@pytest.mark.parametrize(("method", "path"), ALL)
def test_everything_needs_a_session(visitor, method, path):
    assert visitor.request(method, path).status_code in (401, 422)
    begin(visitor)
    found = visitor.request(method, path, json={"confirm": "eggs"})
    assert found.status_code in (401, 422), "a participant is no experimenter"


@pytest.mark.parametrize(("method", "path"), [pair for pair in ALL if pair[0] != "GET"])
def test_writing_needs_the_token_of_our_own_page(experimenter, method, path):
    del experimenter.headers["x-csrf-token"]
    found = experimenter.request(method, path, json={"confirm": "eggs"})
    assert found.status_code in (403, 422)
    if found.status_code == 403:
        assert found.json()["error"]["code"] == "csrf"
    assert experimenter.get(API).json()["state"] == "running"


def test_create_pause_resume_delete(experimenter):
    settings = b"name: shoes\ntitle: Shoes\n"
    files = [
        ("settings", ("experiment.yaml", settings)),
        ("items", ("shoes.zip", zipped({f"{k}.png": png(k) for k in (10, 9, 2)}))),
    ]
    made = experimenter.post("/api/v1/experiments", files=files)
    assert made.status_code == 201, made.text
    assert made.json()["items"] == 3
    path = "/api/v1/experiments/shoes"
    assert [e["name"] for e in experimenter.get("/api/v1/experiments").json()["experiments"]] == [
        "eggs",
        "shoes",
    ]
    assert experimenter.post(f"{path}/pause").json()["state"] == "paused"
    assert experimenter.post(f"{path}/resume").json()["state"] == "running"
    again = experimenter.post("/api/v1/experiments", files=files)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "name_taken")
    wrong = experimenter.request("DELETE", path, json={"confirm": "shoe"})
    assert wrong.status_code == 422
    assert experimenter.request("DELETE", path, json={"confirm": "shoes"}).status_code == 204
    assert experimenter.get(path).status_code == 404


def test_all_problems_of_a_file_come_at_once_with_their_lines(experimenter):
    settings = b"name: x\nitems: [a, b]\nparticipants:\n  answer: 5\ntitel: hm\n"
    found = experimenter.post("/api/v1/experiments", files=[("settings", ("e.yaml", settings))])
    assert found.status_code == 422
    error = found.json()["error"]
    assert error["code"] == "settings"
    assert {(p["line"], p["key"]) for p in error["problems"]} == {
        (2, "items"),
        (4, "participants.answer"),
        (5, "titel"),
    }
    assert all(p["message"] for p in error["problems"])


def test_downloads_and_the_way_back(site, experimenter, visitor):
    session = begin(visitor, participant="anna")
    while not session["finished"]:
        session = answer(visitor, session["queries"][0]).json()
    found = experimenter.get(f"{API}/downloads/answers.csv")
    assert found.headers["content-disposition"] == 'attachment; filename="eggs-answers.csv"'
    assert len(list(csv.DictReader(io.StringIO(found.text)))) == 5
    for what in ("answers.parquet", "answers-salmon.csv", "skips.csv", "participants.csv"):
        assert experimenter.get(f"{API}/downloads/{what}").status_code == 200
    assert experimenter.get(f"{API}/downloads/embedding.csv").status_code == 404
    assert experimenter.get(f"{API}/downloads/passwords.csv").status_code == 422
    yaml = experimenter.get(f"{API}/downloads/experiment.yaml").content
    copy = experimenter.post(
        "/api/v1/experiments",
        files=[("settings", ("experiment.yaml", yaml))],
        data={"name": "copy"},
    )
    assert copy.status_code == 201, copy.text
    archive = experimenter.get(f"{API}/downloads/archive.zip").content
    back = experimenter.post(
        "/api/v1/restore", files={"archive": ("a.zip", archive)}, data={"name": "back"}
    )
    assert back.status_code == 201, back.text
    assert (back.json()["answers"], back.json()["state"]) == (5, "paused")
    bad = experimenter.post("/api/v1/restore", files={"archive": ("a.zip", b"PK nonsense")})
    assert (bad.status_code, bad.json()["error"]["code"]) == (422, "archive")


def test_a_blocked_participant_gets_nothing_more(experimenter, visitor):
    session = begin(visitor, participant="bot")
    answer(visitor, session["queries"][0])
    person = experimenter.get(f"{API}/participants").json()["participants"][0]
    blocked = experimenter.post(f"{API}/participants/{person['id']}/block")
    assert blocked.json()["state"] == "blocked"
    now = visitor.get(f"{API}/queries").json()
    assert (now["finished"], now["queries"], now["completion"]["code"]) == (True, [], None)
    assert answer(visitor, session["queries"][1]).status_code == 409
    experimenter.post(f"{API}/participants/{person['id']}/unblock")
    assert visitor.get(f"{API}/queries").json()["queries"]
    gone = experimenter.request("DELETE", f"{API}/participants/{person['id']}")
    assert gone.status_code == 204
    assert experimenter.get(API).json()["answers"] == 0
    assert experimenter.post(f"{API}/participants/99999/block").status_code == 404


def test_the_dashboard_and_health(experimenter, visitor):
    begin(visitor)
    found = experimenter.get(f"{API}/dashboard").json()
    assert found["summary"]["participants"] == 1
    assert len(found["items"]["names"]) == 8
    assert experimenter.get(f"{API}/embedding").json()["error"]["code"] == "no_embedding"
    assert experimenter.get("/api/v1/health").json()["worker"]["alive"] is False
    assert visitor.get("/health").json() == {"ok": True}


def test_signing_out_ends_the_session_on_the_server(site, experimenter):
    cookie = experimenter.cookies["accelerando_session"]
    assert experimenter.delete("/api/v1/session").status_code == 204
    other = site.visitor()
    other.cookies.set("accelerando_session", cookie)
    assert other.get("/api/v1/experiments").status_code == 401


def test_the_form_signs_in_and_leads_to_the_page_that_was_asked_for(site):
    client = site.visitor()
    page = client.get("/experiments/eggs")
    assert page.url.path == "/sign-in"
    token = client.cookies["accelerando_csrf"]
    form = {
        "name": "experimenter",
        "password": PASSWORD,
        "csrf": token,
        "next": "/experiments/eggs",
    }
    done = client.post("/sign-in", data=form)
    assert done.status_code == 200
    assert done.url.path == "/experiments/eggs"
    assert "accelerando_session" in client.cookies


def test_salmons_endpoints_as_a_page_of_it_uses_them(site, visitor, experimenter):
    query = visitor.get("/query", params={"puid": "worker 7/ü"}).json()
    assert set(query) >= {"head", "left", "right", "sampler", "score"}
    reply = {**query, "winner": query["right"], "puid": "worker 7/ü", "response_time": 0.9}
    assert visitor.post("/answer", json=reply).json() == {"success": True}
    assert visitor.post("/answer", json=reply).status_code == 404, "once"
    # As Salmon's own tests do it: the query is for nobody, the answer has a name.
    visitor.cookies.clear()
    nameless = site.visitor()
    query = nameless.get("/query").json()
    del query["query"]
    nameless.cookies.clear()
    assert nameless.post(
        "/answer", json={**query, "winner": query["left"], "puid": "b"}
    ).json() == {"success": True}
    forged = {"head": 1, "left": 2, "right": 3, "winner": 2, "puid": "b", "sampler": "x"}
    assert nameless.post("/answer", json=forged).status_code == 404
    assert nameless.post("/answer", json={**forged, "head": 999}).status_code == 404
    people = experimenter.get(f"{API}/participants").json()["participants"]
    assert {p["participant"]: p["answered"] for p in people} == {"worker 7/ü": 1, "b": 1}
    for _ in range(4):
        query = visitor.get("/e/eggs/query", params={"puid": "b"}).json()
        visitor.post("/e/eggs/answer", json={**query, "winner": query["left"], "puid": "b"})
    assert visitor.get("/query", params={"puid": "b"}).status_code == 409, (
        "the quota holds here, too"
    )
