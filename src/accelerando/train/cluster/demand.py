"""How many ranks should train, and why: what the batch, the speed, policies and the data say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerando.sync import Averaging
from accelerando.train.cluster.roster import Bound, Knee, first_batch, planned, ranks_for, tightest
from accelerando.train.loop import Training

_NO_BOUND = 10**6


class Demand:
    """Decide how many ranks should train.

    Parameters
    ----------
    net : estimator
        With the settings.
    training : Training
        With the policy and the position.
    chunks : int or None
        Into how many the data are divided, where no two ranks share one.
    workers : callable
        Returns how many the cluster has.
    """

    def __init__(
        self, net: Any, training: Training, chunks: int | None, workers: Callable[[], int]
    ) -> None:
        self.net, self.training, self.chunks, self.workers = net, training, chunks, workers
        self.batch_size = first_batch(training.policy, training.run, training.max_batch_size)
        wish = training.run.control.get("wish", {})
        self.allowed: int | None = wish.get("workers")  # what policies have decided
        self.knee = Knee()
        strategy = net.strategy_
        self.averages = isinstance(strategy, Averaging)
        self.replicas = strategy.ranks_wanted() if isinstance(strategy, Averaging) else None

    @property
    def tries(self) -> bool:
        """Whether the number of ranks is found by trying."""
        return bool(self.net.max_workers == "auto" or self.replicas == "auto")

    def _worth(self, batch_size: int) -> Bound:
        """Return how many ranks a batch is worth."""
        net = self.net
        most = net.max_workers if isinstance(net.max_workers, int) else _NO_BOUND
        if not self.averages:
            rows = net.examples_per_worker
            ranks = ranks_for(batch_size, rows, net.min_workers, most)
            return Bound(ranks, f"batch {batch_size}, {rows} rows per rank")
        # Each rank has batches of its own: more ranks are more rows in an update.
        if isinstance(self.replicas, int):
            return Bound(min(self.replicas, most), f"{self.replicas} replicas are wanted")
        if most < _NO_BOUND:
            return Bound(most, f"max_workers={most}")
        found = max(1, self.workers())
        return Bound(found, f"the cluster has {found} worker{'s' * (found != 1)}")

    def bound(self, members: int) -> Bound:
        """Return the tightest of what the batch is worth, what pays, and what policies allow.

        `members` are the ranks that train now.
        """
        net, training = self.net, self.training
        worth = self._worth(self.batch_size)
        bounds = [worth]
        if self.tries:
            pay = self.knee.advise(members, worth.ranks)
            bounds.append(Bound(pay, f"more than {pay} are not known to pay"))
        if self.allowed is not None:
            bounds.append(Bound(self.allowed, f"a policy allows {self.allowed}"))
        fewest = int(net.min_workers)
        examples = training.run.n_examples
        if self.averages and examples is not None:
            least = training.fewest_rows
            bounds.append(Bound(max(1, examples // least), f"X has {examples} rows"))
            fewest = min(fewest, bounds[-1].ranks)
        if self.chunks is not None:
            chunks = self.chunks
            bounds.append(Bound(chunks, f"X has {chunks} chunk{'s' * (chunks != 1)} with rows"))
            fewest = min(fewest, chunks)
        return tightest(bounds, fewest)

    def ahead(self) -> int:
        """Return the ranks that a schedule wants in the next epoch; 0 where that is not known."""
        training, run = self.training, self.training.run
        if self.tries:
            return 0
        coming = 0
        if run.epoch + 1 < run.until:
            coming = planned(training.policy, run, training.max_batch_size, run.epoch + 1)
        ranks = self._worth(max(self.batch_size, coming)).ranks
        if self.allowed is not None:
            ranks = min(ranks, max(self.allowed, int(self.net.min_workers)))
        return ranks

    def begin_epoch(self) -> None:
        """Take up the batch size that a schedule has for this epoch."""
        training, run = self.training, self.training.run
        scheduled = planned(training.policy, run, training.max_batch_size, run.epoch)
        if run.update and scheduled:
            self.batch_size = scheduled

    def learn_speed(self, ranks: int, rows: int, seconds: float) -> str | None:
        """Take in what an update of so many rows takes; return what came out if that is settled."""
        if not self.tries:
            return None
        before = self.knee.most
        if not self.averages:
            self.knee.observe(ranks, rows, seconds)
        else:  # an update has as many batches as ranks: what counts is the time of one
            self.knee.observe(ranks, rows // ranks, seconds / ranks)
        self.knee.advise(ranks, self._worth(rows).ranks)
        most = self.knee.most
        if most is None or most == before:
            return None
        if not self.averages:
            return (
                f"Batch {rows}: an update takes {seconds * 1e3:.1f} ms on {ranks} ranks, "
                f"{self.knee.seconds(most) * 1e3:.1f} ms on {most}; training goes on with {most}."
            )
        told = ", ".join(f"{n}: {speed:.0f}" for n, speed in self.throughput())
        return f"Rows per second by the number of replicas - {told}; training goes on with {most}."

    def throughput(self) -> list[list[float]]:
        """Return what was measured of ranks with batches of their own: rows per second of all."""
        rows = self.knee.batch_size
        return [[ranks, rows / self.knee.seconds(ranks)] for ranks in self.knee.measured]
