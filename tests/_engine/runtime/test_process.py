"""The process: glibc's thresholds, generators of random numbers, and Ctrl-C."""

from __future__ import annotations

import os
import random
import signal
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from accelerando._engine.runtime import process
from accelerando._engine.runtime.process import Interrupt


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
    monkeypatch.setattr(process, "_glibc", lambda: fake)
    monkeypatch.delenv("ACCELERANDO_KEEP_MEMORY", raising=False)
    return fake


def test_a_seed_is_that_of_pytorch():
    torch.manual_seed(7)
    expected = torch.rand(3)
    process.seed_torch(7)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("is_available", [True, False])
def test_accelerators_are_seeded_where_there_are_any(monkeypatch, is_available):
    seeds = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: is_available)
    process.seed_torch(7)
    assert seeds == [7] * is_available


def test_generators_are_seeded_for_updates_that_draw_from_them():
    def update(seed, number, draw):
        seed(number)
        return torch.rand(()).item(), draw()

    for draw in (np.random.random, random.random, np.random.standard_normal):
        runs = []
        for _ in range(2):
            seed = process.UpdateSeeds()
            runs.append([update(seed, number % 2, draw) for number in range(6)])
        assert runs[0] == runs[1]
        assert runs[0][:2] == runs[0][2:4] == runs[0][4:]
        assert runs[0][0] != runs[0][1]


def test_generators_that_nobody_draws_from_are_not_seeded(monkeypatch):
    calls = []
    seed, real = process.UpdateSeeds(), np.random.seed
    monkeypatch.setattr(np.random, "seed", lambda number: (calls.append(number), real(number)))
    for number in range(205):
        seed(number)
    assert calls == [0, 100, 200]
    for number in range(205, 302):  # one draw, seen when somebody looks
        seed(number)
        np.random.random()
    assert calls == [0, 100, 200, 300, 301]


def test_updates_leave_the_generators_of_a_seeded_run():
    states = process.get_rng, np.random.get_state, random.getstate
    before = [state() for state in states]
    run = SimpleNamespace(seeded=True, rng=None)
    with pytest.raises(ZeroDivisionError), process.update_generators(run):
        assert torch.equal(run.rng[0], before[0][0]), "what a checkpoint holds"
        process.seed_generators(1)
        torch.rand(()), np.random.random(), random.random()
        raise ZeroDivisionError
    assert run.rng is None
    assert torch.equal(process.get_rng()[0], before[0][0])
    assert np.array_equal(np.random.get_state()[1], before[1][1])
    assert random.getstate() == before[2]


def test_an_unseeded_run_moves_them():
    before = torch.get_rng_state()
    with process.update_generators(SimpleNamespace(seeded=False, rng=None)):
        torch.rand(())
    assert not torch.equal(torch.get_rng_state(), before)


def test_raised_inside_and_lowered_after_the_last_user(library):
    with process.keep_memory():
        assert library.calls == [(-1, 1 << 30), (-3, 1 << 30)]
        with process.keep_memory():
            pass
        assert len(library.calls) == 2, "another user is still training"
    assert library.calls[2:] == [(-1, 64 << 20), (-3, 32 << 20)]


def test_a_library_that_refuses_gets_the_largest_it_takes(library, monkeypatch):
    def strict(parameter, value):
        library.calls.append((parameter, value))
        return int(parameter != -3 or value <= 32 << 20)

    monkeypatch.setattr(library, "mallopt", strict)
    with process.keep_memory():
        assert library.calls == [(-1, 1 << 30), (-3, 1 << 30), (-3, 32 << 20)]


def test_one_arena_is_given_up_after_the_last_user(library):
    with process.keep_memory():
        with process.keep_memory(one_arena=True):
            assert library.calls[2:] == [(-8, 1)]
        assert len(library.calls) == 3
    assert library.calls[-1] == (-8, 0)


def test_lowered_after_an_error_too(library):
    with pytest.raises(ZeroDivisionError), process.keep_memory():
        1 / 0  # noqa: B018
    assert len(library.calls) == 4
    assert process._users == 0


def test_long_training_gives_memory_back(library, monkeypatch):
    times = iter([0.0, 100.0])
    # The module's name for the clock: Dask's loops, in other threads, use the real one.
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with process.keep_memory():
        pass
    assert library.calls[-1] == "trim"


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(process, "_glibc", lambda: None)
    with process.keep_memory():
        assert process._users == 0


@pytest.mark.parametrize("switch", ["variable", "flag"])
def test_it_can_be_switched_off(library, monkeypatch, switch):
    if switch == "variable":
        monkeypatch.setenv("ACCELERANDO_KEEP_MEMORY", "0")
    else:
        monkeypatch.setattr(process, "KEEP_MEMORY", False)
    with process.keep_memory(one_arena=True):
        assert process._users == 0
    assert library.calls == []


def test_switching_off_during_a_fit_does_not_keep_the_thresholds(library, monkeypatch):
    with process.keep_memory():
        monkeypatch.setenv("ACCELERANDO_KEEP_MEMORY", "0")
    assert process._users == 0
    assert library.calls[2:] == [(-1, 64 << 20), (-3, 32 << 20)]


@pytest.mark.parametrize("value", ["1", ""])
def test_other_values_leave_it_on(library, monkeypatch, value):
    monkeypatch.setenv("ACCELERANDO_KEEP_MEMORY", value)
    with process.keep_memory():
        assert process._users == 1


def test_two_threads_count(library):
    inside, leave = threading.Event(), threading.Event()

    def train():
        with process.keep_memory():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=train)
    thread.start()
    inside.wait()
    with process.keep_memory():
        pass
    assert process._users == 1
    leave.set()
    thread.join()
    assert process._users == 0
    assert len(library.calls) == 4


def test_other_systems_have_no_glibc(monkeypatch):
    monkeypatch.setattr(process.platform, "system", lambda: "Darwin")
    process._glibc.cache_clear()
    assert process._glibc() is None
    process._glibc.cache_clear()


def test_generators_continue_where_they_were():
    before = process.get_rng()
    try:
        torch.manual_seed(5)
        saved = process.get_rng()
        drawn = torch.rand(3)
        process.set_rng(saved)
        assert torch.equal(torch.rand(3), drawn)
    finally:
        process.set_rng(before)


def test_the_generators_of_gpus_are_included(monkeypatch):
    set_states = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["gpu 0"])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda s, d: set_states.update({d: s}))
    state = process.get_rng()
    assert state[1:] == ["gpu 0"]
    process.set_rng([state[0], "a", "b"])
    assert set_states == {0: "a"}, "the state of a GPU that is not here is left out"


def test_one_thread_may_take_the_lock_twice():
    with process.RNG_LOCK, process.RNG_LOCK:
        pass


# -- Ctrl-C ----------------------------------------------------------------------------------------


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_interrupt_waits_until_somebody_asks():
    with Interrupt() as interrupt:
        press()
        assert interrupt.pending
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_the_second_interrupt_is_raised_at_once():
    with Interrupt(), pytest.raises(KeyboardInterrupt):
        press()
        press()


def test_the_handler_of_before_is_there_again_afterwards():
    before = signal.getsignal(signal.SIGINT)
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_a_foreign_handler_is_left_alone():
    def own(number, frame):
        pass

    before = signal.signal(signal.SIGINT, own)
    try:
        with Interrupt():
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_install_nothing():
    before, seen = signal.getsignal(signal.SIGINT), []

    def run():
        with Interrupt() as interrupt:
            seen.append((signal.getsignal(signal.SIGINT), interrupt.pending))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(before, False)]


def test_draws_depend_on_their_numbers_and_leave_the_generators_alone():
    def drawn():
        return torch.rand(1).item(), np.random.rand(), random.random()

    before = process.get_rng()[0], np.random.get_state()[1].tolist(), random.getstate()
    one, other = process.Draws(3, 5), process.Draws(3, 5)
    with one():
        first = drawn()
    with one():
        second = drawn()
    with other():
        assert [drawn(), drawn()] == [first, second]
    with process.Draws(5, 3)():
        assert drawn() != first
    assert list(process.Draws(3, 5).during(drawn() for _ in range(2))) == [first, second]
    assert torch.equal(process.get_rng()[0], before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


def test_a_part_of_a_block_draws_as_outside():
    def drawn():
        return torch.rand(1).item(), np.random.rand(), random.random()

    process.seed_generators(7)
    outside = [drawn() for _ in range(3)]
    with process.Draws(3)():
        inside = [drawn() for _ in range(2)]
    process.seed_generators(7)
    draws, found = process.Draws(3), [drawn()]
    with draws():
        assert drawn() == inside[0]
        with draws.outside():
            found.append(drawn())
        assert drawn() == inside[1]
    assert [*found, drawn()] == outside
