"""Deprecated public names: they keep working for one version, with a FutureWarning."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

REMOVED_IN = "0.3"


class Deprecated(NamedTuple):
    """A deprecated name of a module.

    Attributes
    ----------
    module, name : str
        Where the object is now, and what it is called there. The module must lie at or below the
        module that the deprecated name belongs to.
    advice : str
        A sentence that names the replacement.
    """

    module: str
    name: str
    advice: str


def warn_deprecated(what: str, advice: str, *, stacklevel: int = 3) -> None:
    """Warn that `what` is deprecated; the warning points at the caller of the caller.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_deprecated("Plan.plot", "Use accelerando.plot.plan.")
    >>> print(caught[0].message)
    Plan.plot is deprecated and will be removed in version 0.3. Use accelerando.plot.plan.
    """
    warnings.warn(
        f"{what} is deprecated and will be removed in version {REMOVED_IN}. {advice}",
        FutureWarning,
        stacklevel=stacklevel,
    )


def deprecated_names(module: str, names: Mapping[str, Deprecated]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that answers to deprecated names with a warning.

    Parameters
    ----------
    module : str
        ``__name__`` of the module.
    names : mapping from str to Deprecated
        The deprecated names.
    """

    def getattr_(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = names[name]
        warn_deprecated(f"{module}.{name}", found.advice)
        return getattr(importlib.import_module(found.module), found.name)

    return getattr_
