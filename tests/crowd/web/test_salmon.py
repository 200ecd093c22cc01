"""Salmon's endpoints."""

import pytest
from sqlalchemy import func, select

from accelerando.crowd._sampler import Query
from accelerando.crowd.store import published
from accelerando.crowd.store.experiments import find
from accelerando.crowd.store.schema import answer, audit, participant, queue, served
from tests.crowd.web.conftest import API

SALMON = "targets: 8\nhtml: {max_queries: 5}\n"


@pytest.fixture
def salmon(site):
    site.add(SALMON)
    return site


def counts(site):
    """Number of rows that requests of participants may change."""
    with site.store.read() as connection:
        return [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (participant, served, answer, queue, audit)
        ]


def reply(query, winner="left", **more):
    return {**query, "winner": query[winner], **more}


def test_salmons_endpoints_as_a_page_of_it_uses_them(salmon):
    visitor, experimenter = salmon.visitor(), salmon.experimenter()
    query = visitor.get("/query", params={"puid": "worker 7/ü"}).json()
    assert set(query) >= {"head", "left", "right", "sampler", "score"}
    first = reply(query, "right", puid="worker 7/ü", response_time=0.9)
    assert visitor.post("/answer", json=first).json() == {"success": True}
    assert visitor.post("/answer", json=first).status_code == 404, "once"
    # Salmon's page does not know our field: the cookie brings the signature back.
    for _ in range(4):
        query = visitor.get("/e/experiment/query", params={"puid": "worker 7/ü"}).json()
        del query["query"]
        assert visitor.post("/e/experiment/answer", json=reply(query, puid="worker 7/ü")).json()
    assert visitor.get("/query", params={"puid": "worker 7/ü"}).status_code == 409, (
        "the quota holds here, too"
    )
    people = experimenter.get(f"{API.replace('eggs', 'experiment')}/participants").json()
    assert {p["participant"]: p["answered"] for p in people["participants"]} == {"worker 7/ü": 5}


def test_salmons_routes_are_off_unless_the_experiment_asks_for_them(site, visitor):
    """`eggs` is not a file of Salmon."""
    for path in ("/query", "/e/eggs/query"):
        assert visitor.get(path).json()["error"]["code"] == "no_salmon"
    forged = {"head": 1, "left": 2, "right": 3, "winner": 2, "puid": "b"}
    for path in ("/answer", "/e/eggs/answer"):
        assert visitor.post(path, json=forged).status_code == 404
    site.add("name: asks\nitems: 5\nsalmon_routes: true\n")
    assert visitor.get("/e/asks/query").status_code == 200


def test_no_get_changes_anything(salmon):
    before = counts(salmon)
    for puid in ("", "a", "b", "c", "anna"):
        assert salmon.visitor().get("/query", params={"puid": puid}).status_code == 200
    assert counts(salmon) == before


def test_a_wrong_or_stolen_answer_stores_nothing(salmon):
    anna, thief = salmon.visitor(), salmon.visitor()
    query = anna.get("/query", params={"puid": "anna"}).json()
    before = counts(salmon)
    bare = {name: query[name] for name in ("head", "left", "right")}
    tried = [
        {**bare, "winner": bare["left"], "puid": "anna"},  # guessed: no signature
        {**bare, "winner": bare["left"], "puid": "invented"},
        {**reply(query), "puid": "invented"},  # the signature is for anna
        {**reply(query), "head": query["left"], "puid": "anna"},
        {**bare, "winner": bare["head"], "query": query["query"], "puid": "anna"},
        {**reply(query), "query": query["query"][:-2] + "AA", "puid": "anna"},
        {**reply(query), "query": "x" * 999, "puid": "anna"},
        {**reply(query), "query": "é", "puid": "anna"},
    ]
    for body in tried:
        assert thief.post("/answer", json=body).status_code in (404, 422), body
    assert counts(salmon) == before
    assert anna.post("/answer", json=reply(query, puid="anna")).status_code == 200


def test_a_name_alone_does_not_continue_somebodys_session(salmon):
    anna, thief = salmon.visitor(), salmon.visitor()
    for visitor in (anna, thief):
        query = visitor.get("/query", params={"puid": "anna"}).json()
        assert visitor.post("/answer", json=reply(query, puid="anna")).status_code == 200
    with salmon.store.read() as connection:
        rows = connection.execute(select(participant.c.name, participant.c.answered)).all()
    assert sorted(row.answered for row in rows) == [1, 1]
    assert len({row.name for row in rows}) == 2


def take_part(salmon, visitors, at_once=False):
    """Each visitor without a name gets a query and answers it; the queries."""
    asked = []
    for number in range(visitors):
        visitor = salmon.visitor()
        query = visitor.get("/query").json()
        asked.append((visitor, query))
        if not at_once:
            assert visitor.post("/answer", json=reply(query)).status_code == 200, number
    if at_once:
        for visitor, query in asked:
            assert visitor.post("/answer", json=reply(query)).status_code == 200
    return [(query["head"], query["left"], query["right"]) for _, query in asked]


@pytest.mark.parametrize("at_once", [False, True])
def test_people_without_a_name_get_different_queries(site, at_once):
    """39 of 40 answers once went to one query: the temporary person had the same seed again."""
    site.add("name: s\nitems: 12\nsalmon_routes: true\nsamplers: {random: {class: Random}}\n")
    asked = take_part(site, 25, at_once)
    assert len(set(asked)) >= 20
    with site.store.read() as connection:
        rows = connection.execute(select(served)).all()
        people = connection.execute(select(participant.c.id)).scalars().all()
    assert len(people) == 25
    assert {(row.head, row.left, row.right) for row in rows} == set(asked), "what was shown"


def test_people_who_look_at_once_get_different_queries_of_the_queue(site):
    site.add("name: s\nitems: 12\nsalmon_routes: true\n")
    queries = [Query(k % 12, (k + 1) % 12, (k + 2 + k // 12) % 12, 1.0) for k in range(40)]
    with site.store.write() as connection:
        published.publish(connection, find(connection, "s"), {"arr": queries}, {}, None, 1.0)
    asked = take_part(site, 12, at_once=True)
    assert len(set(asked)) >= 8
    with site.store.read() as connection:
        left = connection.execute(select(queue.c.head, queue.c.left, queue.c.right)).all()
    assert not set(asked) & {tuple(row) for row in left}, "what was asked is not asked again"


def test_round_robin_keeps_its_rounds_for_salmons_pages(site):
    site.add("name: s\nitems: 5\nsalmon_routes: true\nsamplers: {r: {class: RoundRobin}}\n")
    visitor = site.visitor()
    heads = []
    for _ in range(10):
        query = visitor.get("/query").json()
        heads.append(query["head"])
        assert visitor.post("/answer", json=reply(query)).status_code == 200
    assert sorted(heads[:5]) == sorted(heads[5:]) == [0, 1, 2, 3, 4]
