"""The number of processors that a process may use."""

import os

from accelerando._processors import processors


def test_a_container_may_allow_fewer_than_the_machine_has(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert processors() == 2


def test_a_system_without_affinity_counts_them(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert processors() == 8
    monkeypatch.setattr(os, "cpu_count", lambda: None)  # the system does not say
    assert processors() == 1
