"""Workers that are odd: without packages, paused, on a wrong interface, with another Python."""

import shutil
import subprocess
import sys
from pathlib import Path

import _hosts
import distributed
import pytest

from conftest import gives_up, needs, run_scenario, works

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


def names(log, machine, why):
    """Return True if a fit says why it does not use a worker.

    On a busy machine, a worker may not say its versions within three seconds.
    """
    worker = f"{machine.address}:9000"
    return any(f"{worker} {said}" in line for line in log for said in (why, "does not answer"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The Python of an environment that has Dask, but neither PyTorch nor accelerando."""
    without = ("torch", "accelerando", "_editable", "__editable", "_accel")
    return environment_of(tmp_path_factory.mktemp("bare"), sys.executable, without)


@pytest.fixture(scope="module")
def another_python(tmp_path_factory):
    """The Python of another version; packages that are compiled for ours do not load there."""
    for minor in {11, 12, 13, 14} - {sys.version_info[1]}:
        name = f"python3.{minor}"
        beside = Path(sys.base_prefix).parent.glob(f"*/bin/{name}")  # as pyenv installs them
        for found in filter(None, (shutil.which(name), *map(str, beside))):
            if _fails(found, "-c", "import venv"):
                continue
            folder = tmp_path_factory.mktemp("other")
            other = environment_of(folder, found, ("torch", "numpy"))
            if not _fails(*other, "-m", "dask", "worker", "--version"):
                return other
    pytest.skip("No other version of Python that runs a Dask worker is installed.")


def _fails(*words):
    return subprocess.run(words, capture_output=True, check=False).returncode


def test_a_worker_without_accelerando_is_left_alone(network, cluster, bare):
    hub, (*others, odd) = network
    fit = {"do": "fit", "settings": THREE}
    chunks = {"settings": {**THREE, "data": "shard"}, "chunks": True}
    steps = (
        {**fit, "name": "first"},
        "search",
        {"do": "search", "name": "search chunks", "chunks": True},
        {"do": "fit", "name": "chunks", **chunks},
        "predict",
        {"do": "lazy", "on": [_hosts.url(machine, 9000) for machine in others]},
        {**fit, "name": "again"},
        "doctor",
    )
    options = ("--host", odd.address)
    with _hosts.another_worker(odd, cluster, *options, python=bare):
        found = run_scenario(hub.words, "address", *steps, address=cluster, workers=3)
    for one in (found["first"], found["again"]):  # it is still there
        works(one)
        assert names(one["log"], odd, "has no"), one["log"]
        assert any("min_workers=3 is not met" in line for line in one["log"])
    assert found["predict"] == {"difference": 0.0, "workers": 3}
    assert found["lazy"]["workers"] == 3
    assert found["lazy"]["difference"] < 1e-12
    assert found["lazy"]["error"].startswith(
        f"RuntimeError: Worker tcp://{odd.address}:9000 cannot"
    )
    assert found["search"]["models"] > 1
    assert found["search chunks"]["models"] > 1
    assert found["chunks"]["error"] is None
    assert f"{odd.address}:9000 has no accelerando" in found["stderr"], "the search says so, too"
    assert "no accelerando" in found["doctor"]["said"]


def test_a_worker_with_another_python_is_left_alone(network, cluster, another_python):
    hub, (*_, odd) = network
    steps = {"do": "fit", "settings": THREE}, "search", "predict", "doctor"
    with _hosts.another_worker(odd, cluster, "--host", odd.address, python=another_python):
        found = run_scenario(hub.words, "address", *steps, address=cluster, workers=3)
    works(found["fit"])
    assert names(found["fit"]["log"], odd, "has"), found["fit"]["log"]
    assert found["search"]["models"] > 1
    assert found["predict"] == {"difference": 0.0, "workers": 3}, "it is still there"
    assert found["doctor"]["code"] == 2
    assert "Different versions of Python: " in found["doctor"]["said"]


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
        steps = "doctor", {"do": "fit", "within": 60}, {"do": "search", "fails": True}, "predict"
        found = run_scenario(hub.words, "address", *steps, address=address)
    for said in (found["fit"]["error"], found["search"]["error"]):
        assert "the Dask scheduler cannot load what this process sends" in said
    assert found["predict"] == {"difference": 0.0, "workers": 2}
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
