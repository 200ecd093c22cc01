"""Clusters that refuse to be scaled: a quota, or a server that is away."""

from types import SimpleNamespace

from accelerando import _dask
from accelerando._cluster.driver import scaling as module
from accelerando._cluster.driver.scaling import ClusterScaling, remark


def test_a_cluster_that_refuses_to_grow_is_used_as_it_is(monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.0)
    lines, quota = [], [True]

    def scale(number):
        if quota[0]:
            raise RuntimeError("quota exceeded.")

    cluster = SimpleNamespace(scale=scale, plan={0})
    scaling = ClusterScaling(cluster, 4, lambda event, text: lines.append((event, text)))
    for _ in range(3):
        scaling.ask(3, present=0, missing=3)
    said = "The cluster cannot be scaled to 3 workers: RuntimeError: quota exceeded."
    assert lines == [("refused", said)], "once, although it is asked again"
    assert remark(scaling, cluster, 0) == " " + said
    cluster.plan = set(range(3))
    scaling.shrink(2)
    assert lines[1:] == [("refused", said.replace("3", "2"))]
    quota[0] = False
    scaling.ask(3, present=0, missing=3)
    assert "was asked for 3 workers" in remark(scaling, cluster, 0)


def test_an_adaptive_cluster_may_refuse_too(monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.0)

    def scale(number):
        raise OSError("no answer")

    adaptive = SimpleNamespace(minimum=0, maximum=3)
    lines = []
    cluster = SimpleNamespace(scale=scale, plan={0, 1}, _adaptive=adaptive)
    scaling = ClusterScaling(cluster, 2, lambda *line: lines.append(line))
    scaling.ask(wanted=2, present=2, missing=0)
    scaling.ask(wanted=2, present=1, missing=1)
    assert [event for event, _ in lines] == ["refused"]


def test_a_cluster_that_refuses_to_replace_workers_does_not_end_a_search():
    asked = []

    def scale(number):
        asked.append(number)
        raise OSError("no answer")

    cluster = SimpleNamespace(worker_spec={0: {}, 1: {}}, workers={0: None}, scale=scale)
    _dask.replace_lost_workers(SimpleNamespace(cluster=cluster), 1)
    assert asked == [2]


def test_the_error_says_that_nobody_was_asked_for_workers():
    cluster = SimpleNamespace(scale=lambda number: None, plan=set())
    assert remark(None, cluster, 0).endswith("or call cluster.scale.")
    assert remark(ClusterScaling(cluster, most=None), cluster, 0) == remark(None, cluster, 0)
    assert remark(None, cluster, 1) == ""
    assert remark(None, None, 0) == "", "a scheduler that somebody else has started"
    assert remark(ClusterScaling(cluster, most=3), cluster, 0) == ""
