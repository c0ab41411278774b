"""The command line: ``main`` runs it and says how it ends; the subcommands are in the files beside this one."""

import dis
import io
import signal
import sys
from types import TracebackType
from typing import Any

from recurconv.cli import commands, denoise, export, report, reproduce, tune  # noqa: F401  (each file registers its subcommands)
from recurconv.cli.app import app
from recurconv.cli.terminal import complain, drop_output
from recurconv.memory import is_out_of_memory

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line.

    The exit status is 0; 2 for what the user can mend (one line says how), 1 for a run or a picture that failed, 130
    after Ctrl-C, 143 after SIGTERM. Any other error is a mistake in this program, whose traceback is what its authors
    need.
    """
    signal.signal(signal.SIGTERM, _end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that a terminal cannot show must not cost what was done
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:]
    try:
        try:
            status = app(args=_spread(words) or ["--help"], prog_name="recurconv", standalone_mode=False)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where an error of it can be handled
    except BrokenPipeError:  # the reader, such as head, has seen enough
        drop_output()
        raise SystemExit(1) from None
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's; which class it is differs between versions of typer
            complain(f"{error.format_message().rstrip('.')}; see `{_command_of(error)} --help`")
            raise SystemExit(2) from None
        status = _status(error)
        if status is None:
            raise
        complain(str(error))
        if isinstance(error, OSError):
            drop_output()
        raise SystemExit(status) from None
    raise SystemExit(status or 0 if words else 2)


def _end(*_: object) -> None:
    """On SIGTERM: as an exception, so that files half written are taken away."""
    raise SystemExit(143)


def _command_of(error: Any) -> str:
    """The command whose words the parser did not understand."""
    context = getattr(error, "ctx", None)
    return "recurconv" if context is None else str(context.command_path)


def _status(error: Exception) -> int | None:
    """The exit status for an error whose message tells the user what to do; None for a mistake in this program.

    Of the first kind are what the operating system says, memory that does not suffice, an extra that is to be
    installed, and every ValueError or RuntimeError that this package raises itself. One that comes out of PyTorch or
    another library is of the second: what a user enters is checked before it gets there.
    """
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    ours = innermost is not None and _is_ours(innermost, error)
    extra = isinstance(error, ImportError) and "pip install" in str(error)
    explained = isinstance(error, OSError) or (ours and (isinstance(error, ValueError | RuntimeError) or extra))
    return int(getattr(error, "exit_status", 2)) if explained or is_out_of_memory(error) else None


def _is_ours(place: TracebackType, error: Exception) -> bool:
    """Whether this package raised an error; of a RuntimeError only by a raise: an operator of PyTorch has no frame."""
    code = place.tb_frame
    if code.f_globals.get("__name__", "").partition(".")[0] != "recurconv":
        return False
    at = (step.opname for step in dis.get_instructions(code.f_code) if step.offset == place.tb_lasti)
    return not isinstance(error, RuntimeError) or next(at, "").startswith(("RAISE", "RERAISE"))


def _spread(arguments: list[str]) -> list[str]:
    """``evaluate --steps 2 3 4`` as the ``--steps 2 --steps 3 --steps 4`` that the parser takes; so ``--sigma``."""
    if arguments[:1] != ["evaluate"]:
        return arguments
    spread: list[str] = []
    for word in arguments:
        several = spread[-2:-1] in (["--steps"], ["--sigma"]) and word.replace(".", "", 1).isdigit()
        spread += [spread[-2], word] if several else [word]
    return spread
