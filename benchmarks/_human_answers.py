"""Human answers for the crowd benchmarks: reading, holding out, and who answers in a simulation."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accelerando.crowd import OrdinalEmbedding, Replay, read_answers, select_dimension

# From this share of all queries on, recorded answers are replayed; a sampler then rarely asks what
# nobody was asked.
COMPLETE = 0.75
TEST_SHARE = 0.1


@dataclass
class HumanAnswers:
    triplets: np.ndarray  # head, winner, loser
    participant: np.ndarray | None
    left: np.ndarray | None  # the winner was shown on the left
    is_test: np.ndarray | None  # held out by the experiment itself
    n_items: int


def read(path):
    """Human answers of a file: CSV (also .gz) with a header, .npy or .npz."""
    path = Path(path)
    if path.suffix in (".npy", ".npz"):
        answers = read_answers(path)
        return HumanAnswers(answers.triplets, None, None, None, len(answers.items))
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row.get("winner")]
    if not rows:
        raise SystemExit(f"{path} has no answers: it needs a header with head, winner and loser.")
    by_sides = {"left", "right"} <= set(rows[0])
    if "loser" not in rows[0]:
        for row in rows:
            row["loser"] = row["right"] if row["winner"] == row["left"] else row["left"]
    names = sorted({row[role] for row in rows for role in ("head", "winner", "loser")})
    number = {name: place for place, name in enumerate(names)}
    triplets = np.array(
        [[number[row[role]] for role in ("head", "winner", "loser")] for row in rows]
    )
    who = next((key for key in ("participant", "puid") if key in rows[0]), None)
    left = None
    if by_sides:
        left = np.array([row["winner"] == row["left"] for row in rows])
    elif "side" in rows[0]:
        left = np.array([row["side"] == "left" for row in rows])
    is_test = np.array([row.get("sampler", "").lower().startswith("test") for row in rows])
    return HumanAnswers(
        triplets,
        None if who is None else np.array([row[who] for row in rows]),
        left,
        is_test if is_test.any() else None,
        len(names),
    )


def query_keys(triplets):
    low, high = np.sort(triplets[:, 1:], axis=1).T
    n = int(triplets.max()) + 1
    return (triplets[:, 0] * n + low) * n + high


def split(answers, seed=0):
    """Boolean array: the held-out answers. No other answer is to one of their queries by chance."""
    if answers.is_test is not None:
        return answers.is_test
    keys, where = np.unique(query_keys(answers.triplets), return_inverse=True)
    held = np.random.default_rng([seed, 5]).random(len(keys)) < TEST_SHARE
    return held[where]


@dataclass
class FittedPeople:
    """Simulated answers: positions, noise model, and the reliability of real participants."""

    model: OrdinalEmbedding

    def __call__(self, queries, rng):
        x, noise = self.model.embedding_, self.model.noise_
        gaps = np.square(x[queries[:, :1]] - x[queries[:, 1:]]).sum(axis=2)
        chosen = noise.probability(gaps[:, 0], gaps[:, 1], 0.0)
        people = self.model.reliability_
        if people is None:
            chosen = self.model.lapse_ + (1 - 2 * self.model.lapse_) * chosen
        else:
            shares = people.shares[rng.integers(len(people.shares), size=len(queries))]
            chosen = shares[:, 1] + shares[:, 0] * chosen + shares[:, 3] * (1 - chosen)
        return (rng.random(len(queries)) < chosen).astype(np.int8)


def crowd(answers, test):
    """(response model, sentence that says what it is)."""
    pool = answers.triplets[~test]
    n = answers.n_items
    every = n * (n - 1) * (n - 2) // 2
    share = len(np.unique(query_keys(pool))) / every
    if share >= COMPLETE:
        return Replay(pool), f"oracle replay: {share:.0%} of all {every:,} queries have an answer"
    chosen = select_dimension(
        pool, dimensions=(1, 2, 3, 4), folds=3, random_state=0,
        estimator=OrdinalEmbedding(noise="logistic", ridge=0.5),
    ).best  # fmt: skip
    model = OrdinalEmbedding(chosen, "auto", "auto", n_items=n, random_state=0)
    model.fit(
        pool,
        participants=None if answers.participant is None else answers.participant[~test],
        left=None if answers.left is None else answers.left[~test],
    )
    who = "" if model.reliability_ is None else f" and {len(model.reliability_.people)} people"
    return FittedPeople(model), (
        f"fitted simulator: only {share:.0%} of all {every:,} queries have an answer; "
        f"{model.noise_!r} in {chosen} dimensions{who}, fitted to {len(pool):,} human answers"
    )
