"""The command line: each subcommand is a public function. Heavy imports stay inside the functions that need them."""

import sys
from collections.abc import Sequence
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
            raise ValueError(
                f"--resume goes on with {out}'s own recipe, {config.name}; leave other names and --set out"
            )
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
    from recurconv.recipes import RECIPES

    for make in RECIPES.values():
        recipe = make()
        print(f"{recipe.name}\n  trains   {recipe.summary}\n  reaches  {recipe.reaches}\n  takes    {recipe.takes}")


Model = Annotated[str, typer.Argument(help="A run folder, a saved network, shipped weights, or a Hub id.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Steps = Annotated[list[int], typer.Option("--steps", metavar="COUNT...", help="Settings, e.g. --steps 2 3; all.")]


@app.command(epilog="Example: recurconv evaluate r2-cifar10 --data cifar-10-python.tar.gz --split test")
def evaluate(
    model: Model,
    data: Data,
    split: Annotated[str, typer.Option(help="train, minival (held out), trainval or test.")],
    steps: Steps = [],  # noqa: B006
    dataset: Annotated[
        str | None, typer.Option(help="cifar10, cifar100, folder or pictures; by default the run's.")
    ] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise for a denoiser, in 1/255; by default the run's.")] = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Error or PSNR, MACs and parameters at each setting, on a split."""
    from recurconv import evaluation

    result = evaluation.evaluate(model, data, split, steps=steps, kind=dataset, sigma=sigma, device=device)
    if as_json:
        print(result.as_json())
        return
    unit = "M MACs/pixel" if "PSNR" in result.metric else "M MACs"
    _table(
        f"{model} on {result.data}, {result.split}, {result.images} images",
        ("steps", result.metric, "+- (standard error)", unit, "M parameters"),
        [
            (
                row.steps,
                f"{row.value:.2f}",
                f"{row.standard_error:.2f}",
                f"{row.macs / 1e6:.4g}",
                f"{row.parameters / 1e6:.3f}",
            )
            for row in result.rows
        ],
    )
    print(f"data: {result.condition}")
    for note in result.notes:
        print(f"note: {note}")


@app.command(epilog="Example: recurconv profile r2-cifar10 --batch 64 --threads 1")
def profile(
    model: Model,
    size: Annotated[int, typer.Option(min=1, help="Height and width of the image, in pixels.")] = 32,
    batch: Annotated[int, typer.Option(min=1, help="Images in a call.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure each setting.")] = 1.0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """MACs, parameters, depth and measured latency at each setting."""
    import dataclasses
    import json

    from recurconv import costs, loading

    network = loading.load(model)
    shape = (network.image_channels, size, size)
    spent = costs.cost(network, shape)
    times = costs.latency(network, shape, batch=batch, threads=threads, seconds=seconds, device=device)
    rows = [{**dataclasses.asdict(c), **dataclasses.asdict(t)} for c, t in zip(spent, times, strict=True)]
    if as_json:
        print(json.dumps({"model": model, "image_shape": shape, "device": device, "rows": rows}, indent=2))
        return
    _table(
        f"{model}, {batch} x {list(shape)}, {device}, {times[0].threads} threads",
        ("steps", "M MACs", "M parameters", "depth", "ms (median)", "ms (quartile range)", "runs"),
        [
            (
                c.steps,
                f"{c.macs / 1e6:.1f}",
                f"{c.parameters / 1e6:.3f}",
                c.depth,
                f"{t.milliseconds:.2f}",
                f"{t.spread:.2f}",
                t.runs,
            )
            for c, t in zip(spent, times, strict=True)
        ],
    )


@app.command(epilog="Example: recurconv predict r2-cifar10 photo.jpg --steps 2")
def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Pictures of any size and kind.")],
    steps: Annotated[int | None, typer.Option(help="A setting on the dial; by default the largest.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Resize and crop to this; by default as in training.")] = None,
    as_json: AsJson = False,
) -> None:
    """The label of each picture, and its probability."""
    import dataclasses
    import json

    from recurconv import evaluation, loading, prediction

    network = loading.load(model)
    setting = network.setting(steps)
    side = size if size is not None else evaluation.recipe_of(model, network).size
    found, failed = [], []
    for image in images:
        try:
            found.append(prediction.predict(network, image, steps=setting, size=side))
        except (ValueError, OSError) as error:
            failed.append(str(error))
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in found], indent=2))
    elif found:
        _table(
            f"{model}, steps={setting}",
            ("picture", "label", "probability"),
            [(row.picture, row.label, f"{row.probability:.3f}") for row in found],
        )
    for reason in failed:
        print(f"recurconv: {reason}", file=sys.stderr)
    if failed:
        raise SystemExit(1)


@app.command(epilog="Example: recurconv demo --out demo.png")
def demo(
    out: Annotated[Path, typer.Option(help="The figure to write, PNG or SVG; replaced if it is there.")] = Path(
        "recurconv-demo.png"
    ),
) -> None:
    """Make a noisy picture clean at every setting of the shipped denoiser: a table and a figure."""
    from recurconv import demo as demonstration

    clean, shown = demonstration.denoise_sample()
    _table(
        f"One network, {len(shown) - 1} costs: {demonstration.MODEL}, {clean.shape[1]} x {clean.shape[0]} pixels",
        ("steps", "G MACs", "ms", "PSNR (dB)"),
        [
            (
                s.steps or "noisy",
                f"{s.macs / 1e9:.2f}" if s.steps else "",
                f"{s.milliseconds:.0f}" if s.steps else "",
                f"{s.psnr:.2f}",
            )
            for s in shown
        ],
    )
    demonstration.draw(clean, shown, out)
    print(f"The pictures are in {out}")


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*map(str, row))
    Console().print(table)


def main() -> None:
    """Run the command line. An error that a user can mend is one line and exit status 2; a run that failed is 1."""
    try:
        app(args=_spread_steps(sys.argv[1:]))
    except (ValueError, OSError, RuntimeError) as error:
        print(f"recurconv: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(getattr(error, "exit_status", 2)) from None


def _spread_steps(arguments: list[str]) -> list[str]:
    """``--steps 2 3 4`` as the ``--steps 2 --steps 3 --steps 4`` that the parser takes."""
    spread: list[str] = []
    for position, word in enumerate(arguments):
        follows = (
            word.isdigit() and position >= 2 and spread[-2:-1] == ["--steps"] and arguments[position - 1].isdigit()
        )
        spread += ["--steps", word] if follows else [word]
    return spread
