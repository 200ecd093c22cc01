"""Simulated people for the crowd benchmarks who are not what any model of the service assumes.

Nothing of these was fitted to human answers, and no setting of the service was chosen with them.

*weighted*: 40 items at random places in three dimensions of spread 1, 0.7 and 0.4. Each of 200
people weighs the dimensions in their own way (Carroll and Chang, "INDSCAL", 1970), and sees
differences of distances in proportion to the distances (Weber's law).

*features*: 48 items in a tree of categories (3 × 4 × 4). Each category and each item has features.
Likeness is the contrast of common and distinctive features (Tversky, "Features of similarity",
1977), which no map can show. People attend to different features.

All have their own care (a lapse rate between 0 and a half, mean 0.1) and a side they prefer when
they do not look.
"""

from __future__ import annotations

import numpy as np

N_PEOPLE = 200
N_HELD_OUT = 6_000


class MadePeople:
    """A response model: a person drawn at random answers each query.

    Parameters
    ----------
    likeness : array of shape (n_people, n_items, n_items)
        How like two items are for each person; larger is more like.
    care : float
        Slope of the logistic choice between two likenesses.
    """

    def __init__(self, likeness, care, seed):
        rng = np.random.default_rng([seed, 21])
        self.likeness, self.care = likeness, care * rng.lognormal(0, 0.3, N_PEOPLE)
        self.lapse = 0.5 * rng.beta(1, 4, N_PEOPLE)
        self.prefers_left = rng.beta(2, 2, N_PEOPLE)

    @property
    def n_items(self):
        return self.likeness.shape[1]

    def __call__(self, queries, rng):
        who = rng.integers(N_PEOPLE, size=len(queries))
        head, left, right = queries.T
        gap = self.likeness[who, head, left] - self.likeness[who, head, right]
        chosen = 1 / (1 + np.exp(-self.care[who] * gap))
        chosen = (1 - self.lapse[who]) * chosen + self.lapse[who] * self.prefers_left[who]
        return (rng.random(len(queries)) < chosen).astype(np.int8)

    def answers(self, count, rng):
        """Triplets of random queries."""
        rows = np.argsort(rng.random((count, self.n_items)), axis=1)[:, :3]
        left = self(rows, rng) == 1
        return np.where(left[:, None], rows, rows[:, [0, 2, 1]])


def weighted(seed=0, n_items=40):
    rng = np.random.default_rng([seed, 31])
    places = rng.normal(size=(n_items, 3)) * (1.0, 0.7, 0.4)
    weights = 3 * rng.dirichlet((6, 6, 6), N_PEOPLE)
    gaps = np.square(places[:, None] - places[None])
    distance = np.sqrt(np.einsum("pk,ijk->pij", weights, gaps))
    return MadePeople(-np.log(distance + 0.15), 4.0, seed)


def features(seed=0, shape=(3, 4, 4)):
    rng = np.random.default_rng([seed, 32])
    levels = np.stack(np.unravel_index(np.arange(np.prod(shape)), shape), axis=1)
    has = []
    for depth, count in ((1, 6), (2, 4), (3, 4)):
        groups, of_item = np.unique(levels[:, :depth], axis=0, return_inverse=True)
        has.append((rng.random((len(groups), count * 3)) < 1 / 3)[of_item])
    table = np.concatenate(has, axis=1).astype(float)
    attention = rng.gamma(3.0, 1 / 3, (N_PEOPLE, table.shape[1]))
    common = np.einsum("pf,if,jf->pij", attention, table, table, optimize=True)
    only = np.einsum("pf,if,jf->pij", attention, table, 1 - table, optimize=True)
    likeness = common - 0.4 * only - 0.25 * only.transpose(0, 2, 1)
    return MadePeople(likeness / likeness.std(), 2.5, seed)


PEOPLE = {"weighted": weighted, "features": features}
