"""A data set that every process builds for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset


class Built(Dataset[Any]):
    """Stand for what a function returns, and call it where the first item is wanted.

    Only the function travels to other processes: open files, memory maps and connections stay where
    they were made.

    Parameters
    ----------
    factory : function without arguments
        Returns a map-style Dataset of pairs ``(X, y)``, the same one everywhere.

    Examples
    --------
    >>> import pickle
    >>> from functools import partial
    >>> data = Built(partial(list, [(0.0, 1), (2.0, 3)]))
    >>> len(data), pickle.loads(pickle.dumps(data))[1]
    (2, (2.0, 3))
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory
        self._built: Any = None

    @property
    def dataset(self) -> Any:
        """The data set itself."""
        if self._built is None:
            self._built = self.factory()
        return self._built

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        return self.dataset[row]

    def __getstate__(self) -> dict[str, Any]:
        return {"factory": self.factory, "_built": None}


def is_factory(X: Any) -> bool:
    """Tell a function that returns a data set from data."""
    return callable(X) and not hasattr(X, "__getitem__") and not hasattr(X, "__array__")
