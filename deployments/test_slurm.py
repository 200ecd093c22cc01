"""SLURM: jobs are asked for, asked for again, and given back."""

import _slurm
import pytest

from conftest import run_scenario


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    pytest.importorskip("dask_jobqueue", reason="pip install 'accelerando[deploy]'")
    if (why := _slurm.why_not()) is not None:
        pytest.skip(why)
    with _slurm.slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def fit_on_jobs(slurm, settings, **options):
    options = {"settings": {"max_workers": 2, **settings}, "logs": str(slurm.folder), **options}
    configuration = slurm.environment["SLURM_CONF"]
    return run_scenario(slurm.words, "slurm", options, SLURM_CONF=configuration)


@pytest.mark.parametrize("adapt", [None, {"minimum": 0, "maximum": 2}])
def test_a_cluster_without_jobs_is_asked_for_them(slurm, adapt):
    found = fit_on_jobs(slurm, {"worker_timeout": 60}, adapt=adapt)
    assert found["error"] is None
    assert found["ranks"] == 2
    assert found["difference"] < 1e-6
    assert slurm.jobs() == [], "all jobs were given back"


def test_jobs_that_were_cancelled_are_asked_for_again(slurm):
    settings = {"worker_timeout": 90, "seconds": 0.2, "max_epochs": 8}
    found = fit_on_jobs(slurm, settings, cancel=True, lost_worker_timeout="1s")
    assert found["error"] is None
    assert any("left the cluster" in line for line in found["log"])
    assert found["difference"] < 1e-6
    assert slurm.jobs() == []
