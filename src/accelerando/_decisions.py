"""Decisions: what policies and strategies read, what they decide, and what holds for an update.

:class:`Signals` are the numbers known before an update. A :class:`Policy` turns them into a
:class:`Decision`. :class:`Settings` are the decisions that still hold, and a :class:`Plan` is what
one update carries out. All of them are values without side effects: they can be saved, sent to
ranks, compared and replayed. What a policy remembers between updates is a small dictionary that it
returns with every decision and receives with the next one.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from accelerando.exceptions import UnknownSignalError

State = Mapping[str, Any]
"""What a policy, a strategy or a monitor remembers between updates: names and JSON values."""

# fmt: off
ALWAYS = (
    "update", "epoch", "examples", "n_examples", "loss", "grad_norm", "batch_size",
    "wanted_batch_size", "rows", "lr", "momentum", "beta2", "ranks", "period", "total_updates",
    "spread", "full_loss", "full_grad_norm", "full_branch_gap",
)
# fmt: on
"""Names of the signals that every fit has; monitors add theirs."""

UNKNOWN = dict.fromkeys(ALWAYS, math.nan)

PRECISIONS = ("float32", "bfloat16", "float16")


class Signals(Mapping[str, float]):
    """Named numbers that are known before an update: ``signals.loss`` or ``signals["loss"]``.

    A value that is not known yet is ``nan``: every comparison with it is false. A name that does
    not exist raises an error that lists the names that do.

    Parameters
    ----------
    values : mapping of str to float
        The numbers by name; a copy is kept.

    Notes
    -----
    Every fit has these signals, and those of its monitors:

    * ``update``, ``epoch``, ``examples``: done so far. ``n_examples``: in the training set.
    * ``loss``, ``grad_norm``, ``rows``: of the last update, whose batch may have been a short one.
    * ``batch_size``: as carried out, within ``max_batch_size`` and the training set. Policies in
      ``policies=`` see the size of the next update as decided so far, the policy in
      ``batch_size=`` the size of the last update.
    * ``wanted_batch_size``: as decided, before ``max_batch_size`` is applied; at most the
      training set. Policies in ``policies=`` that multiply the size or scale with it read this one.
    * ``lr``, ``momentum`` (or the first beta), ``beta2``: of the first parameter group for the next
      update, as decided so far, without the factors ``lr_scale``.
    * ``ranks``, ``period`` (updates between two averagings), ``spread`` (of the replicas, if they
      have just been averaged), ``total_updates`` (of the fit if the batch size stays as it is).
    * ``full_loss``, ``full_grad_norm``: on the training set, in updates in which a policy measures.
      ``full_branch_gap``: how much a fork with a larger batch loses, likewise.

    Examples
    --------
    >>> from accelerando.policies import Signals
    >>> signals = Signals({"update": 3, "loss": 0.5})
    >>> signals.loss
    0.5
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = dict(values)

    @classmethod
    def known(cls, **values: float) -> Self:
        """Return signals with some values; the others of a fit are ``nan``.

        Examples
        --------
        >>> signals = Signals.known(update=3, loss=0.5)
        >>> signals.loss, signals.grad_norm
        (0.5, nan)
        """
        return cls._of({**UNKNOWN, **values})

    @classmethod
    def _of(cls, values: dict[str, float]) -> Self:
        """Wrap a dictionary without copying it."""
        signals = cls.__new__(cls)
        signals._values = values
        return signals

    def __getitem__(self, name: str) -> float:
        try:
            return self._values[name]
        except KeyError:
            raise UnknownSignalError(_no_signal(name, self._values)) from None

    def __getattr__(self, name: str) -> float:
        if name[0] == "_":  # copy and pickle look for such names
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
        return Signals._of({**self._values, **values})


def _no_signal(name: str, known: Mapping[str, float]) -> str:
    return (
        f"There is no signal {name!r}. Known signals: {', '.join(sorted(known))}. Signals of "
        "monitors are known when the monitor is in monitors=."
    )


class Decision(NamedTuple):
    """Settings that a policy changes from the next update on; None leaves a setting as it is.

    Attributes
    ----------
    batch_size : float
        Rows of a batch; rounded up, within ``max_batch_size`` and the training set.
    lr : float
        Learning rate of the first parameter group; other groups and schedules keep their ratio.
    lr_scale : float
        Factor on the learning rate. From ``batch_size=`` it holds for one update, from a policy in
        ``policies=`` until that policy returns another one. Factors of several policies multiply.
    momentum : float
        Momentum of SGD, or the first of Adam's betas.
    betas : tuple of two floats
        Both of Adam's betas; they override `momentum`.
    workers : int
        The largest number of ranks; the batch size may allow fewer.
    period : int
        Updates between two averagings, with a strategy of :mod:`accelerando.sync` that averages.
    precision : str
        ``"float32"``, ``"bfloat16"`` or ``"float16"``.

    Examples
    --------
    >>> from accelerando.policies import Decision
    >>> Decision(batch_size=256, lr=0.2)
    Decision(batch_size=256, lr=0.2)
    """

    batch_size: float | None = None
    lr: float | None = None
    lr_scale: float | None = None
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    workers: int | None = None
    period: int | None = None
    precision: str | None = None

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in self.items())
        return f"Decision({', '.join(given)})"

    def items(self) -> list[tuple[str, Any]]:
        """Return the names and values of the settings that change."""
        named = zip(self._fields, self, strict=True)
        return [(name, value) for name, value in named if value is not None]


NOTHING = Decision()


class Settings(NamedTuple):
    """The decisions that hold now.

    Attributes
    ----------
    batch_size : float or None
        What a policy in ``policies=`` decided last; None leaves the size to ``batch_size=``.
    lr_scale : float
        Ratio of the decided learning rate to the optimizer's.
    scales : tuple of float
        The factor ``lr_scale`` of each policy in ``policies=``; empty while nobody decided one.
    momentum, betas, workers, period, precision
        As decided last; None before.
    base_batch_size : float or None
        What ``batch_size=`` asked for last. It holds while that policy returns None.
    """

    batch_size: float | None = None
    lr_scale: float = 1.0
    scales: tuple[float, ...] = ()
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    workers: int | None = None
    period: int | None = None
    precision: str | None = None
    base_batch_size: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return self._asdict()

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Settings:
        """Return the settings that :meth:`to_json` described."""
        settings = cls(**content)
        betas = None if settings.betas is None else (settings.betas[0], settings.betas[1])
        return settings._replace(scales=tuple(settings.scales), betas=betas)


class Plan(NamedTuple):
    """Settings of the next update, and the states of the policies after it.

    Attributes
    ----------
    rows : int
        Rows of the global batch: `batch_size` times the batches per update.
    batch_size : int
        Rows of one batch.
    lr_scale : float
        Factor on the optimizer's learning rate for this update, with everything included.
    settings : Settings
        The decisions that hold from this update on.
    policy_memories : list of dict
        The memory of every policy after its decision.
    """

    rows: int
    batch_size: int
    lr_scale: float
    settings: Settings
    policy_memories: list[dict[str, Any]]


@dataclass
class Memories:
    """JSON values that policies, monitors and the strategy remember; the monitors' signals."""

    policies: list[dict[str, Any]] = field(default_factory=list)
    monitors: list[dict[str, Any]] = field(default_factory=list)
    signals: dict[str, float] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return all memories as one JSON value."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the memories that :meth:`to_json` described."""
        return cls(**content)


class Measure(NamedTuple):
    """A pass over training data: its quantity is "loss", "grad_norm" or "branch_gap".

    `fraction` is the share of the training set that is used, drawn anew each time. "branch_gap" is
    the relative difference of the losses of two forks of the run: one with a batch that is larger
    by `growth` and a learning rate that is larger by its power `power`, and one as the run is.
    """

    quantity: str
    fraction: float = 1.0
    growth: float = 1.0
    power: float = 0.0


class Policy(ABC):
    """Base class of policies with settings or a memory; a plain function is a policy, too.

    Settings are dataclass fields. The memory is a dictionary of JSON values that ``decide`` returns
    and gets back. Policies are asked before every update on all ranks alike: they must depend on
    signals and memory only, not on a clock, on random numbers or on files.

    Pass a policy as ``batch_size=``, where it decides the size of every update, or in the list
    ``policies=``, where its decisions hold until the next one.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from accelerando.policies import Decision, Policy, replay
    >>> @dataclass(frozen=True)
    ... class DoubleOnPlateau(Policy):
    ...     initial: int = 32
    ...     patience: int = 2
    ...     def start(self):
    ...         return {"size": self.initial, "best": float("inf"), "since": 0}
    ...     def decide(self, signals, state):
    ...         size, best, since = state["size"], state["best"], state["since"]
    ...         since = since + 1 if signals.loss >= best else 0
    ...         if since == self.patience:
    ...             size, since = 2 * size, 0
    ...         if signals.loss < best:
    ...             best = signals.loss
    ...         return Decision(batch_size=size), {"size": size, "best": best, "since": since}
    >>> replay(DoubleOnPlateau(), {"loss": [3.0, 2.0, 2.1, 2.2, 1.0]})["batch_size"].tolist()
    [32, 32, 32, 32, 64, 64]
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """The signals of monitors that it reads; a missing one is an error before training."""

    scheduled: ClassVar[bool] = False
    """Whether decisions depend on epochs and updates alone, so that they are known ahead."""

    occasional: ClassVar[bool] = False
    """Whether it decides now and then only; as ``batch_size=`` it begins with its ``initial``."""

    def start(self) -> State:
        """Return what the policy remembers before the first update."""
        return {}

    @abstractmethod
    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        """Return what changes before the next update, and what to remember."""

    def measures(self, update: int) -> Measure | None:
        """Return the pass over training data that the policy needs before an update.

        The result is in ``signals.full_loss``, ``signals.full_grad_norm`` or
        ``signals.full_branch_gap`` of that update.
        """
        return None

    def monitors(self) -> tuple[Any, ...]:
        """Return monitors for the signals it needs, for users who pass none for them."""
        return ()

    def __call__(self, signals: Signals) -> Decision | None:
        """Decide without a memory."""
        return self.decide(signals, self.start())[0]


def ceil(x: float) -> int:
    """Round up, but forgive errors in the last digits: 0.1 * 30 is 3, not 4."""
    return math.ceil(x - 1e-9 * max(1.0, abs(x)))


def cap(
    wanted: float, lr_scale: float, *, max_batch_size: int | None, n_examples: int | None
) -> tuple[int, float]:
    """Return the batch size that is carried out, and the factor on the learning rate.

    The batch is rounded up. Past `max_batch_size` the learning rate falls by the factor by which
    the batch would have grown, which keeps the noise scale lr / batch size where the policy wanted
    it (Smith et al. 2017, arXiv:1711.00489). The size of the data set does not lower the learning
    rate: a batch with every example has no noise to damp.

    Examples
    --------
    >>> cap(3000.0, 1.0, max_batch_size=1000, n_examples=60_000)
    (1000, 0.3333333333333333)
    """
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
    return rows, lr_scale


def fingerprint(plan: Plan) -> float:
    """Return an integer below 4096 that differs between ranks whose plans differ.

    Its sum over ranks is exact in float32. Processors may round last digits of rates differently.
    """
    held = plan.settings
    text = (
        f"{plan.rows} {plan.lr_scale:.6g} {held.momentum} {held.betas} {held.workers} "
        f"{held.period} {held.precision}"
    )
    return float(zlib.crc32(text.encode()) % 4096)
