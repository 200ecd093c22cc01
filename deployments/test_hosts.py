"""Workers on hosts: by hand and by SSH, with TLS, without packages or memory."""

import shutil
import subprocess
import sys
from pathlib import Path

import _hosts
import distributed
import pytest

from conftest import gives_up, needs, run_scenario, works


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


def test_by_hand_fit_search_and_doctor(network, cluster):
    found = run_scenario(network[0].words, "address", "fit", "search", "doctor", address=cluster)
    works(found["fit"])
    assert "hostname of the client socket" not in found["stderr"]
    assert found["search"]["models"] > 1
    assert found["doctor"]["code"] == 0, found["doctor"]["said"]


# -- workers that are odd -------------------------------------------------------------------------

THREE = {"batch_size": 48, "min_workers": 3}


def environment_of(folder, python, leave_out):
    """Return the Python of an environment with our packages except some, by links."""
    run = "import sys, venv; venv.create(sys.argv[1], with_pip=False)"
    subprocess.run([python, "-c", run, str(folder)], check=True)
    (links,) = folder.glob("lib/python3.*/site-packages")
    for entry in Path(distributed.__file__).parent.parent.iterdir():
        if not entry.name.lower().startswith(leave_out):
            (links / entry.name).symlink_to(entry)
    # PYTHONPATH may contain accelerando.
    return ("env", "-u", "PYTHONPATH", str(folder / "bin" / "python"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The Python of an environment that has Dask, but neither PyTorch nor accelerando."""
    without = ("torch", "accelerando", "__editable__", "_accel")
    return environment_of(tmp_path_factory.mktemp("bare"), sys.executable, without)


@pytest.fixture(scope="module")
def another_python(tmp_path_factory):
    """The Python of another version; packages that are compiled for ours do not load there."""
    for minor in (11, 12, 13, 14):
        found = shutil.which(f"python3.{minor}")
        if minor != sys.version_info[1] and found and not _fails(found, "-c", "import venv"):
            folder = tmp_path_factory.mktemp("other")
            other = environment_of(folder, found, ("torch", "numpy", "__editable__"))
            if not _fails(*other, "-m", "dask", "worker", "--version"):
                return other
    pytest.skip("No other version of Python that runs a Dask worker is installed.")


def _fails(*words):
    return subprocess.run(words, capture_output=True, check=False).returncode


def test_a_worker_without_accelerando_is_left_alone(network, cluster, bare):
    hub, (*_, odd) = network
    fit = {"do": "fit", "settings": THREE}
    steps = {**fit, "name": "first"}, "search", "predict", {**fit, "name": "again"}, "doctor"
    options = ("--host", odd.address)
    with _hosts.another_worker(odd, cluster, *options, python=bare):
        found = run_scenario(hub.words, "address", *steps, address=cluster, workers=3)
    for one in (found["first"], found["again"]):  # it is still there
        works(one)
        assert any(f"{odd.address}:9000 has no" in line for line in one["log"])
        assert any("min_workers=3 is not met" in line for line in one["log"])
    assert found["predict"] == {"difference": 0.0, "workers": 3}
    assert found["search"]["models"] > 1
    assert f"{odd.address}:9000 has no accelerando" in found["stderr"], "the search says so, too"
    assert "no accelerando" in found["doctor"]["said"]


def test_a_worker_with_another_python_is_left_alone(network, cluster, another_python):
    hub, (*_, odd) = network
    steps = {"do": "fit", "settings": THREE}, "search", "predict", "doctor"
    with _hosts.another_worker(odd, cluster, "--host", odd.address, python=another_python):
        found = run_scenario(hub.words, "address", *steps, address=cluster, workers=3)
    works(found["fit"])
    assert any(f"{odd.address}:9000 has" in line for line in found["fit"]["log"])
    assert found["search"]["models"] > 1
    assert found["predict"] == {"difference": 0.0, "workers": 3}, "it is still there"
    assert found["doctor"]["code"] == 2
    assert "different versions of Python" in found["doctor"]["said"]


def test_a_worker_without_accelerando_that_joins_during_a_fit(network, cluster, bare, tmp_path):
    hub, (*_, odd) = network
    flag = tmp_path / "now"
    later = ("sh", "-c", f'until [ -e {flag} ]; do sleep 0.1; done; exec "$@"', "sh", *bare)
    steps = {"do": "fit", "events": [f"touch {flag}"], "within": 200}, "predict"
    with _hosts.another_worker(odd, cluster, "--host", odd.address, python=later):
        found = run_scenario(hub.words, "address", *steps, address=cluster)
    works(found["fit"])
    assert found["fit"]["happened"] == {f"touch {flag}": "yes"}
    assert found["predict"] == {"difference": 0.0, "workers": 3}, "it is there and left alone"


PAUSED = ("env", "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE=0.001", sys.executable)


def test_no_worker_has_accelerando_or_can_start_a_rank(fresh, bare):
    hub, (odd, other) = fresh
    step = {"do": "fit", "settings": {"worker_timeout": 5, "min_workers": 1}, "within": 5 + 30}
    words = ("--host", other.address, "--memory-limit", "4GB")
    with (
        _hosts.dask_by_hand(hub, []) as address,
        _hosts.another_worker(odd, address, "--host", odd.address, python=bare),
        _hosts.another_worker(other, address, *words, python=PAUSED),
    ):
        found = run_scenario(hub.words, "address", step, address=address, workers=2)
    said = gives_up(found["fit"], "The cluster has had no worker for this fit")
    assert f"tcp://{odd.address}:9000 has no accelerando, no torch" in said
    assert "Workers that Dask has paused, " in said
    assert f"tcp://{other.address}:9000 (4,000 MB)" in said


def test_a_scheduler_without_pytorch(fresh, bare):
    hub, others = fresh
    with _hosts.dask_by_hand(hub, others, python=bare) as address:
        steps = "doctor", {"do": "fit", "within": 60}
        found = run_scenario(hub.words, "address", *steps, address=address)
    said = gives_up(found["fit"], "A rank on ")
    assert "could not start: the Dask scheduler cannot load what this process sends" in said
    assert "The scheduler has no" in found["doctor"]["said"]


def test_a_worker_on_the_wrong_interface(network, cluster):
    hub, (*_, odd) = network
    steps = "doctor", {"do": "fit", "settings": THREE}, "search"
    with _hosts.another_worker(odd, cluster, "--interface", "lo"):
        found = run_scenario(hub.words, "address", *steps, address=cluster, workers=3)
    works(found["fit"])
    assert found["search"]["models"] > 1
    assert any("127.0.0.1:9000 does not answer" in line for line in found["fit"]["log"])
    assert any("min_workers=3 is not met" in line for line in found["fit"]["log"])
    assert "Worker tcp://127.0.0.1:9000 is registered" in found["doctor"]["said"]
    assert "--interface" in found["doctor"]["said"]


def test_a_worker_that_dask_has_paused(network, cluster):
    hub, (*_, odd) = network
    words = ("--host", odd.address, "--memory-limit", "4GB")
    steps = "doctor", {"do": "fit", "settings": THREE}, "search"
    with _hosts.another_worker(odd, cluster, *words, python=PAUSED):
        found = run_scenario(hub.words, "address", *steps, address=cluster, workers=3)
    works(found["fit"])
    said = f"Worker tcp://{odd.address}:9000 is paused: its memory limit of 4,000 MB"
    assert any(line.startswith(said) for line in found["fit"]["log"])
    assert any("min_workers=3 is not met" in line for line in found["fit"]["log"])
    assert found["search"]["models"] > 1
    assert f"Dask has paused tcp://{odd.address}:9000" in found["doctor"]["said"]


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


def test_ssh(fresh, tmp_path):
    pytest.importorskip("asyncssh", reason="pip install 'accelerando[deploy]'")
    needs("sshd", "ssh-keygen")
    hub, others = fresh
    addresses = [machine.address for machine in (others[0], *others)]
    with _hosts.sshd(others, tmp_path) as home:
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
