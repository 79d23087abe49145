from __future__ import annotations

import contextlib
import signal
import threading

import pytest

from fedspray.runs.interrupts import remembered_interrupts


def test_an_interrupt_that_somebody_swallowed_is_not_lost() -> None:
    before = signal.getsignal(signal.SIGINT)
    with remembered_interrupts() as stop_if_interrupted:
        stop_if_interrupted()  # nothing happened yet
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stop_if_interrupted()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_nobody_swallows_is_raised_at_once() -> None:
    with remembered_interrupts(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_other_threads_have_nothing_to_remember() -> None:
    asked = []

    def work() -> None:
        with remembered_interrupts() as stop_if_interrupted:
            stop_if_interrupted()
            asked.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert asked == [True]
