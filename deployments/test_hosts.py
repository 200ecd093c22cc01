"""Workers on hosts: by hand and by SSH, behind firewalls, with TLS, without packages or memory."""

import subprocess
import sys
import venv

import _hosts
import pytest

from conftest import run_scenario


@pytest.fixture(scope="module")
def network():
    with _hosts.hosts(2) as made:
        yield made


@pytest.fixture
def firewall(network):
    """Take away what a test blocks."""
    if (why := _hosts.missing("iptables")) is not None:
        pytest.skip(why + " apt-get install iptables")
    hub, others = network
    yield _hosts.only_ports
    for machine in (hub, *others):
        _hosts.run(*machine.words("iptables", "-F", "INPUT"))
        _hosts.chosen_ports(machine, 32768, 60999)


def doctor(hub, address, *options):
    """Return what ``accelerando doctor`` says."""
    words = (sys.executable, "-m", "accelerando", "doctor", "--scheduler", address, *options)
    done = subprocess.run(
        hub.words(*words), capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def test_by_hand_fit_search_and_doctor(network):
    hub, others = network
    with _hosts.dask_by_hand(hub, others) as address:
        found = run_scenario(hub.words, "fit", {"address": address, "workers": 2})
        assert found["error"] is None
        assert found["ranks"] == 2
        assert found["difference"] < 1e-6
        assert "hostname of the client socket" not in found["stderr"]
        searched = run_scenario(hub.words, "search", {"address": address, "workers": 2})
        assert searched["models"] > 1
        assert "error  " not in doctor(hub, address)


def test_a_firewall_that_passes_only_dasks_ports(network, firewall):
    hub, others = network
    for machine in others:
        firewall(machine, 9000, 9001)
    with _hosts.dask_by_hand(hub, others) as address:
        found = run_scenario(hub.words, "fit", {"address": address, "workers": 2})
        assert found["error"].startswith("ClusterError")
        for part in (others[0].address, others[1].address, "port", "ip_local_port_range"):
            assert part in found["error"]
        assert found["seconds"] < 180
        assert "a firewall blocks it" in doctor(hub, address)


def test_ports_that_the_firewall_passes(network, firewall):
    hub, others = network
    for machine in (hub, *others):
        firewall(machine, 8786, 9999)
        _hosts.chosen_ports(machine, 9100, 9999)
    with _hosts.dask_by_hand(hub, others) as address:
        found = run_scenario(hub.words, "fit", {"address": address, "workers": 2})
        assert found["error"] is None
        assert found["ranks"] == 2


def test_a_scheduler_and_a_user_whose_other_ports_are_closed(network, firewall):
    hub, others = network
    firewall(hub, 8786, 8786)
    with _hosts.dask_by_hand(hub, others) as address:
        found = run_scenario(hub.words, "fit", {"address": address, "workers": 2})
        assert "has to reach" in found["error"]
        assert hub.address in found["error"]


def test_workers_with_too_little_memory(network):
    hub, others = network
    with _hosts.dask_by_hand(hub, others, options=("--memory-limit", "200MB")) as address:
        found = run_scenario(hub.words, "fit", {"address": address, "workers": 2})
        assert "memory limit is 200 MB" in found["error"]
        assert found["seconds"] < 200


def test_a_worker_without_accelerando_is_left_alone(network, tmp_path):
    hub, others = network
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    links = bare / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    import distributed

    source = _hosts.Path(distributed.__file__).parent.parent
    for entry in source.iterdir():
        if not entry.name.lower().startswith(("torch", "accelerando", "__editable__", "_accel")):
            (links / entry.name).symlink_to(entry)
    python = {others[1].address: str(bare / "bin" / "python")}
    with _hosts.dask_by_hand(hub, others, python=python) as address:
        options = {"address": address, "workers": 2, "settings": {"min_workers": 2}}
        for _ in range(2):  # it is still there
            found = run_scenario(hub.words, "fit", options)
            assert found["error"] is None
            assert found["ranks"] == 1
            assert any(f"{others[1].address}:9000 has no" in line for line in found["log"])
            assert any("min_workers=2 is not met" in line for line in found["log"])
        assert "no accelerando" in doctor(hub, address)


def test_tls(network, tmp_path):
    if (why := _hosts.missing("openssl")) is not None:
        pytest.skip(why)
    hub, others = network
    files = _hosts.certificates(tmp_path)
    tls = tuple(
        f"--tls-{n}={p}"
        for n, p in (("ca-file", files["ca"]), ("cert", files["cert"]), ("key", files["key"]))
    )
    with _hosts.dask_by_hand(hub, others, scheme="tls", tls=tls) as address:
        names = {
            "tls_ca_file": files["ca"],
            "tls_client_cert": files["cert"],
            "tls_client_key": files["key"],
        }
        found = run_scenario(hub.words, "fit", {"address": address, "workers": 2, "tls": names})
        assert found["error"] is None
        assert found["ranks"] == 2
        assert "speaks TLS" in doctor(hub, address.replace("tls:", "tcp:"))
        assert "error  " not in doctor(hub, address, *tls)


def test_ssh(network, tmp_path):
    pytest.importorskip("asyncssh", reason="pip install 'accelerando[deploy]'")
    if (why := _hosts.missing("sshd", "ssh-keygen")) is not None:
        pytest.skip(why + " apt-get install openssh-server")
    hub, others = network
    with _hosts.sshd(others, tmp_path) as keys:
        addresses = [machine.address for machine in (others[0], *others)]
        found = run_scenario(hub.words, "ssh", {"hosts": addresses, "settings": {}, **keys})
    assert found["error"] is None
    assert found["ranks"] == 2
    assert found["difference"] < 1e-6
