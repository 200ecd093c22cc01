"""Figures of training runs, searches, embeddings and plans.

They need matplotlib: ``pip install 'accelerando[plot]'``. No function chooses a backend or opens a
window: each returns a figure that a notebook shows, or draws into your ``figure=`` or ``ax=``.
"""

from accelerando._extras import require as _require

_require("plot", "accelerando.plot", "pandas")

from accelerando.plot._averaging import averaging as averaging
from accelerando.plot._brackets import brackets as brackets
from accelerando.plot._communication import communication as communication
from accelerando.plot._embedding import embedding as embedding
from accelerando.plot._plan import plan as plan
from accelerando.plot._prediction import prediction as prediction
from accelerando.plot._search import search as search
from accelerando.plot._signals import signals as signals
from accelerando.plot._training import training as training
from accelerando.plot._workers import workers as workers

__all__ = [
    "averaging",
    "brackets",
    "communication",
    "embedding",
    "plan",
    "prediction",
    "search",
    "signals",
    "training",
    "workers",
]
