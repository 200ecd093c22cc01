"""Controller: asks monitors and policies around an update, and holds no memory.

Memories and settings are fields of the training state. :meth:`Controller.plan` is pure: the
decisions of an update are remembered only after it was carried out, so that an update that is
repeated after a lost rank gets the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from accelerando._decisions import (
    ALWAYS,
    NOTHING,
    UNKNOWN,
    Decision,
    Measure,
    Memories,
    Plan,
    Policy,
    Settings,
    Signals,
    cap,
)
from accelerando._validation import as_piece
from accelerando.exceptions import UnknownSignalError, UnsupportedError
from accelerando.monitor import Curvature, Monitor, ParameterSpread
from accelerando.monitor._monitor import Observation, Setting
from accelerando.policies._core import FunctionPolicy, as_decision, as_policy, from_short_form
from accelerando.policies._schedules import Constant
from accelerando.policies._standing import Bounds, after, ask_standing, checked, momenta

_NO_OTHERS = NOTHING[3:]  # what batch_size= rarely decides: all but batch_size, lr and lr_scale


@dataclass(frozen=True)
class Controller:
    """The monitors and policies of a fit.

    Parameters
    ----------
    monitors : tuple of Monitor
        Those of the user, and those that policies need.
    policies : tuple of Policy
        The first one is the base policy: it decides the batch size of every update. The others are
        the standing policies: their decisions hold until the next one.
    max_batch_size : int or None
        Past it the learning rate falls instead.

    Examples
    --------
    >>> controller = Controller.of(batch_size=64, max_batch_size=48)
    >>> plan = controller.plan({"update": 0}, controller.start(), Settings(), base_lr=0.1)
    >>> plan.rows, plan.lr_scale
    (48, 0.75)
    """

    monitors: tuple[Monitor, ...]
    policies: tuple[Policy, ...]
    max_batch_size: int | None = None

    @classmethod
    def of(
        cls,
        monitors: Any = (),
        policies: Any = (),
        batch_size: Any = 128,
        batch_size_params: Mapping[str, Any] | None = None,
        max_batch_size: int | None = None,
    ) -> Controller:
        """Build it from the arguments of an estimator; add the monitors that policies need."""
        watching = [_checked_monitor(one) for one in _listed("monitors", monitors)]
        deciding = [
            *as_batch_policies(batch_size, batch_size_params),
            *(as_policy(one) for one in _listed("policies", policies)),
        ]
        known = {name for monitor in watching for name in monitor.signals}
        for policy in deciding:
            for monitor in policy.monitors():
                if not known.issuperset(monitor.signals):
                    watching.append(monitor)
                    known.update(monitor.signals)
        _check_names(watching, deciding)
        return cls(tuple(watching), tuple(deciding), max_batch_size)

    # -- what is known before training ------------------------------------------------------------

    @cached_property
    def standing(self) -> tuple[Policy, ...]:
        """The policies whose decisions hold until the next one."""
        return self.policies[1:]

    @cached_property
    def active(self) -> bool:
        """Whether there are monitors or standing policies."""
        return bool(self.monitors or self.standing)

    @cached_property
    def scheduled(self) -> bool:
        """Whether the batch sizes of all updates are known ahead."""
        return self.policies[0].scheduled and not self.standing

    @cached_property
    def constant(self) -> bool:
        """Whether all updates have the same batch size, so that one plan serves for all of them."""
        return type(self.policies[0]) is Constant and not self.standing

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that are recorded in addition to those of every fit."""
        signals = tuple(name for monitor in self.monitors for name in monitor.signals)
        return (*signals, "workers") if self.standing else signals

    @cached_property
    def looks_at_parts(self) -> int:
        """The interval of updates at which halves of a batch are compared; 0 for never."""
        wanted = [m.every for m in self.monitors if m.looks_at_parts]
        return min((25 if every is None else every for every in wanted), default=0)

    @cached_property
    def looks_at_rows(self) -> int:
        """The interval of updates at which rows are compared; 0 leaves it to what that costs."""
        wanted = [m.every for m in self.monitors if m.looks_at_parts]
        return min((every or 0 for every in wanted), default=0)

    def learning(self, memories: Memories, first: int, most: int) -> bool:
        """Return True while a monitor of parts has seen fewer than `first` of them.

        As long as a signal of it is unknown, it may see up to `most`.
        """
        for monitor, seen in zip(self.monitors, memories.monitors, strict=True):
            if monitor.looks_at_parts:
                unknown = any(math.isnan(memories.signals[name]) for name in monitor.signals)
                if seen.get("count", 0) < (most if unknown else first):
                    return True
        return False

    @cached_property
    def curvature(self) -> tuple[int, int]:
        """The vectors and the iterations with which the Hessian is looked at."""
        looking = [m for m in self.monitors if isinstance(m, Curvature)]
        return max(m.samples for m in looking), max(m.iterations for m in looking)

    @cached_property
    def looks_at_curvature(self) -> int:
        """The interval of updates at which the Hessian is looked at; 0 for never."""
        return min((m.every for m in self.monitors if isinstance(m, Curvature)), default=0)

    @cached_property
    def watches_spread(self) -> int:
        """The interval of updates at which the spread is measured between averagings; 0: never."""
        wanted = [m.every for m in self.monitors if isinstance(m, ParameterSpread) and m.every]
        return min(wanted, default=0)

    def start(self) -> Memories:
        """Return the memories before the first update."""
        return Memories(
            [dict(policy.start()) for policy in self.policies],
            [dict(monitor.start()) for monitor in self.monitors],
            {name: math.nan for monitor in self.monitors for name in monitor.signals},
        )

    def describe(self) -> list[str]:
        """Return what a saved state must have been made with; functions have no stable name."""
        pieces: tuple[object, ...] = (*self.monitors, *self.policies)
        return ["function" if isinstance(p, FunctionPolicy) else repr(p) for p in pieces]

    def check(self, setting: Setting) -> None:
        """Raise if a monitor cannot measure anything in a fit with this setting."""
        for monitor in self.monitors:
            why = monitor.undefined(setting)
            if why is not None:
                raise UnsupportedError(f"{type(monitor).__name__} {why}.")

    # -- around an update -------------------------------------------------------------------------

    def needs_measure(self, update: int) -> Measure | None:
        """Return the pass over training data that policies need before an update, or None."""
        if not self.standing:
            return self.policies[0].measures(update)
        asked = [policy.measures(update) for policy in self.policies]
        wanted = [measure for measure in asked if measure is not None]
        if len({measure.quantity for measure in wanted}) > 1:
            raise UnsupportedError(
                "Two policies measure different things on the training set (its loss, its gradient "
                f"norm, or forks of the run) before update {update}. Use one of them, "
                "or let them measure in different updates (dwell=)."
            )
        return max(wanted, key=lambda measure: measure.fraction, default=None)

    def plan(
        self,
        values: Mapping[str, float],
        memories: Memories,
        settings: Settings,
        base_lr: float,
        batches: int = 1,
    ) -> Plan:
        """Ask the policies what the next update should be like; nothing is changed.

        Parameters
        ----------
        values : mapping of str to float
            What the engine knows, by the names of the signals: update, epoch, examples,
            n_examples, loss, grad_norm, rows, momentum, beta2, ranks, period, ... Unknown values
            are ``nan`` or missing; ``batch_size`` is the one of the last plan.
        memories, settings, base_lr
            As they are after the last update; the rate of the optimizer's first parameter group.
        batches : int
            Batches per update: the number of ranks where each has a batch, else 1.
        """
        known = _known(values, memories.signals, settings, base_lr)
        n_examples = _count(known["n_examples"], batches)
        wanted, scale, memory, settings = self._ask_base(known, memories, settings, base_lr)
        size, scale = cap(wanted, scale, max_batch_size=self.max_batch_size, n_examples=n_examples)
        after = [memory]
        if self.standing:
            known = _known(known, {}, settings, base_lr)
            bounds = Bounds(self.max_batch_size, n_examples)
            asked = self.standing, known, size, bounds, memories, settings, base_lr
            settings, states = ask_standing(*asked)
            after += states
        if settings.batch_size is not None:
            # A standing policy has decided: its size replaces the size and lr_scale of the base.
            size, scale = cap(
                settings.batch_size, 1.0, max_batch_size=self.max_batch_size, n_examples=n_examples
            )
        scale *= settings.lr_scale
        for factor in settings.scales:
            scale *= factor
        return Plan(size * batches, size, scale, settings, after)

    def _ask_base(
        self, known: dict[str, float], memories: Memories, settings: Settings, base_lr: float
    ) -> tuple[float, float, dict[str, Any], Settings]:
        """Return the size, lr_scale and memory of the base policy, and the settings after it."""
        base = self.policies[0]
        given, memory = base.decide(Signals._of(known), memories.policies[0])
        first = given if type(given) is Decision else as_decision(given, base)
        wanted: Any = None
        scale = 1.0
        if first is not None:
            wanted = first.batch_size
            scale = 1.0 if first.lr_scale is None else first.lr_scale
            if type(scale) is not float or not 0 <= scale < math.inf:
                checked(first, base)
            if first.lr is not None or first[3:] != _NO_OTHERS:
                decided = checked(first, base)._replace(batch_size=None)
                settings = after(settings, decided, base_lr)
        if wanted is None:
            wanted = self._kept_size(known["batch_size"], settings)
        elif type(wanted) not in (int, float) or not 0 < wanted < math.inf:
            checked(first, base)
            wanted = float(wanted)
        if wanted != settings.base_batch_size:
            settings = settings._replace(base_batch_size=wanted)
        return wanted, scale, dict(memory), settings

    def _kept_size(self, last: float, settings: Settings) -> float:
        """Return the size for an update in which the base policy decided none."""
        initial = getattr(self.policies[0], "initial", None)
        for size in (settings.base_batch_size, last, initial, settings.batch_size):
            if size is not None and not math.isnan(size):
                return float(size)
        raise ValueError(
            f"batch_size={self.policies[0]!r} returned no batch size before the first update, when "
            "there is none to keep. Return a number or Decision(batch_size=...) there; a signal "
            "that is not known yet is nan, and comparisons with it are false."
        )

    def planned(
        self, values: Mapping[str, float], memories: Memories, settings: Settings, epoch: int
    ) -> int:
        """Return the batch size that a schedule has for an epoch; 0 if it is not known ahead."""
        base = self.policies[0]
        if not base.scheduled or settings.batch_size is not None:
            return 0
        alone = replace(self, monitors=(), policies=(base,))
        memory = Memories(policies=memories.policies[:1])
        return alone.plan({**values, "epoch": epoch}, memory, settings, math.nan).batch_size

    def observe(self, observation: Observation, memories: Memories) -> Memories:
        """Return the memories after the monitors have seen an update."""
        if not self.monitors:
            return memories
        signals, states = dict(memories.signals), list(memories.monitors)
        for number, monitor in enumerate(self.monitors):
            if monitor.looks_at_parts and not observation.parts:
                continue  # nothing new for it; in one process that is most updates
            values, state = monitor.observe(observation, states[number])
            states[number] = dict(state)
            signals.update(zip(monitor.signals, values, strict=True))
        return Memories(memories.policies, states, signals, memories.strategy)

    def row(self, memories: Memories, settings: Settings) -> tuple[float, ...]:
        """Return the values of :attr:`columns`."""
        values = tuple(memories.signals.values())
        if not self.standing:
            return values
        return (*values, math.nan if settings.workers is None else float(settings.workers))


def as_batch_policies(
    batch_size: Any, params: Mapping[str, Any] | None = None
) -> tuple[Policy, ...]:
    """Return the policies that ``batch_size=`` describes: the base policy, and at most one more.

    A policy that decides now and then begins with a constant size and decides as those in
    ``policies=`` do.

    Parameters
    ----------
    batch_size : int, policy class, policy instance, or function
        ``-1`` is the whole training set, as in skorch.
    params : mapping
        The ``batch_size__x`` parameters.

    Examples
    --------
    >>> from accelerando.policies import GeoDamp, NormTest
    >>> as_batch_policies(64)
    (Constant(size=64),)
    >>> as_batch_policies(GeoDamp, {"delay": 60, "factor": 5})
    (GeoDamp(initial=128, delay=60, factor=5),)
    >>> [type(policy).__name__ for policy in as_batch_policies(NormTest(initial=32))]
    ['Constant', 'NormTest']
    """
    policy = as_piece(
        "batch_size",
        batch_size,
        Policy,  # type: ignore[type-abstract]
        settings=params,
        convert=from_short_form,
        allowed=(
            "an integer of at least 1, -1 (all rows), a policy of accelerando.batch_size, or a "
            "function of the signals that returns a batch size"
        ),
    )
    if policy.occasional:
        return Constant(policy.initial), policy  # type: ignore[attr-defined]
    return (policy,)


def _known(
    values: Mapping[str, float], signals: Mapping[str, float], settings: Settings, base_lr: float
) -> dict[str, float]:
    """Return the signals of the next update: numbers of the engine and of monitors, decisions."""
    known = {**UNKNOWN, **signals, **values, "lr": base_lr * settings.lr_scale}
    if settings.batch_size is not None:
        known["wanted_batch_size"] = settings.batch_size
    if settings.momentum is not None or settings.betas is not None:
        known.update(momenta(settings.momentum, settings.betas))
    if settings.period is not None:
        known["period"] = float(settings.period)
    return known


def _count(n_examples: float, batches: int) -> int | None:
    """Return the rows of the largest batch that exists, if every update has `batches` batches."""
    return None if math.isnan(n_examples) else -(-int(n_examples) // batches)


def _check_names(monitors: Iterable[Monitor], policies: Iterable[Policy]) -> None:
    """Raise if two monitors yield one signal, or if a policy needs one that nobody yields."""
    names = [name for monitor in monitors for name in monitor.signals]
    twice = sorted({name for name in names if names.count(name) > 1 or name in ALWAYS})
    if twice:
        raise ValueError(
            f"Two of the monitors yield the signal {twice[0]!r}, or it is one of those that every "
            "fit has. Leave one of them out, or give your own another name."
        )
    known = {*names, *ALWAYS}
    for policy in policies:
        for name in policy.needs:
            if name not in known:
                raise UnknownSignalError(
                    f"{policy!r} needs the signal {name!r}, which no monitor yields. Known "
                    f"signals: {', '.join(sorted(known))}."
                )


def _listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, list | tuple):
        return list(given)
    raise TypeError(
        f"The '{name}' parameter must be a list, even of one. Got {given!r} instead; write "
        f"{name}=[...]."
    )


def _checked_monitor(monitor: Any) -> Monitor:
    if isinstance(monitor, Monitor):
        return monitor
    hint = f" Pass an instance: {monitor.__name__}()." if isinstance(monitor, type) else ""
    allowed = "a list of monitors of accelerando.monitor"
    raise TypeError(f"The 'monitors' parameter must be {allowed}. Got {monitor!r} instead.{hint}")
