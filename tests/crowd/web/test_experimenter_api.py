"""What an experimenter can do, over HTTP."""

import pytest

from accelerando.crowd.serve.worker import Worker
from tests.crowd.web.conftest import API, answer, begin, png, zipped

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


def test_an_experiment_whose_dimensions_are_chosen_by_the_answers(experimenter):
    settings = b"name: any-d\nitems: [a, b, c, d]\nembedding: {dimensions: auto}\n"
    files = [("settings", ("experiment.yaml", settings))]
    made = experimenter.post("/api/v1/experiments", files=files)
    assert made.status_code == 201, made.text
    path = "/api/v1/experiments/any-d"
    listed = experimenter.get("/api/v1/experiments").json()["experiments"]
    for told in (made.json(), listed[1], experimenter.post(f"{path}/pause").json()):
        assert told["dimensions"] == "auto"
    assert experimenter.get(f"{path}/dashboard").json()["summary"]["dimensions"] == "auto"
    archive = experimenter.get(f"{path}/downloads/archive.zip")
    assert archive.status_code == 200
    again = experimenter.post(
        "/api/v1/restore", files={"archive": archive.content}, data={"name": "again"}
    )
    assert (again.status_code, again.json().get("dimensions")) == (201, "auto"), again.text


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


def test_the_model_its_reasons_and_the_reliability_of_people_are_told(experimenter, site):
    for name in ("anna", "ben", "cleo", "dan", "eve"):
        client = site.visitor()
        queries = begin(client, participant=name)["queries"]
        while queries:
            queries = answer(client, queries[0]).json()["queries"]
    Worker(site.store).turn()
    found = experimenter.get(f"{API}/embedding").json()
    assert found["model"]
    assert found["reason"]
    assert found["guard"]["begun"] is False
    assert len(found["uncertainty"]) == 8
    people = experimenter.get(f"{API}/participants").json()["participants"]
    assert len(people) == 5
    for person in people:
        slope, low, high, bias = person["reliability"]
        assert low <= slope <= high
        assert bias > 0, "always left"
