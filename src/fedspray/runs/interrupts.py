"""A Ctrl-C that can't get lost.

NVFlare catches every exception in places, KeyboardInterrupt among them, and goes on; so does Python in destructors
and callbacks. So an interrupt is raised as usual and also stored until code that can stop asks for it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """What was pressed so far; calling it raises KeyboardInterrupt if anything was."""

    def __init__(self) -> None:
        self._pressed, self._held = False, False

    def __call__(self) -> None:
        """Raises what was pressed."""
        if self._pressed:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets the block end before the first interrupt is raised: files and threads in it stay whole."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self()

    def receive(self, number: int, frame: Any) -> None:
        """Handles a signal."""
        again, self._pressed = self._pressed, True
        if again or not self._held:
            raise KeyboardInterrupt


@contextmanager
def remembered_interrupts() -> Iterator[Interrupts]:
    """Yields a function that raises KeyboardInterrupt if there was one since the start of the outermost block."""
    if threading.current_thread() is not threading.main_thread():  # interrupts go to the main thread only
        yield Interrupts()
        return
    before = signal.getsignal(signal.SIGINT)
    owner = getattr(before, "__self__", None)
    if isinstance(owner, Interrupts):
        yield owner
        return
    interrupts = Interrupts()
    signal.signal(signal.SIGINT, interrupts.receive)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


def end_like_ctrl_c() -> None:
    """Makes SIGTERM and SIGHUP act like Ctrl-C: the run is saved, and processes end with their command."""

    def end(number: int, frame: Any) -> None:
        for each in ending:  # closing a terminal may send more than one, and clean-up must not be interrupted
            signal.signal(each, signal.SIG_IGN)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)  # is stored, since NVFlare swallows exceptions

    ending = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    for each in ending:
        signal.signal(each, end)
