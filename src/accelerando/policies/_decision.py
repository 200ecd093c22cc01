"""What policies see and what they may decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from accelerando.exceptions import UnknownSignalError


class Signals(Mapping[str, float]):
    """What is known before an update, as named numbers: ``signals.loss`` or ``signals["loss"]``.

    Always there are ``update``, ``epoch`` and ``examples`` (done so far), ``n_examples`` (in the
    training set), ``loss`` and ``grad_norm`` (of the last update), ``batch_size``, ``lr`` and
    ``momentum`` (of the next update, as decided so far), ``ranks`` and ``period`` (updates between
    two averagings of parameters); beside them the signals of the monitors. What is not known yet
    is ``nan``, with which every comparison is false.

    Parameters
    ----------
    values : mapping of str to float
        The numbers by name; a copy is kept.

    Examples
    --------
    >>> from accelerando.policies import Signals
    >>> signals = Signals({"update": 3, "loss": 0.5})
    >>> signals.loss
    0.5
    >>> signals.noise
    Traceback (most recent call last):
        ...
    accelerando.exceptions.UnknownSignalError: There is no signal 'noise'. Known signals: loss, \
update. Signals of monitors are known when the monitor is in monitors=.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> float:
        try:
            return self._values[name]
        except KeyError:
            raise UnknownSignalError(_unknown(name, self._values)) from None

    def __getattr__(self, name: str) -> float:
        if name.startswith("_"):  # copying and pickling look for such names
            raise AttributeError(name)
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Signals({self._values})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._values,)

    def but(self, **values: float) -> Signals:
        """Return the signals with some of them replaced."""
        return Signals({**self._values, **values})


def _unknown(name: str, known: Mapping[str, float]) -> str:
    return (
        f"There is no signal {name!r}. Known signals: {', '.join(sorted(known))}. Signals of "
        "monitors are known when the monitor is in monitors=."
    )


class Decision(NamedTuple):
    """What a policy wants from the next update on; None leaves a thing as it is.

    Attributes
    ----------
    batch_size : float
        Rows of a batch; rounded up, within ``max_batch_size`` and the training set.
    lr : float
        Learning rate of the first parameter group; others and later schedules keep their ratio.
    momentum : float
        Of SGD, or the first of Adam's betas.
    workers : int
        The most ranks. The tighter of this and what the batch is worth wins.
    period : int
        Updates between two averagings of parameters, with a strategy of
        :mod:`accelerando.sync` that averages them.

    Examples
    --------
    >>> from accelerando.policies import Decision
    >>> Decision(batch_size=256, lr=0.2)
    Decision(batch_size=256, lr=0.2, momentum=None, workers=None, period=None)
    """

    batch_size: float | None = None
    lr: float | None = None
    momentum: float | None = None
    workers: int | None = None
    period: int | None = None


_ALLOWED: dict[str, tuple[str, Callable[[float], bool]]] = {
    "batch_size": ("a number above 0", lambda v: v > 0),
    "lr": ("a number of at least 0", lambda v: v >= 0),
    "momentum": ("a number from 0 to below 1", lambda v: 0 <= v < 1),
    "workers": ("a whole number of at least 1", lambda v: v >= 1 and v == int(v)),
    "period": ("a whole number of at least 1", lambda v: v >= 1 and v == int(v)),
}


def checked(decision: Any, policy: object) -> Decision:
    """Return a decision that can be carried out, or say what is wrong with it."""
    if not isinstance(decision, Decision):
        raise TypeError(
            f"A policy returns a Decision or None; {policy!r} returned {decision!r}. Write "
            "Decision(batch_size=...)."
        )
    for name, value in decision._asdict().items():
        if value is None:
            continue
        text, allowed = _ALLOWED[name]
        number = not isinstance(value, bool) and hasattr(value, "__float__")
        if not number or not math.isfinite(value) or not allowed(value):
            raise ValueError(
                f"Decision({name}=...) must be {text}, or None to leave it as it is; {policy!r} "
                f"decided {value!r}."
            )
    return decision


class Wish(NamedTuple):
    """All that has been decided so far and still holds.

    Attributes
    ----------
    batch_size : float or None
        None leaves it to the estimator's ``batch_size``.
    lr_scale : float
        Factor on what the optimizer and its schedulers say.
    momentum, workers, period
        As decided last.
    """

    batch_size: float | None = None
    lr_scale: float = 1.0
    momentum: float | None = None
    workers: int | None = None
    period: int | None = None

    def after(self, decision: Decision, base_lr: float) -> Wish:
        """Return what holds after another decision.

        Examples
        --------
        >>> Wish(batch_size=64).after(Decision(lr=0.2), base_lr=0.1)
        Wish(batch_size=64, lr_scale=2.0, momentum=None, workers=None, period=None)
        """
        scale = self.lr_scale
        if decision.lr is not None:
            scale = decision.lr / base_lr if base_lr > 0 else 1.0
        return Wish(
            self.batch_size if decision.batch_size is None else float(decision.batch_size),
            scale,
            self.momentum if decision.momentum is None else float(decision.momentum),
            self.workers if decision.workers is None else int(decision.workers),
            self.period if decision.period is None else int(decision.period),
        )
