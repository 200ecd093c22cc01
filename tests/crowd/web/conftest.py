"""The application in this process, with a signed-in experimenter and pictures to upload."""

import io
import struct
import time
import zipfile
import zlib

import pytest
from argon2 import PasswordHasher
from starlette.testclient import TestClient

from accelerando.crowd.experiment import Files, Limits, make_experiment, read_upload, read_yaml
from accelerando.crowd.store import Store, experiments
from accelerando.crowd.web import accounts
from accelerando.crowd.web.app import create_app

PASSWORD = "four words of mine"
SETTINGS = "name: eggs\nitems: 8\nskip: true\nparticipants: {answers: 5}\n"
# The hash of the service takes tens of milliseconds on all cores, and most tests sign in.
SERVICE_HASHER = accounts._hasher
QUICK_HASHER = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
_HASH = QUICK_HASHER.hash(PASSWORD)


@pytest.fixture(autouse=True)
def _quick_passwords(monkeypatch):
    monkeypatch.setattr(accounts, "_hasher", QUICK_HASHER)


def png(gray=0):
    """The smallest picture there is."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = zlib.compress(bytes([0, gray]))
    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def zipped(files, compression=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


class Site:
    """A server without a network: visitors are clients of it."""

    def __init__(self, folder, limits):
        self.store = Store(f"sqlite:///{folder}/crowd.sqlite")
        with self.store.write() as connection:
            accounts.set_password(connection, "experimenter", _HASH, time.time())
        self.app = create_app(self.store, limits)
        self._clients = []

    def add(self, settings, uploads=()):
        files = Files()
        for name, data in uploads:
            files.merge(read_upload(name, data))
        with self.store.write() as connection:
            experiments.add(connection, make_experiment(read_yaml(settings), files), time.time())

    def visitor(self, **options):
        client = TestClient(self.app, base_url="http://crowd.test", **options)
        self._clients.append(client)
        return client

    def experimenter(self):
        client = self.visitor()
        answer = client.post("/api/v1/session", json={"name": "experimenter", "password": PASSWORD})
        assert answer.status_code == 200, answer.text
        client.headers["x-csrf-token"] = answer.json()["csrf"]
        return client

    def close(self):
        for client in self._clients:
            client.close()
        self.app.state.context.writer.close()
        self.store.close()


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path, Limits(upload_bytes=2_000_000, file_bytes=500_000, total_bytes=1_500_000))
    made.add(SETTINGS)
    yield made
    made.close()


@pytest.fixture
def visitor(site):
    return site.visitor()


@pytest.fixture
def experimenter(site):
    return site.experimenter()


API = "/api/v1/experiments/eggs"


def begin(client, **parameters):
    answer = client.post(f"{API}/participants", json={"parameters": parameters})
    assert answer.status_code == 200, answer.text
    return answer.json()


def answer(client, query, winner="left", **more):
    chosen = query[winner]["item"] if isinstance(winner, str) else winner
    return client.post(f"{API}/answers", json={"query": query["id"], "winner": chosen, **more})
