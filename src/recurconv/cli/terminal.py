"""What the command line prints: tables, progress, complaints."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], words: int = 1) -> None:
    """Print a table whose first columns are ``words``, the others numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table()
    for position, column in enumerate(columns):
        grid.add_column(column, justify="left" if position < words else "right", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(str(cell)) for cell in row))  # as it is: a file's name may look like markup
    print(title)
    Console().print(grid)


def number(value: float) -> str:
    """For a table: 1,234.5 or 0.0123."""
    return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"


@contextlib.contextmanager
def working() -> Iterator[Callable[[str], None]]:
    """Say on a terminal what takes a while; the line is gone afterwards.

    A spinner would need a thread, and that would disturb what is timed.
    """
    seen = sys.stderr is not None and sys.stderr.isatty()

    def say(message: str) -> None:
        if seen:
            print(f"\r\x1b[K{message}", end="\r", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        say("")


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Around imports that take seconds.

    Ctrl-C ends the program at once: there is nothing to be tidied up yet, and some libraries swallow a
    KeyboardInterrupt while they are imported.
    """
    with working() as say:

        def stop(*_: object) -> None:
            say("")
            os._exit(130)

        say("loading PyTorch")
        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def complain(message: str) -> None:
    """One line for the user, whatever the message looks like."""
    print(f"recurconv: {' '.join(message.split())}", file=sys.stderr)


def drop_output() -> None:
    """Leave nothing to be written to a closed pipe or a full disk when Python ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
