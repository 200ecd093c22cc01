"""Standing decisions: checked, merged, and held until the next one.

The policies in ``policies=`` decide one after the other, and what they decide holds until they
decide again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from accelerando._decisions import (
    NOTHING,
    PRECISIONS,
    Decision,
    Memories,
    Policy,
    Settings,
    Signals,
    cap,
)
from accelerando._validation import is_number

STREAM, STREAM_ROWS = 64, 2**16  # most of max_batch_size, or rows, that a stream's batch may want


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_finite(value) and value >= 1 and value == int(value)


def _is_share(value: Any) -> bool:
    return _is_finite(value) and 0 <= value < 1


def _are_betas(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_share, value))


_ALLOWED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "batch_size": ("a number above 0", lambda value: _is_finite(value) and value > 0),
    "lr": ("a number of at least 0", lambda value: _is_finite(value) and value >= 0),
    "lr_scale": ("a number of at least 0", lambda value: _is_finite(value) and value >= 0),
    "momentum": ("a number of at least 0 and below 1", _is_share),
    "betas": ("two numbers of at least 0 and below 1", _are_betas),
    "workers": ("an integer of at least 1", _is_count),
    "period": ("an integer of at least 1", _is_count),
    "precision": ("'float32', 'bfloat16' or 'float16'", lambda value: value in PRECISIONS),
}


def checked(decision: Any, policy: object) -> Decision:
    """Return the decision if it can be carried out; raise an error that names the policy if not."""
    if not isinstance(decision, Decision):
        raise TypeError(
            f"A policy returns a Decision or None; {policy!r} returned {decision!r}. Write "
            "Decision(batch_size=...)."
        )
    for name, value in decision.items():
        text, allowed = _ALLOWED[name]
        if not allowed(value):
            raise ValueError(
                f"Decision({name}=...) must be {text}, or None to leave it as it is; {policy!r} "
                f"decided {value!r}."
            )
    return decision


def after(settings: Settings, decision: Decision, base_lr: float) -> Settings:
    """Return the settings that hold after a decision.

    The learning rate is kept as a ratio to `base_lr`, so that schedulers continue to work.
    ``decision.lr_scale`` is not used: factors are kept per policy, in `scales`.

    Examples
    --------
    >>> settings = after(Settings(batch_size=64), Decision(lr=0.2), base_lr=0.1)
    >>> settings.batch_size, settings.lr_scale
    (64, 2.0)
    """
    scale, betas = settings.lr_scale, settings.betas
    if decision.lr is not None:
        scale = float(decision.lr) / base_lr if base_lr > 0 else 1.0
    if decision.betas is not None:
        betas = (float(decision.betas[0]), float(decision.betas[1]))
    elif decision.momentum is not None and betas is not None:
        betas = (float(decision.momentum), betas[1])
    return Settings(
        settings.batch_size if decision.batch_size is None else float(decision.batch_size),
        scale,
        settings.scales,
        settings.momentum if decision.momentum is None else float(decision.momentum),
        betas,
        settings.workers if decision.workers is None else int(decision.workers),
        settings.period if decision.period is None else int(decision.period),
        settings.precision if decision.precision is None else decision.precision,
        settings.base_batch_size,
    )


# -- several policies -----------------------------------------------------------------------------


class Bounds(NamedTuple):
    """Upper bounds of the batch size: the user's maximum, and the rows of the training set."""

    max_batch_size: int | None
    n_examples: int | None

    def within(self, decision: Decision) -> Decision:
        """Return the decision with a size that exists; past it, rates that follow run away."""
        if decision.batch_size is None:
            return decision
        most = STREAM_ROWS if self.max_batch_size is None else STREAM * self.max_batch_size
        most = max(1, most if self.n_examples is None else self.n_examples)
        return decision._replace(batch_size=float(min(max(1, decision.batch_size), most)))

    def seen(self, decision: Decision) -> dict[str, float]:
        """Return the signals that a decision changes for the policies after it."""
        seen, wanted = momenta(decision.momentum, decision.betas), decision.batch_size
        if wanted is not None:
            caps = {"max_batch_size": self.max_batch_size, "n_examples": self.n_examples}
            seen |= {"batch_size": float(cap(wanted, 1.0, **caps)[0]), "wanted_batch_size": wanted}
        if decision.lr is not None:
            seen["lr"] = decision.lr
        if decision.period is not None:
            seen["period"] = float(decision.period)
        return seen


def momenta(momentum: float | None, betas: tuple[float, float] | None) -> dict[str, float]:
    """Return the signals that a decided momentum and decided betas change."""
    if betas is not None:
        return {"momentum": float(betas[0]), "beta2": float(betas[1])}
    return {} if momentum is None else {"momentum": float(momentum)}


def ask_standing(
    policies: Sequence[Policy],
    known: Mapping[str, float],
    size: int,
    bounds: Bounds,
    memories: Memories,
    settings: Settings,
    base_lr: float,
) -> tuple[Settings, list[dict[str, Any]]]:
    """Ask one standing policy after the other; each sees what those before it decided.

    Where two decide the same setting the later one wins; of workers the smaller number does.
    """
    if settings.batch_size is None:
        sizes = {"batch_size": float(size), "wanted_batch_size": float(size)}
    else:  # the data set may be another one since it was decided
        held = bounds.within(Decision(settings.batch_size))
        settings = settings._replace(batch_size=held.batch_size)
        sizes = bounds.seen(held)
    signals = Signals._of({**known, **sizes})
    merged, scales, states = NOTHING, settings.scales, []
    asked = zip(policies, memories.policies[1:], strict=True)
    for number, (policy, state) in enumerate(asked):
        decision, remembered = policy.decide(signals, state)
        states.append(dict(remembered))
        if decision is None:
            continue
        decision = bounds.within(checked(decision, policy))
        if decision.lr_scale is not None:
            factors = list(scales or [1.0] * len(policies))
            factors[number] = float(decision.lr_scale)
            scales = tuple(factors)
        new = dict(decision.items())
        if merged.workers is not None and "workers" in new:
            new["workers"] = min(merged.workers, new["workers"])
        merged = merged._replace(**new)
        seen = bounds.seen(decision)
        signals = signals.but(**seen) if seen else signals
    if merged != NOTHING:
        settings = after(settings, merged, base_lr)._replace(scales=scales)
    return settings, states
