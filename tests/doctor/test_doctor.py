"""The doctor: what facts mean, and that it finds the facts of real processes."""

import copy
import socket
import subprocess
import sys

import pytest

from accelerando import cli
from accelerando.doctor import _facts
from accelerando.doctor._findings import EXTRAS, NEEDED, Cluster, examine
from accelerando.doctor._report import describe_cluster, look

HEALTHY = {
    "python": "3.12.1",
    "system": "Linux x86_64",
    "host": "node1",
    "cpus": 4,
    "versions": dict.fromkeys(_facts.gather()["versions"], "1.0"),
    "environment": dict.fromkeys(_facts.gather()["environment"]),
    "nvidia": False,
    "torch": {"threads": 1, "cuda": None, "gpus": [], "gloo": True, "nccl": False},
    "torch_error": None,
}


def but(**changes):
    facts = copy.deepcopy(HEALTHY)
    for name, value in changes.items():
        if isinstance(value, dict):
            facts[name].update(value)
        else:
            facts[name] = value
    return facts


def workers(*facts):
    return {f"tcp://10.0.0.{i}:4000": f for i, f in enumerate(facts, start=1)}


def test_a_healthy_cluster_has_no_findings():
    cluster = Cluster(HEALTHY, workers(HEALTHY, HEALTHY))
    assert examine(HEALTHY, cluster) == []


@pytest.mark.parametrize(
    ("facts", "level", "says"),
    [
        (but(versions={"torch": None}, torch=None), "error", "This process has no PyTorch."),
        (but(torch=None, torch_error="OSError: libx"), "error", "import PyTorch: OSError: libx"),
        (but(torch={"gloo": False}), "warning", "without gloo"),
        (but(nvidia=True), "warning", "NVIDIA GPUs and a PyTorch built without CUDA"),
        (but(nvidia=True, torch={"cuda": "13.0"}), "warning", "that finds none of them"),
        (but(torch={"threads": 8}), "warning", "8 threads on 4 processors"),
        (but(versions={"matplotlib": None}), "note", "'plot' (pictures) is not installed"),
        (but(versions={"nh3": None}), "note", "no nh3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_of_one_machine(facts, level, says):
    (finding,) = examine(facts)
    assert finding.level == level
    assert says in finding.what
    assert finding.remedy


@pytest.mark.parametrize(
    ("cluster", "level", "says"),
    [
        (Cluster(HEALTHY, {}), "error", "no workers"),
        (
            Cluster(but(versions={"torch": None, "skorch": None}, torch=None), workers(HEALTHY)),
            "error",
            "The scheduler has no torch, skorch.",
        ),
        (
            Cluster(HEALTHY, workers(HEALTHY, but(versions={"accelerando": None}))),
            "error",
            "Workers (1 of 2) have no accelerando.",
        ),
        (
            Cluster(HEALTHY, workers(HEALTHY, but(python="3.11.9"))),
            "error",
            "Different versions of Python: 3.11 on tcp://10.0.0.2:4000; 3.12 on client, "
            "scheduler, tcp://10.0.0.1:4000.",
        ),
        (
            Cluster(HEALTHY, workers(*[but(versions={"torch": "2.0"}, cpus=8)] * 5)),
            "warning",
            "torch: 1.0 on client, scheduler; 2.0 on tcp://10.0.0.1:4000, tcp://10.0.0.2:4000, "
            "tcp://10.0.0.3:4000 and 2 more.",
        ),
        (
            Cluster(HEALTHY, workers(*[but(torch={"threads": 4})] * 2)),
            "warning",
            "2 workers on node1 use 8 threads of PyTorch on 4 processors.",
        ),
        (
            Cluster(HEALTHY, workers(HEALTHY), silent={"tcp://a:1": ["tcp://b:2"]}),
            "error",
            "Worker tcp://a:1 cannot reach tcp://b:2.",
        ),
        (
            Cluster(HEALTHY, workers(but(environment={"MALLOC_TRIM_THRESHOLD_": "65536"}))),
            "note",
            "early on 1 of 1 workers",
        ),
        (
            Cluster(HEALTHY, workers(but(torch=None, torch_error="ImportError: x"))),
            "error",
            "Worker tcp://10.0.0.1:4000 cannot import PyTorch: ImportError: x",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_of_a_cluster(cluster, level, says):
    (finding,) = examine(HEALTHY, cluster)
    assert finding.level == level
    assert says in finding.what
    assert finding.remedy


def test_patch_versions_of_python_and_many_threads_beside_gpus_are_fine():
    gpu = but(torch={"gpus": ["A100"], "threads": 16}, cpus=16)
    cluster = Cluster(but(python="3.12.9"), workers(gpu, gpu))
    assert examine(HEALTHY, cluster) == []


def test_the_worst_comes_first():
    facts = but(versions={"matplotlib": None}, torch={"gloo": False, "threads": 9})
    levels = [finding.level for finding in examine(facts, Cluster(HEALTHY, {}))]
    assert levels == ["error", "warning", "warning", "note"]


def test_the_facts_name_everything_the_findings_ask_for():
    known = set(_facts.gather()["versions"])
    assert set(NEEDED) <= known
    assert {name for packages, _ in EXTRAS.values() for name in packages} <= known


def test_the_facts_need_nothing_that_may_be_missing():
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = None\n"
        "facts = runpy.run_path(sys.argv[1])['gather']()\n"
        "assert 'accelerando' not in sys.modules\n"
        "assert facts['torch'] is None and facts['torch_error'].startswith('ModuleNotFound')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, _facts.__file__], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_closed_doors_are_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_port = server.getsockname()[1]
        with socket.socket() as bound:  # bound and not listening: nobody answers, nobody else comes
            bound.bind(("127.0.0.1", 0))
            closed = f"tcp://127.0.0.1:{bound.getsockname()[1]}"
            addresses = [f"tcp://127.0.0.1:{open_port}", closed, "inproc://10.0.0.1/3/1"]
            assert _facts.reach(addresses, 5.0) == [closed]


def test_this_machine(capsys):
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("This machine\n  Python 3.")
    assert "torch" in shown
    assert "Findings" in shown


def test_a_real_cluster(client, capsys):
    address = client.scheduler.address
    cluster = look(address, 30.0)
    assert len(cluster.workers) == 4
    assert all(facts["torch"]["gloo"] for facts in cluster.workers.values())
    assert set(cluster.threads.values()) == {1}
    assert all(silent == [] for silent in cluster.silent.values())
    assert sum(line.count("worker") for line in describe_cluster(cluster)) == 1
    assert cli.main(["doctor", "--scheduler", address, "--timeout", "30"]) == 0
    assert f"Cluster at {address}" in capsys.readouterr().out


def test_nobody_answers(capsys):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{bound.getsockname()[1]}"
        assert cli.main(["doctor", "--scheduler", address, "--timeout", "0.3"]) == 2
    assert f"No Dask scheduler answers at {address} within 0.3 s" in capsys.readouterr().err


def test_a_wrong_timeout(capsys):
    assert cli.main(["doctor", "--timeout", "0"]) == 2
    assert "--timeout must be above 0 seconds" in capsys.readouterr().err
