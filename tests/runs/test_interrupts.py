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


@pytest.mark.parametrize(("presses", "reached"), [(1, ["end"]), (2, [])])
def test_the_first_interrupt_waits_for_the_end_of_a_block_and_the_second_does_not(
    presses: int, reached: list[str]
) -> None:
    done = []

    def held() -> None:
        with remembered_interrupts() as interrupts, interrupts.held():
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
            done.append("end")

    with pytest.raises(KeyboardInterrupt):
        held()
    assert done == reached


def test_blocks_inside_each_other_share_what_was_pressed() -> None:
    with remembered_interrupts() as outer:
        with remembered_interrupts() as inner, contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert inner is outer
        with pytest.raises(KeyboardInterrupt):
            outer()


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
