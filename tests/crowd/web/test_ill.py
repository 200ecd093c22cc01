"""A process that cannot open the database refuses at once."""

import pytest
from starlette.testclient import TestClient

from accelerando.crowd.web.ill import create_ill_app


@pytest.fixture
def client():
    with TestClient(create_ill_app("damaged")) as made:
        yield made


def test_health_names_the_trouble(client):
    assert client.get("/health/live").json() == {"ok": True}
    found = client.get("/health")
    assert (found.status_code, found.json()["database"]) == (503, "damaged")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_everything_else_is_to_be_tried_again(client, method):
    found = client.request(method, "/api/v1/experiments/eggs/answers", content=b"{}")
    assert found.status_code == 503
    assert found.headers["retry-after"] == "2"
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.json()["error"]["code"] == "unavailable"
