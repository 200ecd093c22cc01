"""Is every acknowledged answer there, once, whatever breaks?

Simulated participants answer over HTTP while something goes wrong, again and again: web and worker
processes are killed with SIGKILL, the disk is full, PostgreSQL crashes, the clock jumps, the file
of the database is overwritten. Who gets no reply sends the same answer again, as the page does. In
the end the acknowledged answers are compared with what is stored. The soak lets an experimenter's
page poll an experiment with a long history, and watches the memory of the web process.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from urllib.parse import urlsplit

import _serve_faults as faults
from _crowd_common import RESULTS, table, write
from _serve_common import PASSWORD, Line, clock, experiment, restartable, serving, stored
from accelerando.crowd.client import Experimenter
from accelerando.crowd.experiment import load_experiment
from accelerando.crowd.store import Store, experiments, export

N_ITEMS = 90
API = "/api/v1/experiments/chaos"


class Crowd:
    def __init__(self, place, wanted, seed, rate=20.0):
        self.place, self.wanted, self.rate = place, wanted, rate
        self.random = random.Random(seed)
        self.acknowledged, self.sent_at = [], []  # of each answer, and when it was sent
        self.sent_again = self.refused = 0
        self.over = self.endless = False

    async def reach(self, share):
        """Wait until this share of the answers has been acknowledged."""
        while len(self.acknowledged) < share * self.wanted:
            await asyncio.sleep(0.01)

    async def ask(self, line, method, path, body=None):
        """Like a page: again until there is a reply. 4xx would be final; there must be none."""
        while not self.over:
            line.sent_at = clock()
            try:
                status, reply = await line.send(method, path, body)
            except (OSError, EOFError):
                self.sent_again += 1
            else:
                if status == 200:
                    return reply
                if status != 503:
                    self.refused += 1
                    raise AssertionError((status, reply))
                self.sent_again += 1
            await asyncio.sleep(self.random.uniform(0.05, 0.3))
        return None

    async def person(self, number):
        line = Line(*self.place)
        body = {"parameters": {"participant": f"p{number}"}}
        session = await self.ask(line, "POST", f"{API}/participants", body)
        line.token = session["token"] if session else ""
        while session and (self.endless or len(self.acknowledged) < self.wanted):
            query = session["queries"][0]
            winner = query[self.random.choice(("left", "right"))]["item"]
            body = {"query": query["id"], "winner": winner, "response_time": 0.5}
            session = await self.ask(line, "POST", f"{API}/answers", body)
            if session is None:
                break
            self.acknowledged.append((query["id"], winner, session["stored"]))
            self.sent_at.append(line.sent_at)
            await asyncio.sleep(self.random.expovariate(self.rate))
        line.close()


async def kill(server, crowd, kills):
    """One process at a time, web or worker, spread over the whole run."""
    for number in range(kills):
        await crowd.reach((number + crowd.random.uniform(0.2, 0.8)) / kills)
        kind = "web" if number % 2 == 0 else "worker"
        for _ in range(2000):  # the one killed last may not be back yet
            victims = server.children()[kind]
            if victims:
                break
            await asyncio.sleep(0.01)
        os.kill(crowd.random.choice(victims), signal.SIGKILL)
    recovered = await faults.until(server.url, faults.is_well)
    return {"seen": f"{kills} kills", "recovered after s": recovered}


async def run(crowd, people, fault):
    found, *_ = await asyncio.gather(fault, *(crowd.person(k) for k in range(people)))
    return found


def measure(kind, fault, options, wanted):
    """One fault on one database; `fault` is a name of FAULTS."""
    settings = {"name": "chaos", "items": N_ITEMS, "participants": {"answers": None}}
    processes = 1 if kind == "sqlite" else 2
    with ExitStack() as stack:
        arguments, restart = ["--processes", str(processes)], None
        folder = stack.enter_context(experiment(settings))
        if kind == "postgresql":
            url, restart = stack.enter_context(restartable())
            arguments += ["--database", url]
        else:
            url = f"sqlite:///{folder}/crowd.sqlite"
        env, jumped = {}, folder / "clock"
        if fault == "clock jump":
            jumped.write_text("0")
            (folder / "path").mkdir()
            (folder / "path" / "sitecustomize.py").write_text(faults.CLOCK)
            path = os.pathsep.join([str(folder / "path"), os.environ.get("PYTHONPATH", "")])
            env = {"CHAOS_CLOCK": str(jumped), "PYTHONPATH": path}
        history = 0
        if fault == "soak":
            history = 5_000 if options.quick else options.history
            store = Store(url)
            with store.write() as connection:
                experiments.add(connection, load_experiment(folder, None), 0.0)
            faults.preload(store, "chaos", history)
            store.close()
        server = stack.enter_context(serving(folder, *arguments, env=env))
        place = urlsplit(server.url)
        rate = 1.0 if fault == "soak" else 20.0
        crowd = Crowd((place.hostname, place.port), wanted, options.seed, rate)
        crowd.endless = fault in ("soak", "damaged file")
        make = {
            "kills": lambda: kill(server, crowd, 4 if options.quick else options.kills),
            "disk full": lambda: faults.disk_full(server, crowd, folder),
            "restarts": lambda: faults.database_restart(
                server, crowd, restart, 2 if options.quick else 10
            ),
            "clock jump": lambda: faults.clock_jump(server, crowd, jumped),
            "damaged file": lambda: faults.damaged_file(server, crowd, folder),
            "soak": lambda: faults.soak(server, crowd, "chaos", options.seconds, PASSWORD),
        }[fault]
        begin = clock()
        found = asyncio.run(run(crowd, options.participants, make()))
        row = {"database": kind, "fault": fault, "answers": len(crowd.acknowledged), **found}
        row["seconds"] = clock() - begin
        if fault == "damaged file":
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(30)
            return row | after_damage(folder, row.pop("before the backup"), crowd.refused)
        return row | compare(server, crowd, history)


def compare(server, crowd, history):
    """The acknowledged answers against the stored ones."""
    there = stored(server.url, "chaos")
    me = Experimenter(server.url, PASSWORD)
    rows = csv.DictReader(io.StringIO(me.download("chaos", "answers.csv").decode()))
    winners = {row["query"]: row["winner"] for row in rows}
    me.close()
    acknowledged = {query for query, _, _ in crowd.acknowledged}
    status, found = faults.health(server.url)
    if status != 200:
        print(server.output()[-3000:])
    return {
        "sent again": crowd.sent_again,
        "stored before, reply lost": sum(not stored for _, _, stored in crowd.acknowledged),
        "lost": len(acknowledged - set(there)),
        "doubled": len(there) - len(set(there)),
        "not acknowledged": len(set(there) - acknowledged) - history,
        "changed": sum(str(w) != winners.get(q) for q, w, _ in crowd.acknowledged),
        "refused": crowd.refused,
        "well": status == 200,
        "health": {key: found[key] for key in ("database", "worker")},
    }


def after_damage(folder, acknowledged, refused_answers):
    """A damaged database is not served again; its backup has all that was acknowledged before."""
    acknowledged = {str(query): str(winner) for query, winner, _ in acknowledged}
    command = [sys.executable, "-m", "accelerando", "crowd"]
    refused = subprocess.run(
        [*command, "serve", str(folder), "--port", "0"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([*command, "restore", str(folder / "backup.zip"), place], check=True)
        store = Store(f"sqlite:///{place}/crowd.sqlite")
        store.check()
        with store.read() as connection:
            snapshot = experiments.find(connection, "chaos")
        rows = list(export.rows(store.read, snapshot))
        store.close()
    there = [str(row["query"]) for row in rows]
    winners = {str(row["query"]): str(row["winner"]) for row in rows}
    said = refused.stderr.strip().splitlines()
    return {
        "lost": len(set(acknowledged) - set(there)),
        "doubled": len(there) - len(set(there)),
        "changed": sum(winners.get(query, win) != win for query, win in acknowledged.items()),
        "refused": refused_answers,
        "says": said[-1] if said else "",
        "well": refused.returncode == 2 and len(said) == 1 and "crowd restore" in said[0],
    }


def of_earlier_pieces(rows, quick):
    """The stored rows of faults that this run did not make."""
    file = RESULTS / f"serve_chaos{'_quick' if quick else ''}.json"
    made = {(row["database"], row["fault"]) for row in rows}
    before = json.loads(file.read_text())["rows"] if file.exists() else []
    # Rows without a fault are of a former version of this script, which only killed processes.
    return [row for row in before if "fault" in row and (row["database"], row["fault"]) not in made]


FAULTS = {
    "sqlite": ["kills", "disk full", "clock jump", "damaged file", "soak"],
    "postgresql": ["kills", "restarts", "clock jump", "soak"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="600 answers, 4 kills, a short soak")
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--participants", type=int, default=20)
    parser.add_argument("--databases", nargs="+", default=list(FAULTS), choices=list(FAULTS))
    every = sorted({fault for found in FAULTS.values() for fault in found})
    parser.add_argument("--faults", nargs="+", default=every, choices=every)
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the results of the other faults: a full run in pieces, such as one per fault",
    )
    parser.add_argument("--history", type=int, default=120_000, help="answers before the soak")
    parser.add_argument("--seconds", type=float, help="of the soak; 25 minutes, 20 s with --quick")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.seconds = options.seconds or (20.0 if options.quick else 1500.0)
    answers = 600 if options.quick else options.answers
    rows = []
    for kind in options.databases:
        for fault in FAULTS[kind]:
            if fault in options.faults:
                rows.append(measure(kind, fault, options, answers))
                print(rows[-1], flush=True)
    columns = ["database", "fault", "answers", "lost", "doubled", "changed", "refused", "well"]
    table(rows, columns, "acknowledged answers against stored ones")
    write(
        "serve_chaos",
        {
            "quick": options.quick,
            "target": "every acknowledged answer is there once; the web process does not grow by "
            "more than a tenth in the soak",
            "rows": rows + (of_earlier_pieces(rows, options.quick) if options.keep else []),
        },
    )
    bad = [row for row in rows if row["lost"] or row["doubled"] or row["changed"] or row["refused"]]
    if bad:
        raise SystemExit("answers were lost, doubled, changed or refused")
    if not all(row["well"] for row in rows):
        raise SystemExit("the service did not recover, or did not refuse a damaged database")
    if any(row.get("acknowledged meanwhile") for row in rows):
        raise SystemExit("answers were acknowledged that could not be stored")
    if any(
        row["web MB late"] > 1.1 * row["web MB early"] for row in rows if row["fault"] == "soak"
    ):
        raise SystemExit("the web process grew in the soak")


if __name__ == "__main__":
    main()
