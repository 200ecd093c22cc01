"""Run an operation with a fault at its first step, at its second step, and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar


class Fault(AbstractContextManager[Any], Protocol):
    """What happens at one step of an operation, as a context manager.

    Attributes
    ----------
    happened : bool
        Whether the operation has reached the step.
    """

    @property
    def happened(self) -> bool:
        """Whether the operation has reached the step."""


F = TypeVar("F", bound=Fault)


def every_fault(fault: Callable[[int], F], *, limit: int = 10_000) -> Iterator[F]:
    """Yield a fault at step 1, 2, 3, … of an operation, until it succeeds without one.

    This is how SQLite's own tests look for places where a failure loses data: the operation runs
    with a failure at *every* place where one is possible. The last fault that is yielded does not
    happen, so that the loop also covers the success.

    Parameters
    ----------
    fault : callable
        Makes the fault at step n from n, which starts at 1.
    limit : int
        The largest number of steps.

    Yields
    ------
    fault
        To be entered, once, around the operation.

    Raises
    ------
    RuntimeError
        If a fault was not entered, or the operation has more steps than the limit.

    References
    ----------
    SQLite, "How SQLite Is Tested", section 3: anomaly testing.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from accelerando.testing import DiskFault, every_fault
    >>> folder = Path(tempfile.mkdtemp())
    >>> def save():
    ...     with open(folder / "new", "w") as file:
    ...         _ = file.write("all of it")
    >>> seen = []
    >>> for fault in every_fault(lambda n: DiskFault(folder, n)):
    ...     with fault:
    ...         try:
    ...             save()
    ...         except OSError as error:
    ...             pass
    ...     seen.append(fault.change.kind if fault.happened else "success")
    >>> seen
    ['create', 'write', 'success']
    """
    for step in range(1, limit + 1):
        one = fault(step)
        entered = _Entered(one)
        yield entered  # type: ignore[misc]
        if not entered.entered:
            raise RuntimeError(
                "every_fault: enter each fault (with fault: …) around the operation."
            )
        if not one.happened:
            return
    raise RuntimeError(
        f"The operation has more than {limit} steps. Make it smaller, or raise the limit."
    )


class _Entered:
    """A fault that remembers whether it was entered."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self.entered = False

    def __enter__(self) -> Any:
        self.entered = True
        return self._fault.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self._fault.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fault, name)
