"""What a user reads on the terminal: the numbers of ranks, the table, and an error once."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from accelerando._dask import hide_failed_ranks

SCRIPT = """
import contextlib
import sys
import numpy as np
from distributed import Client, LocalCluster
from torch import nn
from accelerando import NeuralNetRegressor


class Net(nn.Module):
    def __init__(self, broken=False):
        super().__init__()
        self.layer, self.broken, self.calls = nn.Linear(4, 1), broken, 0

    def forward(self, x):
        self.calls += 1
        if self.broken and self.calls == 3:
            raise ValueError("an error of mine")
        return self.layer(x)


if __name__ == "__main__":
    X = np.ones((64, 4), dtype="float32")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        settings = dict(max_epochs=2, batch_size=8, min_workers=2, client=client)
        NeuralNetRegressor(Net, verbose=0, **settings).fit(X, X[:, :1])
        for failing in (lambda signals: None, lambda signals: 1 / 0):
            with contextlib.suppress(ValueError, ZeroDivisionError):
                NeuralNetRegressor(Net, verbose=0, **{**settings, "batch_size": failing}).fit(X, X)
        print("silent until here", flush=True)
        NeuralNetRegressor(Net, **settings).fit(X, X[:, :1])
        print("no warnings until here", file=sys.stderr, flush=True)
        NeuralNetRegressor(Net, module__broken=True, **settings).fit(X, X[:, :1])
"""


@pytest.mark.timeout(180)
def test_a_fit_shows_its_ranks_and_an_error_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=170, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "silent until here", "verbose=0 prints nothing"
    assert lines[1] == "Ranks are starting; the cluster has 2 workers."
    assert lines[2] == "Training with 2 ranks on 2 workers."
    assert lines[3].split() == [
        "epoch", "batch_size", "lr", "ranks", "train_loss", "valid_loss", "dur",
    ]  # fmt: skip
    # On a busy machine Dask's nanny says that a worker takes long to end.
    stderr = "".join(
        one for one in done.stderr.splitlines(keepends=True) if "distributed.nanny" not in one
    )
    quiet, _, error = stderr.partition("no warnings until here\n")
    assert quiet == ""
    assert error.count("an error of mine") == 2, "the line of the script that raises, and the error"
    assert error.count("ValueError: an error of mine") == 1
    assert error.startswith("Traceback (most recent call last)")
    for word in ("Compute Failed", "frame #", "c10d"):
        assert word not in error


def test_only_the_block_about_a_rank_is_hidden():
    hide_failed_ranks()
    hide_failed_ranks()
    logger = logging.getLogger("distributed.worker")
    (hide,) = [one for one in logger.filters if type(one).__name__ == "_HideFailed"]
    failed = "Compute Failed\nKey:       %s\nState: %s"
    texts = [
        (failed, ("accelerando-12ab-rank-0", "running"), False),
        (failed, ("mine-12ab", "running"), True),
        ("Something about %s", ("accelerando-12ab-rank-0",), True),
    ]
    for text, args, shown in texts:
        record = logging.LogRecord("distributed.worker", logging.ERROR, "", 0, text, args, None)
        assert bool(hide.filter(record)) is shown
