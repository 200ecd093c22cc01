"""Writes must come from pages of this server: every combination of the headers that say so."""

import pytest
from starlette.requests import Request

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.web.origin import require_same_origin


def request(**headers):
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": [(b"host", b"Lab.example:8421"), *pairs]})


OURS = "https://lab.example:8421"


@pytest.mark.parametrize(
    "headers",
    [
        {},  # a program that is no browser
        {"origin": OURS},
        {"origin": OURS.upper()},
        {"sec_fetch_site": "same-origin"},
        # A proxy has changed host or port; the browser has compared those that it sees.
        {"sec_fetch_site": "same-origin", "origin": "https://public.example"},
        {"sec_fetch_site": "none"},  # typed by the person
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [False, True])
def test_a_request_of_our_own_pages_passes(headers, form):
    require_same_origin(request(**headers), form=form)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "https://lab.example"},  # the port belongs to the origin
        {"origin": "https://lab.example:8421.evil.example"},
        {"origin": "https://evil.example/lab.example:8421"},
        {"origin": "lab.example:8421"},  # not an origin
        {"origin": ""},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},  # another host of the same domain
        {"sec_fetch_site": "cross-site", "origin": OURS},
        {"sec_fetch_site": "none", "origin": "https://evil.example"},
        {"sec_fetch_site": "cross-site", "origin": "null"},
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [False, True])
def test_a_request_of_another_site_is_refused(headers, form):
    with pytest.raises(ApiError, match="another site") as refused:
        require_same_origin(request(**headers), form=form)
    assert refused.value.status == 403


def test_a_form_may_hide_its_origin_and_a_script_may_not():
    """Forms have a token of their own, and the policy no-referrer makes browsers send null."""
    require_same_origin(request(origin="null"), form=True)
    with pytest.raises(ApiError, match="another site"):
        require_same_origin(request(origin="null"))
