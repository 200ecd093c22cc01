"""What the benchmarks of the service share: a server, a database, a frugal HTTP client."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.crowd.postgres import postgres, restartable
from tests.crowd.serving import PASSWORD, serving

__all__ = [
    "PASSWORD",
    "Line",
    "database",
    "experiment",
    "postgres",
    "restartable",
    "serving",
    "stored",
]


@contextmanager
def database(kind):
    """Arguments of ``crowd serve`` for SQLite or a fresh PostgreSQL."""
    if kind == "sqlite":
        yield []
    else:
        with postgres() as url:
            yield ["--database", url]


@contextmanager
def experiment(settings):
    """A folder with this experiment."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "experiment.yaml").write_text(json.dumps(settings))
        yield Path(folder)


class Line:
    """One kept connection that speaks just enough HTTP: the load must not be made of the client."""

    def __init__(self, host, port):
        self.host, self.port = host, port
        self.reader = self.writer = None
        self.token, self.sent_at = "", 0.0

    async def send(self, method, path, body=None):
        """Status and JSON of the answer. OSError or EOFError: the line is broken."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: {self.host}\r\n"
        if self.token:
            head += f"authorization: Bearer {self.token}\r\n"
        if body is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
        try:
            self.writer.write(head.encode() + b"\r\n" + data)
            top = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin1")
            length = int(top.lower().split("content-length:")[1].split("\r\n")[0])
            content = await self.reader.readexactly(length)
        except (OSError, EOFError):
            self.close()
            raise
        return int(top.split(" ", 2)[1]), json.loads(content)

    def close(self):
        if self.writer is not None:
            self.writer.close()
            self.reader = self.writer = None


def stored(url, name):
    """Numbers of all queries that have an answer, in the order of the export."""
    from accelerando.crowd.client import Experimenter

    me = Experimenter(url, PASSWORD)
    text = me.download(name, "answers.csv").decode()
    return [row["query"] for row in csv.DictReader(io.StringIO(text))]


def cpu_seconds(pids):
    """User and system time of processes, from /proc."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in pids:
        fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / tick
    return total


def clock():
    return time.perf_counter()
