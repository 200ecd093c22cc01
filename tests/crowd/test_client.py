"""The client of the service, against a small server in a thread."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from accelerando.crowd import client
from accelerando.crowd.client import Experimenter, Participant, ServiceError

QUERY = {"id": "7", "head": {"item": 0}, "left": {"item": 1}, "right": {"item": 2}}
SESSION = {"token": "t0", "queries": [QUERY], "finished": False, "stored": True}


@pytest.fixture
def server():
    """A server that records requests and sends the responses of the test."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            here.requests.append((self.command, self.path, dict(self.headers), body))
            status, reply, headers = here.responses.pop(0)
            content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            kind = "text/csv" if isinstance(reply, bytes) else "application/json"
            headers = {"content-type": kind, "content-length": str(len(content)), **headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *arguments):
            pass

    here = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here.requests, here.responses = [], []
    here.url = f"http://127.0.0.1:{here.server_port}/prefix/"
    threading.Thread(target=here.serve_forever, daemon=True).start()
    yield here
    here.shutdown()
    here.server_close()


def respond(server, *replies):
    server.responses += [
        (reply if isinstance(reply, tuple) else (200, reply, {})) for reply in replies
    ]


def test_a_participant_joins_answers_and_leaves(server):
    respond(server, SESSION, {**SESSION, "queries": []}, SESSION, SESSION)
    person = Participant(server.url, "a b", {"PROLIFIC_PID": "x"}, device="phone")
    query = person.next()
    assert (query.id, query.head, query.left, query.right) == ("7", 0, 1, 2)
    assert person.answer(query, winner=2, response_time=1.5) is True
    assert person.next().id == "7"  # fetched, because the queue was empty
    person.withdraw()
    person.close()
    paths = [(method, path) for method, path, _, _ in server.requests]
    base = "/prefix/api/v1/experiments/a%20b"
    assert paths == [
        ("POST", f"{base}/participants"),
        ("POST", f"{base}/answers"),
        ("POST", f"{base}/queries"),
        ("POST", f"{base}/withdraw"),
    ]
    first, second = (json.loads(server.requests[k][3]) for k in (0, 1))
    assert len(first.pop("browser")) == 32
    assert first == {"parameters": {"PROLIFIC_PID": "x"}, "device": "phone"}
    assert (second["query"], second["winner"], second["response_time"]) == ("7", 2, 1.5)
    assert server.requests[1][2]["authorization"] == "Bearer t0"


def test_a_busy_server_is_asked_again(server, monkeypatch):
    pauses = []
    monkeypatch.setattr(client.time, "sleep", pauses.append)
    busy = (503, {"error": {"code": "unavailable", "message": "Busy."}}, {})
    respond(server, SESSION, busy, busy, {**SESSION, "stored": False})
    person = Participant(server.url, "eggs")
    assert person.answer(person.next(), winner=None) is False
    person.close()
    assert pauses == [0.1, 0.2]
    assert len({body for _, path, _, body in server.requests if path.endswith("answers")}) == 1


def test_a_server_that_stays_busy_is_an_error(server, monkeypatch):
    monkeypatch.setattr(client.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(client, "_RETRIES", 3)
    busy = (503, {"error": {"code": "unavailable", "message": "Busy."}}, {})
    respond(server, busy, busy, busy)
    with pytest.raises(ServiceError, match=r"Busy\. \(unavailable, 503\)"):
        Participant(server.url, "eggs")


def test_an_experimenter_signs_in_and_sends_the_csrf_token(server, tmp_path):
    (tmp_path / "e.yaml").write_text("items: 3")
    signed = (200, {"csrf": "c1"}, {"set-cookie": "session=s1; HttpOnly"})
    respond(server, signed, {"name": "eggs"}, b"a,b\n", {})
    me = Experimenter(server.url, "secret")
    assert me.create(tmp_path / "e.yaml", name="eggs") == {"name": "eggs"}
    assert me.download("eggs", "answers.csv", tmp_path / "a.csv") == b"a,b\n"
    assert (tmp_path / "a.csv").read_bytes() == b"a,b\n"
    me.close()
    _, path, headers, body = server.requests[1]
    assert path == "/prefix/api/v1/experiments"
    assert (headers["cookie"], headers["x-csrf-token"]) == ("session=s1", "c1")
    assert b'name="settings"; filename="e.yaml"\r\n\r\nitems: 3\r\n' in body
    assert b'name="name"\r\n\r\neggs\r\n' in body


def test_an_error_has_its_status_code_and_problems(server):
    wrong = {"code": "settings", "message": "1 problem", "problems": [{"line": 2}]}
    respond(server, (422, {"error": wrong}, {}))
    with pytest.raises(ServiceError, match="1 problem") as error:
        Experimenter(server.url, "secret")
    assert (error.value.status, error.value.code) == (422, "settings")
    assert error.value.problems == [{"line": 2}]


@pytest.mark.parametrize("url", ["ftp://host", "host:80", "http://"])
def test_a_url_must_be_http(url):
    with pytest.raises(ValueError, match=r"'url' .* begins with http"):
        Participant(url, "eggs")
