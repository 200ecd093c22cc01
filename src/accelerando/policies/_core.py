"""Conversion to a policy: from a function, a number, or a policy that is asked now and then."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from accelerando._decisions import Decision, Measure, Policy, Signals, State
from accelerando._deprecation import warn_deprecated
from accelerando._validation import as_piece, is_integer, parameter_error
from accelerando.monitor import Monitor
from accelerando.policies._schedules import Constant, FullBatch


@dataclass(frozen=True, repr=False)
class FunctionPolicy(Policy):
    """A function of the signals as a policy.

    It returns a Decision or None; as ``batch_size=`` it may return a number.
    """

    function: Callable[[Signals], Any]

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.function).bind(None)
        except TypeError as error:
            raise TypeError(
                f"A function that decides has one argument, the signals; {self!r} does not: "
                f"{error}."
            ) from None
        except ValueError:
            pass  # a function of C without a signature

    def __repr__(self) -> str:
        return f"function {getattr(self.function, '__qualname__', self.function)!r}"

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        return self.function(signals), state


@dataclass(frozen=True)
class Every(Policy):
    """Ask a policy in some updates only.

    Parameters
    ----------
    policy : policy or function
        What to ask.
    updates : int, optional
        Ask before updates 0, `updates`, 2 · `updates`, ...
    epochs : int, optional
        Ask at the start of epochs 0, `epochs`, 2 · `epochs`, ...; give one of the two.

    Examples
    --------
    >>> from accelerando.policies import Decision, Every, Signals
    >>> grow = Every(lambda signals: Decision(batch_size=2 * signals.batch_size), updates=10)
    >>> [grow(Signals({"update": k, "epoch": 0, "batch_size": 8})) is None for k in (9, 10, 11)]
    [True, False, True]
    """

    policy: Any
    updates: int | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        given = [n for n in (self.updates, self.epochs) if n is not None]
        if len(given) != 1 or not is_integer(given[0], 1):
            raise ValueError(
                "Every needs either updates= or epochs=, an integer of at least 1. Got "
                f"updates={self.updates!r}, epochs={self.epochs!r}."
            )

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The signals that the policy inside needs."""
        return as_policy(self.policy).needs

    def monitors(self) -> tuple[Monitor, ...]:
        return as_policy(self.policy).monitors()

    def measures(self, update: int) -> Measure | None:
        if self.updates is not None and update % self.updates:
            return None
        return as_policy(self.policy).measures(update)

    def start(self) -> State:
        return {"inside": dict(as_policy(self.policy).start()), "epoch": -1}

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        epoch = int(signals["epoch"])
        if self.updates is not None:
            due = signals["update"] % self.updates == 0
        else:
            due = epoch != state["epoch"] and epoch % (self.epochs or 1) == 0
        if not due:
            return None, {**state, "epoch": epoch}
        decision, inside = as_policy(self.policy).decide(signals, state["inside"])
        return decision, {"inside": dict(inside), "epoch": epoch}


class Damping(NamedTuple):
    """Result of batch-size policies before version 0.2; now a :class:`Decision`."""

    batch_size: float
    lr_scale: float = 1.0


def as_policy(policy: Any) -> Policy:
    """Return the policy that an entry of ``policies=`` describes: a Policy or a function."""
    if isinstance(policy, type):
        raise TypeError(
            f"policies must hold instances of policies. Got the class {policy.__name__} instead. "
            f"Pass an instance: {policy.__name__}()."
        )
    return as_piece(
        "policies",
        policy,
        Policy,  # type: ignore[type-abstract]
        convert=lambda given: FunctionPolicy(given) if callable(given) else None,
        allowed=(
            "a list of policies of accelerando.policies, or of functions of the signals that "
            "return a Decision or None"
        ),
    )


def from_short_form(batch_size: Any) -> Policy | None:
    """Return the policy that a number or a function in ``batch_size=`` means."""
    if is_integer(batch_size):
        size = batch_size.__index__()
        if size < 1 and size != -1:
            allowed = "an integer of at least 1, or -1 for all rows"
            raise parameter_error("an estimator", "batch_size", allowed, batch_size)
        return FullBatch() if size == -1 else Constant(size)
    return FunctionPolicy(batch_size) if callable(batch_size) else None


def as_decision(given: Any, policy: object) -> Decision | None:
    """Return the decision that a policy in ``batch_size=`` returned; a number is a batch size."""
    if given is None or isinstance(given, Decision):
        return given
    if isinstance(given, Damping):
        warn_deprecated(
            "Damping", "Return accelerando.policies.Decision(batch_size=..., lr_scale=...)."
        )
        return Decision(given.batch_size, lr_scale=given.lr_scale)
    if isinstance(given, bool | str) or not hasattr(given, "__float__"):
        raise TypeError(
            f"A batch_size policy returns a number, a Decision or None; {policy!r} returned "
            f"{given!r}."
        )
    return Decision(float(given))
