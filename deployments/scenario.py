"""What a user would run on a deployment: connect, then fit, search or ask the doctor.

``python scenario.py WHERE OPTIONS``, where WHERE is ``slurm``, ``ssh`` or ``address``, and OPTIONS
are JSON. The last line of the output is JSON with one entry per step of ``OPTIONS["steps"]``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BEFORE = time.monotonic()
import dask.array as da  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

Step = dict[str, Any]
IMPORTING = time.monotonic() - _BEFORE  # a busy machine needs many times as long as an idle one
PATIENCE = 500.0  # for workers that start; a busy machine needs most of it, an idle one seconds


def data(*, chunks: bool = False) -> tuple[Any, Any]:
    """Return a small problem, as arrays or in chunks."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(400, 8))
    y = (X.sum(axis=1) > 0).astype(np.int64)
    return (da.from_array(X, chunks=(40, 8)), da.from_array(y, chunks=40)) if chunks else (X, y)


class Slow(torch.nn.Linear):
    """A layer whose batches take a second each until a file exists."""

    def __init__(self, until: str | None = None) -> None:
        super().__init__(8, 2, dtype=torch.float64)
        self.until = until

    def forward(self, x: Any) -> Any:
        if self.until is not None and self.training and not Path(self.until).exists():
            time.sleep(1.0)
        return super().forward(x)


def net_of(client: Any, *, until: str | None = None, **settings: Any) -> Any:
    """Return an estimator."""
    from accelerando import NeuralNetClassifier

    values = {
        "max_epochs": 1,
        "batch_size": 32,
        "lr": 0.1,
        "examples_per_worker": 16,
        "min_workers": 2,
        "worker_timeout": 30.0,
        "random_state": 0,
        "train_split": None,
        "verbose": 0,
        **settings,
    }
    return NeuralNetClassifier(
        Slow, module__until=until, criterion=torch.nn.CrossEntropyLoss, client=client, **values
    )


# -- steps ----------------------------------------------------------------------------------------


def fit(client: Any, step: Step) -> dict[str, Any]:
    """Fit, compare with this process, and return what happened.

    Updates are slow until the fit has ``step["ranks"]`` ranks (2) and ``step["events"]`` have
    happened, one after the other. A fit that has not ended after ``step["within"]`` seconds of an
    idle machine ends the scenario with an error: that is how the bounds of docs/cluster-failure.md
    are checked. With ``step["chunks"]`` the data are Dask arrays, whose rows have another order.
    """
    X, y = data(chunks=step.get("chunks", False))
    settings = {"max_epochs": 10, **step.get("settings", {})}
    happened: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        over = Path(folder) / "over"
        net = net_of(client, until=str(over), **settings)
        words = (client, net, step.get("ranks", 2), step.get("events", ()), happened, over)
        threading.Thread(target=_let_happen, args=words, daemon=True).start()
        before = time.monotonic()
        with bounded(step.get("within", math.inf)):
            try:
                net.fit(X, y)
                error = None
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
    found = {
        "error": error,
        "seconds": time.monotonic() - before,
        "log": [line["text"] for line in getattr(net, "world_log_", [])],
        "happened": happened,
        "ranks": 0,
        "difference": None,
    }
    if error is None and not step.get("chunks"):
        alone = net_of(None, **settings)
        alone.fit(X, y)
        pairs = zip(net.module_.parameters(), alone.module_.parameters(), strict=True)
        found["ranks"] = int(net.updates_frame()["ranks"].max())
        found["difference"] = max(float((a - b).detach().abs().max()) for a, b in pairs)
    return found


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """End this process, with its tracebacks, if the block takes longer on an idle machine.

    On a busy one, of which each process gets a share, a second counts as that share.
    """
    over = threading.Event()

    def watch() -> None:
        left, at = seconds, time.monotonic()
        while not over.wait(0.2):
            before, at = at, time.monotonic()
            left -= (at - before) * _share()
            if left < 0:
                print(f"not over after {seconds:g} s", file=sys.stderr)
                faulthandler.dump_traceback(all_threads=True)
                os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _share() -> float:
    """Return the share of a processor that a process gets at this moment."""
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return min(1.0, (os.cpu_count() or 1) / running)


def search(client: Any, step: Step) -> dict[str, Any]:
    """Search, and return the number of models that were trained, or the error."""
    from accelerando.search import HyperbandSearchCV

    X, y = data(chunks=step.get("chunks", False))
    found = HyperbandSearchCV(
        net_of(None),
        {"lr": [0.01, 0.1, 1.0]},
        max_iter=3,
        client=client,
        random_state=0,
        **step.get("settings", {}),
    )
    try:
        found.fit(X, y)
    except Exception as raised:
        if not step.get("fails"):
            raise
        return {"error": f"{type(raised).__name__}: {raised}"}
    return {"models": len(found.cv_results_["params"])}


def predict(client: Any, step: Step) -> dict[str, Any]:
    """Predict on the cluster, compare with this process, and return how many workers there are."""
    X, y = data()
    net = net_of(None).fit(X, y)
    here = net.predict_proba(X)
    net.client = client
    difference = float(np.abs(net.predict_proba(X) - here).max())
    return {"difference": difference, "workers": len(_workers(client))}


def lazy(client: Any, step: Step) -> dict[str, Any]:
    """Predict chunks on whatever workers Dask chooses, and on those of ``step["on"]``."""
    X, _ = data()
    net = net_of(None).fit(*data())
    net.client = client
    chunks = data(chunks=True)[0]
    try:
        net.predict_proba(chunks).compute()
        error = None
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    there = net.predict_proba(chunks).compute(workers=step["on"])
    difference = float(np.abs(there - net.predict_proba(X)).max())
    return {"error": error, "difference": difference, "workers": len(_workers(client))}


def doctor(client: Any, step: Step) -> dict[str, Any]:
    """Run ``accelerando doctor`` on the client's scheduler.

    In this process, which has imported PyTorch already.
    """
    from accelerando.cli import main as command

    address = client.scheduler.address
    if "scheme" in step:
        address = step["scheme"] + address[address.index(":") :]
    # Workers import PyTorch before they answer.
    patience = ("--timeout", f"{max(10.0, 4 * IMPORTING):.1f}")
    words = ("--scheduler", address, *patience, *step.get("options", ()))
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = command(["doctor", *words])
    return {"code": code, "said": said.getvalue()}


def scale(client: Any, step: Step) -> dict[str, Any]:
    """Ask the cluster for workers, as users do before a search.

    dask-jobqueue gives a new job the name of one that has just ended, and cancels it when it
    notices that the old one is gone. So it is asked until the workers are there.
    """
    for _ in range(int(PATIENCE / 5)):
        client.cluster.scale(step["workers"])
        with contextlib.suppress(TimeoutError):
            client.wait_for_workers(step["workers"], timeout=5)
            return {}
    raise TimeoutError(f"{_workers(client)}: not {step['workers']} workers")


def restart(client: Any, step: Step) -> dict[str, Any]:
    """Kill the scheduler, which somebody starts again, and wait for it and its workers."""
    before, workers = _identity(client), len(_workers(client))
    with contextlib.suppress(OSError):  # it does not answer
        _kill_scheduler(client)
    _await(lambda: _identity(client) not in (None, before))
    client.wait_for_workers(workers, timeout=PATIENCE)
    return {}


def _identity(client: Any) -> str | None:
    """Return the id of the scheduler; None while there is none."""
    try:
        return str(client.sync(client.scheduler.identity)["id"])
    except (OSError, AttributeError):
        return None


def _kill_scheduler(client: Any) -> None:
    client.run_on_scheduler(lambda: os.kill(os.getpid(), signal.SIGKILL))


STEPS = {
    "fit": fit,
    "search": search,
    "predict": predict,
    "lazy": lazy,
    "doctor": doctor,
    "scale": scale,
    "restart": restart,
}


# -- what happens meanwhile -----------------------------------------------------------------------


def _let_happen(
    client: Any, net: Any, ranks: int, events: list[str], happened: dict[str, str], over: Path
) -> None:
    """Let things happen to the workers of a fit, then let it end quickly."""
    for event in events:
        _await(lambda: _ranks(net) == ranks == len(_workers(client)))
        before = _workers(client)
        if event == "the scheduler dies":
            happened[event] = "yes"
            _kill_scheduler(client)
            return
        if event.startswith("touch "):  # somebody waits for this file and starts a worker
            Path(event.removeprefix("touch ")).touch()
            _await(lambda before=before: _workers(client) - before)
            happened[event] = "yes"
            continue
        if event != "lifetime":  # which comes by itself
            happened[event] = _slurm_event(event)
        _await(lambda before=before: before - _workers(client))
    _await(lambda: _ranks(net) == ranks)
    over.touch()


def _workers(client: Any) -> set[str]:
    from accelerando._dask import workers_of  # what the client has noted may have no workers

    return set(workers_of(client))


def _ranks(net: Any) -> int:
    """Return the number of ranks that train."""
    trainer = getattr(net, "_trainer_", None)
    return 0 if trainer is None else len(trainer.membership)


def _await(condition: Any, seconds: float = math.inf) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"It has not come true within {seconds:g} s.")
        time.sleep(0.2)


def _slurm_event(event: str) -> str:
    """Do it to all jobs, or to one of them; return which."""
    jobs = _run("squeue", "--noheader", "--format=%i", "--states=RUNNING").split()
    if event == "scancel":
        _run("scancel", *jobs)
    elif event == "requeue":
        del jobs[1:]
        _run("scontrol", "requeue", *jobs)
    elif event == "walltime":
        for job in jobs:
            _run("scontrol", "update", f"JobId={job}", "EndTime=now+1")
    return " ".join(jobs)


def _run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


# -- deployments ----------------------------------------------------------------------------------


@contextlib.contextmanager
def slurm(options: dict[str, Any]) -> Iterator[Any]:
    """Connect to SLURM as docs/cluster-slurm.md does; there are no jobs at first."""
    import dask
    from dask_jobqueue import SLURMCluster
    from distributed import Client

    dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"})  # 15 s is long for a test
    with (
        SLURMCluster(
            queue="normal",
            cores=1,
            processes=1,
            memory="1GB",
            walltime="00:10:00",
            interface="switch",
            worker_extra_args=options.get("worker_extra_args", []),
            python=options.get("python", sys.executable),
            log_directory=options["logs"],
            local_directory=options["logs"],
            scheduler_options={"dashboard_address": None},
        ) as cluster,
        Client(cluster) as client,
    ):
        if options.get("adapt") is not None:
            cluster.adapt(**options["adapt"])
        yield client


@contextlib.contextmanager
def ssh(options: dict[str, Any]) -> Iterator[Any]:
    """Connect to hosts as docs/cluster-ssh.md does: the key and the known hosts are in ~/.ssh."""
    from distributed import Client, SSHCluster

    with (
        SSHCluster(
            options["hosts"],
            connect_options={"username": "root"},
            worker_options={"nthreads": 1, "n_workers": 1, "interface": "eth0"},
            scheduler_options={"dashboard": False, "port": 8786, "interface": "eth0"},
            remote_python=sys.executable,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(len(options["hosts"]) - 1, timeout=PATIENCE)
        client.upload_file(__file__)  # the module is imported there
        yield client


@contextlib.contextmanager
def address(options: dict[str, Any]) -> Iterator[Any]:
    """Connect to a cluster that somebody has started."""
    from distributed import Client
    from distributed.security import Security

    tls = options.get("tls")
    security = Security(require_encryption=True, **tls) if tls else None
    with Client(options["address"], timeout=60, security=security) as client:
        # Not `wait_for_workers`, which leaves out those that Dask has paused.
        _await(lambda: len(_workers(client)) >= options.get("workers", 2), PATIENCE)
        yield client


def main() -> None:
    """Run the steps."""
    where, options = sys.argv[1], json.loads(sys.argv[2])
    results: dict[str, Any] = {}
    with {"slurm": slurm, "ssh": ssh, "address": address}[where](options) as client:
        for step in options["steps"]:
            results[step.get("name", step["do"])] = found = STEPS[step["do"]](client, step)
            if where == "slurm" and step["do"] == "fit" and options.get("adapt") is None:
                found["jobs left"] = _given_back(client)
    print(json.dumps(results), flush=True)


def _given_back(client: Any) -> int:
    """Return the number of jobs that the cluster still wants when it had time to end them."""
    deadline = time.monotonic() + PATIENCE
    while client.cluster.plan and time.monotonic() < deadline:
        time.sleep(0.1)
    return len(client.cluster.plan)


if __name__ == "__main__":
    import scenario  # workers import the module from there, too

    scenario.main()
