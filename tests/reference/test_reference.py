"""Every reference run gives what was recorded: bit for bit where the machine is the same.

``expected.json`` was recorded by version 4 of the state format, before the engine was rebuilt; see
``record.py``. On another CPU or with another version of PyTorch the last digits may differ.
"""

from __future__ import annotations

import pytest

from tests.reference import cluster_runs, record, runs
from tests.reference.summary import differences, fingerprint, summarize

EXPECTED = record.read()
SAME_MACHINE = EXPECTED["fingerprint"] == fingerprint()
CLOSE = 1e-12  # where sums may be taken in another order, as after the loss of a rank
OTHER_MACHINE = 1e-9

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(scope="module")
def three_workers():
    with cluster_runs.cluster() as client:
        yield client


def check(name, client=None):
    if runs.is_gone(name):
        pytest.skip("This codec no longer exists.")
    expected = EXPECTED["runs"][name]
    exact = expected.get("exact", True)
    tolerance = (None if exact else CLOSE) if SAME_MACHINE else OTHER_MACHINE
    got = summarize(runs.fit(name, client))
    if name.endswith("QSGD, elias"):  # packed now: the same numbers in another number of bytes
        expected["updates"].pop("bytes", None)
    assert not differences(expected, got, tolerance=tolerance)


def test_every_run_was_recorded():
    assert EXPECTED["runs"].keys() == runs.RUNS.keys()


@pytest.mark.parametrize("name", runs.LOCAL)
def test_a_run_in_this_process(name):
    check(name)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", runs.CLUSTER)
def test_a_run_on_a_cluster(name, three_workers):
    check(name, three_workers)
