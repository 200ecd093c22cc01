"""Facts about one process and its network, gathered with the standard library only.

The functions are sent as source text to the scheduler and the workers of a cluster, where
accelerando and PyTorch may be missing, or Python be another one: these are among the facts.
"""

from __future__ import annotations

from typing import Any


def gather() -> dict[str, Any]:
    """Return versions, CPU cores, threads and devices of the calling process."""
    import contextlib
    import os
    import platform
    import shutil
    import socket
    import sys
    import threading
    import time
    from importlib import metadata

    packages = (
        "accelerando torch skorch scikit-learn numpy pandas scipy dask distributed cloudpickle "
        "rich matplotlib optuna numba fastapi uvicorn sqlalchemy argon2-cffi nh3 pyarrow jinja2"
    )
    versions: dict[str, str | None] = {}
    for name in packages.split():
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cpus = os.cpu_count() or 1
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "host": socket.gethostname(),
        "cpus": cpus,
        "versions": versions,
        "environment": {
            name: os.environ.get(name)
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_")
        },
        "nvidia": shutil.which("nvidia-smi") is not None,
        "executable": sys.executable,
        "clock": time.time(),
        "lookup_seconds": 0.0,
        "memory": None,
        "torch": None,
        "torch_error": None,
    }

    def look_up() -> None:
        # As PyTorch does for the peer of a connection, even for the loopback address.
        with contextlib.suppress(OSError):
            socket.getnameinfo(("::ffff:127.0.0.1", 0, 0, 0), 0)

    before = time.monotonic()
    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(3.0)  # a name server may take half a minute
    facts["lookup_seconds"] = time.monotonic() - before
    if versions["torch"] is None:
        return facts
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:  # a broken installation can raise anything
        facts["torch_error"] = f"{type(error).__name__}: {error}".splitlines()[0]
        return facts
    facts["torch"] = {
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else [],
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": dist.is_available() and dist.is_nccl_available(),
    }
    try:
        with open("/proc/self/statm") as file:  # pages in memory, with PyTorch loaded
            facts["memory"] = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not on this system
        pass
    return facts


def listen(
    seconds: float,
    ports: tuple[int, int] | None,
    host: str | None = None,
    dask_worker: Any = None,
    dask_scheduler: Any = None,
) -> str:
    """Listen on a free port of this process's address for a while, as a rank does.

    Ranks and the mailbox use ports that the system chooses, or those of the setting
    accelerando.ports, which a firewall may block although it lets Dask's own ports pass.

    Returns
    -------
    str
        ``tcp://host:port``, or ``error: ...``.
    """
    import socket
    import threading
    from urllib.parse import urlsplit

    if host is None:
        node = dask_worker if dask_worker is not None else dask_scheduler
        host = urlsplit(node.address).hostname or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    error: OSError | None = None
    for port in range(ports[0], ports[1] + 1) if ports else (0,):
        try:
            server = socket.create_server((host, port), family=family, backlog=128)
            break
        except OSError as failure:  # taken
            error = failure
    else:
        return f"error: {error}"
    # Connections wait in the backlog; nobody has to accept them.
    timer = threading.Timer(seconds, server.close)
    timer.daemon = True
    timer.start()
    shown = f"[{host}]" if ":" in host else host
    return f"tcp://{shown}:{server.getsockname()[1]}"


def reach(addresses: list[str], seconds: float) -> list[str]:
    """Return those of the addresses ``tcp://host:port`` that cannot be reached from here."""
    import socket
    from urllib.parse import urlsplit

    unreachable = []
    for address in addresses:
        parts = urlsplit(address)
        if parts.hostname is None or parts.port is None:  # workers in this process: inproc://
            continue
        try:
            socket.create_connection((parts.hostname, parts.port), timeout=seconds).close()
        except OSError:
            unreachable.append(address)
    return unreachable


def answer() -> bool:
    """Return True: a process that can do this neither hangs nor is beyond a firewall."""
    return True


async def gather_there() -> dict[str, Any]:
    """Return the facts of a scheduler or worker without keeping its event loop busy."""
    import asyncio

    return await asyncio.to_thread(gather)


async def knock(dask: list[str], chosen: list[str], seconds: float) -> tuple[list[str], list[str]]:
    """Return the addresses of Dask, and those that ranks would use, that do not answer.

    All are tried at once, in threads: an event loop that waits would stop its worker.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(dask) + len(chosen)) as threads:
        tried = [loop.run_in_executor(threads, reach, [a], seconds) for a in (*dask, *chosen)]
        found = [address for closed in await asyncio.gather(*tried) for address in closed]
    return [a for a in dask if a in found], [a for a in chosen if a in found]
