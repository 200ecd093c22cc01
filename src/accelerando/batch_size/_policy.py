"""What a batch-size policy is: numbers in, a batch size out, no side effects.

A policy holds settings only. What it has to remember between updates is a small dictionary of
numbers that it returns with every decision and gets back with the next one, so that saving,
resuming and replaying a policy is saving, loading and passing a dictionary.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from accelerando._whole import is_whole

State = Mapping[str, float]
T = TypeVar("T")


class Signals(NamedTuple):
    """What is known when the next batch size is decided.

    Attributes
    ----------
    update, epoch, examples : int
        Model updates done, epochs finished and examples seen so far.
    batch_size : int
        Rows of the batch of the last update; 0 before the first.
    n_examples : int or None
        Examples in the training set; None while a stream has not told its length.
    loss, grad_norm : float or None
        Mean loss and gradient norm of the last batch; None before the first update.
    full_loss, full_grad_norm : float or None
        Loss and gradient norm on the training set (or a fraction of it), only in the updates for
        which the policy's ``measures`` asks for them.
    """

    update: int
    epoch: int
    examples: int
    batch_size: int
    n_examples: int | None
    loss: float | None = None
    grad_norm: float | None = None
    full_loss: float | None = None
    full_grad_norm: float | None = None

    def __getattr__(self, name: str) -> NoReturn:
        known = ", ".join(self._fields)
        raise AttributeError(f"There is no signal {name!r}. Known signals: {known}.")


class Damping(NamedTuple):
    """How much noise the next update may have.

    Attributes
    ----------
    batch_size : float
        Rows the policy wants. The engine rounds up, and past ``max_batch_size`` lowers the
        learning rate instead.
    lr_scale : float
        Factor on the learning rate.
    """

    batch_size: float
    lr_scale: float = 1.0


class Measure(NamedTuple):
    """A pass over training data that a policy asks for.

    Attributes
    ----------
    quantity : str
        ``"loss"`` or ``"grad_norm"``.
    fraction : float
        Share of the training set to use, drawn anew each time.
    """

    quantity: str
    fraction: float = 1.0


class BatchSizePolicy(ABC):
    """Base class of all batch-size policies.

    Write your own by subclassing it, with settings as dataclass fields; a plain function
    ``signals -> batch size`` is a policy, too.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from accelerando.batch_size import BatchSizePolicy, Damping, replay
    >>> @dataclass(frozen=True)
    ... class DoubleOnPlateau(BatchSizePolicy):
    ...     initial: int = 32
    ...     patience: int = 2
    ...     def start(self):
    ...         return {"size": self.initial, "best": float("inf"), "since": 0}
    ...     def decide(self, signals, state):
    ...         if signals.loss is None:
    ...             return Damping(state["size"]), state
    ...         better = signals.loss < state["best"]
    ...         since = 0 if better else state["since"] + 1
    ...         size = state["size"] * 2 if since == self.patience else state["size"]
    ...         best = min(signals.loss, state["best"])
    ...         since = 0 if since == self.patience else since
    ...         return Damping(size), {"size": size, "best": best, "since": since}
    >>> replay(DoubleOnPlateau(), losses=[3.0, 2.0, 2.1, 2.2, 1.0])
    [32, 32, 32, 32, 64, 64]
    """

    scheduled: ClassVar[bool] = False
    """Whether the sizes follow from epochs and updates alone, so that they are known ahead."""

    def start(self) -> State:
        """Return what the policy remembers before the first update."""
        return {}

    @abstractmethod
    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        """Return the damping of the next update, and what to remember."""

    def measures(self, update: int) -> Measure | None:
        """Return what to measure on the training set before update number `update`."""
        return None


@dataclass(frozen=True)
class Steered(BatchSizePolicy):
    """The first batch size of a policy of :mod:`accelerando.policies`, which decides the rest."""

    policy: Any

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        return Damping(self.policy.initial), state

    def __repr__(self) -> str:
        return repr(self.policy)


@dataclass(frozen=True)
class FunctionPolicy(BatchSizePolicy):
    """A function ``signals -> batch size`` (or :class:`Damping`) as a policy."""

    function: Callable[[Signals], float | Damping]

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        wanted = self.function(signals)
        return wanted if isinstance(wanted, Damping) else Damping(wanted), state


class Capped(NamedTuple):
    """A decision that can be carried out: whole rows, within the caps."""

    batch_size: int
    lr_scale: float


def cap(damping: Damping, *, max_batch_size: int | None, n_examples: int | None) -> Capped:
    """Round the wanted batch up and keep it within its caps.

    Past `max_batch_size` the learning rate falls by the factor the batch would have grown, which
    leaves the noise scale lr / batch size where the policy wanted it (Smith et al. 2017,
    arXiv:1711.00489). It rises again when the batch shrinks. The size of the data set is no such
    cap: a batch with every example has no noise left to damp.

    Examples
    --------
    >>> cap(Damping(3000.0), max_batch_size=1000, n_examples=60_000)
    Capped(batch_size=1000, lr_scale=0.3333333333333333)
    """
    wanted, lr_scale = damping
    if not (math.isfinite(wanted) and math.isfinite(lr_scale)) or lr_scale < 0:
        raise ValueError(
            f"A batch-size policy must return finite numbers and no negative learning-rate scale; "
            f"it returned batch_size={wanted}, lr_scale={lr_scale}."
        )
    rows = max(1, ceil(wanted))
    if max_batch_size is not None and rows > max_batch_size:
        lr_scale *= max_batch_size / rows
        rows = max_batch_size
    if n_examples is not None:
        rows = min(rows, max(1, n_examples))
    return Capped(rows, lr_scale)


def ceil(x: float) -> int:
    """Round up, forgiving the last digit: 0.1 * 30 is 3, not 4."""
    return math.ceil(x - 1e-9 * max(1.0, abs(x)))


def instead_of_growing(initial: int, damping: Damping) -> Damping:
    """Decay the learning rate by the factor by which the batch would have outgrown `initial`."""
    rows = ceil(damping.batch_size)
    if rows <= initial:
        return damping
    return Damping(initial, damping.lr_scale * initial / rows)


def as_policy(batch_size: Any, params: Mapping[str, Any] | None = None) -> BatchSizePolicy:
    """Turn what a user may pass as ``batch_size`` into a policy.

    Parameters
    ----------
    batch_size : int, policy class, policy instance, or function
        ``-1`` is the whole training set, as in skorch.
    params : mapping
        The ``batch_size__x`` parameters.

    Examples
    --------
    >>> from accelerando.batch_size import GeoDamp
    >>> as_policy(64)
    Constant(size=64)
    >>> as_policy(GeoDamp, {"delay": 60, "factor": 5})
    GeoDamp(initial=128, delay=60, factor=5)
    """
    from accelerando.batch_size._schedules import Constant, FullBatch

    params = dict(params or {})
    if isinstance(batch_size, type) and issubclass(batch_size, BatchSizePolicy):
        return _built(batch_size, lambda: batch_size(**params), params)
    if isinstance(batch_size, BatchSizePolicy):
        if not params:
            return batch_size
        kind = type(batch_size)
        return _built(kind, lambda: dataclasses.replace(batch_size, **params), params)  # type: ignore[type-var]
    if hasattr(batch_size, "initial") and hasattr(batch_size, "needs"):  # of accelerando.policies
        if isinstance(batch_size, type):
            return Steered(_built(batch_size, lambda: batch_size(**params), params))
        chosen = batch_size
        if params:
            kind = type(batch_size)
            chosen = _built(kind, lambda: dataclasses.replace(batch_size, **params), params)
        return Steered(chosen)
    if params:
        raise ValueError(
            f"Parameters {sorted('batch_size__' + name for name in params)} are for a policy, but "
            f"batch_size={batch_size!r}. Pass a class of accelerando.batch_size as batch_size."
        )
    is_number = hasattr(batch_size, "__index__") and not isinstance(batch_size, bool)
    if not (is_number or callable(batch_size)):
        raise TypeError(
            "batch_size must be a positive whole number, -1 (all rows), a policy of "
            "accelerando.batch_size, or a function of the signals that returns a batch size; "
            f"got {batch_size!r}."
        )
    if callable(batch_size):
        return FunctionPolicy(batch_size)
    size = batch_size.__index__()
    return FullBatch() if size == -1 else Constant(size)


def _built(kind: type[Any], build: Callable[[], T], params: Mapping[str, Any]) -> T:
    """Call `build`, and turn an unknown parameter into an error that lists the known ones."""
    fields: list[str] = list(getattr(kind, "__dataclass_fields__", params))
    unknown = sorted(set(params) - set(fields))
    if unknown:
        known = ", ".join(f"batch_size__{name}" for name in fields) or "none"
        raise ValueError(
            f"{kind.__name__} has no parameter {', '.join(unknown)}. Its parameters: {known}."
        )
    return build()


def replay(
    policy: Any,
    losses: list[float],
    *,
    grad_norms: list[float] | None = None,
    updates_per_epoch: int = 1,
    n_examples: int | None = None,
    max_batch_size: int | None = None,
) -> list[int]:
    """Return the batch sizes a policy would choose for recorded losses, without training.

    Parameters
    ----------
    policy : int, policy class, policy instance, or function
        What an estimator takes as ``batch_size``.
    losses : list of float
        The training loss of each update. A policy that measures the loss on the training set is
        given the same numbers.
    grad_norms : list of float, optional
        The norm of the gradient in each update, for policies that look at it; 0 if not given.
    updates_per_epoch : int, default=1
        How many updates make an epoch, for policies that count epochs.
    n_examples : int, optional
        Rows of the training set; no batch is larger.
    max_batch_size : int, optional
        The largest batch, as for an estimator.

    Returns
    -------
    list of int
        The size of the first batch, and of the one after each loss: one more than there are losses.

    Examples
    --------
    >>> from accelerando.batch_size import GeoDamp
    >>> replay(GeoDamp(initial=8, delay=1, factor=2), losses=[1.0, 0.9, 0.8])
    [8, 16, 32, 64]
    """
    policy = as_policy(policy)
    state = policy.start()
    sizes: list[int] = []
    rows = examples = 0
    for update in range(len(losses) + 1):
        last = update - 1
        loss = losses[last] if update else None
        norm = grad_norms[last] if update and grad_norms is not None else (0.0 if update else None)
        wants = policy.measures(update)
        signals = Signals(
            update=update,
            epoch=update // updates_per_epoch,
            examples=examples,
            batch_size=rows,
            n_examples=n_examples,
            loss=loss,
            grad_norm=norm,
            full_loss=loss if wants and wants.quantity == "loss" else None,
            full_grad_norm=norm if wants and wants.quantity == "grad_norm" else None,
        )
        damping, state = policy.decide(signals, state)
        rows = cap(damping, max_batch_size=max_batch_size, n_examples=n_examples).batch_size
        examples += rows
        sizes.append(rows)
    return sizes


def check_positive(policy: object, **values: float) -> None:
    """Raise unless every value is a number above zero."""
    for name, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise ValueError(
                f"The '{name}' parameter of {type(policy).__name__} must be a number above 0. "
                f"Got {value!r} instead."
            )


def check_rows(policy: object, **values: int) -> None:
    """Raise unless every value is a whole number of at least one."""
    for name, value in values.items():
        if not is_whole(value, 1):
            raise ValueError(
                f"The '{name}' parameter of {type(policy).__name__} must be a whole number of at "
                f"least 1. Got {value!r} instead."
            )


def check_share(policy: object, **values: float) -> None:
    """Raise unless every value lies in (0, 1]."""
    for name, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
            raise ValueError(
                f"The '{name}' parameter of {type(policy).__name__} must lie above 0 and not above "
                f"1. Got {value!r} instead."
            )
