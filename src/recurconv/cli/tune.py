"""``recurconv tune-confidence``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recurconv.cli import terminal
from recurconv.cli.app import AsJson, Data, app

if TYPE_CHECKING:
    from recurconv.tuning import Point


@app.command("tune-confidence", epilog="Example: recurconv tune-confidence m.onnx --data cifar -o t.json")
def tune_confidence(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="A classifier that `recurconv export` wrote.")],
    data: Data,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The JSON file to write, with the thresholds.")
    ],
    macs: Annotated[
        float | None, typer.Option(metavar="M", help="Lowest error at this many MACs an image, in the mean: 65e6.")
    ] = None,
    error: Annotated[
        float | None, typer.Option(metavar="E", help="Or lowest cost at this error, in %; by default as the largest.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="Where they are chosen: minival, held out.")] = "minival",
    report: Annotated[
        str | None, typer.Option(metavar="NAME", help="Measure them on this split, too, such as test.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="cifar10, cifar100 or folder; by default what lies there.")
    ] = None,
    held_out: Annotated[
        int, typer.Option(min=1, metavar="N", help="CIFAR's images in minival, as in the training recipe.")
    ] = 1000,
    size: Annotated[
        int | None,
        typer.Option(min=1, max=4096, metavar="PIXELS", help="Of a folder's images; by default as trained."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw error against MACs: PNG, SVG or PDF.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="CPU threads; by default all cores.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find thresholds of confidence for a wanted mean cost or error.

    `Dial("m.onnx").run(images, confidence=...)` takes them.
    """
    import json

    from recurconv.files import write_json

    with terminal.importing():
        from recurconv import tuning
        from recurconv.tuning.figure import check_figure, draw

    if figure is not None:
        check_figure(figure)
        if figure.resolve() == out.resolve():
            raise ValueError(f"--figure and --out are both {out}; give two files")
    for path in filter(None, (out, figure)):
        _check_target(path, overwrite)
    with terminal.working() as say:
        found = tuning.tune(
            model,
            data,
            macs=macs,
            error=error,
            split=split,
            report=report,
            dataset=dataset,
            held_out=held_out,
            size=size,
            threads=threads,
            say=say,
        )
        write_json(out, found.as_dict())
        if figure is not None:
            say(f"drawing {figure}")
            draw(found, figure)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
        return
    side = found.size
    for curve in found.curves:
        terminal.table(
            f"{found.model} on {found.data}, split {curve.split}: {curve.images:,} images of {side} x {side}",
            ("run", "M MACs", "error (%)", "standard error", "answered at"),
            [_row(point, max(curve.fixed[-1].thresholds)) for point in (*curve.fixed, curve.chosen)],
        )
        print(f"data: {curve.condition}")
    for note in found.notes:
        print(f"note: {note}")
    print(f"wanted: {found.wanted}; the thresholds are in {out}")


def _check_target(path: Path, overwrite: bool) -> None:
    """Complain of a file that cannot be written, before the work is done."""
    import tempfile

    if path.exists() and not (overwrite and path.is_file()):
        raise ValueError(f"{path} is there already; give another name" + ("" if path.is_dir() else " or --overwrite"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from None


def _row(point: "Point", largest: int) -> tuple[str, ...]:
    ((low, threshold),) = point.thresholds.items()
    answered = ", ".join(f"{steps}: {100 * share:.0f} %" for steps, share in point.shares.items())
    return (
        f"steps={low}" if threshold == 0 else f"{low}, {largest} below {threshold:g}",
        terminal.number(point.macs / 1e6),
        f"{point.error:.2f}",
        "" if point.standard_error is None else f"{point.standard_error:.2f}",
        answered,
    )
