"""What a policy is: signals in, a decision or nothing out, no side effects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from accelerando.monitor import Monitor
from accelerando.policies._decision import Decision, Signals, checked

State = Mapping[str, Any]


class Policy(ABC):
    """Base class of policies with settings or a memory; a plain function is a policy, too.

    Settings are dataclass fields. The memory is a dictionary of numbers that ``decide`` returns and
    gets back, so that saving and resuming work by themselves. Policies are evaluated before every
    update on all ranks alike: they must depend on signals and memory only, not on a clock, on
    random numbers or on files.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from accelerando.policies import Decision, Policy, Signals
    >>> @dataclass(frozen=True)
    ... class HalveOnce(Policy):
    ...     at: int = 100
    ...     def decide(self, signals, state):
    ...         if "done" in state or signals.update < self.at:
    ...             return None, state
    ...         return Decision(lr=signals.lr / 2), {"done": 1}
    >>> HalveOnce()(Signals({"update": 100, "lr": 0.5}))
    Decision(batch_size=None, lr=0.25, momentum=None, workers=None, period=None)
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """The signals of monitors that it reads; whatever is missing is an error before training."""

    def start(self) -> State:
        """Return what the policy remembers before the first update."""
        return {}

    @abstractmethod
    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        """Return what is to change before the next update, and what to remember."""

    def monitors(self) -> tuple[Monitor, ...]:
        """Return monitors for its signals, taken where the user has named none for them."""
        return ()

    def __call__(self, signals: Signals) -> Decision | None:
        """Decide without a memory."""
        return self.decide(signals, self.start())[0]


@dataclass(frozen=True)
class FunctionPolicy(Policy):
    """A function ``signals -> Decision | None`` as a policy."""

    function: Callable[[Signals], Decision | None]

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        return self.function(signals), state


@dataclass(frozen=True)
class Every(Policy):
    """Ask a policy only now and then.

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
        whole = all(hasattr(n, "__index__") and not isinstance(n, bool) and n >= 1 for n in given)
        if len(given) != 1 or not whole:
            raise ValueError(
                "Every needs either updates= or epochs=, a whole number of at least 1. Got "
                f"updates={self.updates!r}, epochs={self.epochs!r}."
            )

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the policy inside."""
        return as_policy(self.policy).needs

    def monitors(self) -> tuple[Monitor, ...]:
        return as_policy(self.policy).monitors()

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


def as_policy(policy: Any) -> Policy:
    """Turn what a user may put into ``policies=`` into a policy.

    Parameters
    ----------
    policy : Policy or function
        A function takes the signals and returns a Decision, or None to leave everything as it is.

    Examples
    --------
    >>> from accelerando.policies import Every, as_policy
    >>> type(as_policy(lambda signals: None)).__name__
    'FunctionPolicy'
    """
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, type) or not callable(policy):
        hint = f" Pass an instance: {policy.__name__}()." if isinstance(policy, type) else ""
        raise TypeError(
            "policies must hold policies of accelerando.policies or functions of the signals that "
            f"return a Decision or None; got {policy!r}.{hint}"
        )
    return FunctionPolicy(policy)


def decide_all(
    policies: Sequence[Policy], signals: Signals, states: Sequence[State]
) -> tuple[Decision, list[State]]:
    """Ask one policy after the other; each sees what those before it have decided.

    Where two decide the same thing the later one wins, except that the smaller number of workers
    does.
    """
    merged = Decision()
    after: list[State] = []
    for policy, state in zip(policies, states, strict=True):
        decision, remembered = policy.decide(signals, state)
        after.append(remembered)
        if decision is None:
            continue
        decision = checked(decision, policy)
        new = {name: value for name, value in decision._asdict().items() if value is not None}
        if merged.workers is not None and "workers" in new:
            new["workers"] = min(merged.workers, new["workers"])
        merged = merged._replace(**new)
        seen = {name: new[name] for name in ("batch_size", "lr", "momentum") if name in new}
        signals = signals.but(**seen) if seen else signals
    return merged, after


def check_number(
    policy: object, name: str, value: Any, *, above: float = 0.0, most: float = float("inf")
) -> None:
    """Raise unless a setting is a number above a bound and not above another."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not above < value <= most:
        upper = "" if most == float("inf") else f" and at most {most:g}"
        raise ValueError(
            f"The '{name}' parameter of {type(policy).__name__} must be a number above {above:g}"
            f"{upper}. Got {value!r} instead."
        )
