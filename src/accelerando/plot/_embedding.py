"""Figure of an embedding: points or thumbnails, names that do not overlap, uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from accelerando.plot._style import COLORS, FAINT, INK, clean, headline, single_panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

LABEL_LENGTH = 18
# Where a label may be, relative to its point, in the order of preference.
PLACES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))


def embedding(
    positions: ArrayLike,
    *,
    labels: Sequence[str] | None = None,
    images: Sequence[Any] | None = None,
    uncertainty: ArrayLike | None = None,
    title: str | None = None,
    ax: Any = None,
) -> Figure:
    """Draw the first two dimensions of an embedding, or the only one.

    A label that would cover another label or a picture is left out.

    Parameters
    ----------
    positions : array of shape (n_items, n_components), or a fitted ``OrdinalEmbedding``
        The positions of the items. Items with NaN have no position and are left out.
    labels : sequence of str, optional
        The names of the items.
    images : sequence, optional
        A picture for each item: an array of pixels or the path of a file; None draws a point.
    uncertainty : array of shape (n_items,), optional
        The standard deviation of each position, drawn as a circle. A point is drawn for NaN.
    title : str, optional
        The title of the figure.
    ax : Axes of matplotlib, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("map.png")``. A notebook shows it.

    Examples
    --------
    >>> from accelerando import plot
    >>> figure = plot.embedding([[0, 0], [1, 2]], labels=["red", "blue"])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['red', 'blue']
    """
    found = np.asarray(getattr(positions, "embedding_", positions), dtype=np.float64)
    if found.ndim != 2 or not len(found):
        raise ValueError(
            "The 'positions' parameter of embedding must be an array of shape (n_items, "
            f"n_components). Got shape {found.shape} instead."
        )
    for name, values in (("labels", labels), ("images", images), ("uncertainty", uncertainty)):
        if values is not None and len(values) != len(found):  # type: ignore[arg-type]
            raise ValueError(
                f"The {name!r} parameter of embedding must have one entry for each of the "
                f"{len(found)} items. Got {len(values)} instead."  # type: ignore[arg-type]
            )
    flat = found.shape[1] == 1
    points = np.column_stack([found[:, 0], np.zeros(len(found)) if flat else found[:, 1]])
    known = np.isfinite(points).all(axis=1)
    figure, panel = single_panel(ax, 7, 2.2 if flat else 7)
    clean(panel)
    panel.scatter(*points[known].T, s=18, color=COLORS[0], zorder=3)
    panel.set_aspect("auto" if flat else "equal", adjustable="datalim")
    if flat:
        panel.set_yticks([])
    panel.margins(0.1)
    if uncertainty is not None:
        _circles(panel, points, np.asarray(uncertainty, dtype=np.float64))
    figure.draw_without_rendering()  # labels and pictures need the final limits
    taken = _thumbnails(panel, points, images, known)
    if labels is not None:
        _labels(panel, points, labels, known, taken)
    headline(figure, title)
    return figure  # type: ignore[no-any-return]


def _circles(panel: Any, points: NDArray[np.float64], radii: NDArray[np.float64]) -> None:
    from matplotlib.patches import Circle

    for point, radius in zip(points, radii, strict=True):
        if np.isfinite(point).all() and np.isfinite(radius):
            panel.add_patch(Circle(point, radius, fc=COLORS[5], alpha=0.25, ec="none", zorder=1))
    panel.autoscale_view()


def _thumbnails(
    panel: Any, points: NDArray[np.float64], images: Sequence[Any] | None, known: Any
) -> list[Any]:
    """Draw the pictures; return what they and the points cover, in pixels."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage
    from matplotlib.transforms import Bbox

    figure = panel.get_figure()
    scale = figure.dpi / 72
    side = float(np.clip(110 / np.sqrt(max(1, known.sum())), 14, 40)) * scale
    taken = []
    for number in np.flatnonzero(known):
        image = None if images is None else images[int(number)]
        half = 2.5 * scale
        if image is not None:
            pixels = _pixels(image)
            zoom = side / max(pixels.shape[:2]) / scale
            picture = OffsetImage(pixels, zoom=zoom, cmap="gray" if pixels.ndim == 2 else None)
            box = {"edgecolor": FAINT, "lw": 0.8}
            panel.add_artist(
                AnnotationBbox(picture, points[number], pad=0.1, bboxprops=box, zorder=4)
            )
            half = side / 2
        x, y = panel.transData.transform(points[number])
        taken.append(Bbox([[x - half, y - half], [x + half, y + half]]))
    return taken


def _pixels(image: Any) -> NDArray[Any]:
    if isinstance(image, np.ndarray):
        return image
    from matplotlib.image import imread

    return np.asarray(imread(image))


def _labels(
    panel: Any, points: NDArray[np.float64], labels: Sequence[str], known: Any, taken: list[Any]
) -> None:
    """Write each label at the first of eight places where it covers nothing."""
    figure = panel.get_figure()
    boxes = dict(zip(np.flatnonzero(known), taken, strict=True))
    covered = list(taken)
    inside = panel.get_window_extent()
    for number, own in boxes.items():
        text = str(labels[number])
        short = text if len(text) <= LABEL_LENGTH else text[: LABEL_LENGTH - 1] + "…"
        half = own.width / 2 * 72 / figure.dpi + 2
        written = panel.annotate(
            short,
            points[number],
            (0, 0),
            textcoords="offset points",
            fontsize=8,
            color=INK,
            zorder=5,
            parse_math=False,  # a dollar sign in a name is not LaTeX
        )
        for across, up in PLACES:
            written.set_position((across * half, up * half))
            written.set_horizontalalignment({1: "left", -1: "right", 0: "center"}[across])
            written.set_verticalalignment({1: "bottom", -1: "top", 0: "center"}[up])
            box = written.get_window_extent()
            free = not any(box.overlaps(other) for other in covered if other is not own)
            if free and inside.x0 <= box.x0 and box.x1 <= inside.x1:
                covered.append(box)
                break
        else:
            written.remove()
