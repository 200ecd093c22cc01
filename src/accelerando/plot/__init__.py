"""Pictures of training runs and searches.

matplotlib is needed for them and comes with ``pip install 'accelerando[plot]'``. Nothing here
chooses a backend or opens a window: every function returns a figure to be shown or saved.
"""

from accelerando.plot._averaging import averaging as averaging
from accelerando.plot._search import search as search
from accelerando.plot._signals import signals as signals
from accelerando.plot._training import training as training

__all__ = ["averaging", "search", "signals", "training"]
