"""What the tests of the search share: small data, and a cluster of real processes."""

import contextlib

import dask
import pytest
from distributed import Client, LocalCluster
from sklearn.datasets import make_classification

from tests.leftovers import check_nothing_ignored, check_nothing_left


def pytest_collection_modifyitems(items):
    """Most tests have tiny spaces on purpose; the warning about them has a test of its own."""
    for item in items:
        if "search" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore:The space has"))


@pytest.fixture(scope="session")
def data():
    return make_classification(
        n_samples=600, n_features=8, n_informative=5, n_classes=3, random_state=0
    )


@pytest.fixture(scope="session")
def two_workers():
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    ) as cluster:
        yield cluster
        with Client(cluster, set_as_default=False) as client:
            check_nothing_left(client)
            check_nothing_ignored(client)


@pytest.fixture
def client(two_workers):
    with Client(two_workers, set_as_default=False) as client:
        yield client


@contextlib.contextmanager
def mortal_cluster(n_workers):
    """Workers that tests may kill; their nannies bring them back.

    Dask's own cluster gives a worker up that is away 15 seconds after it was lost, even if it has
    come back and was lost once more in between.
    """
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="session")
def two_mortal_workers():
    with mortal_cluster(2) as cluster:
        yield cluster


@pytest.fixture
def mortal(two_mortal_workers):
    with Client(two_mortal_workers, set_as_default=False) as client:
        client.wait_for_workers(2)
        yield client
