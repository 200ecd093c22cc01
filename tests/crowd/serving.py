"""A real server for tests: the command itself, in a process tree of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PASSWORD = "correct horse battery staple"


@dataclass
class Server:
    """A running ``accelerando crowd serve``."""

    url: str
    experiment: str
    process: subprocess.Popen
    log: Path

    def children(self):
        """Process numbers of web processes and worker, by what they run."""
        found = {"web": [], "worker": []}
        for child in _children(self.process.pid):
            kind = _kind(child)
            if kind:
                found[kind].append(child)
        return found

    def output(self):
        return self.log.read_text()


@contextmanager
def serving(directory, *arguments, password=PASSWORD, port=0, env=None, wait=60):
    """Serve an experiment on a free port until the block ends."""
    log = Path(directory) / "serve.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "accelerando", "crowd", "serve", str(directory)),
                *(*arguments, "--port", str(port)),
            ],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "ACCELERANDO_PASSWORD": password,
                "PYTHONUNBUFFERED": "1",
                **(env or {}),
            },
            start_new_session=True,
        )
    try:
        url, name = _links(log, process, wait)
        _wait_for(url, process, log, wait)
        yield Server(url, name, process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _links(log, process, wait):
    end = time.monotonic() + wait
    while time.monotonic() < end:
        text = log.read_text()
        found = re.search(r"participants:\s+(\S+?)/e/([^/]+)/", text)
        if found and "stop:" in text:
            return found[1], found[2]
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {text}")
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start: {log.read_text()}")


def _wait_for(url, process, log, wait):
    import ssl

    context = ssl._create_unverified_context() if url.startswith("https") else None
    end = time.monotonic() + wait
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/health/live", timeout=5, context=context) as answer:
                if answer.status == 200:
                    return
        except urllib.error.HTTPError as error:
            if error.code == 404:  # a proxy would strip the URL prefix
                return
        except OSError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"the server does not answer: {log.read_text()}")


def _children(parent):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def _kind(pid):
    try:
        name = (Path("/proc") / str(pid) / "comm").read_text().strip()
    except OSError:
        return None
    return {"crowd-web": "web", "crowd-worker": "worker"}.get(name)
