"""The number of ranks that should train: bounds with reasons, of which the tightest decides.

Pure functions of plain values: no estimator, no cluster, no clock. Under all-reduce the batch size
bounds the ranks. Under local SGD each rank has its own batch, and the workers of the cluster, the
replicas that were asked for, or the measured throughput bound them. Policies, the rows and the
chunks of the data bound both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from accelerando.policies._workers import SpeedTrials

_NO_BOUND = 10**6


def plural(count: int, word: str) -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> plural(1, "rank"), plural(2, "rank")
    ('1 rank', '2 ranks')
    """
    return f"{count} {word}{'s' * (count != 1)}"


class Bound(NamedTuple):
    """A number of ranks, and why not more."""

    ranks: int
    why: str


def ranks_for(batch_size: int, examples_per_worker: int, fewest: int, most: int) -> int:
    """Return clip(⌈batch_size / examples_per_worker⌉, fewest, most) [1]_.

    References
    ----------
    .. [1] Sievert, "Improving the convergence of SGD through adaptive batch sizes" and its
       implementation on Dask: the number of workers grows with the batch.

    Examples
    --------
    >>> ranks_for(640, examples_per_worker=128, fewest=1, most=40)
    5
    """
    return max(1, min(most, max(fewest, math.ceil(batch_size / examples_per_worker))))


def tightest(bounds: list[Bound], fewest: int) -> Bound:
    """Return the bound that decides how many ranks train.

    Examples
    --------
    >>> tightest([Bound(5, "a batch of 640"), Bound(2, "a policy allows 2")], fewest=1)
    Bound(ranks=2, why='a policy allows 2')
    >>> tightest([Bound(1, "a batch of 64")], fewest=3)
    Bound(ranks=3, why='min_workers=3')
    """
    tight = min(bounds, key=lambda bound: bound.ranks)
    return tight if tight.ranks >= fewest else Bound(fewest, f"min_workers={fewest}")


# -- the decision ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """Limits on the number of ranks that the user set.

    Attributes
    ----------
    examples_per_worker, min_workers, max_workers
        Parameters of the estimator.
    averages : bool
        Whether ranks have replicas (local SGD).
    replicas : int, "auto" or None
        The number of replicas that the strategy wants; None for as many as there are workers.
    min_rows : int
        The fewest rows of a batch: 2 with BatchNorm, else 1.
    chunks : int or None
        Chunks of a Dask array that have rows: no two ranks share one.
    """

    examples_per_worker: int = 1
    min_workers: int = 1
    max_workers: int | Literal["auto"] | None = None
    averages: bool = False
    replicas: int | Literal["auto"] | None = None
    min_rows: int = 1
    chunks: int | None = None

    @property
    def tries(self) -> bool:
        """Whether the number of ranks is found by trying."""
        return self.max_workers == "auto" or self.replicas == "auto"


@dataclass(frozen=True)
class Sizing:
    """Decide how many ranks should train.

    Attributes
    ----------
    limits : Limits
        What the user asked for.
    batch_size : int
        The size of the next update.
    allowed : int or None
        The number of ranks that policies allow.
    n_examples : int or None
        Training rows, if known.
    trials : SpeedTrials or None
        The measured durations, if the number of ranks is found by trying. None before the first.

    Examples
    --------
    >>> sizing = Sizing(Limits(examples_per_worker=64), batch_size=256)
    >>> sizing.bound(members=0, workers=8)
    Bound(ranks=4, why='batch 256, 64 rows per rank')
    """

    limits: Limits
    batch_size: int
    allowed: int | None = None
    n_examples: int | None = None
    trials: SpeedTrials | None = None

    def worth(self, batch_size: int, workers: int) -> Bound:
        """Return the number of ranks that a batch of this size is worth.

        `workers` is the number of workers of the cluster.
        """
        limits = self.limits
        most = limits.max_workers if isinstance(limits.max_workers, int) else _NO_BOUND
        if not limits.averages:
            rows = limits.examples_per_worker
            ranks = ranks_for(batch_size, rows, limits.min_workers, most)
            return Bound(ranks, f"batch {batch_size}, {rows} rows per rank")
        # Each rank has its own batches: more ranks are more rows in an update.
        if isinstance(limits.replicas, int):
            wanted = limits.replicas
            return Bound(min(wanted, most), f"{wanted} replicas are wanted")
        if most < _NO_BOUND:
            return Bound(most, f"max_workers={most}")
        found = max(1, workers)
        return Bound(found, f"the cluster has {plural(found, 'worker')}")

    def bound(self, members: int, workers: int) -> Bound:
        """Return the tightest of all bounds.

        Parameters
        ----------
        members : int
            Ranks that train now.
        workers : int
            Workers of the cluster.
        """
        limits = self.limits
        worth = self.worth(self.batch_size, workers)
        bounds = [worth]
        if limits.tries:
            pay = self._advise(members, worth.ranks)
            bounds.append(Bound(pay, f"more than {pay} are not known to pay"))
        if self.allowed is not None:
            bounds.append(Bound(self.allowed, f"a policy allows {self.allowed}"))
        fewest = limits.min_workers
        if limits.averages and self.n_examples is not None:
            rows = self.n_examples
            bounds.append(Bound(max(1, rows // limits.min_rows), f"X has {rows} rows"))
            fewest = min(fewest, bounds[-1].ranks)
        if limits.chunks is not None:
            chunks = limits.chunks
            bounds.append(Bound(chunks, f"X has {plural(chunks, 'chunk')} with rows"))
            fewest = min(fewest, chunks)
        return tightest(bounds, fewest)

    def ahead(self, next_batch_size: int | None, workers: int) -> int:
        """Return the ranks that a schedule needs in the next epoch; 0 if that is not known."""
        if self.limits.tries:
            return 0
        ranks = self.worth(max(self.batch_size, next_batch_size or 0), workers).ranks
        if self.allowed is not None:
            ranks = min(ranks, max(self.allowed, self.limits.min_workers))
        return ranks

    def observe(
        self, ranks: int, rows: int, seconds: float, workers: int
    ) -> tuple[Sizing, str | None]:
        """Record the usual duration of an update.

        Returns
        -------
        sizing : Sizing
            With what was measured.
        found : str or None
            A sentence if that settles the number of ranks.
        """
        if not self.limits.tries:
            return self, None
        trials = _no_trials() if self.trials is None else self.trials
        before = trials.limit
        if not self.limits.averages:
            trials = trials.observe(ranks, rows, seconds)
        else:  # an update has one batch per rank: compare the time per batch
            trials = trials.observe(ranks, rows // ranks, seconds / ranks)
        trials = trials.settled(ranks, self.worth(rows, workers).ranks)
        after, most = replace(self, trials=trials), trials.limit
        if most is None or most == before:
            return after, None
        if not self.limits.averages:
            return after, (
                f"Batch {rows}: an update takes {seconds * 1e3:.1f} ms on {ranks} ranks, "
                f"{trials.seconds[most] * 1e3:.1f} ms on {most}; training continues with {most}."
            )
        speeds = ", ".join(f"{n}: {speed:.0f}" for n, speed in after.throughput())
        return after, (
            f"Rows per second by the number of replicas - {speeds}; training continues with {most}."
        )

    def throughput(self) -> list[list[float]]:
        """Return the measured rows per second of all replicas, by the number of replicas."""
        trials = self.trials
        if trials is None:
            return []
        return [[n, trials.batch_size / trials.seconds[n]] for n in sorted(trials.seconds)]

    def _advise(self, members: int, wanted: int) -> int:
        """Return the number of ranks that is known to pay, or is worth a try."""
        if self.trials is None:
            return min(wanted, max(1, members))
        return self.trials.advise(members, wanted).ranks


def _no_trials() -> SpeedTrials:
    # Only a fit that looks for the number of ranks needs the policies.
    from accelerando.policies._workers import SpeedTrials

    return SpeedTrials()
