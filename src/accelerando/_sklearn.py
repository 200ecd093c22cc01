"""Adapter for scikit-learn: the private names of scikit-learn that accelerando depends on.

``tests/test_sklearn.py`` has one test per name, so that a new version of scikit-learn fails with
the name that it changed.
"""

from __future__ import annotations

from typing import Any

from sklearn.metrics._scorer import _BaseScorer as BaseScorer
from sklearn.metrics._scorer import _PassthroughScorer as PassthroughScorer
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _is_arraylike, _num_samples

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ModuleNotFoundError:  # scikit-learn before 1.9 has no callbacks, so there are none to call

    class _NoCallbacks:
        """The context of a fit without callbacks."""

        def subcontext(self, **names: Any) -> _NoCallbacks:
            return self

        def call_on_fit_task_begin(self, **data: Any) -> None:
            pass

        def call_on_fit_task_end(self, **data: Any) -> bool:
            return False

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Replaces the class of scikit-learn 1.9."""

        def _init_callback_context(self, **names: Any) -> _NoCallbacks:
            return _NoCallbacks()

    def with_callbacks(fit: Any) -> Any:
        """Return a method as it is."""
        return fit


__all__ = [
    "BaseScorer",
    "CallbackSupportMixin",
    "PassthroughScorer",
    "count_rows",
    "is_arraylike",
    "take_rows",
    "with_callbacks",
]


def take_rows(data: Any, rows: Any) -> Any:
    """Return rows of an array, frame, sparse matrix or list."""
    return _safe_indexing(data, rows)


def count_rows(data: Any) -> int:
    """Return the number of rows; raise TypeError if `data` has none."""
    return int(_num_samples(data))


def is_arraylike(data: Any) -> bool:
    """Return True if `data` has a shape, a length or an ``__array__`` method."""
    return bool(_is_arraylike(data))
