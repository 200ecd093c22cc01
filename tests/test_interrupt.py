"""The first Ctrl-C waits, the second does not, and other people's handlers stay."""

import os
import signal
import threading

import pytest

from accelerando._interrupt import Interrupt


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
