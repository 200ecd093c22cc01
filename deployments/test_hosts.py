"""Clusters on hosts: by hand, by SSH, with TLS, as on Kubernetes, without memory."""

import os
import subprocess
import sys
import types
from pathlib import Path

import _hosts
import pytest
from _pages import script_of

from conftest import gives_up, needs, run_scenario, works


def test_by_hand_fit_search_and_doctor(network, cluster):
    found = run_scenario(network[0].words, "address", "fit", "search", "doctor", address=cluster)
    works(found["fit"])
    assert _hosts.UNWANTED not in found["stderr"]
    assert found["search"]["models"] > 1
    assert found["doctor"]["code"] == 0, found["doctor"]["said"]


def test_a_scheduler_that_is_started_again_between_two_fits(fresh):
    hub, others = fresh
    with _hosts.dask_by_hand(hub, others, again=True) as address:
        steps = {"do": "fit", "name": "before"}, "restart", {"do": "fit", "name": "after"}, "search"
        found = run_scenario(hub.words, "address", *steps, address=address)
    works(found["before"])
    works(found["after"])
    assert found["search"]["models"] > 1


def test_workers_with_too_little_memory(fresh):
    hub, others = fresh
    with _hosts.dask_by_hand(hub, others, options=("--memory-limit", "400MB")) as address:
        settings = {"max_workers": 1, "min_workers": 1}
        steps = "doctor", {"do": "fit", "settings": settings, "within": 30 + 120}
        found = run_scenario(hub.words, "address", *steps, address=address)
    said = gives_up(found["fit"], "8 workers left the cluster while a rank started there")
    assert "have a memory limit of 400 MB" in said
    assert "too little memory" in found["doctor"]["said"]


def test_tls_and_a_scheduler_that_dies(fresh, tmp_path):
    needs("openssl")
    hub, others = fresh
    files = _hosts.certificates(tmp_path)
    options = [f"--tls-ca-file={files['ca']}", f"--tls-cert={files['cert']}"]
    options.append(f"--tls-key={files['key']}")
    names = {
        "tls_ca_file": files["ca"],
        "tls_client_cert": files["cert"],
        "tls_client_key": files["key"],
    }
    (tmp_path / "others").mkdir()
    others_files = _hosts.certificates(tmp_path / "others")
    wrong = [option.replace(str(tmp_path), str(tmp_path / "others")) for option in options]
    assert wrong[0].endswith(others_files["ca"])
    steps = (
        "fit",
        "search",
        {"do": "doctor", "name": "with files", "options": options},
        {"do": "doctor", "name": "with others", "options": wrong},
        {"do": "doctor", "name": "without", "scheme": "tcp"},
        {"do": "fit", "name": "orphaned", "events": ["the scheduler dies"], "within": 60},
    )
    with _hosts.dask_by_hand(hub, others, scheme="tls", options=tuple(options)) as address:
        found = run_scenario(hub.words, "address", *steps, address=address, tls=names)
    works(found["fit"])
    assert found["search"]["models"] > 1
    assert found["with files"]["code"] == 0, found["with files"]["said"]
    assert found["with others"]["code"] == 2
    assert "the certificates do not fit" in found["with others"]["said"]
    assert "speaks TLS" in found["without"]["said"]
    gives_up(found["orphaned"], f"The Dask scheduler at {address} is gone (mailbox at ")


def ssh_page(hub, addresses, home, folder):
    """Run the script of the page on these hosts, and return what it prints."""
    here = {
        '["node1", "node1", "node2", "node3"]': repr(addresses),
        '"username": "me"': '"username": "root"',
        '"n_workers": 8}': '"n_workers": 1, "interface": "eth0"},\n'
        '        scheduler_options={"dashboard": False, "interface": "eth0"}',
        '"/opt/env/bin/python"': repr(sys.executable),
        "wait_for_workers(24)": f"wait_for_workers({len(addresses) - 1})",
        "examples_per_worker=128, max_workers=24": "examples_per_worker=64, max_workers=24",
    }
    script = folder / "script.py"
    script.write_text(script_of("cluster-ssh.md", here))
    done = subprocess.run(
        hub.words(sys.executable, str(script)),
        env={**os.environ, **home, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_ssh(fresh, tmp_path):
    pytest.importorskip("asyncssh", reason="pip install 'accelerando[deploy]'")
    needs("sshd", "ssh-keygen")
    hub, others = fresh
    addresses = [machine.address for machine in (others[0], *others)]
    with _hosts.sshd(others, tmp_path) as home:
        assert "2 ranks" in ssh_page(hub, addresses, home, tmp_path)
        steps = "fit", "search", "doctor"
        found = run_scenario(hub.words, "ssh", *steps, hosts=addresses, environment=home)
        nobody = [*addresses, others[0].address.rpartition(".")[0] + ".99"]
        with pytest.raises(AssertionError, match="Connect call failed"):
            run_scenario(hub.words, "ssh", hosts=nobody, environment=home)
        (Path(home["HOME"]) / ".ssh" / "known_hosts").unlink()
        with pytest.raises(AssertionError, match="Host key is not trusted"):
            run_scenario(hub.words, "ssh", hosts=addresses, environment=home)
    works(found["fit"])
    assert found["search"]["models"] > 1
    assert found["doctor"]["code"] == 0, found["doctor"]["said"]


KUBERNETES = Path(__file__).parent.parent / "docs" / "cluster-kubernetes.md"


def commands_of_the_page():
    """Return what the page lets the containers of the scheduler and the workers run."""
    text = KUBERNETES.read_text().split("```{code-block} python\n", 1)[1].split("with Kube")[0]
    pods = {"scheduler": [], "worker": []}

    def make_cluster_spec(worker_command, **options):
        pods["worker"] = worker_command
        containers = [{"args": ["dask-scheduler", "--host", "0.0.0.0"]}]
        return {"spec": {"scheduler": {"spec": {"containers": containers}}}}

    operator = types.ModuleType("dask_kubernetes.operator")
    vars(operator).update(KubeCluster=None, make_cluster_spec=make_cluster_spec)
    scope = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "dask_kubernetes", types.ModuleType("dask_kubernetes"))
        patch.setitem(sys.modules, "dask_kubernetes.operator", operator)
        exec(text, scope)
    return scope["scheduler"]["args"], pods["worker"]


def test_the_commands_of_the_kubernetes_page(fresh, tmp_path):
    hub, others = fresh
    for machine, card in ((hub, "switch"), *((machine, "eth0") for machine in others)):
        # As a pod, it finds its address by the route to the world, where nothing is sent.
        _hosts.run(*machine.words("ip", "route", "add", "default", "dev", card))
    scheduler, worker = commands_of_the_page()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    address = _hosts.url(hub, 8786)
    with _hosts.started(tmp_path) as start:
        start(hub, *scheduler, PATH=path)
        _hosts.await_port(hub, 8786)
        for number, machine in enumerate(others):  # what the operator appends and sets
            added = ("--name", f"worker-{number}", "--dashboard", "--dashboard-address", "8788")
            start(machine, *worker, *added, PATH=path, DASK_SCHEDULER_ADDRESS=address)
        steps = "doctor", "fit", "search"
        found = run_scenario(hub.words, "address", *steps, address=address)
    works(found["fit"])
    assert found["search"]["models"] > 1
    assert found["doctor"]["code"] == 0, found["doctor"]["said"]
