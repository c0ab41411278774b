"""``recurconv reproduce``: the runs behind the paper's tables and figures."""

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from recurconv.cli import terminal
from recurconv.cli.app import Device, Threads, app

if TYPE_CHECKING:
    from recurconv.cells import Cell
    from recurconv.reproduction.plan import Item


@app.command(epilog="Example: recurconv reproduce table4 --data cifar --out runs --minutes 12")
def reproduce(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE",
            help="table1 to table5, figure2 to figure7, ablations, all; or cells such as 'table2/*/cifar10'.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="RUNS", help="The folder of run folders; one that is there goes on.")],
    data: Annotated[
        list[Path], typer.Option("--data", metavar="PATH", help="Where CIFAR or BSD is; repeat for more.")
    ] = [],  # noqa: B006 (typer copies it)
    results: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For the small result of each run; by default RUNS/results.")
    ] = None,
    preset: Annotated[
        Literal["full", "short"], typer.Option(help="The paper's length and width, or small runs for a CPU.")
    ] = "full",
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each cell.")] = 3,
    minutes: Annotated[
        float | None, typer.Option(min=0, metavar="M", help="Stop in this time; the same command goes on later.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Show how far each cell is, and do nothing.")] = False,
    device: Device = "auto",
    threads: Threads = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="A line per epoch instead of a bar, for logs.")] = False,
) -> None:
    """Train what the paper's tables and figures show; `recurconv report` draws them from the results.

    Fills the runs that are missing: all of the first seed before any of the second. Several may run at once on the same
    folders, one for each device. The exit status is 1 if some of the runs failed or have no data.
    """
    from recurconv import cells
    from recurconv.reproduction import plan

    chosen = cells.select(tables)
    items = plan.items(chosen, preset, seeds, out, results or out / "results")
    if show:
        _list(chosen, items)
        return
    if not data:
        raise ValueError("where is the data? give the folders that hold CIFAR and BSD, each by --data")
    with terminal.importing():
        import torch

        from recurconv.reproduction import sweep

    if threads is not None:
        torch.set_num_threads(threads)
    reports = sweep.sweep(
        items, data, minutes=math.inf if minutes is None else minutes, device=device, quiet=quiet, say=_say
    )
    counts = Counter(report.status for report in reports)
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    print(f"{len(items)} runs: {told}; the results are in {items[0].result.parent}")
    if counts["failed"] or counts["no data"]:
        raise typer.Exit(1)


def _say(message: str) -> None:
    print(" ".join(message.split()), file=sys.stderr, flush=True)


def _list(chosen: Sequence["Cell"], items: Sequence["Item"]) -> None:
    """A row for each cell: how far its seeds are. Below, which cells share a run, and what there is to say."""
    from recurconv.reproduction import plan

    states = {item: plan.state(item) for item in items}
    rows, shared = [], defaultdict(list)
    for cell in chosen:
        counts = Counter(state for item, (state, _) in states.items() if item.run.id == cell.run.id)
        rows.append((cell.id, ", ".join(f"{count} {state}" for state, count in counts.items())))
        if cell.id != cell.run.id:
            shared[cell.run.id].append(cell.id)
    terminal.table(f"{items[0].preset} preset, seeds of each cell", ("cell", "state"), rows, words=2)
    for run, readers in shared.items():
        print(f"{', '.join(readers)}: the run of {run}")
    for item, (_, note) in states.items():
        if note:
            print(f"{item.name}: {note}")
