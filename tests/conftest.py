"""Fixtures: small real data, one thread, fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

# Tests with real processes, signals and browsers on a machine that others may use, too.
_REAL = ("tests/train/cluster/", "tests/crowd/serve/", "tests/crowd/pages/", "test_cluster.py")


def pytest_collection_modifyitems(items):
    """Give them time and a second try; the report says which ones needed it."""
    for item in items:
        if any(part in item.nodeid for part in _REAL):
            item.add_marker(pytest.mark.flaky(reruns=1))
            item.add_marker(pytest.mark.timeout(300))


def pytest_terminal_summary(terminalreporter):
    """Show why a test needed its second try, whatever came of that."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first try of {report.nodeid} ({report.when})")
        terminalreporter.line(str(report.longrepr))


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(scope="session")
def digits():
    X, y = load_digits(return_X_y=True)
    return (X / 16).astype("float32")[:600], y[:600]


@pytest.fixture(scope="session")
def line():
    """A linear regression problem: X of shape (120, 3), y of shape (120, 1)."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3)).astype("float32")
    y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 0.1 * rng.normal(size=(120, 1))).astype("float32")
    return X, y


@pytest.fixture(scope="session")
def client():
    """A Dask cluster of four real processes, shared by all tests that harm nobody on it."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client
