"""How many answers does the served system need, asking actively and asking at random?

Ninety alien eggs and five simulated participants over HTTP, who answer as people do. The service
does everything as in an experiment: refits while answers arrive, finds queries, hands them out. In
the end the same offline fit is made to the first k exported answers of each run, and tested on
sixty thousand held-out ones.

With --more, runs are added to those of the results file: a long benchmark can be run in parts.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import json
from urllib.parse import urlsplit

import numpy as np

from _crowd_common import N_EGGS, RESULTS, SMOOTHNESS, held_out, table, write
from _sampler_settings import fingerprint
from _serve_common import PASSWORD, Line, clock, experiment, serving
from accelerando.crowd import AlienEggs, OrdinalEmbedding, nearest_neighbor_distance
from accelerando.crowd.client import Experimenter

PEOPLE = 5
ACCURACIES = (0.80, 0.81, 0.82)
DISTANCES = (4.0, 2.5)
FITS = {"t-STE": 0.0, "t-STE + lapse": 0.05}
SAMPLERS = {
    "ARR": {"arr": {"class": "ARR"}},
    "Random": {"random": {"class": "Random"}},
}


async def person(number, place, name, think, seed, count, wanted):
    eggs, rng = AlienEggs(SMOOTHNESS), np.random.default_rng([seed, number])
    line, api = Line(*place), f"/api/v1/experiments/{name}"
    body = {"parameters": {"participant": f"p{number}"}}
    _, session = await line.send("POST", f"{api}/participants", body)
    line.token = session["token"]
    while count[0] < wanted and session["queries"]:
        query = session["queries"][0]
        row = [query[part]["item"] for part in ("head", "left", "right")]
        await asyncio.sleep(rng.exponential(think))
        winner = row[1] if eggs(np.array([row]), rng)[0] else row[2]
        status, session = await line.send(
            "POST", f"{api}/answers", {"query": query["id"], "winner": winner}
        )
        assert status == 200, session
        count[0] += 1
    line.close()


async def crowd(place, name, wanted, think, seed):
    count = [0]
    people = (person(k, place, name, think, seed, count, wanted) for k in range(PEOPLE))
    await asyncio.gather(*people)


def collect(sampler, wanted, rate, seed):
    """Answers, as rows (head, winner, loser) in the order of their arrival, and the shares."""
    settings = {
        "name": "eggs",
        "items": N_EGGS,
        "seed": seed,
        "samplers": SAMPLERS[sampler],
        "participants": {"answers": None},
    }
    with experiment(settings) as folder, serving(folder) as server:
        url = urlsplit(server.url)
        me = Experimenter(server.url, PASSWORD)
        begin = clock()
        asyncio.run(crowd((url.hostname, url.port), "eggs", wanted, PEOPLE / rate, seed))
        spent = clock() - begin
        rows = list(csv.DictReader(io.StringIO(me.download("eggs", "answers.csv").decode())))
        shares = me.dashboard("eggs")["active_share"]
        turns = me.health()["worker"]["turns"]
    triplets = np.array([[int(row[c]) for c in ("head", "winner", "loser")] for row in rows])
    return triplets[:wanted], shares, turns, spent


def curve(triplets, checkpoints, test, lapse, seed):
    """(accuracy, distance) at each checkpoint; every fit is warm-started from the one before."""
    found, warm = [], None
    for count in checkpoints:
        model = OrdinalEmbedding(lapse=lapse, n_items=N_EGGS, random_state=seed)
        model.fit(triplets[:count], init=warm)
        warm = model.embedding_
        found.append((model.score(test), nearest_neighbor_distance(warm, SMOOTHNESS)))
    return np.array(found)


def needed(checkpoints, values, wish, *, larger, for_good=False):
    """Answers at which the curve first meets a value, or stays beyond it; None if never.

    The first time is what active_vs_random.py counts, too.
    """
    good = values >= wish if larger else values <= wish
    if not good.any() or (for_good and not good[-1]):
        return None
    at = int(np.argmax(good))
    if for_good:
        at = 0 if good.all() else len(good) - int(np.argmin(good[::-1]))
    if at == 0:
        return float(checkpoints[0])
    share = (wish - values[at - 1]) / (values[at] - values[at - 1])
    return float(checkpoints[at - 1] + share * (checkpoints[at] - checkpoints[at - 1]))


def needs(checkpoints, values, *, for_good):
    """Answers needed for every goal."""
    goals = [(f"accuracy {w:g}", values[:, 0], w, True) for w in ACCURACIES]
    goals += [(f"distance {w:g}", values[:, 1], w, False) for w in DISTANCES]
    return {
        name: needed(checkpoints, column, wish, larger=larger, for_good=for_good)
        for name, column, wish, larger in goals
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, fewer answers")
    parser.add_argument("--answers", type=int, default=5400, help="of a random run; ARR gets half")
    parser.add_argument(
        "--rate",
        type=float,
        default=15.0,
        help="answers per second of all five together, while asked actively; people give two",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--more", action="store_true", help="add to the results file")
    options = parser.parse_args()
    seeds = options.seeds[:1] if options.quick else options.seeds
    most = 2400 if options.quick else options.answers
    rate = 60.0 if options.quick else options.rate
    test = held_out()
    runs = []
    if options.more:
        kept = json.loads((RESULTS / "serve_active.json").read_text())
        assert kept["rate"] == rate, f"The runs of the results file have rate {kept['rate']}."
        runs = [run for run in kept["runs"] if run["seed"] not in seeds]
    for seed in seeds:
        for sampler in SAMPLERS:
            wanted = most if sampler == "Random" else most // 2
            # Random queries are the same at any rate, so they are answered as fast as is safe.
            speed = max(rate, 100.0) if sampler == "Random" else rate
            triplets, shares, turns, spent = collect(sampler, wanted, speed, seed)
            checkpoints = np.arange(300, wanted + 1, 150)
            for fit, lapse in FITS.items():
                values = curve(triplets, checkpoints, test, lapse, seed)
                runs.append(
                    {
                        **{"sampler": sampler, "fit": fit, "seed": seed, "seconds": spent},
                        **{"worker turns": turns, "shares": shares, "settings": fingerprint()},
                        "needs": needs(checkpoints, values, for_good=False),
                        "needs for good": needs(checkpoints, values, for_good=True),
                        "checkpoints": checkpoints.tolist(),
                        "accuracy": values[:, 0].tolist(),
                        "distance": values[:, 1].tolist(),
                    }
                )
                shown = {k: v for k, v in runs[-1].items() if not isinstance(v, list)}
                print(shown, flush=True)
    goals = list(runs[0]["needs"])
    rows = [
        _compare(runs, fit, count, goal, most)
        for count in ("needs", "needs for good")
        for fit in FITS
        for goal in goals
    ]
    table(
        rows,
        list(rows[0]),
        f"answers needed over HTTP, mean of {len({run['seed'] for run in runs})} runs",
    )
    write(
        "serve_active",
        {
            "quick": options.quick,
            "target": "ARR needs at most half of the answers of random sampling",
            "participants": PEOPLE,
            "rate": rate,
            "note": "a run that did not get there counts as its length, half as long for ARR",
            "rows": rows,
            "runs": runs,
        },
    )


def _compare(runs, fit, count, goal, most):
    """Means of both samplers; a run that did not get there counts as its length."""
    row = {"counted": "first time" if count == "needs" else "for good", "fit": fit, "goal": goal}
    for sampler in SAMPLERS:
        length = most if sampler == "Random" else most // 2
        mine = [r[count][goal] for r in runs if (r["sampler"], r["fit"]) == (sampler, fit)]
        row[sampler] = float(np.mean([length if value is None else value for value in mine]))
        row[f"{sampler} reached"] = f"{sum(value is not None for value in mine)}/{len(mine)}"
    row["ARR / Random"] = row["ARR"] / row["Random"]
    return row


if __name__ == "__main__":
    main()
