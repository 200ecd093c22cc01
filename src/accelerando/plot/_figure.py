"""The figure that all functions of this package make: a notebook shows it without a backend."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that notebooks display as a picture, whether or not pyplot was imported."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=self.dpi)
        return picture.getvalue()
