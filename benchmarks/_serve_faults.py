"""Faults of the serving benchmarks: each is made in a real server while people answer.

Every function takes a server and a crowd, makes its fault, waits until the service has noticed and
recovered, and returns what was seen.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from accelerando.crowd.client import Experimenter

__all__ = [
    "CLOCK",
    "clock_jump",
    "damaged_file",
    "database_restart",
    "disk_full",
    "is_well",
    "preload",
    "soak",
    "until",
]

# Put on the path of a server: its clock is ahead by the number of seconds in a file.
CLOCK = """
import os, time
_file, _real = os.environ["CHAOS_CLOCK"], time.time
def _jumped():
    with open(_file) as stream:
        return _real() + float(stream.read())
time.time = _jumped
"""


def health(url):
    """Status and JSON of /health."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError as error:
        return 0, {"database": str(error), "worker": ""}


async def until(url, wanted, seconds=120.0):
    """Ask /health until `wanted(status, found)`; return the seconds that it took."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        found = await asyncio.to_thread(health, url)
        if wanted(*found):
            return time.perf_counter() - begin
        await asyncio.sleep(0.2)
    raise AssertionError(f"the service does not notice or recover: {found}")


def is_well(status, _):
    return status == 200


async def disk_full(server, crowd, folder):
    """The kernel refuses to let any file of the server grow, as on a full disk."""
    await crowd.reach(0.3)
    pids = [pid for kind in server.children().values() for pid in kind]
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    noticed = await until(server.url, lambda status, found: found["database"] == "full")
    before = len(crowd.acknowledged)
    await asyncio.sleep(3.0)
    meanwhile = len(crowd.acknowledged) - before
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    recovered = await until(server.url, is_well)
    return {
        "seen": "/health 503 full",
        "noticed after s": noticed,
        "acknowledged meanwhile": meanwhile,
        "recovered after s": recovered,
    }


async def database_restart(server, crowd, restart, times):
    """PostgreSQL crashes and recovers, several times."""
    for number in range(times):
        await crowd.reach(0.8 * (number + 0.5) / times)
        await asyncio.to_thread(restart)
    recovered = await until(server.url, is_well)
    return {"seen": f"{times} restarts", "recovered after s": recovered}


async def clock_jump(server, crowd, file):
    """The clock jumps an hour ahead, and later back."""
    await crowd.reach(0.2)
    longest = 0.0
    for place, offset in ((0.2, 3600.0), (0.5, 0.0), (0.7, -7200.0)):
        await crowd.reach(place)
        later = file.with_suffix(".later")
        later.write_text(str(offset))
        later.replace(file)  # at once: the clock must not be read while it is being written
        longest = max(longest, await until(server.url, is_well))
    return {
        "seen": "logged" if "clock" in server.output() else "NOT LOGGED",
        "recovered after s": longest,
    }


async def damaged_file(server, crowd, folder):
    """Most pages of the database are overwritten while it is in use."""
    await crowd.reach(0.4)
    before = list(crowd.acknowledged)
    saved = folder / "backup.zip"
    backed_up = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "accelerando", "crowd", "backup", str(folder), "-o", str(saved)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert backed_up.returncode == 0, backed_up.stderr
    file = folder / "crowd.sqlite"
    size = file.stat().st_size
    with file.open("r+b") as stream:
        for place in range(8192, size, 8192):
            stream.seek(place)
            stream.write(os.urandom(4096))
    for pid in server.children()["web"]:
        os.kill(pid, signal.SIGKILL)  # its memory is intact, and would hide the damage
        while running(pid):
            await asyncio.sleep(0.001)
    killed, arrived = time.perf_counter(), len(crowd.acknowledged)
    noticed = await until(server.url, lambda status, found: found["database"] == "damaged")
    await asyncio.sleep(1.0)  # people continue to send
    crowd.over = True
    later = crowd.sent_at[arrived:]
    return {
        "seen": "/health 503 damaged",
        "noticed after s": noticed,
        # What was sent to the process that was killed may have been answered before.
        "replies on their way": sum(sent < killed for sent in later),
        "acknowledged meanwhile": sum(sent >= killed for sent in later),
        "before the backup": before,
    }


def running(pid):
    """Whether a process still runs; one whose parent has not asked for its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def preload(store, name, n_answers, seed=0):
    """Store answers of the past, a hundred per participant, without the way through HTTP."""
    import random

    from accelerando.crowd.store import counters, experiments
    from accelerando.crowd.store.schema import answer, participant, served

    rng = random.Random(seed)
    begin = time.time() - n_answers
    with store.write() as connection:
        frame = experiments.find(connection, name).frame
        number, items = frame.id, range(frame.n_items)
        for first in range(0, n_answers, 10_000):
            asked, given, people = [], [], []
            for k in range(first, min(first + 10_000, n_answers)):
                at, person = begin + k, k // 100 + 1
                head, left, right = rng.sample(items, 3)
                if k % 100 == 0:
                    people.append(
                        {
                            "id": person, "experiment_id": number, "name": f"past {person}",
                            "created": at, "last": at + 99, "parameters": {}, "personal": {},
                            "asked": 100, "answered": 100, "outcome": "done",
                        }
                    )  # fmt: skip
                asked.append(
                    {
                        "experiment_id": number, "id": k + 1, "participant_id": person,
                        "number": k % 100 + 1, "kind": "query", "head": head, "left": left,
                        "right": right, "low": min(left, right), "high": max(left, right),
                        "sampler": "random", "fallback": False, "version": 0, "at": at,
                        "open": False,
                    }
                )  # fmt: skip
                given.append(
                    {
                        "experiment_id": number, "query_id": k + 1, "received": at + 0.9,
                        "winner": rng.choice((left, right)), "response_time": rng.expovariate(1.0),
                        "network_latency": 0.05,
                    }
                )  # fmt: skip
            for table, rows in ((participant, people), (served, asked), (answer, given)):
                connection.execute(table.insert(), rows)
        counters.advance(connection)


def memory(pids):
    """Resident megabytes of processes."""
    page = os.sysconf("SC_PAGE_SIZE")
    found = [int((Path("/proc") / str(pid) / "statm").read_text().split()[1]) for pid in pids]
    return sum(found) * page / 1e6


async def soak(server, crowd, name, seconds, password):
    """People answer and an experimenter's page polls: does the web process grow?"""
    me = Experimenter(server.url, password)
    resident, times = [], {"dashboard": [], "participants": [], "answers.csv": []}
    pids = server.children()["web"]
    begin = time.perf_counter()
    turn = 0

    async def timed(what, call, *arguments):
        start = time.perf_counter()
        await asyncio.to_thread(call, *arguments)
        times[what].append(time.perf_counter() - start)

    while time.perf_counter() - begin < seconds:
        await timed("dashboard", me._json, "GET", f"/experiments/{name}/dashboard")
        if turn % 3 == 0:  # as the page does
            await timed("participants", me._json, "GET", f"/experiments/{name}/participants")
        if turn % 15 == 0:
            await timed("answers.csv", me.download, name, "answers.csv")
        resident.append(memory(pids))
        turn += 1
        await asyncio.sleep(2.0)
    crowd.over = True
    me.close()
    fifth = max(1, len(resident) // 5)
    early, late = (
        statistics.median(part) for part in (resident[fifth : 2 * fifth], resident[-fifth:])
    )
    return {
        "seconds of soak": seconds,
        "web MB at the start": resident[0],
        "web MB early": early,
        "web MB late": late,
        "most web MB": max(resident),
        **{f"{what} s": statistics.median(found) for what, found in times.items()},
    }
