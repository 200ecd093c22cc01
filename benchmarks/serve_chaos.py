"""Is every acknowledged answer there, once, if processes are killed at random?

Simulated participants answer over HTTP while web and worker processes are killed with SIGKILL,
again and again. Who gets no reply sends the same answer again, as the page does. In the end the
acknowledged answers are compared with what is stored.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import os
import random
import signal
from urllib.parse import urlsplit

from _crowd_common import table, write
from _serve_common import PASSWORD, Line, clock, database, experiment, serving, stored
from accelerando.crowd.client import Experimenter

N_ITEMS = 90
API = "/api/v1/experiments/chaos"


class Crowd:
    def __init__(self, place, wanted, seed):
        self.place, self.wanted = place, wanted
        self.random = random.Random(seed)
        self.acknowledged = []
        self.sent_again = self.refused = 0

    async def ask(self, line, method, path, body=None):
        """Like a page: again until there is a reply. 4xx would be final; there must be none."""
        while True:
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

    async def person(self, number):
        line = Line(*self.place)
        body = {"parameters": {"participant": f"p{number}"}}
        session = await self.ask(line, "POST", f"{API}/participants", body)
        line.token = session["token"]
        while len(self.acknowledged) < self.wanted:
            query = session["queries"][0]
            winner = query[self.random.choice(("left", "right"))]["item"]
            body = {"query": query["id"], "winner": winner, "response_time": 0.5}
            session = await self.ask(line, "POST", f"{API}/answers", body)
            self.acknowledged.append((query["id"], winner, session["stored"]))
            await asyncio.sleep(self.random.expovariate(20.0))
        line.close()


async def kill(server, crowd, kills, done):
    """One process at a time, web or worker, spread over the whole run."""
    for number in range(kills):
        due = crowd.wanted * (number + crowd.random.uniform(0.2, 0.8)) / kills
        while len(crowd.acknowledged) < due:
            await asyncio.sleep(0.01)
        kind = "web" if number % 2 == 0 else "worker"
        for _ in range(2000):  # the one killed last may not be back yet
            victims = server.children()[kind]
            if victims:
                break
            await asyncio.sleep(0.01)
        os.kill(crowd.random.choice(victims), signal.SIGKILL)
        done.append(kind)


async def run(server, place, people, wanted, kills, seed):
    crowd = Crowd(place, wanted, seed)
    done = []
    killer = asyncio.create_task(kill(server, crowd, kills, done))
    await asyncio.gather(*(crowd.person(k) for k in range(people)))
    await killer
    return crowd, done


def measure(kind, people, wanted, kills, processes, seed):
    settings = {"name": "chaos", "items": N_ITEMS, "participants": {"answers": None}}
    with (
        database(kind) as arguments,
        experiment(settings) as folder,
        serving(folder, *arguments, "--processes", str(processes)) as server,
    ):
        url = urlsplit(server.url)
        begin = clock()
        crowd, done = asyncio.run(
            run(server, (url.hostname, url.port), people, wanted, kills, seed)
        )
        spent = clock() - begin
        there = stored(server.url, "chaos")
        me = Experimenter(server.url, PASSWORD)
        rows = csv.DictReader(io.StringIO(me.download("chaos", "answers.csv").decode()))
        winners = {row["query"]: row["winner"] for row in rows}
        health = me.health()
    acknowledged = {query for query, _, _ in crowd.acknowledged}
    return {
        "database": kind,
        "web processes": processes,
        "answers": len(crowd.acknowledged),
        "kills of web": done.count("web"),
        "kills of worker": done.count("worker"),
        "sent again": crowd.sent_again,
        "stored before, reply lost": sum(not stored for _, _, stored in crowd.acknowledged),
        "lost": len(acknowledged - set(there)),
        "doubled": len(there) - len(set(there)),
        "not acknowledged": len(set(there) - acknowledged),
        "changed": sum(str(w) != winners.get(q) for q, w, _ in crowd.acknowledged),
        "refused": crowd.refused,
        "worker alive": health["worker"]["alive"],
        "seconds": spent,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2,000 answers, 6 kills, SQLite")
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--participants", type=int, default=20)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    answers, kills = (2_000, 6) if options.quick else (options.answers, options.kills)
    rows = []
    for kind in ["sqlite"] if options.quick else options.databases:
        processes = 1 if kind == "sqlite" else 2
        rows.append(measure(kind, options.participants, answers, kills, processes, options.seed))
        print(rows[-1])
    table(rows, list(rows[0]), "acknowledged answers against stored ones")
    write(
        "serve_chaos",
        {
            "quick": options.quick,
            "target": "10,000 answers, 20 kills: every acknowledged answer is there once",
            "rows": rows,
        },
    )
    if any(row["lost"] or row["doubled"] or row["changed"] or row["refused"] for row in rows):
        raise SystemExit("answers were lost, doubled, changed or refused")


if __name__ == "__main__":
    main()
