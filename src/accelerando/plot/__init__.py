"""Figures of training runs, searches and plans.

They need matplotlib: ``pip install 'accelerando[plot]'``. No function chooses a backend or opens a
window: each returns a figure to show or save.
"""

from accelerando.plot._averaging import averaging as averaging
from accelerando.plot._plan import plan as plan
from accelerando.plot._search import search as search
from accelerando.plot._signals import signals as signals
from accelerando.plot._training import training as training

__all__ = ["averaging", "plan", "search", "signals", "training"]
