"""Salmon's endpoints."""

from tests.crowd.web.conftest import API


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
