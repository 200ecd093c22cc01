"""Report of the doctor: gather facts, examine them, print the findings."""

from __future__ import annotations

import argparse
import inspect
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console

from accelerando._dask import Sent, host_towards, port_range, workers_of
from accelerando._validation import check_number
from accelerando.doctor import _facts
from accelerando.doctor._connect import connect, parse_memory
from accelerando.doctor._findings import Cluster, Facts, Finding, examine

MAX_CONNECTED = 16  # workers that try to connect to each other
CONNECT_SECONDS = 3.0
IMPORT_SECONDS = 60.0  # for a worker that answers and then imports PyTorch from a slow disk
MARKS = {"error": "error  ", "warning": "warning", "note": "note   "}


def run(arguments: argparse.Namespace) -> int:
    """Run ``accelerando doctor`` and return the exit code."""
    check_number("accelerando doctor", "--timeout", arguments.timeout, above=0)
    console = Console(highlight=False, soft_wrap=True)
    here = _facts.gather()
    _print(console, "This machine", describe(here))
    cluster = None
    if arguments.scheduler is not None:
        cluster = gather_cluster(
            arguments.scheduler,
            arguments.timeout,
            tls={name: getattr(arguments, name) for name in ("tls_ca_file", "tls_cert", "tls_key")},
            need=parse_memory(arguments.memory),
        )
        _print(console, f"Cluster at {arguments.scheduler}", describe_cluster(cluster))
    findings = examine(here, cluster)
    _print(
        console, "Findings", [line for f in findings for line in describe_finding(f)] or ["none"]
    )
    return 2 if any(finding.level == "error" for finding in findings) else 0


def gather_cluster(
    address: str, timeout: float, tls: Mapping[str, str | None] | None = None, need: int = 0
) -> Cluster:
    """Connect to a scheduler and return the facts of all its processes.

    Parameters
    ----------
    address : str
        Of the scheduler.
    timeout : float
        Seconds to wait for the scheduler, and for each worker.
    tls : mapping or None
        The files ``tls_ca_file``, ``tls_cert`` and ``tls_key``.
    need : int
        Bytes that the data and the model of a rank need.
    """
    with connect(address, timeout, tls or {}) as client:
        return _cluster_of(client, timeout, need)


def _cluster_of(client: Any, timeout: float, need: int) -> Cluster:
    infos = workers_of(client)
    found = _ask_workers(client, list(infos), timeout, _facts.answer)
    before = time.monotonic()
    answering = [worker for worker, answer in found.items() if answer is True]
    found |= _ask_workers(client, answering, timeout + IMPORT_SECONDS, _facts.gather_there)
    scheduler = client.run_on_scheduler(_sent(_facts.gather_there))
    elapsed = time.monotonic() - before
    workers = {address: facts for address, facts in found.items() if isinstance(facts, dict)}
    tried = list(workers)[:MAX_CONNECTED]
    unreachable, blocked, here, beyond = {}, {}, "", ""
    deaf: dict[str, str] = {}
    if tried:
        open_seconds = 3 * CONNECT_SECONDS + 3 * timeout  # until all have knocked
        chosen = port_range()
        ports = _ask_workers(client, tried, timeout, _facts.listen, open_seconds, chosen)
        ports["scheduler"] = client.run_on_scheduler(_sent(_facts.listen), open_seconds, chosen)
        if _facts.reach([ports["scheduler"]], CONNECT_SECONDS):
            # Where this machine cannot reach it, the mailbox of a fit is here.
            beyond = ports.pop("scheduler")
            host = host_towards(client.scheduler.address)
            ports["here"] = here = _facts.listen(open_seconds, chosen, host)
        deaf = {w: port for w, port in ports.items() if w in workers and "tcp://" not in port}
        listening = [port for port in ports.values() if str(port).startswith("tcp://")]
        words = (tried, listening, CONNECT_SECONDS)
        knocked = _ask_workers(client, tried, CONNECT_SECONDS + timeout, _facts.knock, *words)
        answers = {a: both for a, both in knocked.items() if isinstance(both, tuple | list)}
        unreachable = {address: both[0] for address, both in answers.items()}
        blocked = {address: both[1] for address, both in answers.items()}
    return Cluster(
        scheduler=scheduler,
        workers=workers,
        threads={address: int(info["nthreads"]) for address, info in infos.items()},
        unreachable=unreachable,
        blocked=blocked,
        here=here,
        beyond=beyond,
        silent={address: text for address, text in found.items() if isinstance(text, str)},
        deaf=deaf,
        paused=[address for address, info in infos.items() if info.get("status") == "paused"],
        running={
            address: int(info.get("metrics", {}).get("task_counts", {}).get("executing", 0))
            for address, info in infos.items()
        },
        limits={address: int(info.get("memory_limit") or 0) for address, info in infos.items()},
        need=need,
        elapsed=elapsed,
    )


def _ask_workers(
    client: Any, workers: Iterable[str], seconds: float, function: Any, *arguments: Any
) -> dict[str, Any]:
    """Run a function on each worker; one that fails or hangs answers with a text."""
    found: dict[str, Any] = {}

    def ask(worker: str) -> None:
        try:
            found[worker] = client.run(_sent(function), *arguments, workers=[worker])[worker]
        except Exception as error:  # whatever it is, it is a fact about this worker
            found[worker] = f"{type(error).__name__}: {error}".splitlines()[0]

    # One call for all workers would wait for one that hangs, without an end.
    threads = {w: threading.Thread(target=ask, args=(w,), daemon=True) for w in workers}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    return {worker: found.get(worker, f"no answer within {seconds:g} s") for worker in threads}


def _sent(function: Any) -> Any:
    """Return a function of ours as text: accelerando may be missing, and Python another one."""
    if function.__module__ != _facts.__name__:
        return function
    return Sent(inspect.getsource(_facts), function.__name__)


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
