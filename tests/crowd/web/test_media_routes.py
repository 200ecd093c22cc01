"""Images, videos and sounds over HTTP."""

from tests.crowd.web.conftest import png


def test_pictures_come_with_their_type_and_in_pieces(site):
    site.add("name: shown\n", [(f"{k}.png", png(k)) for k in range(4)])
    client = site.visitor()
    session = client.post("/api/v1/experiments/shown/participants", json={}).json()
    head = session["queries"][0]["head"]
    assert head["kind"] == "image"
    found = client.get(head["src"])
    assert found.headers["content-type"] == "image/png"
    assert "immutable" in found.headers["cache-control"]
    assert "sandbox" in found.headers["content-security-policy"]
    part = client.get(head["src"], headers={"range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, b"PNG")
    assert part.headers["content-range"] == f"bytes 1-3/{len(found.content)}"
    last = client.get(head["src"], headers={"range": "bytes=-4"})
    assert last.content == found.content[-4:]
    assert client.get(head["src"], headers={"range": "bytes=9999-"}).status_code == 416
    assert client.get(head["src"].replace("eggs", "nope")[:-8] + "0000.png").status_code == 404
