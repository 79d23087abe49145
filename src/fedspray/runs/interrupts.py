"""A Ctrl-C that can't get lost.

NVFlare catches every exception in places, KeyboardInterrupt among them, and goes on; so does Python in destructors
and callbacks. So an interrupt is raised as usual and also stored until code that can stop asks for it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def remembered_interrupts() -> Iterator[Callable[[], None]]:
    """Yields a function that raises KeyboardInterrupt if there was one since the start of the block."""
    if threading.current_thread() is not threading.main_thread():  # interrupts go to the main thread only
        yield lambda: None
        return
    pressed = threading.Event()

    def remember(number: int, frame: Any) -> None:
        pressed.set()
        raise KeyboardInterrupt

    def check() -> None:
        if pressed.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def end_like_ctrl_c() -> None:
    """Makes SIGTERM and SIGHUP act like Ctrl-C: the run is saved, and processes end with their command."""

    def end(number: int, frame: Any) -> None:
        for each in ending:  # closing a terminal may send more than one, and clean-up must not be interrupted
            signal.signal(each, signal.SIG_IGN)
        signal.raise_signal(signal.SIGINT)  # is stored, since NVFlare swallows exceptions
        raise KeyboardInterrupt

    ending = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    for each in ending:
        signal.signal(each, end)
