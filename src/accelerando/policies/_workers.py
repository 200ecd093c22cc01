"""How many workers pay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from accelerando.monitor import Monitor, Throughput
from accelerando.policies._decision import Decision, Signals
from accelerando.policies._policy import Policy, State, check_number


@dataclass(frozen=True)
class WorkersForThroughput(Policy):
    r"""Add workers as long as each new one brings a good part of what one worker brought so far.

    Going from :math:`m` ranks with :math:`v_m` examples per second to :math:`n`, the efficiency of
    the new ones is

    .. math:: \frac{(v_n - v_m) / (n - m)}{v_m / m}.

    If it falls below `efficiency`, training goes back to :math:`m` ranks and stays there until the
    batch has doubled. The number is an upper bound: the batch has to be worth that many ranks, too
    (``examples_per_worker``).

    Parameters
    ----------
    most : int
        The most workers to try.
    efficiency : float
        The least efficiency of new workers.
    dwell : int
        Updates over which a number of ranks is measured.
    first : int
        With how many to begin.

    Examples
    --------
    >>> from accelerando.policies import Signals, WorkersForThroughput
    >>> policy = WorkersForThroughput(most=8, dwell=10)
    >>> state, asked = policy.start(), []
    >>> for update, ranks, speed in [(0, 1, 1000.0), (10, 1, 1000.0), (12, 2, 1900.0),
    ...                              (22, 2, 1900.0), (24, 4, 2000.0), (34, 4, 2000.0)]:
    ...     signals = Signals({"update": update, "ranks": ranks, "batch_size": 256,
    ...                        "examples_per_second": speed})
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
        check_number(self, "most", self.most)
        check_number(self, "efficiency", self.efficiency, most=1.0)
        check_number(self, "dwell", self.dwell)
        check_number(self, "first", self.first)

    def monitors(self) -> tuple[Monitor, ...]:
        return (Throughput(),)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        update, ranks = int(signals["update"]), int(signals["ranks"])
        size, speed = signals["batch_size"], signals["examples_per_second"]
        if not state or size >= 2 * state["size"] or size < state["size"]:
            start = min(self.first, self.most) if not state else ranks
            fresh = {"size": size, "ranks": ranks, "since": update, "before": 0, "speed": 0.0}
            return Decision(workers=start), {**fresh, "settled": 0}
        if ranks != state["ranks"]:
            return None, {**state, "ranks": ranks, "since": update}
        if state["settled"] or math.isnan(speed) or update - state["since"] < self.dwell:
            return None, state
        before = state["before"]
        if before and ranks > before:
            gained = (speed - state["speed"]) / (ranks - before) / (state["speed"] / before)
            if gained < self.efficiency:
                return Decision(workers=int(before)), {**state, "settled": 1}
        if ranks == before or ranks >= self.most:  # nobody came, or all are there
            return None, {**state, "settled": int(ranks >= self.most)}
        wanted = min(self.most, 2 * ranks)
        return Decision(workers=wanted), {**state, "before": ranks, "speed": speed}
