"""Findings: which facts are a problem, and how severe."""

import copy

import pytest

from accelerando.doctor import _facts
from accelerando.doctor._findings import EXTRAS, NEEDED, Cluster, examine

HEALTHY = {
    "python": "3.12.1",
    "system": "Linux x86_64",
    "host": "node1",
    "cpus": 4,
    "versions": dict.fromkeys(_facts.gather()["versions"], "1.0"),
    "environment": dict.fromkeys(_facts.gather()["environment"]),
    "nvidia": False,
    "executable": "python",
    "clock": 1000.0,
    "lookup_seconds": 0.01,
    "memory": 300_000_000,
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
        (but(torch={"threads": 8}), "warning", "8 threads on 4 CPU cores"),
        (but(versions={"matplotlib": None}), "note", "'plot' (figures) is not installed"),
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
            "2 workers on node1 use 8 threads of PyTorch on 4 CPU cores.",
        ),
        (
            Cluster(HEALTHY, workers(HEALTHY), unreachable={"tcp://a:1": ["tcp://b:2"]}),
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
        (
            Cluster(HEALTHY, workers(HEALTHY), paused=["tcp://10.0.0.1:4000"]),
            "warning",
            "Dask has paused tcp://10.0.0.1:4000",
        ),
        (
            Cluster(
                HEALTHY,
                workers(HEALTHY, HEALTHY),
                threads={"a": 2, "b": 2},
                running={"a": 1, "b": 2},
            ),
            "warning",
            "All threads of b are busy",
        ),
        (
            Cluster(HEALTHY, workers(HEALTHY), deaf={"a": "error: [Errno 99] Cannot assign"}),
            "error",
            "Worker a cannot listen as a rank does: error: [Errno 99]",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_of_a_cluster(cluster, level, says):
    (finding,) = examine(HEALTHY, cluster)
    assert finding.level == level
    assert says in finding.what
    assert finding.remedy


def test_patch_versions_of_python_and_many_threads_with_gpus_are_fine():
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


# -- the network, memory and clocks of a cluster --------------------------------------------------

TWO = workers(HEALTHY, but(host="node2"))
A, B = TWO


def findings_of(members=TWO, **facts):
    return examine(HEALTHY, Cluster(HEALTHY, members, **facts))


def test_a_port_that_the_system_chose_is_blocked_by_a_firewall():
    chosen = ["tcp://10.0.0.2:40123", "tcp://10.0.0.9:40124"]
    (finding,) = findings_of(blocked={A: chosen, B: []})
    assert finding.level == "error"
    assert f"Worker {A} reaches 10.0.0.2, 10.0.0.9 on Dask's port, but not on" in finding.what
    assert "tcp://10.0.0.2:40123" in finding.what
    assert "firewall" in finding.what


def test_a_machine_that_cannot_be_reached_at_all_is_no_firewall():
    (finding,) = findings_of(unreachable={A: [B]}, blocked={A: ["tcp://10.0.0.2:40123"]})
    assert finding.what == f"Worker {A} cannot reach {B}."


def test_a_worker_that_does_not_answer_is_not_a_missing_scheduler():
    silent = {"tcp://10.0.0.3:4000": "no answer within 10 s"}
    (finding,) = findings_of(silent=silent)
    assert finding.level == "error"
    assert "is registered with the scheduler and does not answer: no answer" in finding.what
    (finding,) = findings_of({}, silent=silent)  # not: the scheduler has no workers
    assert "does not answer" in finding.what


def test_a_worker_on_the_loopback_address_is_found_if_there_are_other_machines():
    local = {"tcp://127.0.0.1:4000": HEALTHY}
    assert findings_of(local) == []
    (finding,) = findings_of({**local, B: but(host="node2")})
    assert "tcp://127.0.0.1:4000 on node1 listens on the loopback address" in finding.what
    assert "--interface" in finding.remedy


@pytest.mark.parametrize(
    ("limit", "need", "short"),
    [(0, 10**12, False), (400_000_000, 0, True), (520_000_000, 0, True), (530_000_000, 0, False),
     (2_000_000_000, 0, False), (2_000_000_000, 1_400_000_000, False),
     (2_000_000_000, 1_401_000_000, True)],
)  # fmt: skip
def test_a_memory_limit_is_compared_with_what_a_rank_needs(limit, need, short):
    found = findings_of(limits={A: limit, B: 0}, need=need)
    assert bool(found) == short
    if short:
        assert found[0].what.startswith(f"1 of 2 workers have too little memory: {A} has a limit")
        assert f"{limit / 1e6:,.0f} MB" in found[0].what
        assert f"{(500_000_000 + need) / 1e6:,.0f} MB" in found[0].what
        assert f"a rank {'with' if need else 'without'} its data" in found[0].what


@pytest.mark.parametrize(("seconds", "differs"), [(-4, False), (6, False), (8, True), (-60, True)])
def test_clocks_that_differ_by_more_than_reading_them_took(seconds, differs):
    found = findings_of({A: but(clock=1000.0 + seconds)}, elapsed=2.0)
    assert bool(found) == differs
    if differs:
        assert found[0].level == "warning"
        assert f"that of {A} by {abs(seconds)} s" in found[0].what


def test_a_script_and_workers_that_can_meet_nowhere():
    here, beyond = "tcp://192.168.0.5:40001", "tcp://10.0.0.9:40002"
    found = findings_of(here=here, beyond=beyond, blocked={A: [here], B: []})
    assert [finding.level for finding in found] == ["error"]
    for part in (f"cannot reach the scheduler on a port of the kind that ranks use ({beyond})",
                 f"worker {A} cannot reach this machine ({here})"):  # fmt: skip
        assert part in found[0].what
    assert findings_of(here=here, beyond=beyond, blocked={A: [], B: []}) == [], "it is here"


def test_a_slow_name_server_is_named_once_per_machine():
    slow = but(lookup_seconds=1.5)
    (finding,) = examine(HEALTHY, Cluster(HEALTHY, workers(slow, slow)))
    assert finding.level == "warning"
    assert "The name server of node1 takes more than 1 s" in finding.what
    assert "RES_OPTIONS" in finding.remedy
    assert examine(slow, Cluster(HEALTHY, workers(HEALTHY))) == []  # ranks are not there
