"""Comparison: the same updates on few and on many workers, with the knee of the curve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from accelerando._deprecation import warn_deprecated
from accelerando._validation import check, check_integer
from accelerando.cost._plan import Plan, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison:
    """Plans that differ in ``max_workers`` only; the result of :func:`compare`.

    Attributes
    ----------
    plans : tuple of Plan
        The plans, from few workers to many.
    """

    plans: tuple[Plan, ...]

    @property
    def knee(self) -> Plan:
        """The plan with the least product of time and worker-seconds.

        It is the knee of the curve of time against cost. Fewer workers take much more time, and
        more workers cost more than they save. Among equal plans, it is the one with fewest workers.

        References
        ----------
        D. Eager, J. Zahorjan, E. Lazowska, *Speedup versus efficiency in parallel systems*, IEEE
        Trans. Computers 38(3), 1989.
        """
        best = min(p.seconds * p.worker_seconds for p in self.plans)
        return next(p for p in self.plans if p.seconds * p.worker_seconds <= best * (1 + 1e-9))

    def frame(self) -> pd.DataFrame:
        """Return one row per number of workers."""
        return pd.DataFrame(
            [
                {
                    "max_workers": p.setting.max_workers,
                    "peak_workers": p.peak_workers,
                    "updates": p.updates,
                    "seconds": p.seconds,
                    "worker_seconds": p.worker_seconds,
                    "bytes": p.bytes,
                    "price": p.price,
                    "speedup": self.plans[0].seconds / p.seconds if p.seconds else 1.0,
                    "knee": p is self.knee,
                }
                for p in self.plans
            ]
        )

    def sentence(self) -> str:
        """Return time and price of every plan as a sentence.

        Examples
        --------
        >>> from accelerando.cost import compare, plan
        >>> alone = plan(1024, n_examples=1_024_000, max_epochs=10, parameters=1_000_000,
        ...              seconds_per_example=0.001, price_per_worker_hour=0.5,
        ...              network="centralized")
        >>> print(compare(alone, workers=[2, 8]).sentence())
        with 2 workers 86 min for 1.4 $; with 8 workers 23 min for 1.5 $
        """
        return "; ".join(_sentence(p) for p in self.plans)

    def plot(self) -> Figure:
        """Draw the comparison. Deprecated: use :func:`accelerando.plot.plan`."""
        warn_deprecated("Comparison.plot", "Use accelerando.plot.plan(comparison).")
        return draw(self)


def compare(plan: Plan, workers: Iterable[int]) -> Comparison:
    """Return the plans of the same updates for several numbers of workers.

    Parameters
    ----------
    plan : Plan
        The result of :func:`plan` or :func:`replan`; its ``max_workers`` is ignored.
    workers : iterable of int
        Values of ``max_workers``, at least the plan's ``min_workers``.

    Examples
    --------
    >>> from accelerando.cost import compare, plan
    >>> alone = plan(512, n_examples=51_200, max_epochs=1, parameters=1_000_000,
    ...              seconds_per_example=0.001, examples_per_worker=32,
    ...              network="decentralized-moderate")
    >>> found = compare(alone, workers=[1, 2, 4, 8, 16])
    >>> found.frame()["seconds"].round(1).tolist()
    [51.2, 25.7, 12.9, 6.5, 3.3]
    >>> found.knee.setting.max_workers
    16
    """
    counts = sorted(set(workers))
    check(bool(counts), "compare", "workers", "at least one number of workers", counts)
    for count in counts:
        check_integer("compare", "workers", count)
    return Comparison(tuple(plan.on(max_workers=int(count)) for count in counts))


def _sentence(plan: Plan) -> str:
    workers = plan.setting.max_workers
    text = f"with {workers} worker{'s' if workers > 1 else ''} {duration(plan.seconds)}"
    return text if plan.price is None else f"{text} for {money(plan.price)}"


def duration(seconds: float) -> str:
    """Return a duration with its unit, rounded.

    Examples
    --------
    >>> duration(6840), duration(1320), duration(4.21), duration(200_000)
    ('1.9 h', '22 min', '4.2 s', '2.3 days')
    """
    for name, unit, limit in (("s", 1.0, 90), ("min", 60.0, 5400), ("h", 3600.0, 172_800)):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.1f} {name}" if value < 10 or name == "h" else f"{value:.0f} {name}"
    return f"{seconds / 86400:.1f} days"


def money(price: float) -> str:
    """Return a price with about two significant digits.

    Examples
    --------
    >>> money(3.14), money(0.0531), money(1234.5), money(14.1)
    ('3.1 $', '0.053 $', '1,234 $', '14 $')
    """
    if price >= 10:
        return f"{price:,.0f} $"
    return f"{price:.2g} $" if price < 1 else f"{price:.1f} $"
