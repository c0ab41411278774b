"""``recurconv denoise``."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recurconv.cli import terminal
from recurconv.cli.app import Device, app

if TYPE_CHECKING:
    from recurconv.cleaning.files import Made


@app.command(epilog="Example: recurconv denoise photo.jpg -o clean.jpg --steps 2")
def denoise(
    sources: Annotated[
        list[str], typer.Argument(metavar="IN", help="Pictures of any kind, folders, or patterns in quotes.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="OUT", help="The file to write; for more than one picture a folder.")
    ],
    sigma: Annotated[
        str, typer.Option(metavar="S", help="Noise, 0 to 55 in 1/255 of white; auto estimates it.")
    ] = "auto",
    steps: Annotated[
        int | None, typer.Option(metavar="COUNT", help="A setting, from fast to good; by default the largest.")
    ] = None,
    milliseconds: Annotated[
        float | None, typer.Option(metavar="M", help="Or a budget for each picture's way through the network.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="By default denoise-gray or denoise-color.")
    ] = None,
    tile: Annotated[
        int | None, typer.Option(min=1, metavar="PIXELS", help="Sides of the tiles: smaller ones need less memory.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    device: Device = "auto",
) -> None:
    """Make noisy pictures clean.

    A picture that fails does not stop the others; the exit status is 1 then.
    """
    with terminal.importing():
        from recurconv.cleaning import Cleaner, files
        from recurconv.cleaning.tiles import SIDE
        from recurconv.devices import choose_device

    cleaner = Cleaner(
        model,
        sigma="auto" if sigma == "auto" else _number(sigma),
        steps=steps,
        milliseconds=milliseconds,
        tile=tile or SIDE,
        device=choose_device(device),
    )
    todo = files.jobs(sources, out)
    failed = 0
    written: dict[Path, Path] = {}
    with terminal.working() as say:
        for number, job in enumerate(todo, 1):
            name = f"{job.source} ({number} of {len(todo)})" if len(todo) > 1 else str(job.source)
            say(name)
            try:
                done = _tiles(say, name)
                made = files.clean_file(job, cleaner, overwrite=overwrite, written=written, done=done)
            except (ValueError, OSError, MemoryError) as error:
                failed += 1
                say("")
                terminal.complain(str(error))
            else:
                say("")
                print(_line(job.source, made, estimated=sigma == "auto"), flush=True)
    if failed:
        raise typer.Exit(1 if failed < len(todo) else 2)


def _tiles(say: Callable[[str], None], name: str) -> Callable[[int, int], None]:
    return lambda count, of: say(f"{name}: tile {count} of {of}")


def _number(sigma: str) -> float:
    try:
        return float(sigma)
    except ValueError:
        raise ValueError(f"--sigma {sigma}; give auto, or a number from 0 to 55 in 1/255 of white") from None


def _line(source: Path, made: "Made", *, estimated: bool) -> str:
    """What became of a picture."""
    from recurconv.cleaning.noise import SMALLEST

    if estimated and min(made.width, made.height) < SMALLEST:
        how = "too small to estimate its noise: left as it is; give --sigma"
    else:
        noise = f"sigma {made.sigma:.1f} found" if estimated else f"sigma {made.sigma:g}"
        noise += ", coarse in colour" if made.coarse else ""
        how = f"{noise}, steps {made.steps}" if made.steps else f"{noise}, clean: left as it is"
    return f"{source} -> {made.target}: {made.width} x {made.height}, {how}, {made.seconds:.2f} s"
