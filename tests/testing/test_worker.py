"""What a worker that dies on purpose needs; `tests/_cluster/test_faults.py` lets them die."""

import pytest
from distributed import Client, LocalCluster

from accelerando.testing import WorkerDeath


def test_a_worker_in_the_drivers_process_is_refused():
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as local,
        Client(local) as client,
    ):
        worker = next(iter(client.scheduler_info()["workers"]))
        with (
            pytest.raises(RuntimeError, match="a separate process"),
            WorkerDeath(client, worker, 1),
        ):
            pass


def test_places_are_checked():
    with pytest.raises(ValueError, match=r"one of update, message, collective. Got 'step' instead"):
        WorkerDeath(None, "tcp://127.0.0.1:1", 1, "step")
