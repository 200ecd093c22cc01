"""SLURM: jobs are asked for, asked for again, and given back."""

import subprocess
import sys
import time

import _packages
import _slurm
import pytest
from _pages import script_of

from conftest import gives_up, run_scenario, works


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    pytest.importorskip("dask_jobqueue", reason="pip install 'accelerando[deploy]'")
    if (why := _packages.missing(*_slurm.PROGRAMS)) is not None:
        pytest.skip(why)
    with _slurm.slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def on_jobs(slurm, *steps, **options):
    environment = {"SLURM_CONF": slurm.environment["SLURM_CONF"]}
    logs = str(slurm.folder)
    return run_scenario(slurm.words, "slurm", *steps, environment=environment, logs=logs, **options)


SETTINGS = {"max_workers": 2, "worker_timeout": 500}


def test_a_cluster_without_jobs_is_asked_for_them(slurm):
    found = on_jobs(
        slurm,
        {"do": "doctor", "name": "doctor before"},
        {"do": "fit", "settings": SETTINGS},
        {"do": "scale", "workers": 2},
        "doctor",
        "search",
    )
    assert "The scheduler has no workers." in found["doctor before"]["said"]
    works(found["fit"])
    assert found["fit"]["jobs left"] == 0
    assert found["doctor"]["code"] == 0, found["doctor"]["said"]
    assert found["search"]["models"] > 1
    assert slurm.jobs() == [], "all jobs were given back"


def test_an_adaptive_cluster_that_may_be_empty(slurm):
    steps = {"do": "fit", "settings": SETTINGS}, "search"
    found = on_jobs(slurm, *steps, adapt={"minimum": 0, "maximum": 2})
    works(found["fit"])
    assert found["search"]["models"] > 1
    assert slurm.jobs() == []


def test_jobs_that_are_requeued_cancelled_or_reach_their_walltime(slurm):
    events = ["requeue", "scancel", "walltime"]
    step = {"do": "fit", "settings": {**SETTINGS, "max_epochs": 20}, "events": events}
    found = on_jobs(slurm, step)["fit"]
    works(found)
    assert list(found["happened"]) == events, found["log"]
    assert slurm.jobs() == []


def test_workers_that_end_by_their_lifetime(slurm):
    step = {"do": "fit", "settings": {**SETTINGS, "max_epochs": 20}, "events": ["lifetime"]}
    before = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch, dask_jobqueue"], check=True)
    # Both workers have to train together for a while; on a busy machine they start slowly.
    seconds = max(20.0, 8 * (time.monotonic() - before))
    options = ["--lifetime", f"{seconds:.0f}s", "--lifetime-stagger", "4s"]
    found = on_jobs(slurm, step, worker_extra_args=options)["fit"]
    works(found)
    assert any("left after update" in line for line in found["log"]), found["log"]
    assert slurm.jobs() == []


# What the page takes from a cluster that this is not.
HERE = {
    'interface="ib0"': 'interface="switch"',
    '"/shared/env/bin/python"': repr(sys.executable),
    "cores=8": "cores=2",
    "processes=8": "processes=2",
    'memory="32GB"': 'memory="2GB"',
}


def test_the_script_of_the_page(slurm, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(script_of("cluster-slurm.md", HERE))
    done = subprocess.run(
        slurm.words(sys.executable, str(script)),
        env={**slurm.environment, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1 ranks" in done.stdout
    assert (tmp_path / "run1").is_dir(), "the checkpoint"
    assert slurm.jobs() == []


def test_jobs_that_end_at_once(slurm):
    settings = {**SETTINGS, "worker_timeout": 8}
    step = {"do": "fit", "settings": settings, "within": 8 + 30}
    found = on_jobs(slurm, step, python="/no/such/python")["fit"]
    said = gives_up(found, "The cluster has had no worker for this fit")
    assert "was asked for 2 workers. Look at its queue and into the logs of its jobs" in said
