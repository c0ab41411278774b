"""The command line's root, and the arguments that several subcommands take."""

from pathlib import Path
from typing import Annotated

import typer

from recurconv._version import __version__

app = typer.Typer(
    help="One convolutional network, many costs: train, measure and run networks whose number of steps is a dial.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run folder, a saved network, shipped weights, or a Hub id.")
]
Data = Annotated[
    Path, typer.Option("--data", metavar="PATH", help="CIFAR's archive or folder, or a folder of images or pictures.")
]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="CPU threads; by default PyTorch's choice.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"recurconv {__version__}")
        raise typer.Exit


@app.callback()
def recurconv(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What stands before a subcommand."""
