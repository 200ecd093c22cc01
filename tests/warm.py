"""What workers of Dask clusters in tests have imported before they start.

A worker that starts as a user's does spends seconds of computing time on imports, and the tests
start many of them. So they are forked from a process that has imported this
module, see ``start_workers_warm`` in ``start_warm.py``. The fixture ``cold`` is for tests of what
happens while a worker is not ready yet.
"""

import gc
import os

import numpy as np
import torch._dynamo  # noqa: F401 - what the first optimizer of a process imports

import accelerando._cluster.rank_task
import accelerando.estimators
import accelerando.search  # noqa: F401

# Forked processes would all continue with the same random numbers; those of users do not.
os.register_at_fork(after_in_child=np.random.seed)
# What is shared stays shared: the collector would write into every page of it.
os.register_at_fork(after_in_child=gc.freeze)
