"""Asking the cluster for workers, and giving them back."""

from __future__ import annotations

import contextlib
from typing import Any


class Scaling:
    """What a cluster can be asked for.

    Only a cluster that the client belongs to can be asked, and only up to a number of workers that
    the user has named. One that adapts by itself gets another minimum; any other one is scaled.
    Afterwards it is as large as it was before.

    Parameters
    ----------
    cluster : distributed cluster object or None
        ``client.cluster``.
    most : int or None
        ``max_workers``; None asks for nothing.
    """

    def __init__(self, cluster: Any, most: int | None) -> None:
        self.cluster = cluster
        self.most = most
        self.asked = 0
        adaptive = getattr(cluster, "_adaptive", None)
        self.adaptive = adaptive
        # What the cluster was told to have. It may have less for a moment: after a worker's loss.
        planned = getattr(cluster, "plan", None)
        self._before: int | None = None if planned is None else len(planned)
        if adaptive is not None:
            self._before = adaptive.minimum

    @property
    def possible(self) -> bool:
        """Whether asking can help."""
        return self.most is not None and (
            self.adaptive is not None
            or (
                callable(getattr(self.cluster, "scale", None))
                and getattr(self.cluster, "_supports_scaling", True)
            )
        )

    def ask(self, wanted: int, present: int, missing: int) -> None:
        """Ask for workers if there are too few, once per number."""
        if self.adaptive is not None and wanted > self.asked:
            # Adaptive scaling counts waiting tasks, and ranks are pinned to workers that exist.
            self.adaptive.minimum = max(self._before or 0, min(wanted, self.adaptive.maximum))
            self.asked = wanted
        elif missing > 0 and self.possible and self.asked != wanted and self.adaptive is None:
            if not self.asked:
                self._before = max(self._before or 0, present)
            self.asked = wanted
            self.cluster.scale(max(self._before or 0, present + missing))

    def shrink(self, wanted: int) -> None:
        """Give workers back that are not needed any more."""
        if not self.asked:
            return
        self.asked = wanted
        if self.adaptive is not None:
            self.adaptive.minimum = max(self._before or 0, wanted)
        else:
            self.cluster.scale(max(self._before or 0, wanted))

    def restore(self) -> None:
        """Make the cluster as large as it was."""
        if not self.asked:
            return
        self.asked = 0
        with contextlib.suppress(Exception):  # the user may have closed it meanwhile
            if self.adaptive is not None:
                self.adaptive.minimum = self._before
            else:
                self.cluster.scale(self._before)
