"""A fit is readable: the functions that it calls are in few files of ours."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

import accelerando
from accelerando.batch_size import RadaDamp
from tests.nets import classifier

ROOT = str(Path(accelerando.__file__).parent)
IN_THIS_PROCESS = 15
DRIVER, RANK, TOGETHER = 32, 28, 36  # a rank seeds updates as the process of the driver does

called: set[str] = set()


def look(frame, event, arg):
    """Note the file of a function of accelerando that is called."""
    if event == "call" and frame.f_code.co_filename.startswith(ROOT):
        called.add(frame.f_code.co_filename[len(ROOT) + 1 :])


def look_at_new_threads():
    """Look at the threads that are started from now on, in which ranks live."""
    called.clear()
    threading.setprofile(look)


def files_called():
    """Stop looking and return what was seen."""
    threading.setprofile(None)
    return set(called)


@contextmanager
def looking():
    called.clear()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_the_page_says_as_many():
    page = Path(__file__).parents[1].joinpath("docs", "architecture.md").read_text()
    assert (
        f"at most {IN_THIS_PROCESS} of our files, a fit on a cluster of at most {TOGETHER} " in page
    )


def net_with(**params):
    return classifier(batch_size=RadaDamp(initial=32), max_epochs=2, **params)


def test_a_fit_in_this_process_calls_functions_of_few_files(digits):
    X, y = digits[0][:200], digits[1][:200]
    net_with().fit(X, y)  # what an import executes does not count
    net = net_with()
    with looking():
        net.fit(X, y)
    files = files_called()
    assert {"_engine/loop.py", "_engine/step.py"} <= files
    assert len(files) <= IN_THIS_PROCESS, "\n".join(sorted(files))


@pytest.mark.timeout(300)
def test_a_fit_on_a_cluster_calls_functions_of_few_files(digits):
    X, y = digits[0][:200], digits[1][:200]
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        net_with(client=client, min_workers=2).fit(X, y)
        client.run(look_at_new_threads)
        net = net_with(client=client, min_workers=2)
        with looking():
            net.fit(X, y)
        driver, ranks = files_called(), client.run(files_called)
    assert net.updates_frame()["ranks"].max() == 2
    assert len(driver) <= DRIVER, "\n".join(sorted(driver))
    for rank in ranks.values():
        assert {"_cluster/worker/rank.py", "_engine/loop.py"} <= rank
        assert len(rank) <= RANK, "\n".join(sorted(rank))
        assert len(driver | rank) <= TOGETHER, "\n".join(sorted(driver | rank))
