"""Workers that hang, and a scheduler that is killed while a fit or a search runs (SIGKILL)."""

import asyncio
import json
import os
import re
import threading
import time

import numpy as np
import pytest
from distributed import Client, Scheduler, Worker
from distributed.utils import get_mp_context
from scipy.stats import uniform

from accelerando.exceptions import ClusterError
from accelerando.search import HyperbandSearchCV
from tests._cluster.helpers import Paced, when
from tests.nets import classifier, parameters_of
from tests.search.estimators import Logged

SECONDS = 5.0  # until Dask's client gives up


def serve(file, is_scheduler):
    """Run a scheduler, or a worker of it, until it ends."""

    async def run():
        if is_scheduler:
            server = Scheduler(host="127.0.0.1", port=0, dashboard=False, scheduler_file=file)
        else:
            server = Worker(scheduler_file=file, nthreads=1, dashboard=False, death_timeout=3)
        await server
        await server.finished()

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    asyncio.run(run())


def is_written(file):
    try:
        return bool(json.loads(file.read_text()))
    except (OSError, ValueError):  # not there, or in part
        return False


@pytest.fixture
def scheduler(tmp_path):
    """A scheduler and two workers, each a process; yield the scheduler, and the file about it."""
    file = tmp_path / "scheduler.json"
    started = []

    def start(is_scheduler):
        process = get_mp_context().Process(target=serve, args=(str(file), is_scheduler))
        process.start()
        started.append(process)

    try:
        start(is_scheduler=True)
        while not is_written(file):
            assert started[0].is_alive()
            time.sleep(0.01)
        for _ in range(2):
            start(is_scheduler=False)
        yield started[0], str(file)
    finally:
        for one in started:
            one.kill()
            one.join()


@pytest.mark.parametrize("with_folder", [True, False])
def test_a_fit_ends_with_a_sentence_and_continues_elsewhere(
    scheduler, digits, tmp_path, with_folder
):
    process, file = scheduler
    folder = str(tmp_path / "folder") if with_folder else None
    settings = {"max_epochs": 30, "batch_size": 64, "examples_per_worker": 16, "lr": 0.02}
    with Client(scheduler_file=file, timeout=SECONDS) as client:
        address = client.scheduler.address
        client.wait_for_workers(2)
        net = classifier(Paced, client=client, checkpoint=folder, **settings)
        when(net, 40, process.kill)
        with pytest.raises(ClusterError) as error:
            net.fit(*digits)
    said = str(error.value)
    assert said.startswith(f"The Dask scheduler at {address} is gone (mailbox at 127.0.0.1:")
    update, epochs = map(int, re.search(r"state of update (\d+), after (\d+) whole", said).groups())
    assert epochs >= 1
    assert update >= epochs
    assert len(net.history_) >= epochs
    if with_folder:
        assert f"fit with checkpoint={folder!r} continues" in said
        again = classifier(Paced, client=None, checkpoint=folder, **{**settings, "max_epochs": 30})
        again.set_params(module__seconds=0.0)
        again.fit(*digits)  # continues
        assert len(again.history_) == 30
        whole = classifier(Paced, client=None, module__seconds=0.0, **settings).fit(*digits)
        np.testing.assert_allclose(parameters_of(again), parameters_of(whole), 1e-3, 5e-5)
    else:
        assert said.endswith("(checkpoint= would keep it on disk, too.)")
        net.set_params(client=None).partial_fit(*digits)
        assert len(net.history_) > epochs


@pytest.mark.parametrize("with_folder", [True, False])
def test_a_search_ends_with_a_sentence_and_continues_elsewhere(scheduler, tmp_path, with_folder):
    process, file = scheduler
    log, folder = tmp_path / "log", tmp_path / "folder" if with_folder else None
    X, y = np.zeros((50, 2)), np.zeros(50)

    def search(client):
        return HyperbandSearchCV(
            Logged(seconds=0.02, log=str(log)), {"slope": uniform(0, 1)}, max_iter=27,
            client=client, checkpoint=folder, random_state=0,
        )  # fmt: skip

    def kill():
        while not (log.exists() and log.read_text().count("\n") > 60):
            threading.Event().wait(0.02)
        process.kill()

    threading.Thread(target=kill, daemon=True).start()
    with Client(scheduler_file=file, timeout=SECONDS) as client:
        address = client.scheduler.address
        client.wait_for_workers(2)
        with pytest.raises(ClusterError) as error:
            search(client).fit(X, y)
    said = str(error.value)
    assert said.startswith(f"The Dask scheduler at {address} is gone (Dask's client has given up).")
    assert re.search(r"had made \d+ of 357 calls; its best score was \d\S+ with {'slope'", said)
    if folder is None:
        assert "With checkpoint=, fit could continue" in said
        return
    assert f"checkpoint={str(folder)!r} continues" in said
    before = log.read_text().count("\n")
    again = search(None).fit(X, y)
    assert again.metadata_["partial_fit_calls"] == 357
    assert log.read_text().count("\n") - before < 357  # finished jobs were not repeated
