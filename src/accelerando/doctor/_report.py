"""Look, and tell."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from rich.console import Console

from accelerando._workers import workers_of
from accelerando.doctor import _facts
from accelerando.doctor._findings import Cluster, Facts, Finding, examine
from accelerando.exceptions import ClusterError

MOST_TRIED = 16  # workers that are asked to knock at each other's doors
KNOCK_SECONDS = 3.0
MARKS = {"error": "error  ", "warning": "warning", "note": "note   "}


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``accelerando doctor``."""
    if not arguments.timeout > 0:
        raise ValueError(f"--timeout must be above 0 seconds. Got {arguments.timeout} instead.")
    console = Console(highlight=False, soft_wrap=True)
    here = _facts.gather()
    _print(console, "This machine", describe(here))
    cluster = None
    if arguments.scheduler is not None:
        cluster = look(arguments.scheduler, arguments.timeout)
        _print(console, f"Cluster at {arguments.scheduler}", describe_cluster(cluster))
    findings = examine(here, cluster)
    _print(console, "Findings", [line for f in findings for line in tell(f)] or ["none"])
    return 2 if any(finding.level == "error" for finding in findings) else 0


def look(address: str, timeout: float) -> Cluster:
    """Connect to a scheduler and gather the facts of all its processes."""
    import cloudpickle
    from distributed import Client

    # By value, so that a worker without accelerando can answer as well.
    cloudpickle.register_pickle_by_value(_facts)
    try:
        with Client(address, timeout=timeout, set_as_default=False) as client:
            return _ask(client)
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            f"No Dask scheduler answers at {address} within {timeout:g} s ({error}). Is the "
            "address right, is it running, does a firewall stand between?"
        ) from error
    finally:
        cloudpickle.unregister_pickle_by_value(_facts)


def _ask(client: Any) -> Cluster:
    infos = workers_of(client)
    workers = client.run(_facts.gather)
    tried = list(workers)[:MOST_TRIED]
    silent = client.run(_facts.reach, tried, KNOCK_SECONDS, workers=tried) if tried else {}
    return Cluster(
        scheduler=client.run_on_scheduler(_facts.gather),
        workers=workers,
        threads={address: int(info["nthreads"]) for address, info in infos.items()},
        silent=silent,
    )


def describe(facts: Facts) -> list[str]:
    """Return what a process is, in a few lines."""
    torch = facts["torch"]
    versions = [f"{name} {v}" for name, v in facts["versions"].items() if v is not None]
    lines = [f"Python {facts['python']}, {facts['system']}, {facts['cpus']} processors"]
    if torch:
        backends = [name for name in ("gloo", "nccl") if torch[name]]
        gpus = Counter(torch["gpus"])
        lines += [
            f"PyTorch threads: {torch['threads']}; distributed: {', '.join(backends) or 'none'}",
            "GPUs: " + (", ".join(f"{n} × {name}" for name, n in gpus.items()) or "none"),
        ]
    return [*lines, "Packages: " + ", ".join(versions)]


def describe_cluster(cluster: Cluster) -> list[str]:
    """Return what a cluster is: one line per kind of worker, not one per worker."""
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


def tell(finding: Finding) -> list[str]:
    """Return a finding as two lines."""
    return [f"{MARKS[finding.level]}  {finding.what}", f"         {finding.remedy}"]


def _print(console: Console, title: str, lines: list[str]) -> None:
    console.print(title, style="bold", markup=False)
    for line in lines:
        console.print(f"  {line}", markup=False)
