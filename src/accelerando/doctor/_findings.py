"""Findings: problems that follow from facts, each with its remedy. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Facts = Mapping[str, Any]

# Packages that only this extra installs; pyproject.toml has the complete lists.
EXTRAS = {
    "plot": (("matplotlib",), "figures"),
    "tpe": (("optuna",), 'the search\'s sampler="tpe"'),
    "fast": (("numba",), "a faster search for queries"),
    "crowd": (
        ("fastapi", "uvicorn", "sqlalchemy", "argon2-cffi", "nh3", "jinja2"),
        "asking people on the web",
    ),
    "parquet": (("pyarrow",), "answers as Parquet files"),
}
NEEDED = ("accelerando", "torch", "skorch", "scikit-learn", "numpy", "pandas", "cloudpickle")
# Objects of these packages are sent as pickles, which other versions may not be able to load.
MUST_AGREE = ("accelerando", "torch", "skorch", "dask", "distributed", "cloudpickle", "numpy")


class Finding(NamedTuple):
    """One problem.

    Attributes
    ----------
    level : str
        ``"error"``: training cannot work. ``"warning"``: it will be slow or may fail.
        ``"note"``: something is missing that some users need.
    what, remedy : str
        The problem, and what to do about it.
    """

    level: str
    what: str
    remedy: str


@dataclass(frozen=True)
class Cluster:
    """Facts about a cluster.

    Attributes
    ----------
    scheduler : facts
        The facts of the scheduler's process.
    workers : mapping from address to facts
        The facts of each worker's process.
    threads : mapping from address to int
        The number of threads of each worker for Dask tasks.
    unreachable : mapping from address to list of addresses
        The workers that each worker could not reach on the port that Dask uses.
    blocked : mapping from address to list of addresses
        The same for a port that was chosen as those of ranks are. The scheduler, where the mailbox
        of a fit is, is among the addresses.
    here, beyond : str
        Where this machine listened, and where the scheduler did, if this machine cannot reach the
        scheduler on such a port.
    silent : mapping from address to str
        Workers that are registered and do not answer, with the error.
    paused : sequence of str
        Workers that Dask has paused.
    running : mapping from address to int
        The number of tasks that each worker executes.
    deaf : mapping from address to str
        Workers that could not listen as a rank does, with the error.
    limits : mapping from address to int
        The memory limit of each worker in bytes; 0 for none.
    need : int
        Bytes that the data and the model of a rank need, as the user estimates.
    elapsed : float
        Seconds within which all clocks were read.
    """

    scheduler: Facts
    workers: Mapping[str, Facts]
    threads: Mapping[str, int] = field(default_factory=dict)
    unreachable: Mapping[str, list[str]] = field(default_factory=dict)
    blocked: Mapping[str, list[str]] = field(default_factory=dict)
    here: str = ""
    beyond: str = ""
    silent: Mapping[str, str] = field(default_factory=dict)
    paused: Sequence[str] = ()
    running: Mapping[str, int] = field(default_factory=dict)
    deaf: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    need: int = 0
    elapsed: float = 0.0


def examine(here: Facts, cluster: Cluster | None = None) -> list[Finding]:
    """Return all findings, errors first."""
    found = [*_of_this_machine(here), *(_cluster(here, cluster) if cluster is not None else ())]
    order = ("error", "warning", "note")
    return sorted(found, key=lambda finding: order.index(finding.level))


def _of_this_machine(facts: Facts) -> Iterator[Finding]:
    yield from _torch("This process", facts)
    yield from _gpu("This machine", facts)
    torch, cpus = facts["torch"], facts["cpus"]
    if torch and torch["threads"] > cpus:
        yield Finding(
            "warning",
            f"PyTorch uses {torch['threads']} threads on {cpus} CPU cores.",
            f"Set OMP_NUM_THREADS={cpus} or less: more threads than cores wait for each other.",
        )
    for extra, (packages, purpose) in EXTRAS.items():
        missing = [name for name in packages if facts["versions"][name] is None]
        if missing:
            yield Finding(
                "note",
                f"The extra {extra!r} ({purpose}) is not installed: no {', '.join(missing)}.",
                f"pip install 'accelerando[{extra}]' if you need it.",
            )


def _torch(where: str, facts: Facts) -> Iterator[Finding]:
    if facts["versions"]["torch"] is None:
        yield Finding("error", f"{where} has no PyTorch.", "Install accelerando there.")
    elif facts["torch_error"]:
        yield Finding(
            "error",
            f"{where} cannot import PyTorch: {facts['torch_error']}",
            "Reinstall torch, from the index that its instructions name for the machine.",
        )
    elif facts["torch"] and not facts["torch"]["gloo"]:
        yield Finding(
            "warning",
            f"{where} has a PyTorch without gloo: training there works on one process only.",
            "Install an official build of torch for Linux.",
        )


def _gpu(where: str, facts: Facts) -> Iterator[Finding]:
    torch = facts["torch"]
    if facts["nvidia"] and torch and not torch["gpus"]:
        build = "built without CUDA" if torch["cuda"] is None else "that finds none of them"
        yield Finding(
            "warning",
            f"{where} has NVIDIA GPUs and a PyTorch {build}.",
            "Install the CUDA build of torch that fits the driver (nvidia-smi shows it), and check "
            "CUDA_VISIBLE_DEVICES.",
        )


def _cluster(here: Facts, cluster: Cluster) -> Iterator[Finding]:
    if not cluster.workers and not cluster.silent:
        yield Finding(
            "error", "The scheduler has no workers.", "Start some: dask worker tcp://…:8786."
        )
    for address, why in cluster.silent.items():
        yield Finding(
            "error",
            f"Worker {address} is registered with the scheduler and does not answer: {why}",
            "Look at its log. It may hang, or listen on an address that the scheduler cannot "
            "reach: start workers with --interface (such as eth0) or --host.",
        )
    yield from _installed("The scheduler", [cluster.scheduler])
    yield from _installed("Workers", list(cluster.workers.values()))
    for address, facts in cluster.workers.items():
        if facts["versions"]["torch"] is not None:
            yield from _torch(f"Worker {address}", facts)
    for host, facts in {f["host"]: f for f in cluster.workers.values()}.items():
        yield from _gpu(f"The machine {host}", facts)
    yield from _versions(here, cluster)
    yield from _threads(cluster)
    yield from _interfaces(cluster)
    yield from _reach(cluster)
    yield from _memory(cluster)
    yield from _occupied(cluster)
    yield from _clocks(here, cluster)
    yield from _names(cluster)
    trimmed = [f for f in cluster.workers.values() if f["environment"]["MALLOC_TRIM_THRESHOLD_"]]
    if trimmed:
        yield Finding(
            "note",
            f"Memory is returned to the system early on {len(trimmed)} of {len(cluster.workers)} "
            "workers (MALLOC_TRIM_THRESHOLD_, which Dask's Nanny sets).",
            "accelerando raises the threshold while it trains. Other PyTorch code on these workers "
            "may take twice as long; for it set distributed.nanny.pre-spawn-environ."
            "MALLOC_TRIM_THRESHOLD_ in Dask's configuration.",
        )


def _installed(who: str, processes: list[Facts]) -> Iterator[Finding]:
    """Report missing packages. The scheduler unpickles task graphs, so it needs them, too."""
    missing = Counter(name for f in processes for name in NEEDED if f["versions"][name] is None)
    if missing:
        count = max(missing.values())
        many = f" ({count} of {len(processes)})" if who == "Workers" else ""
        verb = "have" if who == "Workers" else "has"
        yield Finding(
            "error",
            f"{who}{many} {verb} no {', '.join(missing)}.",
            "Use the same environment for client, scheduler and workers, for example one image or "
            "one constraints.txt.",
        )


def _versions(here: Facts, cluster: Cluster) -> Iterator[Finding]:
    processes = {"client": here, "scheduler": cluster.scheduler, **cluster.workers}
    pythons = {who: ".".join(f["python"].split(".")[:2]) for who, f in processes.items()}
    yield from _disagree("Python", pythons, "error")
    for name in MUST_AGREE:
        versions = {who: f["versions"][name] for who, f in processes.items()}
        yield from _disagree(name, {who: v for who, v in versions.items() if v}, "warning")


def _disagree(name: str, versions: Mapping[str, str], level: str) -> Iterator[Finding]:
    if len(set(versions.values())) < 2:
        return
    groups = {v: [who for who in versions if versions[who] == v] for v in set(versions.values())}
    listed = "; ".join(f"{v} on {_some(who)}" for v, who in sorted(groups.items()))
    yield Finding(
        level,
        f"Different versions of {name}: {listed}.",
        "Install the same version everywhere: a process must load what another one pickled.",
    )


def _threads(cluster: Cluster) -> Iterator[Finding]:
    """Compare the threads of all ranks on a machine with its CPU cores."""
    for host in sorted({f["host"] for f in cluster.workers.values()}):
        on_host = {a: f for a, f in cluster.workers.items() if f["host"] == host}
        torches = [f["torch"] for f in on_host.values() if f["torch"]]
        # With a GPU per worker, CPU threads hardly matter.
        if not torches or any(torch["gpus"] for torch in torches):
            continue
        wanted = sum(torch["threads"] for torch in torches)
        cpus = max(f["cpus"] for f in on_host.values())
        if wanted > cpus:
            fair = max(1, cpus // len(torches))
            yield Finding(
                "warning",
                f"{len(torches)} workers on {host} use {wanted} threads of PyTorch on {cpus} CPU "
                "cores.",
                f"Start at most {cpus} workers there, with OMP_NUM_THREADS={fair} and one Dask "
                "thread each.",
            )


def _interfaces(cluster: Cluster) -> Iterator[Finding]:
    """Report workers that listen on an address that only their own machine can reach."""
    hosts = {f["host"] for f in (*cluster.workers.values(), cluster.scheduler)}
    if len(hosts) < 2:
        return
    for address, facts in cluster.workers.items():
        if address.partition("://")[2].startswith(("127.", "localhost", "[::1]")):
            yield Finding(
                "error",
                f"Worker {address} on {facts['host']} listens on the loopback address, which no "
                "other machine can reach.",
                "Start it with --interface (such as eth0) or with --host and an address of the "
                "network that the machines share.",
            )


def _reach(cluster: Cluster) -> Iterator[Finding]:
    for address, why in cluster.deaf.items():
        yield Finding(
            "error",
            f"Worker {address} cannot listen as a rank does: {why}",
            "Its address has to be one of its machine, not of a router or a container's host "
            "(--contact-address), and a port has to be free (Dask's setting accelerando.ports).",
        )
    for address, others in cluster.unreachable.items():
        if others:
            yield Finding(
                "error",
                f"Worker {address} cannot reach {_some(others)}.",
                "Ranks communicate directly: open all ports between the workers, and start workers "
                "with --interface if a machine has several networks.",
            )
    for address, others in cluster.blocked.items():
        # What Dask's own port cannot reach either is reported above.
        hosts = {_host(other) for other in cluster.unreachable.get(address, [])}
        beyond = [o for o in others if _host(o) not in hosts and o != cluster.here]
        if cluster.here and cluster.here in others:
            yield Finding(
                "error",
                f"This machine cannot reach the scheduler on a port of the kind that ranks use "
                f"({cluster.beyond}), and worker {address} cannot reach this machine "
                f"({cluster.here}).",
                "Workers and the script meet in a mailbox on the scheduler's machine or the "
                "script's: open the TCP ports of one of them, or run the script near the workers. "
                "A tunnel (ssh -L) or a proxy passes Dask's messages only.",
            )
        if beyond:
            yield Finding(
                "error",
                f"Worker {address} reaches {_some(sorted({_host(o) for o in beyond}))} on Dask's "
                f"port, but not on a port of the kind that ranks use ({_some(beyond)}): a firewall "
                "blocks it.",
                "Open the TCP ports between workers, and from workers to the scheduler and to the "
                "script: all of them, or a range that Dask's setting accelerando.ports names.",
            )


def _host(address: str) -> str:
    return address.partition("://")[2].rpartition(":")[0]


def _memory(cluster: Cluster) -> Iterator[Finding]:
    """Compare memory limits with what PyTorch, the data and the model need."""
    short: dict[str, int] = {}
    for address, facts in cluster.workers.items():
        limit, loaded = cluster.limits.get(address, 0), facts["memory"]
        if limit and loaded:
            wanted = loaded + _RANK_BYTES + cluster.need
            if wanted > _MEMORY_SHARE * limit:
                short[address] = wanted
    if short:
        first = next(iter(short))
        yield Finding(
            "error",
            f"{len(short)} of {len(cluster.workers)} workers have too little memory: {first} has a "
            f"limit of {_megabytes(cluster.limits[first])}; a rank "
            f"{'with' if cluster.need else 'without'} its data and model takes about "
            f"{_megabytes(short[first])}, and Dask ends a worker at 95 % of its limit.",
            "Start workers with a larger --memory-limit (0 for none), or fewer of them.",
        )


def _occupied(cluster: Cluster) -> Iterator[Finding]:
    """Report workers on which no rank could start now."""
    if cluster.paused:
        yield Finding(
            "warning",
            f"Dask has paused {_some(list(cluster.paused))}: their memory limits are nearly used "
            "up.",
            "A paused worker begins no task. Start workers with a larger --memory-limit (0 for "
            "none), or delete what is kept there.",
        )
    threads = cluster.threads
    if busy := [w for w, number in cluster.running.items() if number >= threads.get(w, 1)]:
        yield Finding(
            "warning",
            f"All threads of {_some(busy)} are busy with tasks.",
            "A rank starts there when one of them ends.",
        )


_MEMORY_SHARE = 0.95  # where Dask's Nanny ends a worker
_RANK_BYTES = 200_000_000  # of a rank beyond PyTorch: skorch, scikit-learn, pandas, buffers of DDP


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.0f} MB"


def _clocks(here: Facts, cluster: Cluster) -> Iterator[Finding]:
    """Report clocks that differ by more than reading them took."""
    known = {**cluster.workers, "scheduler": cluster.scheduler}
    off = {
        who: facts["clock"] - here["clock"]
        for who, facts in known.items()
        if not -_CLOCK_SECONDS <= facts["clock"] - here["clock"] <= cluster.elapsed + _CLOCK_SECONDS
    }
    if off:
        worst = max(off, key=lambda who: abs(off[who]))
        yield Finding(
            "warning",
            f"Clocks differ: that of {worst} by {abs(off[worst]):,.0f} s from this machine's.",
            "Synchronize clocks (NTP, chrony): times in logs and progress cannot be compared.",
        )


_CLOCK_SECONDS = 5.0


def _names(cluster: Cluster) -> Iterator[Finding]:
    """Report machines whose name server is slow to find the name of an address."""
    processes = (*cluster.workers.values(), cluster.scheduler)
    slow = sorted({f["host"] for f in processes if f["lookup_seconds"] > _LOOKUP_SECONDS})
    if slow:
        yield Finding(
            "warning",
            f"The name server of {_some(slow)} takes more than {_LOOKUP_SECONDS:g} s to find the "
            "name of an address, and PyTorch asks for it at every connection between ranks.",
            "Give the machines reverse records in the DNS, or start workers with "
            "RES_OPTIONS='timeout:1 attempts:1' in their environment.",
        )


_LOOKUP_SECONDS = 1.0


def _some(names: list[str], most: int = 3) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
