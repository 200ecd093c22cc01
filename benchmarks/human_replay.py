"""How many human answers do active queries save, and are they ever worse than random ones?

    python benchmarks/human_replay.py --answers FILE [--quick] [--seeds 0 1 …] [--dimensions auto]
    python benchmarks/human_replay.py --people weighted   # or features, instead of a file

FILE has human answers (CSV with head, winner, loser; also .gz, .npy, .npz). Part of them is held
out: the rows whose sampler is "Test", or those to a tenth of all queries. If the others answer
three quarters of all queries, they are replayed. If not, a model with the reliability of each
participant is fitted to them and answers in their place; the table says which. Three samplers
ask: Random, ARR as it was in version 0.2 (t-STE, a fifth at random, trust by calibration), and
ARR as the service runs it today (chosen noise model, guard, coverage design). At every checkpoint
the answers so far are fitted anew in two ways, t-STE with default settings and noise="auto", each
from cold starts and from the running embedding, and predict the held-out human answers.

With --people, made-up people answer (``_made_people.py``) who are not what any model assumes and
with whom no setting of the service was chosen: they show whether what was seen with human answers
holds elsewhere.

"Answers needed" compares the mean curves in the upper third of the accuracies that Random reaches.
Results are kept per file or people and number of dimensions, so that several files add up. With
--more, seeds are added to those of the results file: a long benchmark can be run in parts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

from _crowd_common import RESULTS, table, write
from _former_arr import FormerARR, FormerRefitter
from _human_answers import crowd, read, split
from _made_people import N_HELD_OUT, PEOPLE
from _sampler_settings import fingerprint
from accelerando.crowd import ARR, OrdinalEmbedding, Random, _simulate, simulate
from accelerando.crowd._choice import with_dimensions
from accelerando.crowd.experiment.settings import EmbeddingSettings

SAMPLERS = ("Random", "ARR 0.2", "ARR")
FITS = {"t-STE": {}, "auto": {"noise": "auto", "lapse": "auto"}}
TIMES_ITEMS = (5, 7, 10, 14, 20, 28, 40, 56, 80)


def ask(sampler, people, n_items, dimensions, checkpoints, seed):
    settings = {
        "n_answers": checkpoints[-1],
        "snapshots": checkpoints,
        "participants": max(10, checkpoints[-1] // 50),
        "refit_every": max(10, n_items // 2),
        "queue_length": n_items,
        "random_state": seed,
    }
    if sampler == "Random":
        return simulate(n_items, Random(), people, **settings)
    if sampler == "ARR 0.2":
        former = OrdinalEmbedding(2 if dimensions == "auto" else dimensions)
        with mock.patch.object(_simulate, "Refitter", FormerRefitter):
            return simulate(n_items, FormerARR(), people, embedding=former, **settings)
    model = OrdinalEmbedding(dimensions, "auto", "auto")
    return simulate(n_items, ARR(), people, embedding=model, **settings)


def curve(run, fit, test, n_items, dimensions, checkpoints, seed):
    accuracies = []
    for n in checkpoints:
        d = 2 if fit == "t-STE" and dimensions == "auto" else dimensions
        model = OrdinalEmbedding(d, n_items=n_items, random_state=seed, **FITS[fit])
        start = run.snapshots.get(n)
        if start is not None and d != "auto":
            start = with_dimensions(start, d, np.random.default_rng(seed))
        model.fit(run.triplets[:n], init=start, fair=run.at_random[:n])
        accuracies.append(round(model.score(test), 5))
    return accuracies


def answers_needed(checkpoints, accuracies, goal):
    best = np.maximum.accumulate(accuracies)
    if best[-1] < goal:
        return np.nan
    at = int(np.argmax(best >= goal))
    if at == 0:
        return float(checkpoints[0])
    share = (goal - best[at - 1]) / (best[at] - best[at - 1])
    return checkpoints[at - 1] + share * (checkpoints[at] - checkpoints[at - 1])


def ratios(checkpoints, random, active):
    """Answers of a sampler over those of Random, at accuracies in Random's upper third."""
    top = np.maximum.accumulate(random)
    goals = np.linspace(top[0] + 2 * (top[-1] - top[0]) / 3, top[-1], 9)
    return np.array(
        [
            answers_needed(checkpoints, active, goal) / answers_needed(checkpoints, random, goal)
            for goal in goals
        ]
    )


def summary(case):
    rows = []
    marks = case["checkpoints"]
    for fit in FITS:
        base = np.array(list(case["runs"]["Random"][fit].values()))
        for name in SAMPLERS:
            own = np.array(list(case["runs"][name][fit].values()))
            difference = 100 * (own - base)
            needed = ratios(marks, base.mean(axis=0), own.mean(axis=0))
            error = difference.std(axis=0, ddof=1) / np.sqrt(len(own)) if len(own) > 1 else None
            worst = int(np.argmin(difference.mean(axis=0)))
            rows.append(
                {
                    "fit": fit,
                    "sampler": name,
                    **{f"{n:,}": float(v) for n, v in zip(marks, own.mean(axis=0), strict=True)},
                    "worst difference": float(difference.mean(axis=0)[worst]),
                    "its standard error": None if error is None else float(error[worst]),
                    "at": marks[worst],
                    "answers ÷ Random": float(np.nanmean(needed)),
                    "least": float(np.nanmin(needed)),
                    "most": float(np.nanmax(needed)),
                    "range at the end": [float(own[:, -1].min()), float(own[:, -1].max())],
                }
            )
    return rows


def empty(what, n_items, n_held_out, checkpoints):
    """Return a case without runs."""
    return {
        "crowd": what,
        "items": n_items,
        "held out": n_held_out,
        "checkpoints": checkpoints,
        "runs": {sampler: {fit: {} for fit in FITS} for sampler in SAMPLERS},
        "active": {sampler: {} for sampler in SAMPLERS},
        "settings": {},
    }


def stored_cases():
    path = RESULTS / "human_replay.json"
    return json.loads(path.read_text())["cases"] if path.exists() else {}


def add_seed(case, people, held_out, dimensions, seed):
    """Run all samplers with one seed and add their curves to the case."""
    size, checkpoints = (case["items"], dimensions), case["checkpoints"]
    for sampler in SAMPLERS:
        run = ask(sampler, people, *size, checkpoints, seed)
        for fit in FITS:
            case["runs"][sampler][fit][str(seed)] = curve(
                run, fit, held_out, *size, checkpoints, seed
            )
        case["active"][sampler][str(seed)] = [
            round(1 - float(run.at_random[a:b].mean()), 3)
            for a, b in zip([0, *checkpoints], checkpoints, strict=False)
        ]
        print(f"{sampler}, seed {seed} done", flush=True)
    case.setdefault("settings", {})[str(seed)] = fingerprint()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--answers", type=Path, help="file of human answers")
    origin.add_argument("--people", choices=sorted(PEOPLE), help="made-up people")
    parser.add_argument("--quick", action="store_true", help="one seed, a quarter of the answers")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(6)))
    parser.add_argument("--more", action="store_true", help="add to the results file")
    parser.add_argument(
        "--dimensions",
        default=str(EmbeddingSettings().dimensions),
        help="of the embedding, or 'auto'; by default what the service does",
    )
    options = parser.parse_args()
    dimensions = "auto" if options.dimensions == "auto" else int(options.dimensions)
    if options.people:
        people = PEOPLE[options.people]()
        held_out = people.answers(N_HELD_OUT, np.random.default_rng(77))
        n_items, source, what = people.n_items, f"{options.people} people", "made-up people"
    else:
        answers = read(options.answers)
        test = split(answers)
        people, what = crowd(answers, test)
        held_out, n_items = answers.triplets[test], answers.n_items
        source = options.answers.name.split(".")[0]
    times = TIMES_ITEMS[:5] if options.quick else TIMES_ITEMS
    checkpoints = [n_items * k for k in times]
    name = f"{source}, {options.dimensions} dimensions"
    print(f"{name}: {what}; {len(held_out):,} answers held out", flush=True)
    case = empty(what, n_items, len(held_out), checkpoints)
    if options.more and not options.quick:
        case = stored_cases().get(name, case)
    with threadpool_limits(1):
        for seed in options.seeds[:1] if options.quick else options.seeds:
            add_seed(case, people, held_out, dimensions, seed)
            case["summary"] = summary(case)
            # Written after each seed and read again before: parts may run at the same time.
            cases = {} if options.quick else stored_cases()
            write("human_replay", {"quick": options.quick, "cases": {**cases, name: case}})
    columns = ["fit", "sampler", *(f"{n:,}" for n in checkpoints)]
    table(case["summary"], columns, f"{name}: accuracy on held-out answers, mean over seeds")
    columns = ["fit", "sampler", "worst difference", "its standard error", "at"]
    columns += ["answers ÷ Random", "least", "most"]
    table(case["summary"], columns, "Against Random: points, and answers in the upper third")


if __name__ == "__main__":
    main()
