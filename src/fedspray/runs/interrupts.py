"""Ctrl-C that cannot get lost.

NVFlare catches every exception in places, KeyboardInterrupt among them, and goes on; so does Python in destructors
and callbacks. So an interrupt is raised as always, but remembered too, until somebody who means to stop asks for it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def remembered_interrupts() -> Iterator[Callable[[], None]]:
    """Gives a function that raises KeyboardInterrupt if there was one since the start of the block."""
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
