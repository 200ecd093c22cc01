"""How many answers do active queries save?

    python benchmarks/active_vs_random.py [--quick] [--seeds 10] [--only ARR Random …] [--misfit]

Ninety simulated alien eggs, one answer per second, a refit after every ten answers, as the service
would do it. At every checkpoint the answers so far are fitted anew, with t-STE and with t-STE plus
lapse rate, once from cold starts and once also from the running embedding; the fit with the
smaller loss counts. "Answers needed" is where the curve of one run, linear between checkpoints,
first reaches the mark; a run that never does counts at its last checkpoint, reported as missed.

With --misfit: positions in five dimensions, fitted in two, where the model cannot be right.

Ten participants answer, none of them the same query twice. Where a sampler insists on queries that
all have seen, random ones take over. Greedy without the head's entropy, which would stay with one
head, is seen asking about dozens here; that is the likely reason.

Runs are kept in the results file as they finish: --only and --misfit add to it, so that a long
benchmark can be run in parts. Settings were chosen on seeds 100–119; these are 0, 1, 2, …
"""

from __future__ import annotations

import argparse
import json

import numpy as np
from threadpoolctl import threadpool_limits

from _crowd_common import N_EGGS, RESULTS, SMOOTHNESS, cpu, held_out, table, write
from _sampler_settings import fingerprint
from accelerando.crowd import (
    ARR,
    AlienEggs,
    FromEmbedding,
    Greedy,
    OrdinalEmbedding,
    Random,
    Uncertainty,
    nearest_neighbor_distance,
    simulate,
    triplet_accuracy,
)
from accelerando.crowd._metrics import nearest_neighbor_error

SAMPLERS = {
    "Random": Random(),
    "ARR": ARR(),  # the best of 111 pairs for each head
    "ARR, every pair": ARR(pairs="all"),
    "ARR, not cautious": ARR(cautious=False),
    "ARR, no random share": ARR(random_share=0.0, cautious=False),
    "Greedy": Greedy(),
    "Greedy, no head entropy": Greedy(include_head=False),
    "Uncertainty": Uncertainty(),
}
FITS = {"t-STE": 0.0, "t-STE + lapse": 0.05}
ACTIVE_CHECKPOINTS = [300, 450, 600, 750, *range(900, 2_401, 100), 2_700, 3_000, 3_300, 3_600]
RANDOM_CHECKPOINTS = [300, 600, 900, *range(1_200, 8_001, 400)]
MISFIT_CHECKPOINTS = [450, 900, 1_350, 1_800, 2_700, 3_600]
MEASURES = ("accuracy", "distance", "error")
GOALS = {
    "accuracy .81": ("accuracy", 0.81),
    "accuracy .82": ("accuracy", 0.82),
    "distance 4": ("distance", 4.0),
    "distance 2.5": ("distance", 2.5),
}


def evaluate(triplets, lapse, running, test, *, truth, seed):
    """[accuracy, nearest-neighbor distance, nearest-neighbor error] of the better fit."""
    cold = OrdinalEmbedding(n_items=N_EGGS, lapse=lapse, random_state=seed)
    found = cold.fit(triplets)
    if running is not None:
        warm = OrdinalEmbedding(n_items=N_EGGS, lapse=lapse, n_init=0, random_state=seed)
        found = min(found, warm.fit(triplets, init=running), key=lambda model: model.loss_)
    line = truth.ndim == 1
    return [
        round(triplet_accuracy(found.embedding_, test), 5),
        round(nearest_neighbor_distance(found.embedding_, truth), 4) if line else None,
        round(nearest_neighbor_error(found.embedding_, truth), 4),
    ]


def one_run(sampler, response_model, test, *, truth, checkpoints, seed):
    used, run = cpu(
        lambda: simulate(
            N_EGGS,
            sampler,
            response_model,
            n_answers=checkpoints[-1],
            snapshots=checkpoints,
            queue_length=40,
            random_state=seed,
        )
    )
    curves = {}
    for fit, lapse in FITS.items():
        points = [
            evaluate(run.triplets[:n], lapse, run.snapshots.get(n), test, truth=truth, seed=seed)
            for n in checkpoints
        ]
        curves[fit] = dict(zip(MEASURES, map(list, zip(*points, strict=True)), strict=True))
    return {
        "checkpoints": checkpoints,
        "curves": curves,
        "settings": fingerprint(),
        "CPU s online": round(used, 3),
        "refits": run.n_refits,
        "heads in last 90": len(set(run.queries[-90:, 0].tolist())),
    }


def answers_needed(run, fit, measure, goal):
    """(answers, reached)."""
    values = np.array(run["curves"][fit][measure], dtype=float)
    counts = np.array(run["checkpoints"], dtype=float)
    reached = values >= goal if measure == "accuracy" else values <= goal
    if not reached.any():
        return counts[-1], False
    at = int(np.argmax(reached))
    if at == 0:
        return counts[0], True
    share = (goal - values[at - 1]) / (values[at] - values[at - 1])
    return counts[at - 1] + share * (counts[at] - counts[at - 1]), True


def summary(runs):
    rows = []
    for fit in FITS:
        for name, by_seed in runs.items():
            row = {"fit": fit, "sampler": name, "seeds": len(by_seed)}
            for goal, (measure, mark) in GOALS.items():
                found = [answers_needed(run, fit, measure, mark) for run in by_seed.values()]
                counts = np.array([count for count, _ in found])
                missed = sum(not reached for _, reached in found)
                row[goal] = f"{counts.mean():,.0f} ± {counts.std():,.0f}" + (
                    f" ({missed} missed)" if missed else ""
                )
                row[f"{goal} mean"] = float(counts.mean())
                row[f"{goal} sd"] = float(counts.std())
                row[f"{goal} missed"] = missed
            heads = [run["heads in last 90"] for run in by_seed.values()]
            row["heads in last 90"] = float(np.mean(heads))
            refits = sum(run["refits"] for run in by_seed.values())
            spent = sum(run["CPU s online"] for run in by_seed.values())
            row["ms per refit"] = 1e3 * spent / refits if refits else None
            rows.append(row)
    for row in rows:
        base = [r for r in rows if r["sampler"] == "Random" and r["fit"] == row["fit"]]
        for goal in GOALS:
            if base:
                row[f"{goal} ÷ Random"] = row[f"{goal} mean"] / base[0][f"{goal} mean"]
    return rows


def misfit_summary(runs):
    rows = []
    for fit in FITS:
        for name, by_seed in runs.items():
            row = {"fit": fit, "sampler": name, "seeds": len(by_seed)}
            for k, count in enumerate(MISFIT_CHECKPOINTS):
                values = [run["curves"][fit]["accuracy"][k] for run in by_seed.values()]
                row[str(count)] = float(np.mean(values))
            rows.append(row)
    return rows


def five_dimensions():
    # STE at this scale: the true positions predict 87 % of the answers, so there is much to learn.
    positions = np.random.default_rng(5).normal(size=(N_EGGS, 5))
    return FromEmbedding(positions, noise="ste", lapse=0.05), positions


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, three samplers")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=SAMPLERS, metavar="SAMPLER")
    parser.add_argument("--misfit", action="store_true", help="d_true = 5, fitted in 2")
    options = parser.parse_args()
    chosen = options.only or (["Random", "ARR", "Greedy"] if options.quick else list(SAMPLERS))
    n_seeds = 1 if options.quick else options.seeds
    seeds = range(options.first_seed, options.first_seed + n_seeds)
    case = "misfit" if options.misfit else "eggs"
    path = RESULTS / "active_vs_random.json"
    stored = json.loads(path.read_text())["runs"] if path.exists() and not options.quick else {}
    runs = {"eggs": {}, "misfit": {}, **stored}
    if options.misfit:
        response_model, truth = five_dimensions()
    else:
        response_model, truth = AlienEggs(SMOOTHNESS), SMOOTHNESS
    test = held_out(response_model)
    with threadpool_limits(1):
        for sampler in chosen:
            marks = RANDOM_CHECKPOINTS if sampler == "Random" else ACTIVE_CHECKPOINTS
            if options.misfit:
                marks = MISFIT_CHECKPOINTS
            for seed in seeds:
                run = one_run(
                    SAMPLERS[sampler],
                    response_model,
                    test,
                    truth=truth,
                    checkpoints=marks,
                    seed=seed,
                )
                runs[case].setdefault(sampler, {})[str(seed)] = run
                print(f"{case}: {sampler}, seed {seed} done", flush=True)
    note = (
        "written by the last of several parts: --seeds 1 --first-seed S --only SAMPLER [--misfit]"
    )
    payload = {"quick": options.quick, "note": note, "summary": [], "misfit": [], "runs": runs}
    if runs["eggs"]:
        payload["summary"] = summary(runs["eggs"])
        columns = ["fit", "sampler", "seeds", *GOALS, "heads in last 90", "ms per refit"]
        table(payload["summary"], columns, "Answers needed, mean ± sd over seeds")
        columns = ["fit", "sampler", *(f"{goal} ÷ Random" for goal in GOALS)]
        if "Random" in runs["eggs"]:
            table(payload["summary"], columns, "As a share of what Random needs")
    if runs["misfit"]:
        payload["misfit"] = misfit_summary(runs["misfit"])
        columns = ["fit", "sampler", "seeds", *map(str, MISFIT_CHECKPOINTS)]
        table(payload["misfit"], columns, "Five true dimensions fitted in two: held-out accuracy")
    write("active_vs_random", payload)


if __name__ == "__main__":
    main()
