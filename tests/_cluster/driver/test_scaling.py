"""More workers are asked for while ranks need them; then the cluster has the size of before."""

from types import SimpleNamespace

import pytest

from accelerando._cluster.driver import scaling as module
from accelerando._cluster.driver.run import scaling_of
from accelerando._cluster.driver.scaling import ClusterScaling, remark
from accelerando._cluster.driver.sizing import Limits
from accelerando._cluster.driver.state import RestoreCluster, ScaleCluster, ShrinkCluster
from accelerando.exceptions import UnsupportedError


class FakeCluster:
    def __init__(self, n_workers=0, supports=True, adaptive=None):
        self.plan = set(range(n_workers))
        self._supports_scaling = supports
        self._adaptive = adaptive
        self.asked = []

    def scale(self, n):
        self.plan = set(range(n))
        self.asked.append(n)


def test_scaling_asks_once_and_gives_back():
    cluster = FakeCluster(2)
    scaling = ClusterScaling(cluster, most=4)
    for _ in range(3):
        scaling.ask(wanted=4, present=2, missing=2)
    scaling.shrink(3)
    scaling.restore()
    assert cluster.asked == [4, 3, 2]


def test_scaling_asks_again_while_workers_are_missing(monkeypatch):
    cluster = FakeCluster(0)
    scaling = ClusterScaling(cluster, most=2)
    scaling.ask(wanted=2, present=0, missing=2)
    scaling.ask(wanted=2, present=0, missing=2)
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.0)
    scaling.ask(wanted=2, present=1, missing=1)  # the jobs were cancelled
    scaling.ask(wanted=2, present=2, missing=0)
    assert cluster.asked == [2, 2]
    scaling.restore()
    assert cluster.asked == [2, 2, 0]


def test_jobs_of_the_user_that_were_lost_are_not_started_again_at_the_end():
    cluster = FakeCluster(2)
    scaling = ClusterScaling(cluster, most=2)
    scaling.ask(wanted=2, present=0, missing=2)
    scaling.shrink(1)
    scaling.restore()
    assert cluster.asked == [2]


def test_an_adaptive_cluster_is_told_to_start_lost_jobs(monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.0)
    adaptive = SimpleNamespace(minimum=0, maximum=3)
    cluster = FakeCluster(2, adaptive=adaptive)
    scaling = ClusterScaling(cluster, most=2)
    scaling.ask(wanted=2, present=2, missing=0)
    scaling.ask(wanted=2, present=2, missing=0)
    assert cluster.asked == []
    scaling.ask(wanted=2, present=1, missing=1)
    assert cluster.asked == [2], "its plan, which it believes to be fulfilled"
    assert adaptive.minimum == 2


@pytest.mark.parametrize(
    ("cluster", "most"), [(None, 4), (FakeCluster(supports=False), 4), (FakeCluster(), None)]
)
def test_a_cluster_that_cannot_scale_is_not_asked(cluster, most):
    scaling = ClusterScaling(cluster, most)
    assert not scaling.possible
    scaling.ask(wanted=4, present=2, missing=2)
    scaling.shrink(1)
    scaling.restore()
    assert cluster is None or cluster.asked == []


def test_a_cluster_whose_workers_are_being_restarted_keeps_its_size():
    cluster = FakeCluster(4)
    scaling = ClusterScaling(cluster, most=3)
    scaling.ask(wanted=3, present=0, missing=3)  # all of them were killed a moment ago
    scaling.restore()
    assert cluster.asked == [4], "it has its size"
    scaling.ask(wanted=6, present=4, missing=2)
    scaling.shrink(5)
    scaling.ask(wanted=6, present=5, missing=1)
    scaling.restore()
    assert cluster.asked[1:] == [6, 5, 6, 4]


def test_an_adaptive_cluster_gets_another_minimum():
    adaptive = SimpleNamespace(minimum=1, maximum=3)
    cluster = FakeCluster(1, adaptive=adaptive)
    scaling = ClusterScaling(cluster, most=4)
    scaling.ask(wanted=2, present=2, missing=0)
    assert adaptive.minimum == 2, "otherwise it would retire the workers of idle ranks"
    scaling.ask(wanted=5, present=2, missing=3)
    assert adaptive.minimum == 3, "never above its maximum"
    scaling.shrink(2)
    assert adaptive.minimum == 2
    scaling.restore()
    assert adaptive.minimum == 1
    assert cluster.asked == []


def test_without_a_number_an_adaptive_cluster_is_asked_for_nothing():
    adaptive = SimpleNamespace(minimum=0, maximum=3)
    scaling = ClusterScaling(FakeCluster(1, adaptive=adaptive), most=None)
    scaling.check(present=1)
    scaling.ask(wanted=3, present=1, missing=2)
    assert adaptive.minimum == 0
    scaling.shrink(1)
    scaling.restore()
    assert adaptive.minimum == 0


@pytest.mark.parametrize(("most", "minimum"), [(2, 0), (None, 1)])
def test_workers_that_somebody_asks_for_are_awaited(most, minimum):
    adaptive = SimpleNamespace(minimum=minimum, maximum=3)
    ClusterScaling(FakeCluster(0, adaptive=adaptive), most).check(present=0)


def test_workers_that_nobody_asks_for_are_not_awaited():
    adaptive = SimpleNamespace(minimum=0, maximum=3)
    scaling = ClusterScaling(FakeCluster(0, adaptive=adaptive), most=None)
    with pytest.raises(UnsupportedError, match=r"has none, and max_workers=None .* asks it for no"):
        scaling.check(present=0)


def test_a_cluster_that_was_asked_in_vain_is_remarked():
    cluster = SimpleNamespace(scale=lambda number: None)
    scaling = ClusterScaling(cluster, most=4)
    assert remark(scaling, cluster, 0) == ""
    scaling.ask(3, present=0, missing=3)
    assert "was asked for 3 workers" in remark(scaling, cluster, 0)
    assert "logs of its jobs" in remark(scaling, cluster, 0)
    assert remark(scaling, cluster, 1) == ""


@pytest.mark.parametrize(
    ("cluster", "most", "scales"),
    [
        (None, 4, False),
        (FakeCluster(1, supports=False), 4, False),
        (FakeCluster(1), None, False),
        (FakeCluster(1), "auto", False),
        (FakeCluster(1), 4, True),
        (FakeCluster(1, adaptive=SimpleNamespace(minimum=0, maximum=3)), None, True),
    ],
)
def test_a_fit_scales_only_where_there_is_something_to_do(cluster, most, scales):
    job = SimpleNamespace(client=SimpleNamespace(cluster=cluster), limits=Limits(max_workers=most))
    assert (scaling_of(job, 1, print) is not None) == scales


def test_a_fit_does_not_begin_to_wait_for_workers_that_nobody_asks_for():
    cluster = FakeCluster(0, adaptive=SimpleNamespace(minimum=0, maximum=3))
    job = SimpleNamespace(client=SimpleNamespace(cluster=cluster), limits=Limits())
    with pytest.raises(UnsupportedError, match="The cluster adapts, may have no workers"):
        scaling_of(job, 0, print)


def test_what_the_machine_decides_is_done():
    cluster = FakeCluster(2)
    scaling = ClusterScaling(cluster, most=4)
    for action in (ScaleCluster(4, 2, 2), ShrinkCluster(3), RestoreCluster()):
        scaling.execute(action)
    assert cluster.asked == [4, 3, 2]
