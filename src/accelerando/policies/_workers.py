"""Number of ranks: add ranks as long as they pay.

:func:`ladder` is the one algorithm for ``max_workers="auto"``, ``replicas="auto"`` and
:class:`WorkersForThroughput`: double the ranks, measure, and go back when a step did not pay. The
three differ in what they measure and in what it means to pay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from accelerando._decisions import Decision, Policy, Signals, State
from accelerando._validation import check_integer, check_number
from accelerando.monitor import Monitor, Throughput


class Step(NamedTuple):
    """Advice of :func:`ladder`.

    Attributes
    ----------
    ranks : int
        The number of ranks to continue with.
    limit : int or None
        The largest number of ranks that pays; None while that is not known.
    """

    ranks: int
    limit: int | None = None


def ladder(
    measured: Mapping[int, float], ranks: int, wanted: int, pays: Callable[[int, int], bool]
) -> Step:
    """Return the next step in the search for the number of ranks that pays.

    Parameters
    ----------
    measured : mapping from int to float
        A measurement for each number of ranks that was tried with the present batch size.
    ranks : int
        The number of ranks that train now.
    wanted : int
        The largest number of ranks that may be tried.
    pays : callable
        ``pays(fewer, more)`` returns True if the step between two measured numbers of ranks paid.

    Examples
    --------
    >>> seconds = {1: 0.010}
    >>> faster = lambda fewer, more: seconds[more] <= 0.95 * seconds[fewer]
    >>> ladder(seconds, ranks=1, wanted=4, pays=faster)
    Step(ranks=2, limit=None)
    >>> seconds[2] = 0.012
    >>> ladder(seconds, ranks=2, wanted=4, pays=faster)
    Step(ranks=1, limit=1)
    """
    if ranks not in measured:
        return Step(min(wanted, max(1, ranks)))
    fewer = max((n for n in measured if n < ranks), default=None)
    if fewer is not None and not pays(fewer, ranks):
        return Step(min(wanted, fewer), fewer)
    return Step(min(wanted, 2 * ranks))


@dataclass(frozen=True)
class SpeedTrials:
    """Durations of an update by the number of ranks, for ``"auto"`` numbers of ranks.

    A step pays if it saves at least the share `worth` of the duration. All durations belong to
    about one batch size: they are dropped, and the search starts again, when the batch has doubled
    or become smaller.

    Examples
    --------
    >>> trials = SpeedTrials().observe(ranks=1, batch_size=64, seconds=0.010)
    >>> trials.advise(ranks=1, wanted=4)
    Step(ranks=2, limit=None)
    >>> trials = trials.observe(ranks=2, batch_size=64, seconds=0.012)
    >>> trials.advise(ranks=2, wanted=4), trials.settled(ranks=2, wanted=4).limit
    (Step(ranks=1, limit=1), 1)
    """

    worth: float = 0.05
    batch_size: int = 0
    seconds: Mapping[int, float] = field(default_factory=dict)
    limit: int | None = None

    def observe(self, ranks: int, batch_size: int, seconds: float) -> SpeedTrials:
        """Return the trials after another measurement of the usual duration of an update."""
        if batch_size >= 2 * self.batch_size or batch_size < self.batch_size:
            return SpeedTrials(self.worth, batch_size, {ranks: seconds})
        measured = {**self.seconds, ranks: seconds}
        return SpeedTrials(self.worth, self.batch_size, measured, self.limit)

    def advise(self, ranks: int, wanted: int) -> Step:
        """Return the number of ranks to continue with."""
        if self.limit is not None:
            return Step(min(wanted, self.limit), self.limit)
        return ladder(self.seconds, ranks, wanted, self._pays)

    def settled(self, ranks: int, wanted: int) -> SpeedTrials:
        """Return the trials with the limit that :meth:`advise` found, if it found one."""
        limit = self.advise(ranks, wanted).limit
        return SpeedTrials(self.worth, self.batch_size, self.seconds, limit)

    def _pays(self, fewer: int, more: int) -> bool:
        return not self.seconds[more] > (1.0 - self.worth) * self.seconds[fewer]


@dataclass(frozen=True)
class WorkersForThroughput(Policy):
    r"""Add workers as long as each new one brings most of the throughput that one has had so far.

    From :math:`m` ranks with :math:`v_m` examples per second to :math:`n`, the efficiency of the
    new ones is

    .. math:: \frac{(v_n - v_m) / (n - m)}{v_m / m}.

    If it falls below `efficiency`, training returns to :math:`m` ranks and keeps them until the
    batch has doubled. The number is an upper bound: the batch may allow fewer ranks
    (``examples_per_worker``).

    Parameters
    ----------
    most : int
        The largest number of workers to try.
    efficiency : float
        The smallest efficiency of new workers that pays.
    dwell : int
        Updates over which a number of ranks is measured.
    first : int
        The number of workers to begin with.

    Examples
    --------
    >>> from accelerando.policies import Signals, WorkersForThroughput
    >>> policy = WorkersForThroughput(most=8, dwell=10)
    >>> state, asked = policy.start(), []
    >>> for update, ranks, speed in [(0, 1, 1000.0), (10, 1, 1000.0), (12, 2, 1900.0),
    ...                              (22, 2, 1900.0), (24, 4, 2000.0), (34, 4, 2000.0)]:
    ...     signals = Signals.known(update=update, ranks=ranks, wanted_batch_size=256,
    ...                             examples_per_second=speed)
    ...     decision, state = policy.decide(signals, state)
    ...     asked.append(decision and decision.workers)
    >>> asked
    [1, 2, None, 4, None, 2]
    """

    most: int = 8
    efficiency: float = 0.7
    dwell: int = 50
    first: int = 1

    needs: ClassVar[tuple[str, ...]] = ("examples_per_second",)

    def __post_init__(self) -> None:
        check_integer(self, "most", self.most)
        check_number(self, "efficiency", self.efficiency, above=0, maximum=1)
        check_number(self, "dwell", self.dwell, above=0)
        check_integer(self, "first", self.first)

    def monitors(self) -> tuple[Monitor, ...]:
        return (Throughput(),)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        update, ranks = int(signals["update"]), int(signals["ranks"])
        size, speed = signals["wanted_batch_size"], signals["examples_per_second"]
        if not state or size >= 2 * state["size"] or size < state["size"]:
            start = min(self.first, self.most) if not state else ranks
            fresh = {"size": size, "ranks": ranks, "since": update, "before": 0, "speed": 0.0}
            return Decision(workers=start), {**fresh, "settled": 0}
        if ranks != state["ranks"]:
            return None, {**state, "ranks": ranks, "since": update}
        if state["settled"] or math.isnan(speed) or update - state["since"] < self.dwell:
            return None, state
        before = int(state["before"])
        measured = {ranks: speed} if before == 0 else {before: state["speed"], ranks: speed}
        step = ladder(measured, ranks, self.most, lambda m, n: self._pays(m, n, measured))
        if step.limit is not None:
            return Decision(workers=step.limit), {**state, "settled": 1}
        if ranks == before or ranks >= self.most:  # no worker has joined, or all have
            return None, {**state, "settled": int(ranks >= self.most)}
        return Decision(workers=step.ranks), {**state, "before": ranks, "speed": speed}

    def _pays(self, fewer: int, more: int, speeds: Mapping[int, float]) -> bool:
        gained = (speeds[more] - speeds[fewer]) / (more - fewer)
        return gained / (speeds[fewer] / fewer) >= self.efficiency
