"""Limits of a connection: the size of a head and its time."""

import socket
from urllib.parse import urlsplit

import pytest

from accelerando.crowd.serve import protocol
from tests.crowd.serving import serving

HOST = b"Host: x\r\n"
POST = b"POST /api/v1/experiments/eggs/participants HTTP/1.1\r\n" + HOST


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    place = tmp_path_factory.mktemp("raw")
    (place / "experiment.yaml").write_text("name: eggs\nitems: 8\n")
    with serving(place) as made:
        yield made


def talk(server, *parts):
    """Send bytes, as long as the server listens; the status lines of its replies."""
    url = urlsplit(server.url)
    with socket.create_connection((url.hostname, url.port), timeout=60) as line:
        received = b""
        try:
            for part in parts:
                line.sendall(part)
            line.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has closed the line
        try:
            while piece := line.recv(65536):
                received += piece
        except OSError:
            pass
    return [row[9:12] for row in received.split(b"\r\n") if row.startswith(b"HTTP/1.1 ")]


def is_well(server):
    return talk(server, b"GET /health/live HTTP/1.1\r\n" + HOST + b"\r\n") == [b"200"]


ENDLESS = {
    "a header": (b"GET / HTTP/1.1\r\n" + HOST + b"X: ", b"a" * 1_000_000),
    "headers": (b"GET / HTTP/1.1\r\n" + HOST, b"X: a\r\n" * 100_000),
    "an address": (b"GET /", b"a" * 1_000_000),
    "a chunk's size": (POST + b"Transfer-Encoding: chunked\r\n\r\n2;x=", b"a" * 1_000_000),
    "a trailer": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: ", b"a" * 1_000_000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", list(ENDLESS))
def test_what_never_ends_is_refused_and_stops_nobody(server, what):
    """One connection with a header of many megabytes once stopped a web process for minutes."""
    start, more = ENDLESS[what]
    replies = talk(server, start, *[more] * 60)
    assert set(replies) <= {b"431", b"400", b"200", b"422"}
    assert is_well(server)


def test_a_large_head_within_the_limit_is_read(server):
    head = b"GET /health/live HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 50_000 + b"\r\n\r\n"
    assert talk(server, head) == [b"200"]
    assert talk(server, head.replace(b"a" * 50_000, b"a" * 200_000)) == [b"431"]


@pytest.mark.parametrize(
    "request_",
    [
        POST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / X\r\n\r\n",
        POST + b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}GET / HTTP/1.1\r\n\r\n",
        POST + b"Content-Length: +2\r\n\r\n{}",
        POST + b"Content-Length: 0x2\r\n\r\n{}",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\0y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
    ],
)  # fmt: skip
def test_requests_that_two_parsers_could_read_differently_are_refused(server, request_):
    assert talk(server, request_) == [b"400"]
    assert is_well(server)


class Transport:
    """A connection without a network."""

    def __init__(self):
        self.written, self.closed = b"", False

    def write(self, data):
        self.written += data

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def get_extra_info(self, name, default=None):
        del name
        return default


class Loop:
    """A clock that rings when it is told to."""

    def __init__(self):
        self.alarms = []

    def forget(self):
        self.alarms.clear()

    def call_later(self, seconds, function, *arguments):
        alarm = type("Alarm", (), {"cancel": lambda _: self.forget()})()
        alarm.ring = lambda: function(*arguments)
        alarm.seconds = seconds
        self.alarms.append(alarm)
        return alarm


def test_a_head_that_does_not_arrive_is_given_up():
    import uvicorn
    from uvicorn.server import ServerState

    async def app(scope, receive, send):
        """Never called."""

    loop, transport = Loop(), Transport()
    config = uvicorn.Config(app, log_config=None)
    one = protocol.LimitedProtocol(config, ServerState(), {}, loop)
    one.connection_made(transport)
    one.data_received(b"GET / HTTP/1.1\r\nHost:")
    (alarm,) = loop.alarms
    assert alarm.seconds == protocol.SECONDS
    alarm.ring()
    assert transport.written.startswith(b"HTTP/1.1 408 ")
    assert transport.closed
