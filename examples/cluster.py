"""Train on a cluster: one worker is killed while the net is fitted, and the result is the same.

Run it with ``python examples/cluster.py``.
"""

import logging
import os
import signal

import torch
from distributed import Client, LocalCluster
from sklearn.datasets import load_digits
from skorch.callbacks import Callback
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.batch_size import GeoDamp

X, y = load_digits(return_X_y=True)
X, y = (X[:600] / 16).astype("float32"), y[:600]


class KillOnce(Callback):
    """Kill a worker after the second epoch, as a machine that fails would."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 2:
            os.kill(self.pid, signal.SIGKILL)


def network():
    """Return the module; its initial parameters follow from random_state."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def build(**options):
    """Return the same net for this process and for the cluster."""
    return NeuralNetClassifier(
        network,
        lr=0.1,
        max_epochs=4,
        batch_size=GeoDamp(initial=32, delay=2, factor=2),
        random_state=0,
        verbose=0,
        **options,
    )


if __name__ == "__main__":  # Dask's workers start Python anew
    alone = build().fit(X, y)
    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**local, silence_logs=logging.CRITICAL) as cluster, Client(cluster) as client:
        victim = client.run(os.getpid).popitem()[1]
        net = build(client=client, min_workers=2, callbacks=[KillOnce(victim)]).fit(X, y)
    print(net.updates_frame().groupby("epoch")[["update", "batch_size", "ranks"]].last())
    pairs = zip(alone.module_.parameters(), net.module_.parameters(), strict=True)
    apart = max(torch.max(torch.abs(a - b)).item() for a, b in pairs)
    print(f"the parameters agree to 1e-5: {apart < 1e-5}")
