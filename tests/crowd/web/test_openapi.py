"""Whatever the description of the API allows or forbids is answered, and never with 5xx."""

import tempfile
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accelerando.crowd.experiment import Limits
from accelerando.crowd.serve.worker import Worker
from tests.crowd.web.conftest import Site


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("openapi"), Limits(upload_bytes=200_000))
    site.add("name: eggs\nitems: 8\nskip: true\nparticipants: {answers: null}\n")
    experimenter = site.experimenter()
    participant = site.visitor()
    token = participant.post("/api/v1/experiments/eggs/participants", json={}).json()["token"]
    site.cookies = {
        "accelerando_session": experimenter.cookies["accelerando_session"],
        "accelerando_participant_eggs": token,
    }
    site.csrf = experimenter.headers["x-csrf-token"]
    site.worker = Worker(site.store)
    yield site
    site.close()


def operations():
    """Names of all routes, known before any server runs."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), Limits())
        paths = site.app.openapi()["paths"]
        site.close()
    return [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]


# These would end what the other requests need; they are tried without the token of our pages.
# Headers and cookies that no page of ours sends.
_ODD = st.fixed_dictionaries(
    {},
    optional={
        name: st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
        | st.sampled_from(["9" * 5000, "null", "..", "bytes=9-1", "Bearer 1.1.x", "-1"])
        for name in ("authorization", "origin", "range", "if-none-match", "sec-fetch-site")
    },
)
_FATAL = {"DELETE /api/v1/session", "DELETE /api/v1/experiments/{name}"}


@pytest.mark.parametrize("operation", operations())
def test_no_request_is_answered_with_a_server_error(described, operation):
    method, path = operation.split(" ")
    api = schemathesis.openapi.from_asgi("/api/v1/openapi.json", described.app)
    headers = {} if operation in _FATAL else {"x-csrf-token": described.csrf}

    @given(
        case=api[path][method].as_strategy(), there=st.booleans(), odd=_ODD, planted=st.booleans()
    )
    @settings(
        max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    def send(case, there, odd, planted):
        described.worker._renew_lease()  # without one, /health would rightly be 503
        # Half of the time the experiment that exists, or little but 404 would be tried.
        if there and "name" in (case.path_parameters or {}):
            case.path_parameters["name"] = "eggs"
        cookies = dict(described.cookies)
        if planted:
            cookies = dict.fromkeys([*cookies, "accelerando_query_eggs"], "9" * 5000 + ".1.x")
        response = case.call(headers={**headers, **odd}, cookies=cookies)
        assert response.status_code < 500, (case.as_curl_command(), response.text)

    send()


def test_every_route_is_described(described):
    paths = described.app.openapi()["paths"]
    assert len(paths) >= 20
    for path, methods in paths.items():
        for method, about in methods.items():
            assert about["summary"], (path, method)
            assert about["description"], (path, method)
