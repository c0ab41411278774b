"""``recurconv report``: the paper's tables and figures beside its own numbers."""

from pathlib import Path
from typing import Annotated

import typer

from recurconv.cli import terminal
from recurconv.cli.app import app


@app.command(epilog="Example: recurconv report --results results/reproduction")
def report(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help="Print these, e.g. table2 findings; write nothing.")
    ] = None,
    results: Annotated[Path, typer.Option(metavar="DIR", help="The results that `recurconv reproduce` left.")] = Path(
        "results/reproduction"
    ),
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="For reproduction.md, and the figures in reproduction/.")
    ] = Path("docs"),
    preset: Annotated[str, typer.Option(metavar="NAME", help="full, short or all.")] = "all",
) -> None:
    """Tables and figures of the paper beside its own numbers: a page and figures.

    Without names it prints all tables, and writes the page and its figures.
    """
    from recurconv import reporting
    from recurconv.cells import PRESETS

    shown = PRESETS if preset == "all" else tuple(name for name in PRESETS if name == preset)
    if not shown:
        raise ValueError(f"preset={preset!r} is not known; choose one of {', '.join(PRESETS)}, all")
    book = reporting.read_book(results)
    sections = {name: reporting.section(name, book, shown) for name in names or reporting.SECTIONS}
    if nothing := [name for name in names or () if not sections[name]]:
        raise ValueError(f"{', '.join(nothing)}: nothing to show for preset {preset}")
    if not names:  # first, so that nothing is printed where it cannot be written
        with terminal.working() as say:
            *_, page = reporting.write(book, out, shown, source=str(results), say=say)
    for table in (table for tables in sections.values() for table in tables):
        columns = table.columns[: table.shown]
        rows = [row[: table.shown] for row in table.rows]
        terminal.table(f"{table.title}, preset {table.preset}", columns, rows, words=table.words)
    if not names:
        print(f"The page is {page}")
