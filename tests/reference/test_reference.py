"""Every reference run gives what was recorded: in one process bit for bit on the same machine.

``expected.json`` was recorded by version 4 of the state format, before the engine was rebuilt; see
``record.py``. On another CPU or with another version of PyTorch the last digits may differ. Since
then ranks add up gradients in another order, and weights of rows have double precision. Losses and
noise scales of ranks were recorded again when they began to travel in double precision. Noise
scales, and runs that follow the noise, were recorded again when rows began to be compared, and when
filters took the place of averages; the models of runs that only watch have not changed by it. Runs
with dropout in this process were recorded again when every update began to seed its own random
numbers.
Bytes of codecs and of BatchNorm on ranks were recorded again when BatchNorm's sums and the numbers
beside encoded gradients began to be counted.
"""

from __future__ import annotations

import pytest

from tests.reference import cluster_runs, record, runs
from tests.reference.summary import differences, fingerprint, summarize

EXPECTED = record.read()
SAME_MACHINE = EXPECTED["fingerprint"] == fingerprint()
CLOSE = 1e-9  # where the machine or the order of sums is another one
SINGLE_PRECISION = {  # of parameters, or of the sum of weights when this was recorded
    "3 ranks: float32, BatchNorm": 1e-6,
    "3 ranks: class weights, ignored targets": 1e-7,
}

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(scope="module")
def three_workers():
    with cluster_runs.cluster() as client:
        yield client


def check(name, client=None):
    if runs.is_gone(name):
        pytest.skip("This codec no longer exists.")
    expected = EXPECTED["runs"][name]
    tolerance = None if SAME_MACHINE and client is None else CLOSE
    tolerance = SINGLE_PRECISION.get(name, tolerance)
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
