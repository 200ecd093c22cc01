"""Remarks in errors about workers that run no rank. A fit that works needs nothing from here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerando._cluster.driver.state import DriverState
    from accelerando._cluster.rank_task import Candidates

_MOST = 5  # workers in a sentence


def remarks(candidates: Candidates, state: DriverState) -> str:
    """Return sentences, each with a blank before it.

    Parameters
    ----------
    candidates : Candidates
        What is known about workers.
    state : DriverState
        It has the ranks that do not answer, and the workers that left while their rank started.
    """
    silent = [info.worker for info in state.ranks.values() if info.status == "silent"]
    found = (*unused(candidates), *_late(candidates, silent), *_dead(candidates, state.stillborn))
    return "".join(f" {sentence}" for sentence in found)


def unused(candidates: Candidates) -> Iterator[str]:
    """Yield sentences about workers that cannot be used, do not answer, or are paused."""
    from accelerando._cluster.rank_task import PACKAGES

    if candidates.unfit:
        listed = "; ".join(f"{w} {why}" for w, why in list(candidates.unfit.items())[:_MOST])
        yield (
            f"Workers that cannot be used: {listed}. Install the same versions of Python, "
            f"{', '.join(PACKAGES)} in all processes of the cluster."
        )
    answered = candidates.fit | candidates.unfit.keys()
    if silent := [worker for worker in candidates.retry_at if worker not in answered]:
        yield (
            f"Workers that do not answer: {', '.join(silent[:_MOST])}. They hang, or listen on an "
            "address that the scheduler cannot reach: start workers with --interface or --host."
        )
    if paused := sorted(candidates.paused)[:_MOST]:
        listed = "; ".join(f"{w} ({candidates.limits[w] / 1e6:,.0f} MB)" for w in paused)
        yield (
            "Workers that Dask has paused, because they have nearly used up their memory limits: "
            f"{listed}. Start workers with a larger --memory-limit (0 for none) or more memory per "
            "job."
        )


def scheduler_cannot_load(error: object) -> str:
    """Return a sentence if an error is that of a scheduler that cannot load a graph of tasks.

    Examples
    --------
    >>> scheduler_cannot_load(RuntimeError("of a task"))
    ''
    """
    from accelerando._cluster.rank_task import PACKAGES

    if "deserialization of the task graph" not in str(error):  # by the scheduler, before a worker
        return ""
    return (
        f"the Dask scheduler cannot load what this process sends. Install the same versions of "
        f"Python, {', '.join(PACKAGES)} there as here and on the workers ('accelerando doctor "
        "--scheduler ADDRESS' compares them)."
    )


def _late(candidates: Candidates, workers: list[str]) -> Iterator[str]:
    """Describe ranks that did not answer in time, most often because they have not started."""
    listed = []
    for worker in workers[:_MOST]:
        facts = candidates.facts.get(worker, {})
        running = facts.get("metrics", {}).get("task_counts", {}).get("executing", 0)
        busy = f"{running} other task{'' if running == 1 else 's'}"
        status = "paused" if facts.get("status") == "paused" else busy
        listed.append(f"{worker} (threads: {facts.get('nthreads', '?')}, {status})")
    if listed:
        yield (
            f"Ranks that have not started, or hang: on {'; '.join(listed)}. A rank starts when a "
            "thread of its worker is free, and the data have arrived from the driver or from "
            "another worker."
        )


def _dead(candidates: Candidates, died: tuple[str, ...]) -> Iterator[str]:
    limits = [candidates.limits[worker] for worker in died if candidates.limits.get(worker)]
    if limits:
        yield (
            "Workers that left while a rank started have a memory limit of "
            f"{min(limits) / 1e6:,.0f} MB. This process, with PyTorch and the data, takes "
            f"{_memory() / 1e6:,.0f} MB, and Dask's Nanny ends a worker at 95 % of its limit. "
            "Start workers with a larger --memory-limit (0 for none) or more memory per job; the "
            "workers' logs say why they ended."
        )
    elif died:
        yield "The logs of the workers, and of their jobs, say why they ended."


def _memory() -> int:
    """Return the bytes that this process has in memory; 0 if the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
