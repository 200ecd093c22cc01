"""Cookies: their prefix, path and attributes, with and without TLS and a URL prefix."""

from http.cookies import SimpleCookie

import pytest
from fastapi.responses import Response
from starlette.requests import Request

from accelerando.crowd.web.cookies import cookie_of, drop_cookie, set_cookie

CASES = [  # scheme, URL prefix, name of the cookie, path
    ("http", "", "session", "/"),
    ("http", "/crowd", "session", "/crowd/"),
    ("https", "", "__Host-session", "/"),
    ("https", "/crowd", "__Secure-session", "/crowd/"),
]


def request(scheme, root, cookies=""):
    headers = [(b"host", b"lab.example"), (b"cookie", cookies.encode())]
    scope = {"type": "http", "scheme": scheme, "root_path": root, "path": f"{root}/x"}
    return Request({**scope, "headers": headers, "query_string": b"", "method": "GET"})


def sent(response):
    (line,) = [value for name, value in response.raw_headers if name == b"set-cookie"]
    ((name, morsel),) = SimpleCookie(line.decode()).items()
    return name, morsel


@pytest.mark.parametrize(("scheme", "root", "name", "path"), CASES)
def test_a_cookie_comes_back_and_scripts_cannot_read_it(scheme, root, name, path):
    response = Response()
    set_cookie(request(scheme, root), response, "session", "abc", seconds=60.9)
    got, morsel = sent(response)
    assert (got, morsel["path"], morsel["max-age"]) == (name, path, "60")
    assert morsel["httponly"]
    assert morsel["samesite"] == "lax"
    assert bool(morsel["secure"]) is (scheme == "https")
    assert not morsel["domain"], "a domain would give it to other hosts"
    assert cookie_of(request(scheme, root, f"{name}=abc"), "session") == "abc"


@pytest.mark.parametrize(("root", "planted"), [("", "session"), ("", "__Secure-session")])
def test_under_tls_only_the_prefix_counts(root, planted):
    """Another host of the domain can plant a cookie without it."""
    assert cookie_of(request("https", root, f"{planted}=evil"), "session") is None
    both = f"{planted}=evil; __Host-session=abc"
    assert cookie_of(request("https", root, both), "session") == "abc"


@pytest.mark.parametrize(("scheme", "root", "name", "path"), CASES)
def test_a_cookie_is_deleted_where_it_was_set(scheme, root, name, path):
    response = Response()
    drop_cookie(request(scheme, root), response, "session")
    got, morsel = sent(response)
    assert (got, morsel["path"], morsel["max-age"]) == (name, path, "0")
    assert bool(morsel["secure"]) is (scheme == "https")  # browsers demand it for the prefixes


def test_a_cookie_without_an_end_ends_with_the_browser():
    response = Response()
    set_cookie(request("https", ""), response, "session", "abc", samesite="strict")
    _, morsel = sent(response)
    assert not morsel["max-age"]
    assert morsel["samesite"] == "strict"
