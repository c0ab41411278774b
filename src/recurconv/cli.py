"""The command line: each subcommand is a public function. Heavy imports stay inside the functions that need them."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="One convolutional network, many costs: train, measure and run networks whose number of steps is a dial.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

Data = Annotated[Path, typer.Option("--data", help="CIFAR's archive or folder, or a folder of images or pictures.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Sets = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the recipe; repeat.")]


@app.command(epilog="Example: recurconv train r2-cifar10 --data cifar-10-python.tar.gz --out runs/r2 --set epochs=40")
def train(
    data: Data,
    out: Annotated[Path, typer.Option(help="The run folder: new or empty, or with --resume an earlier one.")],
    recipe: Annotated[str | None, typer.Argument(help="A name from `recurconv recipes`; not needed to resume.")] = None,
    settings: Sets = [],  # noqa: B006 (typer copies it)
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")] = False,
    device: Device = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default PyTorch's choice.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch CIFAR if it is not there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="A line per epoch instead of a bar, for logs.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write event files, too.")] = False,
) -> None:
    """Train a network by a recipe; under torchrun on all its processes."""
    import torch

    from recurconv import recipes, training
    from recurconv.runs import RunFolder

    if resume:
        config = RunFolder.open(out).recipe()
        if settings or (recipe is not None and recipe != config.name):
            raise ValueError(f"--resume goes on with {out}'s own recipe, {config.name}; leave other names and --set out")
    elif recipe is None:
        raise ValueError("which recipe? `recurconv recipes` lists them")
    else:
        config = recipes.override(recipes.get(recipe), settings)
    if threads is not None:
        torch.set_num_threads(threads)
    training.train(
        config, data, out, resume=resume, device=device, download=download, quiet=quiet, tensorboard=tensorboard
    )


@app.command("recipes")
def list_recipes() -> None:
    """List the recipes: what each trains, what it reaches, how long it takes."""
    from rich.console import Console
    from rich.table import Table

    from recurconv.recipes import RECIPES

    table = Table("recipe", "trains", "reaches", "takes")
    for make in RECIPES.values():
        recipe = make()
        table.add_row(recipe.name, recipe.summary, recipe.reaches, recipe.takes)
    Console().print(table)


def main() -> None:
    """Run the command line; an error that a user can mend is one line and exit status 2."""
    try:
        app()
    except (ValueError, OSError, RuntimeError) as error:
        print(f"recurconv: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(_status(error)) from None


def _status(error: Exception) -> int:
    """130 for Ctrl-C, 1 for a run that failed, 2 for a call that cannot be taken."""
    return {"Interrupted": 130, "TrainingFailed": 1}.get(type(error).__name__, 2)
