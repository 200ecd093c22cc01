"""Monitor, decide, control: what happens around an update when there are monitors or policies.

Nothing is remembered here: states of monitors and policies, the newest signals and what has been
decided live in ``run.control``, which is saved, sent to other ranks and taken up with the run.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from accelerando.batch_size import BatchSizePolicy, Damping
from accelerando.batch_size._policy import Steered, cap
from accelerando.exceptions import UnknownSignalError, UnsupportedError
from accelerando.monitor import Monitor, Observation, ParameterSpread, Setting
from accelerando.policies import Decision, Signals, as_policy
from accelerando.policies._decision import Wish
from accelerando.policies._policy import FunctionPolicy, Policy, decide_all
from accelerando.train.run import Choice, Run

ALWAYS = (
    "update",
    "epoch",
    "examples",
    "n_examples",
    "loss",
    "grad_norm",
    "batch_size",
    "lr",
    "momentum",
    "ranks",
    "period",
)


class Plan(NamedTuple):
    """What policies want for the next update, and what they will remember once it is done."""

    choice: Choice
    wish: Wish
    states: list[Any]


@dataclass(frozen=True)
class Control:
    """The monitors and policies of a fit.

    Examples
    --------
    >>> from accelerando.policies import NoiseScale
    >>> control = Control.of((), [NoiseScale()])
    >>> control.columns
    ('noise_scale', 'noise_scale_error', 'noise_scale_low', 'workers')
    """

    monitors: tuple[Monitor, ...] = ()
    policies: tuple[Policy, ...] = ()

    @classmethod
    def of(
        cls, monitors: Any, policies: Any, batch_policy: BatchSizePolicy | None = None
    ) -> Control:
        """Put together what the user gave, with the monitors that policies need beside."""
        watching = [_checked_monitor(one) for one in _listed("monitors", monitors)]
        deciding = [as_policy(one) for one in _listed("policies", policies)]
        if isinstance(batch_policy, Steered):
            deciding.insert(0, batch_policy.policy)
        known = {name for monitor in watching for name in monitor.signals}
        for policy in deciding:
            for monitor in policy.monitors():
                if not known.issuperset(monitor.signals):
                    watching.append(monitor)
                    known.update(monitor.signals)
        names = [name for monitor in watching for name in monitor.signals]
        twice = sorted({name for name in names if names.count(name) > 1 or name in ALWAYS})
        if twice:
            raise ValueError(
                f"Two of the monitors yield the signal {twice[0]!r}, or it is one of those that "
                "are always there. Leave one of them out, or give your own another name."
            )
        for policy in deciding:
            for name in policy.needs:
                if name not in known and name not in ALWAYS:
                    raise UnknownSignalError(
                        f"{policy!r} needs the signal {name!r}, which no monitor yields. Known "
                        f"signals: {', '.join(sorted({*known, *ALWAYS}))}."
                    )
        return cls(tuple(watching), tuple(deciding))

    @cached_property
    def active(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.monitors or self.policies)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """What is recorded beside the usual columns."""
        signals = tuple(name for monitor in self.monitors for name in monitor.signals)
        return (*signals, "workers") if self.policies else signals

    @cached_property
    def looks_at_parts(self) -> int:
        """In every how many updates the parts of a batch have to be looked at; 0 for never."""
        wanted = [getattr(m, "every", 25) for m in self.monitors if m.looks_at_parts]
        return min(wanted, default=0)

    @cached_property
    def watches_spread(self) -> int:
        """In every how many updates the ranks' spread is wanted even if they do not meet."""
        wanted = [m.every for m in self.monitors if isinstance(m, ParameterSpread) and m.every]
        return min(wanted, default=0)

    def start(self) -> dict[str, Any]:
        """Return ``run.control`` before the first update."""
        if not self.active:
            return {}
        return {
            "monitors": [dict(monitor.start()) for monitor in self.monitors],
            "policies": [dict(policy.start()) for policy in self.policies],
            "signals": {name: math.nan for m in self.monitors for name in m.signals},
            "wish": Wish()._asdict(),
        }

    def describe(self) -> list[str]:
        """Return what a saved state must have been made with to go on; functions have no name."""
        pieces: Sequence[object] = (*self.monitors, *self.policies)
        return ["function" if isinstance(p, FunctionPolicy) else repr(p) for p in pieces]

    def check(self, setting: Setting) -> None:
        """Say before training what cannot be known."""
        for monitor in self.monitors:
            why = monitor.undefined(setting)
            if why is not None:
                raise UnsupportedError(f"{type(monitor).__name__} {why}.")

    # -- around an update -------------------------------------------------------------------------

    def plan(
        self,
        run: Run,
        choice: Choice,
        *,
        max_batch_size: int | None,
        base_lr: float,
        momentum: float,
        ranks: int,
        period: float = math.nan,
    ) -> Plan:
        """Ask the policies before an update; nothing is remembered before :meth:`observe`."""
        wish = Wish(**run.control["wish"])
        signals = Signals(
            {
                **run.control["signals"],
                "update": float(run.update),
                "epoch": float(run.epoch),
                "examples": float(run.examples),
                "n_examples": math.nan if run.n_examples is None else float(run.n_examples),
                "loss": math.nan if run.last_loss is None else run.last_loss,
                "grad_norm": math.nan if run.last_grad_norm is None else run.last_grad_norm,
                "batch_size": choice.batch_size if wish.batch_size is None else wish.batch_size,
                "lr": base_lr * wish.lr_scale,
                "momentum": momentum if wish.momentum is None else wish.momentum,
                "ranks": float(ranks),
                "period": period if wish.period is None else float(wish.period),
            }
        )
        decision, states = decide_all(self.policies, signals, run.control["policies"])
        if decision != Decision():
            wish = wish.after(decision, base_lr)
        size, scale = choice.batch_size, choice.lr_scale
        if wish.batch_size is not None:
            damping = Damping(wish.batch_size)
            size, scale = cap(damping, max_batch_size=max_batch_size, n_examples=run.n_examples)
        chosen = Choice(size, scale * wish.lr_scale, choice.policy_state)
        return Plan(chosen, wish, [dict(state) for state in states])

    def observe(self, run: Run, seen: Observation, plan: Plan | None) -> None:
        """Take in an update that is done, and let policies remember what they decided for it."""
        before = run.control
        signals: dict[str, float] = dict(before["signals"])
        states: list[Any] = list(before["monitors"])
        for number, monitor in enumerate(self.monitors):
            if monitor.looks_at_parts and not seen.parts:
                continue  # nothing new for it; in one process that is most updates
            values, states[number] = monitor.observe(seen, states[number])
            signals.update(zip(monitor.signals, values, strict=True))
        run.control = {
            "monitors": states,
            "policies": before["policies"] if plan is None else plan.states,
            "signals": signals,
            "wish": before["wish"] if plan is None else plan.wish._asdict(),
        }

    def row(self, run: Run) -> tuple[float, ...]:
        """Return the values of :attr:`columns`."""
        values = tuple(run.control["signals"].values())
        if not self.policies:
            return values
        workers = run.control["wish"]["workers"]
        return (*values, math.nan if workers is None else float(workers))


def fingerprint(choice: Choice, wish: Wish) -> float:
    """Return a small number that differs between ranks that have decided differently.

    Last digits may differ between processors, so that learning rates are compared to six.
    """
    text = f"{choice.batch_size} {choice.lr_scale:.6g} {wish.momentum} {wish.workers} {wish.period}"
    return float(zlib.crc32(text.encode()) % 4096)


def _listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, list | tuple):
        return list(given)
    raise TypeError(
        f"{name} must be a list, even of one. Got {given!r} instead; write {name}=[...]."
    )


def _checked_monitor(monitor: Any) -> Monitor:
    if isinstance(monitor, Monitor):
        return monitor
    hint = f" Pass an instance: {monitor.__name__}()." if isinstance(monitor, type) else ""
    raise TypeError(f"monitors must hold monitors of accelerando.monitor; got {monitor!r}.{hint}")
