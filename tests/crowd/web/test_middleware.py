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


def limited(routed, receive, path, seconds):
    """Messages that are sent while a request is served whose messages ``receive`` returns."""
    sent = []

    async def may_upload(scope):
        return True

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "method": "POST", "headers": [], "query_string": b""}
    served = BodyLimit(routed, 10, 100, may_upload, seconds=seconds)
    asyncio.run(SafeHeaders(served)(scope, receive, send))
    return sent


@pytest.mark.parametrize(("path", "seconds"), [("/small", "0.002"), ("/api/v1/restore", "0.04")])
def test_a_body_that_does_not_arrive_is_given_up_and_one_with_files_later(path, seconds):
    async def never():
        await asyncio.Event().wait()

    sent = limited(Starlette(routes=[Route(path, echo, methods=["POST"])]), never, path, 0.002)
    assert sent[0]["status"] == 408
    assert (b"x-frame-options", b"DENY") in sent[0]["headers"]
    assert f"within {seconds} seconds".encode() in sent[1]["body"]


def test_after_its_body_a_request_may_take_its_time():
    """A route that waits for its visitor to leave is not a slow body."""
    messages = iter([{"type": "http.request", "body": b"x"}, {"type": "http.disconnect"}])

    async def receive():
        message = next(messages)
        if message["type"] == "http.disconnect":
            for _ in range(5):  # turns of the loop, in which a limit that has passed ends the wait
                await asyncio.sleep(0)
        return message

    async def patient(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass
        await PlainTextResponse("late")(scope, receive, send)

    assert limited(patient, receive, "/small", 0.0)[0]["status"] == 200


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
