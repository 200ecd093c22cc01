"""Security headers and limits on the size of requests."""

import asyncio

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


def test_a_body_that_does_not_arrive_is_given_up():
    async def may_upload(scope):
        return False

    async def never():
        await asyncio.Event().wait()

    sent = []

    async def send(message):
        sent.append(message)

    routes = [Route("/small", echo, methods=["POST"])]
    limited = BodyLimit(Starlette(routes=routes), 10, 100, may_upload, seconds=0.01)
    scope = {"type": "http", "path": "/small", "method": "POST", "headers": [], "query_string": b""}
    asyncio.run(SafeHeaders(limited)(scope, never, send))
    assert sent[0]["status"] == 408
    assert (b"x-frame-options", b"DENY") in sent[0]["headers"]


def test_a_declared_size_of_thousands_of_digits_is_refused_with_all_headers():
    found = TestClient(app()).post("/small", headers={"content-length": "9" * 5000})
    assert found.status_code == 413
    assert found.headers["x-frame-options"] == "DENY"


def test_an_error_nobody_expected_has_all_headers_and_no_trace():
    async def fail(scope, receive, send):
        raise ArithmeticError("insides")

    found = TestClient(SafeHeaders(fail)).get("/")
    assert (found.status_code, found.headers["x-frame-options"]) == (500, "DENY")
    assert "insides" not in found.text
