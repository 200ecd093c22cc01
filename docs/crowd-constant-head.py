"""Draw crowd-constant-head.png: the heads of the best queries, with and without H(τ_h)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from accelerando.crowd import AlienEggs, OrdinalEmbedding, Random, search, simulate
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._score import head_entropy

N_ITEMS, N_ANSWERS = 90, 1_800
smoothness = 2.0 * np.sort(np.random.default_rng(0).permutation(300)[:N_ITEMS])
answers = simulate(N_ITEMS, Random(), AlienEggs(smoothness), n_answers=N_ANSWERS).triplets
model = OrdinalEmbedding(n_items=N_ITEMS, random_state=0).fit(answers)
# As in Salmon and NEXT: no tempering, and answers count for their heads only.
posterior = Posterior.from_embedding(model, answers, temper=1.0, feet=0.0)
entropy = head_entropy(posterior)
n_pairs = (N_ITEMS - 1) * (N_ITEMS - 2) // 2


def top_share(heads):
    """Return the most frequent head among the best queries, and its share."""
    counts = np.bincount(heads[:n_pairs])
    return int(counts.argmax()), float(counts.max() / n_pairs)


figure = Figure(figsize=(10, 4.2), layout="constrained")
left, right = figure.subplots(1, 2)
for include_head, color, label in (
    (False, "#c0392b", "without H(τ_h): Salmon, NEXT"),
    (True, "#1f6f8b", "with H(τ_h): mutual information"),
):
    found = search(posterior, top=n_pairs, pairs="all", include_head=include_head)
    heads = found.queries[np.argsort(-found.scores, kind="stable"), 0]
    _, first = np.unique(heads, return_index=True)
    seen = np.zeros(len(heads))
    seen[first] = 1
    left.plot(np.arange(1, len(heads) + 1), seen.cumsum(), color=color, label=label)
    print(
        label,
        {p: int(seen[:p].sum()) for p in (100, 1_000, n_pairs)},
        "most often",
        top_share(heads),
    )
left.axvline(n_pairs, color="#bbbbbb", linewidth=1, linestyle=":")
left.set(xscale="log", xlabel="the P best queries", ylabel="different heads among them")
left.legend(frameon=False, fontsize=9)
dots = right.scatter(*model.embedding_.T, c=entropy, s=24, cmap="viridis")
known = int(entropy.argmin())
ring = {"s": 140, "facecolors": "none", "edgecolors": "#c0392b", "linewidths": 2}
right.scatter(*model.embedding_[known], **ring)
figure.colorbar(dots, ax=right, label="H(τ_h), nats")
right.set_title("circled: the head known best, which wins without H(τ_h)", fontsize=9)
right.set_aspect("equal")
print("circled head", known, "entropy", entropy[known])
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
