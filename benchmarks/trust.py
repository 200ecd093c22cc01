"""Can data be trusted when some of the people answer carelessly?

    python benchmarks/trust.py [--answers FILE] [--quick] [--seeds 5]

0, 5, 16 and 30 % of the people are replaced: by *uniform* responders, who guess, *one-sided* ones,
who always choose the left item, and *wrong* ones, who always choose the other item than they would
have. FILE has human answers with participants and sides (the rows whose sampler is "Test" are held
out); without it, 300 simulated people of different care answer 40 queries each about 30 alien eggs.
Accuracy on held-out answers of the original people with

* equal weights: all answers count the same;
* attention checks: people who miss two of their first five easy queries are dropped;
* reliability: the joint fit with each participant's shares (``fit(..., participants=...)``);
* oracle: the replaced people are dropped.

The AUC says how well the reliability after 30 answers of each person separates the replaced people
from the others: 1 is perfect, ½ is chance.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from _crowd_common import random_answers, table, write
from _human_answers import HumanAnswers, read, split
from accelerando.crowd import AlienEggs, OrdinalEmbedding

SHARES = (0.0, 0.05, 0.16, 0.3)
KINDS = ("uniform", "one-sided", "wrong")
METHODS = ("equal weights", "attention checks", "reliability", "oracle")
AFTER = 30
EASY, CHECKS, MISSES = 0.9, 5, 2


def simulated(n_items=30, n_people=300, each=40, seed=0):
    """Answers of people whose lapse rates differ, with a side for each answer."""
    rng = np.random.default_rng([seed, 9])
    eggs = AlienEggs(np.sort(rng.random(n_items)))
    rows = np.argsort(rng.random((n_people * each, n_items)), axis=1)[:, :3]
    who = np.repeat(np.arange(n_people), each)
    lapse = rng.beta(1, 9, size=n_people)[who]
    left = rng.random(len(rows)) < lapse / 2 + (1 - lapse) * eggs.probability(rows)
    triplets = np.where(left[:, None], rows, rows[:, [0, 2, 1]])
    held_out = random_answers(eggs, n_items, 20_000, 123)
    return HumanAnswers(triplets, who, left, None, n_items), held_out


def replaced(answers, bad, kind, rng):
    """(triplets, left) after these people's answers were replaced."""
    head, winner, loser = answers.triplets.T
    side = answers.left.copy()
    on_left, on_right = np.where(side, winner, loser), np.where(side, loser, winner)
    theirs = np.isin(answers.participant, bad)
    if kind == "uniform":
        side[theirs] = rng.random(int(theirs.sum())) < 0.5
    elif kind == "one-sided":
        side[theirs] = True
    else:
        side[theirs] = ~side[theirs]
    return np.stack(
        [head, np.where(side, on_left, on_right), np.where(side, on_right, on_left)], 1
    ), side


def fitted(answers, triplets, kept, **people):
    model = OrdinalEmbedding(2, "logistic", n_items=answers.n_items, ridge=0.5, random_state=0)
    return model.fit(triplets[kept], **people)


def inattentive(answers, triplets, truth):
    """Who misses two of their first five easy queries: those with a clear answer in clean data."""
    chance = truth.predict_proba(triplets)[:, 0]
    dropped = []
    for person in np.unique(answers.participant):
        own = chance[answers.participant == person]
        checks = own[np.abs(own - 0.5) > EASY - 0.5][:CHECKS]
        if (checks < 0.5).sum() >= MISSES:
            dropped.append(person)
    return dropped


def first_answers(participant, count):
    """Boolean array: the first answers of each participant."""
    order = np.argsort(participant, kind="stable")
    first = np.r_[
        0, np.flatnonzero(np.diff(np.unique(participant, return_inverse=True)[1][order])) + 1
    ]
    rank = np.arange(len(order)) - np.repeat(first, np.diff(np.r_[first, len(order)]))
    chosen = np.empty(len(order), dtype=bool)
    chosen[order] = rank < count
    return chosen


def one(answers, held_out, share, kind, seed):
    rng = np.random.default_rng([seed, int(100 * share), KINDS.index(kind)])
    everyone = np.unique(answers.participant)
    bad = rng.choice(everyone, round(share * len(everyone)), replace=False)
    triplets, left = replaced(answers, bad, kind, rng)
    who = answers.participant
    all_rows = np.ones(len(triplets), dtype=bool)
    truth = fitted(answers, answers.triplets, all_rows)
    missed = np.isin(who, inattentive(answers, triplets, truth))
    joint = fitted(answers, triplets, all_rows, participants=who, left=left)
    early = first_answers(who, AFTER)
    found = fitted(answers, triplets, early, participants=who[early], left=left[early]).reliability_
    result = {
        "equal weights": fitted(answers, triplets, all_rows).score(held_out),
        "attention checks": fitted(answers, triplets, ~missed).score(held_out),
        "reliability": joint.score(held_out),
        "oracle": fitted(answers, triplets, ~np.isin(who, bad)).score(held_out),
        "dropped by checks": len(np.unique(who[missed])) / len(everyone),
    }
    if len(bad):
        result["AUC"] = roc_auc_score(~np.isin(found.people, bad), found.slope)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=Path, help="file of human answers")
    parser.add_argument("--quick", action="store_true", help="one seed, 0 and 16 %%")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if options.answers is None:
        answers, held_out = simulated()
        source = "simulated people"
    else:
        answers = read(options.answers)
        if answers.participant is None or answers.left is None:
            parser.error("--answers needs the columns participant and side (or left and right).")
        test = split(answers)
        held_out = answers.triplets[test]
        answers = HumanAnswers(
            answers.triplets[~test], answers.participant[~test], answers.left[~test], None,
            answers.n_items,
        )  # fmt: skip
        source = options.answers.name
    rows = []
    with threadpool_limits(1):
        for share in (0.0, 0.16) if options.quick else SHARES:
            for kind in KINDS if share else KINDS[:1]:
                seeds = range(1 if options.quick or not share else options.seeds)
                found = [one(answers, held_out, share, kind, seed) for seed in seeds]
                row = {"replaced": share, "by": kind if share else "nobody", "seeds": len(seeds)}
                for key in found[0]:
                    values = [result[key] for result in found]
                    row[key] = float(np.mean(values))
                    row[f"{key} range"] = [float(min(values)), float(max(values))]
                rows.append(row)
                print(f"{share:.0%} {row['by']} done", flush=True)
    for row in rows:
        row["below clean data"] = 100 * (rows[0]["reliability"] - row["reliability"])
    columns = ["replaced", "by", *METHODS, "below clean data", "AUC", "dropped by checks"]
    table(rows, columns, f"{source}: accuracy on held-out answers of the original people")
    write("trust", {"quick": options.quick, "source": source, "rows": rows})


if __name__ == "__main__":
    main()
