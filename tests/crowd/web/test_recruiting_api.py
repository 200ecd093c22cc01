"""Links and completion codes over HTTP."""

from tests.crowd.web.conftest import API, answer, begin


def test_codes_are_checked_and_used_up(site, experimenter, visitor):
    site.add(
        "name: paid\nitems: 5\nparticipants: {answers: 1}\ncompletion: {done: {code: 'F-{code}'}}\n"
    )
    path = "/api/v1/experiments/paid"
    query = visitor.post(f"{path}/participants", json={}).json()["queries"][0]
    body = {"query": query["id"], "winner": query["left"]["item"]}
    code = visitor.post(f"{path}/answers", json=body).json()["completion"]["code"]

    def check(**more):
        found = experimenter.post(f"{path}/codes", json={"codes": [code, "F-x"], **more})
        assert found.status_code == 200
        return [one["status"] for one in found.json()["codes"]]

    assert check() == check(use=True) == ["valid", "unknown"]
    assert check() == ["used", "unknown"]
    log = experimenter.get("/api/v1/audit").json()
    assert "use codes" in str(log)


def test_strangers_check_no_codes(visitor):
    answer(visitor, begin(visitor)["queries"][0])
    assert visitor.post(f"{API}/codes", json={"codes": []}).status_code == 401


def test_links_need_the_servers_secret(experimenter):
    made = experimenter.post(f"{API}/links", json={"ids": ["7"]}).json()
    assert "invitation=" in made["prolific"]
    assert "proof=" in made["personal"]["7"]
