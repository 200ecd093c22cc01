"""How many ranks, and which: pure decisions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from distributed.comm import get_address_host

from accelerando.batch_size import BatchSizePolicy
from accelerando.train.run import Run


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


class Bound(NamedTuple):
    """A number of ranks, and why not more."""

    ranks: int
    why: str


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


def planned(policy: BatchSizePolicy, run: Run, max_batch_size: int | None, epoch: int) -> int:
    """Return the batch size a schedule plans for a coming epoch; 0 for policies that look first."""
    decided = run.control and run.control["wish"]["batch_size"] is not None
    if not policy.scheduled or decided:
        return 0
    ahead = Run(**{**run.to_json(), "epoch": epoch})
    return ahead.choose(policy, max_batch_size).batch_size


def first_batch(policy: BatchSizePolicy, run: Run, max_batch_size: int | None) -> int:
    """Return the batch size of the next update as far as it is known beforehand."""
    if run.batch_size:
        return run.batch_size
    if policy.measures(run.update) is not None:
        return int(getattr(policy, "initial", 1))
    return run.choose(policy, max_batch_size).batch_size


class Threads(NamedTuple):
    """What Dask gave the workers of a machine, and how many ranks are on it."""

    given: int
    ranks: int

    def each(self, processors: int) -> int:
        """Return how many a rank may use on a machine with so many processors.

        Workers may well have more threads than that: more at work than processors wait for each
        other at every turn.

        Examples
        --------
        >>> Threads(given=4, ranks=2).each(processors=2)
        1
        """
        return max(1, min(self.given, processors) // self.ranks)


def threads_for(
    places: Mapping[str, str], workers: Mapping[str, Mapping[str, Any]]
) -> dict[str, Threads]:
    """Tell each rank which threads it has to divide, and among how many ranks.

    Parameters
    ----------
    places : mapping
        The worker's address for each rank's place.
    workers : mapping
        What Dask knows of each worker of the cluster; if nothing, nobody is told anything.

    Examples
    --------
    >>> workers = {"tcp://10.0.0.1:1": {"nthreads": 1}, "tcp://10.0.0.1:2": {"nthreads": 1}}
    >>> threads_for({"rank-0": "tcp://10.0.0.1:1"}, workers)
    {'rank-0': Threads(given=2, ranks=1)}
    """
    given: Counter[str] = Counter()
    for address, facts in workers.items():
        given[get_address_host(address)] += int(facts.get("nthreads", 1))
    hosts = {place: get_address_host(address) for place, address in places.items()}
    ranks = Counter(hosts.values())
    return {p: Threads(given[host], ranks[host]) for p, host in hosts.items() if given[host]}


class Knee:
    """Find out how many ranks pay, by trying: for ``max_workers="auto"``.

    Each step up is measured at the same batch size before and after. The first step that saves
    less than `worth` of an update's time is taken back, and that is the most from then on, until
    the batch has doubled.
    """

    def __init__(self, worth: float = 0.05) -> None:
        self.worth = worth
        self.most: int | None = None
        self.batch_size = 0
        self._seconds: dict[int, float] = {}

    def observe(self, ranks: int, batch_size: int, seconds: float) -> None:
        """Take in the usual time of an update."""
        if batch_size >= 2 * self.batch_size or batch_size < self.batch_size:
            self.batch_size, self._seconds, self.most = batch_size, {}, None
        self._seconds[ranks] = seconds

    @property
    def measured(self) -> list[int]:
        """The numbers of ranks that were tried."""
        return sorted(self._seconds)

    def seconds(self, ranks: int) -> float:
        """Return what was measured."""
        return self._seconds[ranks]

    def advise(self, ranks: int, wanted: int) -> int:
        """Return with how many ranks to go on.

        Examples
        --------
        >>> knee = Knee()
        >>> knee.observe(ranks=1, batch_size=64, seconds=0.010)
        >>> knee.advise(ranks=1, wanted=4)
        2
        >>> knee.observe(ranks=2, batch_size=64, seconds=0.012)
        >>> knee.advise(ranks=2, wanted=4)
        1
        """
        if self.most is not None or ranks not in self._seconds:
            return min(wanted, self.most or max(1, ranks))
        smaller = [n for n in self._seconds if n < ranks]
        if smaller:
            before = max(smaller)
            if self._seconds[ranks] > (1.0 - self.worth) * self._seconds[before]:
                self.most = before
                return min(wanted, before)
        return min(wanted, 2 * ranks)
