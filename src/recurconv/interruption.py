"""Ctrl-C as a wish that the training loop fulfils when its state is whole."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class InterruptionError(RuntimeError):
    """The user asked to stop, or the time allowed is over; the state is saved."""

    exit_status = 130


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """While inside, Ctrl-C sets the event instead of raising; a second one raises KeyboardInterrupt at once.

    In another thread than the main one it never sets it, since Python lets only that one handle signals.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(OSError):  # not print, which must not be called while another print is under way
            os.write(2, b"\nstopping after this iteration; Ctrl-C again stops at once, without saving\n")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
