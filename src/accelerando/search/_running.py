"""State of a search that can be read while ``fit`` runs in another thread."""

from __future__ import annotations

from typing import Any

from accelerando.search._driver import Driver
from accelerando.search._limits import Limits

__all__ = ["RunningMixin"]


class RunningMixin:
    """The best model so far, the request to stop, and copies of a search that is running."""

    @property
    def best_so_far_(self) -> dict[str, Any] | None:
        """The best model at this moment, also while ``fit`` runs in another thread."""
        driver: Driver | None = getattr(self, "_driver", None)
        if driver is not None:
            model = driver.best
            if model is None or not model.rows:
                return None
            keys = ("model_id", "params", "score", "partial_fit_calls", "elapsed_wall_time")
            return {key: model.rows[-1][key] for key in keys}
        return getattr(self, "_best_so_far", None)

    def stop(self) -> None:
        """End a running search; ``fit`` then returns with the best model so far."""
        limits: Limits | None = getattr(self, "_limits", None)
        if limits is None:
            raise RuntimeError(
                "stop was called, but no search is running. Call it while fit runs in another "
                "thread."
            )
        limits.stop_requested.set()

    def __getstate__(self) -> Any:
        # The threads and workers of a search that is running belong to this object only: a copy
        # of it, such as one that a scorer refers to, has the parameters and does not run.
        state: Any = super().__getstate__()
        running = ("_driver", "_limits")
        return {name: value for name, value in state.items() if name not in running}
