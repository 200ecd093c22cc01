"""Strangers who know or guess an id: what they reach, and what they change."""

import asyncio

import anyio
import pytest
from sqlalchemy import func, select

from accelerando.crowd.experiment import Limits
from accelerando.crowd.store import experiments
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import answer as answers
from accelerando.crowd.store.schema import audit, participant, served
from tests.crowd.web.conftest import API, answer, begin, png


def rows(site, *tables):
    with site.store.read() as connection:
        return [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables
        ]


def test_guessing_ids_erases_nobodys_answers(site):
    """With an id alone, 400 requests once erased all answers of 20 people."""
    for number in (103, 104, 105):
        person = site.visitor()
        session = begin(person, id=str(number))
        for query in session["queries"]:
            answer(person, query)
    tokens = set()
    for number in range(100, 110):
        thief = site.visitor()
        tokens.add(begin(thief, id=str(number))["token"])
        assert thief.post(f"{API}/withdraw").json()["outcome"] == "withdrawn"
    with site.store.read() as connection:
        kept = connection.execute(
            select(func.sum(participant.c.answered)).where(participant.c.withdrawn.is_(None))
        ).scalar_one()
        actions = connection.execute(select(audit.c.action)).scalars().all()
    assert kept == 6
    assert rows(site, answers) == [6]
    assert actions == ["withdraw"] * 10, "each is audited"


def test_a_personal_link_of_the_service_opens_the_session_elsewhere(site, experimenter):
    made = experimenter.post(f"{API}/links", json={"ids": ["104", "a b/ü"]})
    assert made.status_code == 200, made.text
    links = made.json()
    assert links["sona"].endswith("&id=%SURVEY_CODE%")
    assert "{{%PROLIFIC_PID%}}" in links["prolific"]
    assert links["prolific"].startswith("/e/eggs/?invitation=")
    for name, link in links["personal"].items():
        given = dict(pair.split("=") for pair in link.partition("?")[2].split("&"))
        parameters = {"participant": name, "proof": given["proof"]}
        first = begin(site.visitor(), **parameters)
        assert begin(site.visitor(), **parameters)["token"] == first["token"]
        assert begin(site.visitor(), participant=name)["token"] != first["token"]
    assert site.visitor().post(f"{API}/links", json={"ids": []}).status_code == 401


def test_withdrawing_can_be_undone_by_the_experimenter_only(site, experimenter):
    person = site.visitor()
    answer(person, begin(person, id="7")["queries"][0])
    ended = person.post(f"{API}/withdraw").json()
    assert ended["progress"]["answered"] == 0
    (one,) = experimenter.get(f"{API}/participants").json()["participants"]
    path = f"{API}/participants/{one['id']}/reinstate"
    assert site.visitor().post(path).status_code == 401
    assert experimenter.post(path).json()["state"] == "active"
    assert experimenter.post(path).status_code == 409
    assert person.get(f"{API}/queries").json()["progress"]["answered"] == 1


def test_looking_at_queries_changes_nothing(site, visitor):
    begin(visitor)
    before = rows(site, participant, served, answers)
    assert len(visitor.get(f"{API}/queries?count=5").json()["queries"]) == 2
    assert rows(site, participant, served, answers) == before
    assert len(visitor.post(f"{API}/queries", json={"count": 3}).json()["queries"]) == 3


def test_a_refused_request_writes_nothing(site, visitor):
    """The writer shares transactions: what a refused request did in one is rolled back."""

    def write_then_refuse(connection):
        experiments.note(connection, 1.0, "x", "refused", "x")
        raise ApiError("no", "No.", 409)

    def write(connection):
        experiments.note(connection, 1.0, "x", "kept", "x")

    async def both():
        writer = site.app.state.context.writer
        return await asyncio.gather(
            writer.run(write),
            writer.run(write_then_refuse),
            writer.run(write),
            return_exceptions=True,
        )

    found = anyio.run(both)
    assert [type(one) for one in found] == [type(None), ApiError, type(None)]
    with site.store.read() as connection:
        assert connection.execute(select(audit.c.action)).scalars().all() == ["kept", "kept"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.test"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://crowd.test:8000"},
    ],
)
def test_pages_of_other_sites_cannot_act_for_a_participant(site, visitor, headers):
    query = begin(visitor)["queries"][0]
    before = rows(site, participant, served, answers)
    body = {"query": query["id"], "winner": query["left"]["item"]}
    for path, sent in (
        ("participants", {}),
        ("answers", body),
        ("queries", {}),
        ("withdraw", {}),
        ("consent", {"agreed": False}),
    ):
        answered = visitor.post(f"{API}/{path}", json=sent, headers=headers)
        assert answered.status_code == 403, path
    assert rows(site, participant, served, answers) == before
    own = {"origin": "https://crowd.test:8443", "sec-fetch-site": "same-origin"}
    assert visitor.post(f"{API}/answers", json=body, headers=own).status_code == 200, (
        "a proxy that drops the port from Host does not break the page"
    )


@pytest.mark.parametrize(
    "token", ["9" * 5000 + ".1.x", "1." + "9" * 5000 + ".x", "1.1.é", "..", "１.１.x"]
)
def test_odd_tokens_are_refused_with_all_headers(visitor, token):
    for send in (
        {"headers": {"authorization": f"Bearer {token}".encode()}},
        {"headers": {"cookie": f"accelerando_participant_eggs={token}".encode()}},
    ):
        found = visitor.get(f"{API}/queries", **send)
        assert found.status_code == 401
        assert found.headers["x-content-type-options"] == "nosniff"


def test_one_address_cannot_begin_sessions_without_end(site):
    site.app.state.context.limits = site.app.state.context.limits.__class__(sessions_per_address=5)
    first = site.visitor()
    begin(first)
    made_up = {"authorization": "Bearer 1.1.x"}
    status = [
        site.visitor().post(f"{API}/participants", json={}, headers=headers).status_code
        for headers in ({}, made_up, {}, made_up, {}, made_up)
    ]
    assert status == [200] * 4 + [429] * 2
    assert rows(site, participant) == [5]
    assert first.post(f"{API}/participants", json={}).status_code == 200, "who is there stays"


@pytest.mark.parametrize("way", ["page", "salmon"])
def test_a_session_of_ones_own_begins_no_others_without_end(site, way):
    """With one valid token, a new id in each link began sessions that nobody counted."""
    site.app.state.context.limits = Limits(sessions_per_address=3)
    name = "eggs"
    if way == "salmon":
        name = "fish"
        site.add("name: fish\nitems: 8\nsalmon_routes: true\n")
    visitor = site.visitor()

    def come(puid):
        if way == "page":
            body = {"parameters": {"puid": puid}}
            return visitor.post(f"/api/v1/experiments/{name}/participants", json=body)
        query = visitor.get(f"/e/{name}/query", params={"puid": puid}).json()
        return visitor.post(
            f"/e/{name}/answer", json={**query, "winner": query["left"], "puid": puid}
        )

    assert [come(f"person {k}").status_code for k in range(8)] == [200] * 3 + [429] * 5
    assert rows(site, participant) == [3]
    assert [come("person 2").status_code for _ in range(4)] == [200] * 4, "it continues"


def test_who_has_no_invitation_sees_no_item(site, experimenter):
    """The page of an experiment for invited people named the pictures to everybody."""
    settings = "name: secret\nparticipants: {entry: link}\ntitle: A secret study\n"
    pictures = [(f"{k}.png", png(k)) for k in range(4)]
    site.add(settings, pictures)
    made = experimenter.post("/api/v1/experiments/secret/links", json={"ids": ["104"]}).json()
    stranger = site.visitor()
    page = "/e/secret/"
    assert "/media/secret/" not in stranger.get(page).text
    assert "/media/secret/" not in stranger.get(f"{page}?invitation=guess&id=104&proof=x").text
    for link in (made["open"], made["personal"]["104"]):
        assert stranger.get(link).text.count("/media/secret/") >= 4
    given = dict(pair.split("=") for pair in made["open"].partition("?")[2].split("&"))
    api = "/api/v1/experiments/secret/participants"
    assert stranger.post(api, json={"parameters": given}).status_code == 200
    assert "/media/secret/" in stranger.get(page).text, "who takes part loads the page again"
    assert "secret" not in site.visitor().get("/", headers={"accept": "text/html"}).text
