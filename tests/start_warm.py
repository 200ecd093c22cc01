"""Start the workers of Dask clusters with everything imported, in tests and in their scripts."""

import dask
from distributed.utils import get_mp_context

METHOD = "distributed.worker.multiprocessing-method"


def start_workers_warm():
    """Fork workers of Dask clusters from a process that imports ``tests.warm`` once."""
    dask.config.set({METHOD: "forkserver"})
    get_mp_context().set_forkserver_preload(["tests.warm"])  # instead of Dask's own list
