"""The table of reference runs: name -> function(client or None) that returns a fitted estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accelerando import compress
from tests.reference import averaging_runs, cluster_runs, codec_runs, local_runs, policy_runs

Fit = Callable[[Any], Any]

LOCAL: dict[str, Fit] = {
    **policy_runs.RUNS,
    **averaging_runs.RUNS,
    **codec_runs.RUNS,
    **local_runs.RUNS,
}
CLUSTER: dict[str, Fit] = cluster_runs.RUNS
RUNS: dict[str, Fit] = {**LOCAL, **CLUSTER}


def is_gone(name: str) -> bool:
    """Return whether the run needs a codec that this version no longer has."""
    codec = name.partition(": ")[2]
    if codec not in codec_runs.MAY_GO:
        return False
    if codec == "QSGD, elias":
        return "coding" not in compress.QSGD.__dataclass_fields__
    return not hasattr(compress, codec.partition(",")[0])


def fit(name: str, client: Any = None) -> Any:
    """Make one run of the table."""
    torch.set_num_threads(1)
    return RUNS[name](client)
