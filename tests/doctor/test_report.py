"""The report: of this machine, of a real cluster, and of one that does not answer."""

import inspect
import os
import pickle
import socket
import threading
import time

import dask
import pytest

from accelerando import cli
from accelerando.doctor import _facts, _report
from accelerando.doctor._findings import Cluster, Finding, examine
from accelerando.doctor._report import (
    _ask_workers,
    _sent,
    describe,
    describe_cluster,
    describe_finding,
    gather_cluster,
)
from tests.doctor.test_findings import HEALTHY, but, workers
from tests.pickles import imported_by


def test_this_machine(capsys):
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("This machine\n  Python 3.")
    assert "torch" in shown
    assert "Findings" in shown


def test_a_real_cluster(client, capsys):
    address = client.scheduler.address
    cluster = gather_cluster(address, 30.0)
    assert len(cluster.workers) == 4
    assert all(facts["torch"]["gloo"] for facts in cluster.workers.values())
    assert set(cluster.threads.values()) == {1}
    assert all(others == [] for others in cluster.unreachable.values())
    assert list(cluster.blocked.values()) == [[]] * 4
    assert cluster.silent == {}
    assert min(cluster.limits.values()) > 0
    assert sum(line.count("worker") for line in describe_cluster(cluster)) == 1
    assert cli.main(["doctor", "--scheduler", address, "--timeout", "30"]) == 0
    assert f"Cluster at {address}" in capsys.readouterr().out


def test_workers_that_answer_may_import_pytorch_slowly(client, monkeypatch):
    asked = []

    def ask(client, workers, seconds, function, *arguments):
        workers = list(workers)
        asked.append((function.__name__, workers, seconds))
        found = _ask_workers(client, workers, 60.0, function, *arguments)
        if function is _facts.answer:
            found[workers[0]] = "no answer within 5 s"
        return found

    monkeypatch.setattr(_report, "_ask_workers", ask)
    cluster = gather_cluster(client.scheduler.address, 5.0)
    (first, everybody, seconds), (second, answering, longer) = asked[:2]
    assert (first, seconds) == ("answer", 5.0)
    assert (second, longer) == ("gather_there", 65.0)
    assert answering == everybody[1:]
    assert cluster.silent == {everybody[0]: "no answer within 5 s"}
    assert list(cluster.workers) == answering


def test_workers_that_cannot_listen_are_found(client, monkeypatch):
    def ask(client, workers, seconds, function, *arguments):
        found = _ask_workers(client, workers, 60.0, function, *arguments)
        if function is _facts.listen:
            found[min(found)] = "error: [Errno 99] Cannot assign requested address"
        return found

    monkeypatch.setattr(_report, "_ask_workers", ask)
    cluster = gather_cluster(client.scheduler.address, 30.0)
    assert cluster.deaf == {
        min(cluster.workers): "error: [Errno 99] Cannot assign requested address"
    }


_over = threading.Event()  # of each worker


def _hold():
    _over.wait(60.0)


def _let_go():
    _over.set()


def _again():
    _over.clear()


def _executing(client):
    infos = client.scheduler_info(n_workers=-1)["workers"].values()
    return [info["metrics"]["task_counts"].get("executing", 0) for info in infos]


def test_workers_without_a_free_thread(client):
    names = client.scheduler_info(n_workers=-1)["workers"]
    held = [client.submit(_hold, pure=False, workers=[name]) for name in names]
    try:
        while _executing(client) != [1] * 4:  # a heartbeat brings it to the scheduler
            time.sleep(0.05)
        cluster = gather_cluster(client.scheduler.address, 30.0)
    finally:
        client.run(_let_go)
        client.gather(held)
        client.run(_again)
    assert list(cluster.running.values()) == [1] * 4
    assert cluster.paused == []
    (finding,) = [f for f in examine(HEALTHY, cluster) if "busy with tasks" in f.what]
    assert all(name in finding.what for name in list(names)[:3])


def test_nobody_answers(capsys):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{bound.getsockname()[1]}"
        assert cli.main(["doctor", "--scheduler", address, "--timeout", "0.3"]) == 2
    assert f"No Dask scheduler answers at {address} within 0.3 s" in capsys.readouterr().err


def test_a_wrong_timeout(capsys):
    assert cli.main(["doctor", "--timeout", "0"]) == 2
    assert (
        "'--timeout' parameter of accelerando doctor must be a number above 0"
        in capsys.readouterr().err
    )


def test_a_process_is_described_with_its_devices():
    lines = describe(but(torch={"gpus": ["A100", "A100"], "nccl": True, "threads": 3}))
    assert lines[0] == "Python 3.12.1, Linux x86_64, 4 CPU cores"
    assert lines[1:3] == ["PyTorch threads: 3; distributed: gloo, nccl", "GPUs: 2 × A100"]
    assert "GPUs: none" in describe(HEALTHY)


def test_workers_of_one_kind_share_a_line():
    cluster = Cluster(HEALTHY, workers(HEALTHY, HEALTHY, but(host="node2")))
    scheduler, first, second = describe_cluster(cluster)
    assert scheduler.startswith("scheduler on node1: Python 3.12.1")
    assert first.startswith("2 workers on node1: ")
    assert second.startswith("1 worker on node2: ")


def test_an_error_ends_with_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr(_facts, "gather", lambda: but(torch=None, torch_error="ImportError: x"))
    assert cli.main(["doctor"]) == 2
    assert "error    This process cannot import PyTorch: ImportError: x" in capsys.readouterr().out


def test_a_finding_has_its_remedy_below():
    lines = describe_finding(Finding("note", "Something is missing.", "Install it."))
    assert lines == ["note     Something is missing.", "         Install it."]


class Client:
    """A client with a worker that answers, one that raises, and one that hangs."""

    hangs = threading.Event()

    def run(self, function, *arguments, workers):
        (worker,) = workers
        if worker == "hangs":
            self.hangs.wait(60.0)
        if worker == "raises":
            raise OSError("Timed out trying to connect\nsecond line")
        return {worker: function(*arguments)}


def test_workers_that_do_not_answer_do_not_stop_the_others():
    found = _ask_workers(Client(), ["hangs", "raises", "answers"], 0.2, abs, -3)
    Client.hangs.set()
    assert found == {
        "hangs": "no answer within 0.2 s",
        "raises": "OSError: Timed out trying to connect",
        "answers": 3,
    }


def test_the_mailbox_is_tried_here_if_the_scheduler_is_out_of_reach(client, monkeypatch):
    reach, here = _facts.reach, os.getpid()

    def only_others(addresses, seconds):
        return addresses if os.getpid() == here else reach(addresses, seconds)

    address = client.scheduler.address
    assert gather_cluster(address, 30.0).here == ""
    monkeypatch.setattr(_facts, "reach", only_others)
    with dask.config.set({"accelerando.ports": "36000:36999"}):
        cluster = gather_cluster(address, 30.0)
    for where in (cluster.here, cluster.beyond):
        assert 36000 <= int(where.rpartition(":")[2]) <= 36999
    assert cluster.here != cluster.beyond
    assert list(cluster.blocked.values()) == [[]] * 4

    def in_vain(client, workers, seconds, function, *arguments):
        if function is _facts.knock:
            return {worker: ([], list(arguments[1])) for worker in workers}
        return _ask_workers(client, workers, seconds, function, *arguments)

    monkeypatch.setattr(_report, "_ask_workers", in_vain)
    cluster = gather_cluster(address, 30.0)
    for tried in cluster.blocked.values():  # four workers and this machine, not the scheduler
        assert len(tried) == 5
        assert cluster.here in tried
        assert cluster.beyond not in tried


@pytest.mark.parametrize(
    "function",
    [_facts.gather_there, _facts.answer, _facts.listen, _facts.knock],
    ids=lambda function: function.__name__,
)
def test_functions_travel_as_text_because_bytecode_crashes_another_python(function):
    sent = pickle.dumps(_sent(function))
    assert imported_by(sent) == {("builtins", "eval")}
    assert inspect.signature(pickle.loads(sent)) == inspect.signature(function)
