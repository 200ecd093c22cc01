"""Why a scheduler does not answer: nobody there, a firewall, TLS, or another program."""

import contextlib
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import distributed
import pytest

from accelerando.doctor._connect import connect, parse_memory, reason, speaks_tls
from accelerando.exceptions import ClusterError

ALERT = bytes([0x15, 3, 3, 0, 2, 2, 40])  # TLS: a fatal alert, "handshake failure"


@contextmanager
def server(answer):
    """Answer what comes first on every connection with some bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    if connection.recv(4096):
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10.0)


def test_a_port_that_speaks_tls():
    with server(ALERT) as port:
        assert speaks_tls("127.0.0.1", port, 5.0)
        text = reason(f"tcp://127.0.0.1:{port}", OSError("timed out"))
        assert text.startswith(f"127.0.0.1:{port} speaks TLS. Pass tls://127.0.0.1:{port} with")
        text = reason(f"tls://127.0.0.1:{port}", OSError("timed out"))
        assert "the certificates do not fit (timed out)" in text


def test_a_port_of_another_program():
    with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert not speaks_tls("127.0.0.1", port, 5.0)
        text = reason(f"tcp://127.0.0.1:{port}", OSError("timed out"))
        assert "is not a Dask scheduler of a similar version (timed out)" in text
        assert "does not speak TLS" in reason(f"tls://127.0.0.1:{port}", OSError("x"))


def test_a_port_on_which_nothing_listens():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert reason(f"tcp://127.0.0.1:{port}", OSError("x")).startswith("nothing listens at")


def test_an_address_that_is_none():
    wrong = ["node1", "tcp://fd77::1:8786", "tcp://[fd77::1:8786", "tcp://node1:99999"]
    for address in (*wrong, "tcp://node1:abc", "http://node1:8787", ""):
        assert "like tcp://node1:8786" in reason(address, OSError("x")), address
    name = "tcp://no-such-host.invalid:8786"
    assert "cannot resolve the name no-such-host.invalid" in reason(name, OSError("x"))


def test_tls_needs_certificates(tmp_path):
    with pytest.raises(ClusterError, match=r"asks for TLS\. Pass --tls-ca-file"):
        connect("tls://127.0.0.1:1", 1.0, {}).__enter__()
    missing = {"tls_ca_file": str(tmp_path / "ca.pem")}
    with pytest.raises(ClusterError, match=r"ca\.pem of --tls-ca-file does not exist"):
        connect("tls://127.0.0.1:1", 1.0, missing).__enter__()


def test_the_files_of_tls_are_those_of_a_client(tmp_path, monkeypatch):
    clients = []

    def client(address, *, security, **options):
        clients.append(security)
        return contextlib.nullcontext()

    monkeypatch.setattr(distributed, "Client", client)
    files = {name: str(tmp_path / name) for name in ("tls_ca_file", "tls_cert", "tls_key")}
    for path in files.values():
        Path(path).touch()
    with connect("tls://127.0.0.1:1", 1.0, files):
        (security,) = clients
    assert security.require_encryption
    assert security.tls_ca_file == files["tls_ca_file"]
    assert security.tls_client_cert == files["tls_cert"]
    assert security.tls_client_key == files["tls_key"]


def test_sizes():
    assert parse_memory(None) == 0
    assert parse_memory("1.5 GiB") == 1610612736
    for text in ("much", "-1GB"):
        with pytest.raises(ValueError, match="'--memory' parameter of accelerando doctor must be"):
            parse_memory(text)
