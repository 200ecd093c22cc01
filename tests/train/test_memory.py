"""glibc's thresholds are raised while training and put back afterwards."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from accelerando.train import memory


class FakeLibrary:
    def __init__(self):
        self.calls = []

    def mallopt(self, parameter, value):
        self.calls.append((parameter, value))
        return 1

    def malloc_trim(self, pad):
        self.calls.append("trim")


@pytest.fixture
def library(monkeypatch):
    fake = FakeLibrary()
    monkeypatch.setattr(memory, "_glibc", lambda: fake)
    return fake


def test_raised_inside_and_lowered_after_the_last_user(library):
    with memory.steady_memory():
        assert library.calls == [(-1, 1 << 30), (-3, 1 << 30)]
        with memory.steady_memory():
            pass
        assert len(library.calls) == 2, "another user is still training"
    assert library.calls[2:] == [(-1, 64 << 20), (-3, 32 << 20)]


def test_a_library_that_refuses_gets_the_largest_it_takes(library, monkeypatch):
    def strict(parameter, value):
        library.calls.append((parameter, value))
        return int(parameter != -3 or value <= 32 << 20)

    monkeypatch.setattr(library, "mallopt", strict)
    with memory.steady_memory():
        assert library.calls == [(-1, 1 << 30), (-3, 1 << 30), (-3, 32 << 20)]


def test_one_arena_is_given_up_after_the_last_user(library):
    with memory.steady_memory():
        with memory.steady_memory(one_arena=True):
            assert library.calls[2:] == [(-8, 1)]
        assert len(library.calls) == 3
    assert library.calls[-1] == (-8, 0)


def test_lowered_after_an_error_too(library):
    with pytest.raises(ZeroDivisionError), memory.steady_memory():
        1 / 0  # noqa: B018
    assert len(library.calls) == 4
    assert memory._users == 0


def test_long_training_gives_memory_back(library, monkeypatch):
    times = iter([0.0, 100.0])
    # The module's own name for it: Dask's loops, in other threads, go by the real one.
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with memory.steady_memory():
        pass
    assert library.calls[-1] == "trim"


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    with memory.steady_memory():
        assert memory._users == 0


def test_two_threads_count(library):
    inside, leave = threading.Event(), threading.Event()

    def train():
        with memory.steady_memory():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=train)
    thread.start()
    inside.wait()
    with memory.steady_memory():
        pass
    assert memory._users == 1
    leave.set()
    thread.join()
    assert memory._users == 0
    assert len(library.calls) == 4


def test_other_systems_have_no_glibc(monkeypatch):
    monkeypatch.setattr(memory.platform, "system", lambda: "Darwin")
    memory._glibc.cache_clear()
    assert memory._glibc() is None
    memory._glibc.cache_clear()
