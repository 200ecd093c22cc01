"""Start the workers of Dask clusters warm and quiet, in tests and in their scripts."""

import dask
from distributed.utils import get_mp_context

METHOD = "distributed.worker.multiprocessing-method"
# Dask looks at itself up to a hundred times a second, in every worker, nanny and scheduler. Those
# of the shared clusters wait for most of the time and would take a fifth of a core. A fit makes two
# of these chores rarer still, once in 500 ms, which a test looks at.
QUIET = {
    "distributed.worker.profile.interval": "200ms",
    "distributed.worker.memory.monitor-interval": "5s",
    "distributed.admin.tick.interval": "200ms",
    "distributed.admin.system-monitor.interval": "5s",
}


def start_workers_warm():
    """Fork workers of Dask clusters from a process that imports ``tests.warm`` once."""
    dask.config.set({METHOD: "forkserver", **QUIET})
    get_mp_context().set_forkserver_preload(["tests.warm"])  # instead of Dask's own list
