"""Fixtures: small real data, one thread, fixed seeds."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
from collections import Counter

# Read when NumPy, SciPy and PyTorch are loaded: one computing thread in this process and in those
# that it starts. Two test processes with two threads each wait for each other on two cores; fits of
# embeddings take four times as long.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import dask
import hypothesis
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from tests.leftovers import check_nothing_ignored, check_nothing_left
from tests.start_warm import METHOD, start_workers_warm

# PyTorch asks the name server for the name of every peer of a store, also of this machine. One that
# drops questions, because many tests ask at once, costs five seconds each time.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# Keys of checkpoints are not made in the home of who runs the tests.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="accelerando-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# What a shell starts in the background ignores Ctrl-C, and so would the processes of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail: no test asserts on elapsed time.
hypothesis.settings.register_profile("accelerando", deadline=None)
hypothesis.settings.load_profile("accelerando")

# Tests with real processes, signals and browsers on a machine that others may use, too.
_REAL = (
    "tests/_cluster/",
    "tests/contracts/test_ranks.py",
    "tests/crowd/serve/",
    "tests/crowd/pages/",
    "tests/search/test_cluster.py",
)
# Only a browser may fail for reasons of its own.
_SECOND_TRY = ("tests/crowd/pages/",)

# They start first when two processes share the files, so that none of these is alone at the end.
_LONG = (
    *_REAL,
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/contracts/",
    "tests/estimators/test_skorch_suite.py",
    "tests/reference/",
)

start_workers_warm()


@pytest.fixture
def cold():
    """Workers that start as a user's do, and import what they need while others train."""
    with dask.config.set({METHOD: "spawn"}):
        yield


def pytest_configure(config):
    """Keep xdist from its own order: files of many tests first, and those are the quick ones."""
    if config.pluginmanager.has_plugin("xdist"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Give real processes time, browsers a second try (the report says which); long first."""
    for item in items:
        if _is_in(item.nodeid, _SECOND_TRY):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if _is_in(item.nodeid, _REAL):
            item.add_marker(pytest.mark.timeout(300))
    items.sort(key=lambda item: not _is_in(item.nodeid, _LONG))  # the rest stays in its order


def _is_in(nodeid, parts):
    return any(part in nodeid for part in parts)


def pytest_terminal_summary(terminalreporter):
    """Show why a test needed its second try, whatever came of that, and where the time went."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first try of {report.nodeid} ({report.when})")
        terminalreporter.line(str(report.longrepr))
    seconds = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("slowest 10 files")
    for file, total in seconds.most_common(10):
        terminalreporter.line(f"{total:.2f}s {file}")


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes as long as many a test
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
def _shared_client():
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=":0")
    client = Client(cluster)
    yield client
    # All tests have been judged; what Dask raises as it shuts down is not about the last of them.
    for one in (client, cluster):
        with contextlib.suppress(RuntimeError):
            one.close()


@pytest.fixture(scope="module")
def client(_shared_client):
    """A Dask cluster of four real processes, shared by all tests that harm nobody on it."""
    yield _shared_client
    check_nothing_left(_shared_client)
    check_nothing_ignored(_shared_client)
