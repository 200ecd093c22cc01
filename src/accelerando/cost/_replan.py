"""Plan of a recorded run on other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from accelerando._validation import check_integer
from accelerando.cost._fit import fit_line
from accelerando.cost._network import Network, resolve
from accelerando.cost._plan import Plan
from accelerando.cost._setting import Setting
from accelerando.cost._updates import of_frame

if TYPE_CHECKING:
    from accelerando.cost._updates import Updates


def replan(
    run_frame: pd.DataFrame,
    *,
    workers: int,
    parameters: int,
    seconds_per_example: float | None = None,
    overhead: float | None = None,
    examples_per_worker: int = 128,
    min_workers: int = 1,
    network: Network | str | None = None,
    architecture: str | None = None,
    price_per_worker_hour: float | None = None,
) -> Plan:
    """Predict a recorded run with another number of workers.

    The batch sizes are those of the record. They do not depend on the number of workers: the same
    global batches give the same parameters on any number of ranks, so an adaptive policy would
    decide the same.

    Parameters
    ----------
    run_frame : pandas.DataFrame
        The result of ``updates_frame()``, or the same read from a file.
    workers : int
        The largest number of workers. The number for a batch follows `examples_per_worker`.
    parameters : int
        The number of trained numbers.
    seconds_per_example, overhead : float, optional
        Default: fitted to the times in the record, that is, to the time between two updates without
        the waiting for other ranks, as a function of the rows of one rank. If all batches have the
        same size, all of it counts as time per example.
    examples_per_worker, min_workers, network, architecture, price_per_worker_hour
        As for :func:`plan`.

    Returns
    -------
    Plan
        As from :func:`plan`.

    Examples
    --------
    >>> import pandas as pd
    >>> from accelerando.cost import replan
    >>> record = pd.DataFrame({"update": [1, 2, 3], "epoch": [1, 1, 2],
    ...                        "batch_size": [100, 100, 400], "seconds": [0.3, 0.6, 1.8],
    ...                        "ranks": 1, "wait_seconds": 0.0})
    >>> [round(replan(record, workers=n, parameters=10, examples_per_worker=100).seconds, 2)
    ...  for n in (1, 4)]
    [1.8, 0.9]
    """
    check_integer("replan", "workers", workers)
    updates = of_frame(run_frame)
    if seconds_per_example is None or overhead is None:
        fitted = _fitted(run_frame, updates)
        seconds_per_example = fitted[0] if seconds_per_example is None else seconds_per_example
        overhead = fitted[1] if overhead is None else overhead
    chosen, algorithm = resolve(network, architecture)
    setting = Setting(
        parameters=parameters,
        seconds_per_example=seconds_per_example,
        overhead=overhead,
        examples_per_worker=examples_per_worker,
        min_workers=min_workers,
        max_workers=workers,
        network=chosen,
        architecture=algorithm,
        price_per_worker_hour=price_per_worker_hour,
    )
    return Plan(updates, setting)


def _fitted(frame: pd.DataFrame, updates: Updates) -> tuple[float, float]:
    if "seconds" not in frame.columns:
        raise ValueError(
            "run_frame has no column 'seconds' to fit durations to. Pass seconds_per_example and "
            "overhead, which accelerando.cost.measure measures."
        )
    ranks = frame["ranks"].to_numpy(int) if "ranks" in frame.columns else np.ones(len(frame), int)
    seconds = np.diff(frame["seconds"].to_numpy(float), prepend=0.0)
    if "wait_seconds" in frame.columns:
        seconds = seconds - frame["wait_seconds"].to_numpy(float)
    return fit_line(-(-updates.rows // ranks), np.maximum(seconds, 0.0))
