"""Workers on hosts: by hand and by SSH, behind firewalls, with TLS, without packages or memory."""

import sys
import venv
from pathlib import Path

import _hosts
import _packages
import pytest

from conftest import run_scenario


@pytest.fixture(scope="module")
def network():
    """A hub, two hosts, and a third one for workers that are odd."""
    with _hosts.hosts(3) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(network):
    """The address of a scheduler, with two workers that were started by hand."""
    hub, others = network
    with _hosts.dask_by_hand(hub, others[:2]) as address:
        yield address


@pytest.fixture
def fresh():
    """A hub and two hosts on which nothing runs."""
    with _hosts.hosts(2, "f") as made:
        yield made


@pytest.fixture
def firewall(network):
    """Take away what a test blocks."""
    needs("iptables", "sysctl")
    hub, others = network
    yield _hosts.only_ports
    for machine in (hub, *others):
        _hosts.run(*machine.words("iptables", "-F", "INPUT"))
        _hosts.chosen_ports(machine, 32768, 60999)


def needs(*programs):
    """Skip a test where programs are missing and cannot be installed."""
    if (why := _packages.missing(*programs)) is not None:
        pytest.skip(why)


def works(found, ranks=2):
    """Check that ranks gave the result of one process."""
    assert found["error"] is None, found
    assert found["ranks"] == ranks
    assert found["difference"] < 1e-6


def test_by_hand_fit_search_and_doctor(network, cluster):
    found = run_scenario(network[0].words, "address", "fit", "search", "doctor", address=cluster)
    works(found["fit"])
    assert "hostname of the client socket" not in found["stderr"]
    assert found["search"]["models"] > 1
    assert found["doctor"]["code"] == 0, found["doctor"]["said"]


# -- firewalls ------------------------------------------------------------------------------------


def test_a_firewall_that_passes_only_dasks_ports(network, cluster, firewall):
    hub, (*others, _) = network
    for machine in others:
        firewall(machine, (9000, 9001))
    found = run_scenario(hub.words, "address", "doctor", "fit", address=cluster)
    said = found["fit"]["error"]
    assert said.startswith("ClusterError: Ranks on ")
    for part in (others[0].address, others[1].address, "port", "accelerando.ports"):
        assert part in said
    assert "a firewall blocks it" in found["doctor"]["said"]


@pytest.mark.parametrize("chosen_by", ["accelerando", "the system"])
def test_ports_that_the_firewall_passes(network, cluster, firewall, chosen_by):
    hub, others = network
    environment = {}
    first, last = (36000, 36999) if chosen_by == "accelerando" else (9100, 9999)
    for machine in (hub, *others):
        firewall(machine, (8786, 8786), (9000, 9001), (first, last))
        if chosen_by == "the system":
            _hosts.chosen_ports(machine, first, last)
    if chosen_by == "accelerando":
        environment["DASK_ACCELERANDO__PORTS"] = f"{first}:{last}"
    steps = "fit", "doctor"
    found = run_scenario(hub.words, "address", *steps, address=cluster, environment=environment)
    works(found["fit"])
    assert found["doctor"]["code"] == 0, found["doctor"]["said"]


def test_a_scheduler_and_a_user_whose_other_ports_are_closed(network, cluster, firewall):
    hub = network[0]
    firewall(hub, (8786, 8786))
    found = run_scenario(hub.words, "address", "doctor", "fit", address=cluster)
    assert "has to reach" in found["fit"]["error"]
    assert hub.address in found["fit"]["error"]
    assert f"{hub.address} on Dask's port, but not" in found["doctor"]["said"]


# -- workers that are odd -------------------------------------------------------------------------

THREE = {"batch_size": 48, "min_workers": 3}


def test_a_worker_without_accelerando_is_left_alone(network, cluster, tmp_path):
    hub, (*_, odd) = network
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    links = bare / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    import distributed

    for entry in Path(distributed.__file__).parent.parent.iterdir():
        if not entry.name.lower().startswith(("torch", "accelerando", "__editable__", "_accel")):
            (links / entry.name).symlink_to(entry)
    fit = {"do": "fit", "settings": THREE}
    steps = {**fit, "name": "first"}, {**fit, "name": "again"}, "doctor"
    options = ("--host", odd.address)
    with _hosts.another_worker(odd, cluster, *options, python=(str(bare / "bin" / "python"),)):
        found = run_scenario(hub.words, "address", *steps, address=cluster, workers=3)
    for one in (found["first"], found["again"]):  # it is still there
        works(one)
        assert any(f"{odd.address}:9000 has no" in line for line in one["log"])
        assert any("min_workers=3 is not met" in line for line in one["log"])
    assert "no accelerando" in found["doctor"]["said"]


def test_a_worker_on_the_wrong_interface(network, cluster):
    hub, (*_, odd) = network
    steps = "doctor", {"do": "fit", "settings": THREE}
    with _hosts.another_worker(odd, cluster, "--interface", "lo"):
        found = run_scenario(hub.words, "address", *steps, address=cluster, workers=3)
    works(found["fit"])
    assert any("127.0.0.1:9000 does not answer" in line for line in found["fit"]["log"])
    assert any("min_workers=3 is not met" in line for line in found["fit"]["log"])
    assert "Worker tcp://127.0.0.1:9000 is registered" in found["doctor"]["said"]
    assert "--interface" in found["doctor"]["said"]


def test_a_clock_that_is_an_hour_ahead(network, cluster):
    needs("faketime")
    hub, (*_, odd) = network
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    python = ("env", f"LD_PRELOAD={library}", "FAKETIME=+1h", sys.executable)
    steps = {"do": "fit", "ranks": 3, "settings": THREE}, "doctor"
    with _hosts.another_worker(odd, cluster, "--host", odd.address, python=python):
        found = run_scenario(hub.words, "address", *steps, address=cluster, workers=3)
    works(found["fit"], ranks=3)
    assert f"Clocks differ: that of tcp://{odd.address}:9000" in found["doctor"]["said"]


# -- other clusters -------------------------------------------------------------------------------


def test_workers_with_too_little_memory(fresh):
    hub, others = fresh
    with _hosts.dask_by_hand(hub, others, options=("--memory-limit", "400MB")) as address:
        steps = "doctor", {"do": "fit", "settings": {"max_workers": 1, "min_workers": 1}}
        found = run_scenario(hub.words, "address", *steps, address=address)
    assert "memory limit is 400 MB" in found["fit"]["error"]
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
    steps = (
        "fit",
        "search",
        {"do": "doctor", "name": "with files", "options": options},
        {"do": "doctor", "name": "without", "scheme": "tcp"},
        {"do": "fit", "name": "orphaned", "events": ["the scheduler dies"]},
    )
    with _hosts.dask_by_hand(hub, others, scheme="tls", options=tuple(options)) as address:
        found = run_scenario(hub.words, "address", *steps, address=address, tls=names)
    works(found["fit"])
    assert found["search"]["models"] > 1
    assert found["with files"]["code"] == 0, found["with files"]["said"]
    assert "speaks TLS" in found["without"]["said"]
    said = found["orphaned"]["error"]
    assert said.startswith("ClusterError: The scheduler's machine cannot be reached any more")
    assert hub.address in said


def test_ssh(fresh, tmp_path):
    pytest.importorskip("asyncssh", reason="pip install 'accelerando[deploy]'")
    needs("sshd", "ssh-keygen")
    hub, others = fresh
    addresses = [machine.address for machine in (others[0], *others)]
    with _hosts.sshd(others, tmp_path) as home:
        steps = "fit", "search", "doctor"
        found = run_scenario(hub.words, "ssh", *steps, hosts=addresses, environment=home)
        (Path(home["HOME"]) / ".ssh" / "known_hosts").unlink()
        with pytest.raises(AssertionError, match="Host key is not trusted"):
            run_scenario(hub.words, "ssh", hosts=addresses, environment=home)
    works(found["fit"])
    assert found["search"]["models"] > 1
    assert found["doctor"]["code"] == 0, found["doctor"]["said"]
