"""Goodput: batch size, ranks and learning rate that together train fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from accelerando._decisions import Decision, Policy, Signals, State
from accelerando._validation import check, check_choice, check_integer, check_number
from accelerando.monitor import GradientNoiseScale, Monitor, Throughput

_KEEP = 0.95  # of the weight of earlier measurements, per measurement
_PRIOR = 1e-4  # weight of what is assumed, in measurements
_TERMS = 4
_RETRY = 10  # pauses after which workers that did not come are asked for again
_STEPS = 6  # batch sizes that are considered per octave


class Choice(NamedTuple):
    """A batch size and a number of ranks, with the goodput that is expected of them."""

    batch_size: float
    ranks: int
    goodput: float


def _geometric(most: int) -> list[int]:
    """Return numbers up to `most`: all small ones, and about eight per octave of large ones."""
    found, count = [], 1
    while count < most:
        found.append(count)
        count += max(1, count // 8)
    return [*found, most]


def terms(batch_size: float, ranks: int) -> tuple[float, ...]:
    r"""Return what the coefficients of the duration of an update are multiplied with.

    The model of :mod:`accelerando.cost`: a fixed part, a part per row of the largest share, and a
    ring all-reduce with :math:`2 (P - 1)` messages of :math:`n / P` bytes.

    >>> terms(64, 4)
    (1.0, 16.0, 3.0, 0.75)
    """
    return 1.0, float(math.ceil(batch_size / ranks)), ranks - 1.0, (ranks - 1.0) / ranks


def fitted(state: State) -> list[float]:
    """Return the coefficients, none of them negative, that fit the measured durations best.

    What the measurements do not tell apart is assumed: half of an update grows with the rows,
    communication is free, and otherwise limited by bandwidth.

    >>> state = {}
    >>> for size, ranks in [(64, 1), (128, 1), (128, 2), (128, 4)] * 20:
    ...     seconds = 0.01 + 0.001 * size / ranks + 0.002 * (ranks - 1)
    ...     state = remembered(state, size, ranks, seconds)
    >>> [round(cost, 3) for cost in fitted(state)]
    [0.01, 0.001, 0.002, 0.0]
    """
    scales = state["scales"]
    normal = [
        [scales[i] * scales[j] * state["normal"][i * _TERMS + j] for j in range(_TERMS)]
        for i in range(_TERMS)
    ]
    right = [scales[i] * state["right"][i] for i in range(_TERMS)]
    for i in range(_TERMS):
        normal[i][i] += _PRIOR
        right[i] += _PRIOR * (0.5 if i < 2 else 0.0)
    best, lowest = [0.0] * _TERMS, math.inf
    for kept in range(1, 2**_TERMS):  # the exact solution: every set of terms that are above zero
        free = [i for i in range(_TERMS) if kept >> i & 1]
        found = _solved([[normal[i][j] for j in free] for i in free], [right[i] for i in free])
        if found is None or min(found) < 0.0:
            continue
        # At a solution the sum of squares is a constant minus this product.
        objective = -sum(value * right[i] for value, i in zip(found, free, strict=True))
        if objective < lowest:
            lowest, best = objective, [0.0] * _TERMS
            for value, i in zip(found, free, strict=True):
                best[i] = value
    return [value * scale for value, scale in zip(best, scales, strict=True)]


def _solved(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Return the solution of some linear equations by elimination; None if they are singular."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) < 1e-12:
            return None
        for k in range(size):
            if k != i:
                share = rows[k][i] / rows[i][i]
                rows[k] = [a - share * b for a, b in zip(rows[k], rows[i], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]


def remembered(
    state: State, batch_size: float, ranks: int, seconds: float
) -> dict[str, list[float]]:
    """Return the normal equations after another measured duration of an update.

    Residuals are relative: a tenth of a short duration counts as much as that of a long one.
    """
    values = terms(batch_size, ranks)
    scales = state.get("scales") or [seconds, seconds / values[1], seconds / 32.0, seconds]
    row = [term / seconds for term in values]
    normal = [_KEEP * value for value in state.get("normal", [0.0] * _TERMS**2)]
    right = [_KEEP * value for value in state.get("right", [0.0] * _TERMS)]
    for i in range(_TERMS):
        right[i] += row[i]
        for j in range(_TERMS):
            normal[i * _TERMS + j] += row[i] * row[j]
    return {"normal": normal, "right": right, "scales": list(scales)}


def efficiency(batch_size: float, noise: float, reference: float) -> float:
    """Return the progress per example, relative to a batch of the reference size.

    >>> efficiency(300, noise=100, reference=100)
    0.5
    """
    return (noise + reference) / (noise + batch_size)


@dataclass(frozen=True)
class Goodput(Policy):
    r"""Batch size, ranks and learning rate that maximize efficiency times throughput.

    .. math::

        \text{goodput}(B, P) = \frac{B}{T(B, P)} \cdot
            \frac{B_\text{noise} + B_0}{B_\text{noise} + B}

    The first factor is examples per second. The duration :math:`T` of an update is fitted while
    training: a fixed part, a part per row of a rank, and a ring all-reduce. The second factor is
    the progress of an example, from the gradient noise scale. Both are re-decided every `dwell`
    updates as noise and durations change. The batch and the number of ranks at most double at a
    time, so that the model is measured before it is trusted further; a change must promise `gain`.

    The learning rate follows the batch by :math:`r = (B_\text{noise} / B_0 + 1) / (B_\text{noise} /
    B + 1)`, the gain of AdaScale, or by its root.

    Pass it in ``policies=``, or as ``batch_size=Goodput(initial=64)``. On a cluster, pass
    ``examples_per_worker=1``, so that the batch leaves the number of ranks to the policy. Durations
    are measured by a clock: two runs may decide differently, a resumed one has the same memory.
    The logger ``accelerando`` says why after each epoch, at level INFO.

    Parameters
    ----------
    initial : int
        Batch size :math:`B_0` of the first updates, for which the learning rate was chosen.
    largest : int
        The largest batch.
    most : int
        The largest number of ranks.
    dwell : int
        Updates between two decisions.
    scaling : {"adascale", "sqrt", None}
        How the learning rate follows: by the gain for SGD, its root for Adam, or not at all.
    gain : float
        The smallest relative improvement for which something is changed.

    References
    ----------
    A. Qiao et al., *Pollux: co-adaptive cluster scheduling for goodput-optimized deep learning*,
    OSDI 2021.

    Examples
    --------
    >>> from accelerando.policies import Goodput, Signals
    >>> policy, state = Goodput(initial=64, largest=4096, most=4), {}
    >>> for update in (0, 50):
    ...     signals = Signals.known(update=update, ranks=1, wanted_batch_size=64, lr=0.1,
    ...                             noise_scale=60.0, noise_scale_low=50.0, update_seconds=0.08)
    ...     decision, state = policy.decide(signals, state)
    >>> decision.workers
    2
    """

    initial: int = 128
    largest: int = 65_536
    most: int = 8
    dwell: int = 50
    scaling: str | None = "adascale"
    gain: float = 0.03

    needs: ClassVar[tuple[str, ...]] = ("noise_scale", "noise_scale_low", "update_seconds")
    occasional: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("initial", "largest", "most", "dwell"):
            check_integer(self, name, getattr(self, name))
        bound = f"an integer of at least initial={self.initial}"
        check(self.largest >= self.initial, self, "largest", bound, self.largest)
        if self.scaling is not None:
            check_choice(self, "scaling", self.scaling, ("adascale", "sqrt"))
        check_number(self, "gain", self.gain, minimum=0)

    def monitors(self) -> tuple[Monitor, ...]:
        return (GradientNoiseScale(), Throughput())

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        update, ranks = int(signals["update"]), max(1, int(signals["ranks"]))
        size, seconds = signals["wanted_batch_size"], signals["update_seconds"]
        if not state:
            return None, {"since": update, "ranks": ranks, "size": size, "factor": 1.0}
        if (ranks, size) != (state["ranks"], state["size"]):  # ranks joined, or left
            return None, {**state, "since": update, "ranks": ranks, "size": size}
        if update - state["since"] < self.dwell or not seconds > 0.0:
            return None, state
        state = {**state, **remembered(state, size, ranks, seconds), "since": update}
        noise = signals["noise_scale"]
        noise = signals["noise_scale_low"] if math.isnan(noise) else noise
        if not 0.0 < noise < math.inf:
            return None, state
        # Workers that did not come may come later.
        if state.get("asked", ranks) > ranks:
            state = {**state, "limit": ranks, "until": update + _RETRY * self.dwell}
        most = state.get("limit", self.most) if update < state.get("until", 0) else self.most
        best = self._best(size, ranks, noise, fitted(state), most)
        factor, changes = self._factor(best.batch_size, noise), {}
        lr = signals["lr"] * factor / state["factor"] if factor != state["factor"] else None
        if (best.batch_size, best.ranks) == (size, ranks):
            if lr is None or abs(math.log(factor / state["factor"])) < self.gain:
                return None, state
        else:
            changes = {"batch_size": best.batch_size, "workers": best.ranks}
        after: dict[str, Any] = {**state, "factor": factor, "reason": self._reason(best, noise)}
        if changes:
            # Ranks change when workers have come.
            after.update(size=best.batch_size, asked=best.ranks)
        return Decision(**changes, lr=lr), after  # type: ignore[arg-type]

    def _best(
        self, size: float, ranks: int, noise: float, costs: Sequence[float], most: int
    ) -> Choice:
        """Return the next step towards the best batch size and number of ranks.

        The best ones may be far away, with nothing better in between: a second rank on a slow
        network pays only with a larger batch.
        """
        present = self._goodput(size, ranks, noise, costs)
        best = Choice(size, ranks, present)
        octaves = math.log2(self.largest / self.initial)
        for count in _geometric(min(self.most, most)):
            for step in range(math.floor(_STEPS * octaves) + 1):
                rows = count * math.ceil(self.initial * 2.0 ** (step / _STEPS) / count)
                rows = min(self.largest, rows)
                found = self._goodput(rows, count, noise, costs)
                if found > best.goodput:
                    best = Choice(float(rows), count, found)
        if best.goodput <= (1.0 + self.gain) * present:
            return Choice(size, ranks, present)
        count = max(-(-ranks // 2), min(2 * ranks, best.ranks))
        rows = math.ceil(max(size / 2.0, min(2.0 * size, best.batch_size)))
        return Choice(float(rows), count, self._goodput(rows, count, noise, costs))

    def _goodput(self, size: float, ranks: int, noise: float, costs: Sequence[float]) -> float:
        parts = zip(costs, terms(size, ranks), strict=True)
        seconds = sum(cost * term for cost, term in parts)
        return size / max(seconds, 1e-12) * efficiency(size, noise, self.initial)

    def _factor(self, size: float, noise: float) -> float:
        """Return the factor of the learning rate for a batch size."""
        if self.scaling is None:
            return 1.0
        gain = (noise / self.initial + 1.0) / (noise / size + 1.0)
        return gain if self.scaling == "adascale" else math.sqrt(gain)

    def _reason(self, best: Choice, noise: float) -> str:
        share = efficiency(best.batch_size, noise, self.initial)
        return (
            f"Goodput chose {best.batch_size:.0f} rows on {best.ranks} ranks: {best.goodput:.4g} "
            f"effective examples per second, of which each is worth {share:.0%} of one in a batch "
            f"of {self.initial} (noise scale {noise:.0f})"
        )
