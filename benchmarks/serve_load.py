"""How many answers per second does the service take, and how long does a participant wait?

Simulated participants over real HTTP connections, each with its own: ask for a query, think, answer
it. The worker refits and searches all the while. A cycle is both requests together, without the
thinking. Every acknowledged answer is looked up in the export afterwards.

With --against FOLDER, another clone with its own environment in FOLDER/.venv is measured,
too: its own script, in turns with this one (A B A B), with the largest number of participants.
Machines change their speed from minute to minute; pairs of runs that follow each other compare.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from _crowd_common import RESULTS, table, write
from _serve_common import PASSWORD, Line, clock, cpu_seconds, database, experiment, serving, stored
from accelerando.crowd import AlienEggs
from accelerando.crowd.client import Experimenter

N_ITEMS = 90
API = "/api/v1/experiments/load"


async def person(number, place, until, think, rng, eggs, cycles, acknowledged, preload):
    line = Line(*place)
    status, session = await line.send(
        "POST", f"{API}/participants", {"parameters": {"participant": f"p{number}"}, "count": 0}
    )
    assert status == 200, session
    line.token = session["token"]
    # Not all at the same moment.
    await asyncio.sleep(rng.exponential(think))
    waiting = []
    while clock() < until:
        begin = clock()
        if not waiting:
            status, session = await line.send(
                "POST", f"{API}/queries", {"count": 2 if preload else 1}
            )
            assert status == 200, session
            waiting = session["queries"]
            assert waiting, session
        asked = clock()
        query = waiting[0]
        row = [query[name]["item"] for name in ("head", "left", "right")]
        await asyncio.sleep(rng.exponential(think))
        answered = clock()
        left = eggs(np.array([row]), rng)[0]
        body = {
            "query": query["id"],
            "winner": row[1] if left else row[2],
            "response_time": answered - asked,
            "network_latency": asked - begin,
            "count": 2 if preload else 0,
        }
        status, session = await line.send("POST", f"{API}/answers", body)
        assert status == 200, session
        assert session["stored"], session
        waiting = session["queries"]
        done = clock()
        cycles.append((done, (asked - begin) + (done - answered)))
        acknowledged.append(query["id"])
    line.close()


async def crowd(place, people, seconds, think, preload):
    eggs = AlienEggs(range(N_ITEMS))
    cycles, acknowledged = [], []
    until = clock() + seconds
    await asyncio.gather(
        *(
            person(
                k,
                place,
                until,
                think,
                np.random.default_rng(k),
                eggs,
                cycles,
                acknowledged,
                preload,
            )
            for k in range(people)
        )
    )
    return cycles, acknowledged


def run(kind, people, seconds, think, processes, preload):
    settings = {"name": "load", "items": N_ITEMS, "participants": {"answers": None}}
    with (
        database(kind) as arguments,
        experiment(settings) as folder,
        serving(folder, *arguments, "--processes", str(processes)) as server,
    ):
        url = urlsplit(server.url)
        pids = server.children()
        me = Experimenter(server.url, PASSWORD)
        while not me.health()["worker"]["alive"]:
            pass
        before = {name: cpu_seconds(found) for name, found in pids.items()}
        begin = clock()
        cycles, acknowledged = asyncio.run(
            crowd((url.hostname, url.port), people, seconds, think, preload)
        )
        spent = clock() - begin
        used = {name: cpu_seconds(found) - before[name] for name, found in pids.items()}
        there = stored(server.url, "load")
        seen = me.dashboard("load")
    # The first fifth warms up: everybody joins at once.
    times = np.array([t for done, t in cycles if done - begin > 0.2 * spent]) * 1e3
    q50, q95, q99 = np.percentile(times, [50, 95, 99])
    return {
        "database": kind,
        "participants": people,
        "web processes": processes,
        "answers/s": len(times) / (0.8 * spent),
        "ms 50 %": q50,
        "ms 95 %": q95,
        "ms 99 %": q99,
        "acknowledged": len(acknowledged),
        "stored": len(there),
        "lost": len(set(acknowledged) - set(there)),
        "doubled": len(there) - len(set(there)),
        "worker turns": seen["worker"]["turns"],
        "model answers": seen["summary"]["answers"] - seen["worker"]["behind"],
        "active share": seen["active_share"]["active"] / max(1, seen["summary"]["answers"]),
        "web CPU-s": used["web"],
        "worker CPU-s": used["worker"],
        "preload": preload,
    }


# Runs in the other clone: the last line that it prints is the row.
_ELSEWHERE = """
import json, sys
sys.path.insert(0, sys.argv[1] + "/benchmarks")
import serve_load
kind, people, seconds, think, processes = json.loads(sys.argv[2])
row = serve_load.run(kind, people, seconds, think, processes, preload=False)
row = {key: value if isinstance(value, str) else float(value) for key, value in row.items()}
print(json.dumps(row))
"""
COMPARED = ("answers/s", "ms 50 %", "ms 95 %", "ms 99 %", "web ms per answer", "worker CPU-s")


def against(other, people, kinds, seconds, think, repeats):
    """Medians of both clones, measured in turns."""
    here = Path(__file__).parents[1]
    found = {}
    for repeat in range(repeats):
        for kind in kinds:
            settings = [kind, people, seconds, think, 1 if kind == "sqlite" else 2]
            for which, clone in (("before", other), ("now", here)):
                command = [
                    clone / ".venv/bin/python",
                    "-c",
                    _ELSEWHERE,
                    clone,
                    json.dumps(settings),
                ]
                done = subprocess.run(
                    [str(word) for word in command],
                    cwd=clone, capture_output=True, text=True, check=True,
                )  # fmt: skip
                row = json.loads(done.stdout.splitlines()[-1])
                assert row["lost"] == row["doubled"] == 0, row
                row["web ms per answer"] = 1e3 * row["web CPU-s"] / row["acknowledged"]
                found.setdefault((kind, which), []).append(row)
                print(f"{kind}, {which}, run {repeat + 1} done", flush=True)
    return compared(found, people)


def compared(found, people):
    """A row for each database and clone: medians, and the range of the 95th percentile."""
    rows = []
    for (kind, which), runs in found.items():
        row = {"database": kind, "participants": people, "clone": which, "runs": len(runs)}
        row |= {key: statistics.median(run[key] for run in runs) for key in COMPARED}
        slow = [run["ms 95 %"] for run in runs]
        rows.append(row | {"ms 95 % range": [min(slow), max(slow)]})
    return rows


def kept():
    path = RESULTS / "serve_load.json"
    return json.loads(path.read_text()) if path.exists() else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short version")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    parser.add_argument("--think", type=float, default=0.25, help="mean seconds before an answer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--participants", type=int, nargs="+", default=[1, 10, 100, 500])
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--against", type=Path, help="another clone, such as a former version")
    options = parser.parse_args()
    seconds, repeats = options.seconds, options.repeats
    if options.quick:
        seconds, repeats, options.participants = 6.0, 1, [100]
    if options.against is not None:
        people = max(options.participants)
        other = options.against.resolve()
        rows = against(other, people, options.databases, seconds, options.think, repeats)
        table(rows, list(rows[0]), f"{people} participants, medians; the same script in two clones")
        if not options.quick:
            write("serve_load", {**kept(), "before_after": rows})
        return
    rows = []
    for people in options.participants:
        for kind in options.databases:
            processes = 1 if kind == "sqlite" else 2
            runs = [
                run(kind, people, seconds, options.think, processes, preload=False)
                for _ in range(repeats)
            ]
            rows.append(
                {
                    key: (
                        statistics.median(one[key] for one in runs)
                        if isinstance(value, float)
                        else value
                    )
                    for key, value in runs[0].items()
                }
            )
            for key in ("acknowledged", "stored", "lost", "doubled"):
                rows[-1][key] = sum(one[key] for one in runs)
            print({key: round(v, 1) if isinstance(v, float) else v for key, v in rows[-1].items()})
    table(
        rows,
        [
            *("database", "participants", "web processes", "answers/s", "ms 50 %", "ms 95 %"),
            *("ms 99 %", "acknowledged", "stored", "lost", "doubled", "active share"),
        ],
        f"query → answer cycle, two requests, {options.think:g} s of thinking between, "
        f"median of {repeats} runs of {seconds:g} s",
    )
    write(
        "serve_load",
        {
            "quick": options.quick,
            "seconds": seconds,
            "think": options.think,
            "repeats": repeats,
            "target": "≥ 300 answers/s and p95 < 100 ms at 100 participants, none lost or doubled",
            "note": "clients, web, worker and database shared the machine's two cores",
            "rows": rows,
            "before_after": kept().get("before_after", []),
        },
    )


if __name__ == "__main__":
    main()
