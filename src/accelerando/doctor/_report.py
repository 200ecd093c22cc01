"""Report of the doctor: gather facts, examine them, print the findings."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from rich.console import Console

from accelerando._dask import workers_of
from accelerando._validation import check_number
from accelerando.doctor import _facts
from accelerando.doctor._findings import Cluster, Facts, Finding, examine
from accelerando.exceptions import ClusterError

MAX_CONNECTED = 16  # workers that try to connect to each other
CONNECT_SECONDS = 3.0
MARKS = {"error": "error  ", "warning": "warning", "note": "note   "}


def run(arguments: argparse.Namespace) -> int:
    """Run ``accelerando doctor`` and return the exit code."""
    check_number("accelerando doctor", "--timeout", arguments.timeout, above=0)
    console = Console(highlight=False, soft_wrap=True)
    here = _facts.gather()
    _print(console, "This machine", describe(here))
    cluster = None
    if arguments.scheduler is not None:
        cluster = gather_cluster(arguments.scheduler, arguments.timeout)
        _print(console, f"Cluster at {arguments.scheduler}", describe_cluster(cluster))
    findings = examine(here, cluster)
    _print(
        console, "Findings", [line for f in findings for line in describe_finding(f)] or ["none"]
    )
    return 2 if any(finding.level == "error" for finding in findings) else 0


def gather_cluster(address: str, timeout: float) -> Cluster:
    """Connect to a scheduler and return the facts of all its processes."""
    import cloudpickle
    from distributed import Client

    # By value, so that a worker without accelerando can run them.
    cloudpickle.register_pickle_by_value(_facts)
    try:
        with Client(address, timeout=timeout, set_as_default=False) as client:
            return _cluster_of(client)
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            f"No Dask scheduler answers at {address} within {timeout:g} s ({error}). Check the "
            "address, the scheduler's log, and firewalls between this machine and the scheduler."
        ) from error
    finally:
        cloudpickle.unregister_pickle_by_value(_facts)


def _cluster_of(client: Any) -> Cluster:
    infos = workers_of(client)
    workers = client.run(_facts.gather)
    tried = list(workers)[:MAX_CONNECTED]
    unreachable = client.run(_facts.reach, tried, CONNECT_SECONDS, workers=tried) if tried else {}
    return Cluster(
        scheduler=client.run_on_scheduler(_facts.gather),
        workers=workers,
        threads={address: int(info["nthreads"]) for address, info in infos.items()},
        unreachable=unreachable,
    )


def describe(facts: Facts) -> list[str]:
    """Return a description of a process in a few lines."""
    torch = facts["torch"]
    versions = [f"{name} {v}" for name, v in facts["versions"].items() if v is not None]
    lines = [f"Python {facts['python']}, {facts['system']}, {facts['cpus']} CPU cores"]
    if torch:
        backends = [name for name in ("gloo", "nccl") if torch[name]]
        gpus = Counter(torch["gpus"])
        lines += [
            f"PyTorch threads: {torch['threads']}; distributed: {', '.join(backends) or 'none'}",
            "GPUs: " + (", ".join(f"{n} × {name}" for name, n in gpus.items()) or "none"),
        ]
    return [*lines, "Packages: " + ", ".join(versions)]


def describe_cluster(cluster: Cluster) -> list[str]:
    """Return a description of a cluster with one line per kind of worker."""
    kinds: Counter[str] = Counter()
    for address, facts in cluster.workers.items():
        torch = facts["torch"] or {}
        kinds[
            f"on {facts['host']}: {cluster.threads.get(address, '?')} Dask threads, "
            f"{torch.get('threads', 'no')} PyTorch threads, {len(torch.get('gpus', []))} GPUs, "
            f"Python {facts['python']}, torch {facts['versions']['torch']}"
        ] += 1
    scheduler = cluster.scheduler
    return [
        f"scheduler on {scheduler['host']}: Python {scheduler['python']}, "
        f"distributed {scheduler['versions']['distributed']}",
        *(f"{n} worker{'s' if n > 1 else ''} {kind}" for kind, n in sorted(kinds.items())),
    ]


def describe_finding(finding: Finding) -> list[str]:
    """Return a finding as two lines."""
    return [f"{MARKS[finding.level]}  {finding.what}", f"         {finding.remedy}"]


def _print(console: Console, title: str, lines: list[str]) -> None:
    console.print(title, style="bold", markup=False)
    for line in lines:
        console.print(f"  {line}", markup=False)
