"""What the cluster benchmarks share: a cluster on this machine, and who uses its processors."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from distributed import Client, LocalCluster


@contextlib.contextmanager
def local_cluster(workers: int) -> Iterator[Client]:
    """Start single-thread workers, each a process; yield a client whose ``cluster`` can scale."""
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",  # any port: several clusters may be up
            memory_limit=0,  # what the machine has is enough, and a pause for memory is no result
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        yield client


class OtherLoad:
    """How many processors other people's processes have used since this was made."""

    def __init__(self) -> None:
        self.before = self._seconds()
        self.began = time.perf_counter()

    def taken(self) -> float:
        """Return processors used by neither this process nor its children; 0 if not known."""
        busy, own = (now - b for now, b in zip(self._seconds(), self.before, strict=True))
        return max(0.0, (busy - own) / (time.perf_counter() - self.began))

    def _seconds(self) -> tuple[float, float]:
        """Return the seconds that all processors were busy, and those of our processes."""
        try:
            line = Path("/proc/stat").read_text().splitlines()[0]
        except OSError:
            return 0.0, 0.0
        ticks = [int(word) for word in line.split()[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        me = psutil.Process()
        own = 0.0
        for process in [me, *me.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                # Children that have ended count for their parents.
                own += sum(process.cpu_times()[:4])
        return busy, own
