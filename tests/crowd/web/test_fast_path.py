"""The short way says what the ordinary way says, and takes only what is as it should be."""

import pytest

from accelerando.crowd.web.fast_path import FastPath
from tests.crowd.web.conftest import API, answer, begin


@pytest.fixture
def taken(monkeypatch):
    """Paths of the requests that went the short way."""
    short, paths = FastPath._respond, []

    async def respond(self, request, name, what):
        response = await short(self, request, name, what)
        if response is not None:
            paths.append(request.scope["path"])
        return response

    monkeypatch.setattr(FastPath, "_respond", respond)
    return paths


async def _nobody(self, request, name, what):
    return None


def test_both_ways_say_the_same(visitor, monkeypatch, taken):
    session = begin(visitor)
    short = visitor.get(f"{API}/queries?count=2")
    assert taken == [f"{API}/queries"]
    monkeypatch.setattr(FastPath, "_respond", _nobody)
    ordinary = visitor.get(f"{API}/queries?count=2")
    assert short.json() == ordinary.json()
    assert dict(short.headers) == dict(ordinary.headers)
    assert answer(visitor, session["queries"][0]).json()["stored"] is True


def test_answers_go_the_short_way(visitor, taken):
    query = begin(visitor)["queries"][0]
    assert answer(visitor, query).json()["stored"] is True
    assert taken == [f"{API}/answers"]


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "queries?count=9", {}, 422),
        ("GET", "queries?count=two", {}, 422),
        ("GET", "queries", {}, 200),
        ("PUT", "queries?count=2", {}, 405),
        ("POST", "answers", {"content": b"{"}, 422),
        ("POST", "answers", {"content": b'{"query": "1", "winner": 1}'}, 422),  # of no type
        ("POST", "answers", {"json": {"query": "1", "winner": 1}}, 404),
        ("POST", "answers", {"data": {"query": "1", "winner": 1}}, 422),
    ],
)
def test_everything_else_takes_the_ordinary_way(visitor, taken, method, path, options, status):
    begin(visitor)
    assert visitor.request(method, f"{API}/{path}", **options).status_code == status
    assert not taken
