"""What a user would run on a deployment: connect, fit or search, print what came of it as JSON.

``python scenario.py KIND ADDRESS OPTIONS`` where OPTIONS are JSON. The last line of the output is
JSON: ``error`` (the sentence, or null), ``ranks``, ``log``, ``loss``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import numpy as np
import torch


def data() -> tuple[Any, Any]:
    """Return a small problem."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(400, 8)).astype(np.float32)
    return X, (X.sum(axis=1) > 0).astype(np.int64)


class Slow(torch.nn.Linear):
    """A layer whose batches take a while, so that something can happen in between."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(8, 2)
        self.seconds = seconds

    def forward(self, x: Any) -> Any:
        time.sleep(self.seconds if self.training else 0.0)
        return super().forward(x)


def net_of(client: Any, *, seconds: float = 0.0, **settings: Any) -> Any:
    """Return an estimator."""
    from accelerando import NeuralNetClassifier

    values = {
        "max_epochs": 2,
        "batch_size": 32,
        "lr": 0.1,
        "examples_per_worker": 16,
        "worker_timeout": 30.0,
        "random_state": 0,
        "train_split": None,
        "verbose": 0,
        **settings,
    }
    return NeuralNetClassifier(
        Slow, module__seconds=seconds, criterion=torch.nn.CrossEntropyLoss, client=client, **values
    )


def fit(client: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Fit, compare with this process, and return what happened."""
    X, y = data()
    net = net_of(client, **settings)
    try:
        net.fit(X, y)
        error = None
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    found = {
        "error": error,
        "log": [line["text"] for line in getattr(net, "world_log_", [])],
        "ranks": 0,
        "difference": None,
    }
    if error is None:
        alone = net_of(None, **{**settings, "seconds": 0.0})
        alone.fit(X, y)
        pairs = zip(net.module_.parameters(), alone.module_.parameters(), strict=True)
        found["ranks"] = int(net.updates_frame()["ranks"].max())
        found["difference"] = max(float((a - b).abs().max()) for a, b in pairs)
    return found


def search(client: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Search, and return the number of models that were trained."""
    from accelerando.search import HyperbandSearchCV

    X, y = data()
    found = HyperbandSearchCV(
        net_of(None),
        {"lr": [0.01, 0.1, 1.0]},
        max_iter=3,
        client=client,
        random_state=0,
        **settings,
    ).fit(X, y)
    return {"error": None, "models": len(found.cv_results_["params"])}


def slurm(options: dict[str, Any]) -> dict[str, Any]:
    """Fit on jobs: the page about SLURM, on a cluster that has none at first."""
    from dask_jobqueue import SLURMCluster
    from distributed import Client

    settings, adapt = options["settings"], options.get("adapt")
    with (
        SLURMCluster(
            queue="normal",
            cores=1,
            processes=1,
            memory="1GB",
            walltime=options.get("walltime", "00:10:00"),
            interface="switch",
            python=sys.executable,
            log_directory=options["logs"],
            local_directory=options["logs"],
            scheduler_options={"dashboard_address": None, "interface": "switch"},
        ) as cluster,
        Client(cluster) as client,
    ):
        if adapt is not None:
            cluster.adapt(**adapt)
        if options.get("lost_worker_timeout"):
            import dask

            dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"})
        if "cancel" in options:
            threading.Thread(target=_cancel, daemon=True).start()
        found = fit(client, settings)
        deadline = time.monotonic() + 20
        while cluster.plan and adapt is None and time.monotonic() < deadline:
            time.sleep(0.1)
        found["left"] = len(cluster.plan)
        return found


def _cancel() -> None:
    """Cancel all jobs, once, some seconds after the first has begun."""
    import subprocess

    words = ["squeue", "--noheader", "--states=RUNNING", "--format=%i"]
    while len(jobs := subprocess.run(words, capture_output=True, text=True).stdout.split()) < 2:
        time.sleep(0.2)
    time.sleep(14.0)
    subprocess.run(["scancel", *jobs], check=True)


def ssh(options: dict[str, Any]) -> dict[str, Any]:
    """Fit on hosts that are reached by SSH: the page about SSH."""
    from distributed import Client, SSHCluster

    with (
        SSHCluster(
            options["hosts"],
            connect_options={
                "known_hosts": options["known_hosts"],
                "client_keys": [options["key"]],
            },
            worker_options={"nthreads": 1, "n_workers": 1, "interface": "eth0"},
            scheduler_options={"dashboard": False, "port": 8786, "interface": "eth0"},
            remote_python=sys.executable,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(len(options["hosts"]) - 1, timeout=60)
        client.upload_file(__file__)  # the module is imported there
        return fit(client, options["settings"])


def connected(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Fit or search on a cluster that somebody has started."""
    from distributed import Client
    from distributed.security import Security

    tls = options.get("tls")
    security = Security(require_encryption=True, **tls) if tls else None
    with Client(options["address"], timeout=30, security=security) as client:
        client.wait_for_workers(options.get("workers", 1), timeout=60)
        return (fit if kind == "fit" else search)(client, options.get("settings", {}))


def main() -> None:
    """Run a scenario."""
    kind, given = sys.argv[1], json.loads(sys.argv[2])
    started = time.monotonic()
    if kind in ("slurm", "ssh"):
        result = (slurm if kind == "slurm" else ssh)(given)
    else:
        result = connected(kind, given)
    result["seconds"] = round(time.monotonic() - started, 1)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    import scenario  # workers import the module from there, too

    scenario.main()
