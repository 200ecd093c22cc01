"""Security headers and limits on the size of requests."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from accelerando.crowd.web.middleware import BodyLimit, SafeHeaders, page_policy


async def echo(request):
    body = await request.body()
    return PlainTextResponse(str(len(body)), headers={"cache-control": "public"})


def app(may=True):
    async def may_upload(scope):
        return may

    routes = [Route(path, echo, methods=["POST"]) for path in ("/small", "/api/v1/restore")]
    limited = BodyLimit(Starlette(routes=routes), most=10, uploads=100, may_upload=may_upload)
    return SafeHeaders(limited)


def pieces(count):
    """A body without a content-length header."""
    for _ in range(count):
        yield b"x" * 5


@pytest.mark.parametrize(
    ("path", "may", "size", "status"),
    [
        ("/small", True, 10, 200),
        ("/small", True, 15, 413),
        ("/api/v1/restore", True, 100, 200),
        ("/api/v1/restore", True, 105, 413),
        ("/api/v1/restore", False, 15, 413),
    ],
)
def test_a_body_is_limited_by_its_header_and_while_it_arrives(path, may, size, status):
    client = TestClient(app(may))
    for content in (b"x" * size, pieces(size // 5)):
        found = client.post(path, content=content)
        assert found.status_code == status
        if status == 413:
            assert found.json()["error"]["code"] == "too_large"
        else:
            assert found.text == str(size)


def test_headers_are_added_and_those_of_the_response_are_kept():
    plain = TestClient(app()).post("/small", content=b"")
    assert plain.headers["x-frame-options"] == "DENY"
    assert plain.headers["cache-control"] == "public"
    assert "strict-transport-security" not in plain.headers
    secure = TestClient(app(), base_url="https://crowd.test").post("/small", content=b"")
    assert "strict-transport-security" in secure.headers


def test_only_media_may_come_from_other_hosts():
    policy = page_policy(["https://img.test"])
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    allowed = {name for name, sources in rules.items() if "https://img.test" in sources}
    assert allowed == {"img-src", "media-src"}
    assert "img.test" not in page_policy()
