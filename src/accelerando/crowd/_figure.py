"""Figure of an embedding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["draw_embedding"]

_LABELS_UP_TO = 150
_LABEL_LENGTH = 18


def draw_embedding(
    embedding: ArrayLike, path: str | Path, *, labels: Sequence[str] | None = None, title: str = ""
) -> None:
    """Save a scatter plot of the first two dimensions, or of the only one.

    Needs matplotlib: ``pip install 'accelerando[plot]'``.
    """
    from matplotlib.figure import Figure

    positions = np.asarray(embedding, dtype=np.float64)
    across = positions[:, 0]
    up = positions[:, 1] if positions.shape[1] > 1 else np.zeros(len(positions))
    figure = Figure(figsize=(7, 7 if positions.shape[1] > 1 else 2.5), layout="constrained")
    axes = figure.subplots()
    axes.scatter(across, up, s=18, color="#1f6f8b", zorder=2)
    if labels is not None and len(labels) <= _LABELS_UP_TO:
        for text, x, y in zip(labels, across, up, strict=True):
            short = text if len(text) <= _LABEL_LENGTH else text[: _LABEL_LENGTH - 1] + "…"
            # parse_math=False: a dollar sign in an item's name is not LaTeX.
            axes.annotate(
                short, (x, y), (3, 3), textcoords="offset points", fontsize=7, parse_math=False
            )
    axes.set_aspect("equal" if positions.shape[1] > 1 else "auto")
    axes.set_title(title, fontsize=10)
    axes.grid(color="#eeeeee", zorder=0)
    figure.savefig(path, dpi=150)
