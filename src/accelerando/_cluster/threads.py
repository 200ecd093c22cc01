"""Threads of ranks that share a machine, while the number of replicas is found by trying."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from accelerando._dask import host_of


def threads_for(workers: Mapping[str, str], facts: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return for each rank the threads of its machine and the ranks that share them.

    Parameters
    ----------
    workers : mapping
        The address of the worker of each rank.
    facts : mapping
        What the scheduler knows about each worker, by address: the threads that Dask gave it.
        Ranks on a machine that is not in it are left out.

    Examples
    --------
    >>> facts = {"tcp://10.0.0.1:1": {"nthreads": 2}, "tcp://10.0.0.1:2": {"nthreads": 1}}
    >>> threads_for({"rank-0": "tcp://10.0.0.1:1", "rank-1": "tcp://10.0.0.2:1"}, facts)
    {'rank-0': (3, 1)}
    """
    threads: Counter[str] = Counter()
    for address, known in facts.items():
        threads[host_of(address)] += int(known.get("nthreads", 1))
    hosts = {rank: host_of(worker) for rank, worker in workers.items()}
    ranks = Counter(hosts.values())
    return {rank: (threads[host], ranks[host]) for rank, host in hosts.items() if threads[host]}


def threads_each(given: int, ranks: int, processors: int) -> int:
    """Return the threads of one of `ranks` ranks on a machine with `processors` CPU cores.

    Workers may have more threads than the machine has cores; more running threads than cores wait
    for each other.

    Examples
    --------
    >>> threads_each(given=4, ranks=2, processors=2)
    1
    """
    return max(1, min(given, processors) // ranks)
