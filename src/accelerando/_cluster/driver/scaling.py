"""The size of a cluster: more workers while ranks need them, and the size of before afterwards."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

from accelerando._cluster.driver.state import RestoreCluster, ScaleCluster, ShrinkCluster
from accelerando._dask import adaptive_of, can_scale
from accelerando.exceptions import UnsupportedError

_AGAIN_SECONDS = 5.0  # between two requests for the same number
_ASKED = (
    "The cluster was asked for {} workers. Look at its queue and into the logs of its jobs: they "
    "wait longer than worker_timeout, or end before a worker registers."
)
_UNASKED = " Without a number as max_workers, fit asks for none: pass one, or call cluster.scale."


class ClusterScaling:
    """Ask a cluster for workers, and give them back.

    Only a cluster that the client belongs to can be asked, and only up to a number of workers that
    the user named. An adaptive cluster gets another minimum; any other one is scaled. Afterwards it
    has the size that it had before. Without a number the cluster is left alone, adaptive or not.

    Parameters
    ----------
    cluster : distributed cluster object or None
        ``client.cluster``.
    most : int or None
        ``max_workers``; None asks for nothing.
    log : callable
        Receives an event and a sentence if the cluster refuses.
    """

    def __init__(self, cluster: Any, most: int | None, log: Any = lambda *_: None) -> None:
        self.cluster, self.most, self.log = cluster, most, log
        self.asked, self._asked_at, self.refused = 0, -math.inf, ""
        self.adaptive = adaptive_of(cluster)
        # The planned size: after the loss of a worker, the cluster is smaller for a moment.
        planned = getattr(cluster, "plan", None)
        self._before: int | None = None if planned is None else len(planned)
        if self.adaptive is not None:
            self._before = self.adaptive.minimum

    @property
    def possible(self) -> bool:
        """Whether the cluster can be asked."""
        return self.most is not None and can_scale(self.cluster)

    def check(self, present: int) -> None:
        """Refuse to wait for workers that nobody asks for; `present` is the number there are."""
        if self.adaptive is not None and not present and not self.possible and not self._before:
            raise UnsupportedError(
                "The cluster adapts, may have no workers and has none, and max_workers=None or "
                "'auto' asks it for nothing. Pass a number as max_workers, or "
                "cluster.adapt(minimum=1, ...)."
            )

    def execute(self, action: ScaleCluster | ShrinkCluster | RestoreCluster) -> None:
        """Do what the machine has decided."""
        match action:
            case ScaleCluster(wanted, present, missing):
                self.ask(wanted, present, missing)
            case ShrinkCluster(wanted):
                self.shrink(wanted)
            case RestoreCluster():
                self.restore()

    def ask(self, wanted: int, present: int, missing: int) -> None:
        """Ask for workers if there are too few, and again while they are missing.

        A cluster notices after a while that jobs have ended, and starts others when it is asked
        again for the same number. An adaptive one does not ask itself.

        Parameters
        ----------
        wanted : int
            Ranks that should run.
        present : int
            Workers that the cluster has and that ranks can use.
        missing : int
            Ranks for which there is no worker.
        """
        if not self.possible:
            return
        now = time.monotonic()
        again = missing > 0 and now - self._asked_at >= _AGAIN_SECONDS
        if self.adaptive is not None:
            if wanted > self.asked:
                # Adaptive scaling counts waiting tasks, and ranks are pinned to workers that exist.
                self.adaptive.minimum = max(self._before or 0, min(wanted, self.adaptive.maximum))
                self.asked, self._asked_at = wanted, now
            elif again and hasattr(self.cluster, "plan"):
                self._asked_at = now
                self._scale(len(self.cluster.plan))  # as adaptive scaling does
        elif missing > 0 and (self.asked != wanted or again):
            if not self.asked:
                self._before = max(self._before or 0, present)
            self.asked, self._asked_at = wanted, now
            self._scale(max(self._before or 0, present + missing))

    def _scale(self, number: int) -> None:
        """Scale, or use a cluster that refuses (a quota, a server that is away) as it is."""
        before, self.refused = self.refused, ""
        try:
            self.cluster.scale(number)
        except Exception as error:  # of the program that starts workers
            why = f"{type(error).__name__}: {error}".rstrip(".")
            self.refused = f"The cluster cannot be scaled to {number} workers: {why}."
        if self.refused not in ("", before):
            self.log("refused", self.refused)

    def shrink(self, wanted: int) -> None:
        """Give back workers that were asked for and are not needed any more."""
        if not self.asked:
            return
        self.asked = wanted
        if self.adaptive is not None:
            self.adaptive.minimum = max(self._before or 0, wanted)
        else:
            self._reduce_to(max(self._before or 0, wanted))

    def restore(self) -> None:
        """Give the cluster the size that it had before."""
        if not self.asked:
            return
        self.asked = 0
        with contextlib.suppress(Exception):  # the user may have closed it
            if self.adaptive is not None:
                self.adaptive.minimum = self._before
            else:
                self._reduce_to(self._before or 0)

    def _reduce_to(self, number: int) -> None:
        """Scale down only: to be asked for its own size makes a cluster start lost jobs again."""
        planned = getattr(self.cluster, "plan", None)
        if planned is None or len(planned) > number:
            self._scale(number)


def remark(scaling: ClusterScaling | None, cluster: Any, present: int) -> str:
    """Return where to look if a cluster has no worker, with a blank before it, or nothing."""
    if present:
        return ""
    if scaling is not None and scaling.asked:
        return f" {scaling.refused or _ASKED.format(scaling.asked)}"
    unnamed = scaling is None or scaling.most is None
    return _UNASKED if unnamed and can_scale(cluster) else ""
