"""Workers that die, hang or leave while they train; real processes, real signals."""

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import torch
from distributed import Client

from accelerando._cluster.rank_task import RankTasks
from accelerando._cluster.worker.rank import Rank
from accelerando.exceptions import ClusterError
from tests._cluster.helpers import (
    Paced,
    cluster_of,
    kill_member,
    pids,
    send_signal,
    when,
)
from tests.leftovers import check_nothing_left
from tests.nets import classifier, parameters_of

MARK = 777.0
TOLERANCE = {"rtol": 1e-3, "atol": 5e-5}


def net_of(client, **params):
    settings = {
        "optimizer__momentum": 0.9,
        "lr": 0.02,
        "max_epochs": 12,
        "batch_size": 64,
        "examples_per_worker": 16,
        "rank_timeout": 2.0,
    }
    return classifier(Paced, client=client, **{**settings, **params})


@pytest.fixture(scope="module")
def quiet(digits):
    """The same run, undisturbed, in this process."""
    return net_of(None, module__seconds=0.0).fit(*digits)


@pytest.fixture
def cluster():
    with cluster_of(4) as cluster:
        yield cluster


def check_equal(net, quiet):
    torch.testing.assert_close(parameters_of(net), parameters_of(quiet), **TOLERANCE)
    frame, expected = net.updates_frame(), quiet.updates_frame()
    for column in ("update", "epoch", "examples", "batch_size"):
        assert frame[column].tolist() == expected[column].tolist()
    assert len(net.history) == 12
    assert [len(row["batches"]) for row in net.history] == [
        len(row["batches"]) for row in quiet.history
    ]


@pytest.mark.parametrize("victim", [0, 2], ids=["the first rank", "another rank"])
def test_a_killed_worker_changes_nothing(victim, cluster, digits, quiet):
    with Client(cluster) as client:
        net = net_of(client)

        killer = when(net, 20, lambda: kill_member(client, net, victim))
        net.fit(*digits)
        killer.join()
        check_equal(net, quiet)
        assert any(entry["event"] == "lost" for entry in net.world_log_)
        assert {3, 4} <= set(net.updates_frame()["ranks"])
        check_nothing_left(client)


def test_all_workers_at_once(cluster, digits, quiet):
    """Training waits for the restarted ones and continues from the last epoch's end."""
    with Client(cluster) as client:
        net = net_of(client)

        def kill():
            for pid in pids(cluster):
                os.kill(pid, signal.SIGKILL)

        killer = when(net, 30, kill)
        net.fit(*digits)
        killer.join()
        check_equal(net, quiet)
        assert len(cluster.worker_spec) == 4  # it is as large as it was


def test_ten_random_kills(cluster, digits, quiet):
    """Chaos: any worker, any moment, start-up and switches included."""
    stop = threading.Event()
    rng = random.Random(0)

    def chaos():
        for _ in range(10):
            if stop.wait(rng.uniform(0.05, 1.5)):
                return
            alive = pids(cluster)
            if alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(alive), signal.SIGKILL)

    with Client(cluster) as client:
        net = net_of(client, max_epochs=12, module__seconds=0.01)
        thread = threading.Thread(target=chaos, daemon=True)
        thread.start()
        net.fit(*digits)
        stop.set()
        thread.join()
        check_equal(net, quiet)
        check_nothing_left(client)


def test_a_frozen_worker_is_left_behind_and_comes_back(cluster, digits, quiet):
    with Client(cluster) as client:
        net = net_of(client, module__seconds=0.02)
        frozen = []

        def freeze():
            worker = net._trainer_.membership[1].worker
            frozen.append(send_signal(client, worker, signal.SIGSTOP))

        freezer = when(net, 25, freeze)

        def thaw():
            while not any(entry["event"] == "silent" for entry in net.world_log_):
                time.sleep(0.01)
            os.kill(frozen[0], signal.SIGCONT)

        thawer = when(net, 25, thaw)
        net.fit(*digits)
        freezer.join()
        thawer.join()
        check_equal(net, quiet)
        assert any("does not answer" in entry["text"] for entry in net.world_log_)


@contextlib.contextmanager
def fitting(net, digits, stopped):
    """Fit in another thread, for a minute and a half at most; wake stopped processes up."""
    errors = []

    def fit():
        try:
            net.fit(*digits)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    try:
        thread.join(90)
        ended = not thread.is_alive()
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        thread.join(90)
    assert ended
    assert not errors, errors


@pytest.mark.parametrize("moment", ["before the data are sent", "while its rank starts"])
def test_a_worker_that_hangs_while_ranks_start_is_not_awaited(moment, monkeypatch, digits, quiet):
    stopped, start = [], RankTasks.start

    def stopping(self, rank, worker):
        before, later = moment.startswith("before"), bool(self._data)
        stops = not stopped and (before or later)  # later, another worker has the data
        if stops:
            stopped.append(process_of[worker])
        if stops and before:
            os.kill(stopped[0], signal.SIGSTOP)
        found = start(self, rank, worker)
        if stops and not before:
            os.kill(stopped[0], signal.SIGSTOP)
        return found

    monkeypatch.setattr(RankTasks, "start", stopping)
    with cluster_of(2) as cluster, Client(cluster) as client:
        process_of = client.run(os.getpid)
        net = net_of(client, min_workers=2, max_workers=2, module__seconds=0.0)
        with fitting(net, digits, stopped):
            check_equal(net, quiet)
            texts = [entry["text"] for entry in net.world_log_]
            wanted = "hangs" if moment.startswith("before") else "does not answer"
            assert any(wanted in text for text in texts), texts
            assert net.updates_frame()["ranks"].iloc[0] == 1


def stop_at_the_end_of_an_epoch(epoch):
    """Stop this process after the last collective of an epoch, before its rank reports the end."""
    report = Rank._report_end

    def stopping(self, *args):
        if self.state.position.epoch == epoch:
            Rank._report_end = report
            os.kill(os.getpid(), signal.SIGSTOP)
            # Another thread may take the signal: without a pause this one would report first.
            threading.Event().wait(1.0)
        report(self, *args)

    Rank._report_end = stopping


@pytest.mark.parametrize("epoch", [3, 11], ids=["inside", "at the end"])
def test_a_rank_that_hangs_after_the_last_collective_is_left_behind(epoch, digits, quiet):
    with cluster_of(2) as cluster, Client(cluster) as client:
        worker, pid = next(iter(client.run(os.getpid).items()))
        client.run(stop_at_the_end_of_an_epoch, epoch, workers=[worker])
        net = net_of(client, min_workers=2, max_workers=2, module__seconds=0.0)
        with fitting(net, digits, [pid]):
            check_equal(net, quiet)
            text = f"The rank on {worker} does not answer."
            assert [e["text"] for e in net.world_log_ if e["event"] == "silent"] == [text]
            assert (set(net.updates_frame()["ranks"]) == {2}) == (epoch == 11)


def test_a_worker_retired_by_the_scheduler(cluster, digits, quiet):
    with Client(cluster) as client:
        net = net_of(client)
        leaving = when(
            net,
            20,
            lambda: client.retire_workers([net._trainer_.membership[0].worker], close_workers=True),
        )
        net.fit(*digits)
        leaving.join()
        check_equal(net, quiet)


class Deadly(Paced):
    """The batch with the marked row ends the process, on a worker."""

    def forward(self, x):
        on_worker = multiprocessing.current_process().name != "MainProcess"
        if self.training and on_worker and (x[:, 0] == MARK).any():
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().forward(x)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_batch_that_kills_its_process_ends_the_fit(ranks, digits):
    X, y = digits[0][:256].copy(), digits[1][:256]
    X[64 * 3 + 20, 0] = MARK  # in update 4
    with cluster_of(2) as cluster, Client(cluster) as client:
        net = classifier(
            Deadly,
            client=client,
            batch_size=64,
            examples_per_worker=64 // ranks,
            max_workers=ranks,
            min_workers=1,
            max_epochs=2,
            train_split=None,
            iterator_train__shuffle=False,
        )
        with pytest.raises(ClusterError, match=r"Update 4 has killed \d workers: tcp://") as caught:
            net.fit(X, y)
        assert "batch_size" in str(caught.value)
        assert net._state_.interrupted
        assert net.position_.update in (0, 3)  # where a rank survived, its state is kept
        X[64 * 3 + 20, 0] = 0.0
        net.partial_fit(X, y)
        assert net.position_.update == 8
        check_nothing_left(client)
    quiet = classifier(
        Paced,
        module__seconds=0.0,
        batch_size=64,
        max_epochs=2,
        train_split=None,
        iterator_train__shuffle=False,
    ).fit(X, y)
    torch.testing.assert_close(parameters_of(net), parameters_of(quiet), **TOLERANCE)


def test_no_workers_for_too_long_is_an_error_that_keeps_the_state(digits):
    with cluster_of(1) as cluster, Client(cluster) as client:
        net = net_of(client, worker_timeout=1.0)
        when(net, 25, lambda: cluster.scale(0))
        with pytest.raises(ClusterError, match="worker_timeout"):
            net.fit(*digits)
        assert net.position_.update >= 8
        assert net._state_.interrupted
        cluster.scale(1)
        client.wait_for_workers(1)
        net.set_params(worker_timeout=60.0).partial_fit(*digits)
        assert len(net.history) == 12


def test_an_error_in_the_module_arrives_once_with_its_traceback(client, digits):
    net = net_of(client, module__broken_at=5)
    with pytest.raises(LookupError, match="own trouble") as caught:
        net.fit(*digits)
    assert any("forward" in str(entry.name) for entry in caught.traceback)
    assert net.position_.update == 4
    check_nothing_left(client)
    net.set_params(module__broken_at=None, max_epochs=1).fit(*digits)  # the cluster is fine


def test_not_finite_stops_with_the_last_finite_parameters(client, digits):
    X, y = digits[0].copy(), digits[1]
    X[100] = np.nan
    net = net_of(client, train_split=None)
    with pytest.raises(ArithmeticError, match="at update"):
        net.fit(X, y)
    assert torch.isfinite(parameters_of(net)).all()
    check_nothing_left(client)


SCRIPT = """
    import sys, time
    from distributed import Client
    from tests._cluster.test_failure import net_of
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X, y = (X / 16).astype("float32")[:600], y[:600]
    with Client(sys.argv[1]) as client:
        net = net_of(client, checkpoint=sys.argv[2], checkpoint_every=5, module__seconds=0.01)
        net.fit(X, y)
"""


def test_a_killed_driver_leaves_nothing_and_loses_little(client, digits, quiet, tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(SCRIPT))
    folder = tmp_path / "checkpoint"
    driver = subprocess.Popen(
        [sys.executable, str(script), client.scheduler.address, str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )
    while not list(folder.glob("state-*.pt")):
        assert driver.poll() is None
        time.sleep(0.01)
    driver.kill()
    driver.wait()
    check_nothing_left(client)
    net = net_of(client, checkpoint=folder, checkpoint_every=5).fit(*digits)
    check_equal(net, quiet)


def test_ctrl_c_keeps_the_parameters(client, digits):
    net = net_of(client, module__seconds=0.01)
    when(net, 20, lambda: signal.raise_signal(signal.SIGINT))
    net.fit(*digits)  # skorch swallows the interrupt
    assert 20 <= net.position_.update < 96
    assert net._state_.interrupted
    check_nothing_left(client)
    before = net.position_.update
    net.partial_fit(*digits)
    assert net.position_.update == 96 > before
