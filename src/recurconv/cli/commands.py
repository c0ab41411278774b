"""The subcommands, each a public function. Heavy imports stay inside the functions that need them."""

import itertools
from pathlib import Path
from typing import Annotated

import typer

from recurconv.cli import terminal
from recurconv.cli.app import AsJson, Data, Device, Model, Threads, app


@app.command(epilog="Example: recurconv train r2-cifar10 --data cifar-10-python.tar.gz --out run")
def train(
    data: Data,
    out: Annotated[
        Path, typer.Option(metavar="RUN", help="The run folder: new or empty, or with --resume an earlier one.")
    ],
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A name that `recurconv recipes` lists; with --resume none.")
    ] = None,
    settings: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the recipe; repeat for more.")
    ] = [],  # noqa: B006 (typer copies it)
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")] = False,
    device: Device = "auto",
    threads: Threads = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch CIFAR if it is not there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="A line per epoch instead of a bar, for logs.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write event files, too.")] = False,
) -> None:
    """Train a network by a recipe; under torchrun on all its processes."""
    with terminal.importing():
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


@app.command("recipes", epilog="Example: recurconv recipes")
def list_recipes() -> None:
    """List the recipes: what each trains, what it reaches, how long it takes."""
    import shutil
    import textwrap

    with terminal.importing():
        from recurconv.recipes import RECIPES

    width = shutil.get_terminal_size().columns
    for make in RECIPES.values():
        recipe = make()
        print(recipe.name)
        for word, text in (("trains", recipe.summary), ("reaches", recipe.reaches), ("takes", recipe.takes)):
            print(textwrap.fill(text, width, initial_indent=f"  {word:8} ", subsequent_indent=" " * 11))


@app.command(epilog="Example: recurconv evaluate run --data cifar-10-python.tar.gz --split test")
def evaluate(
    model: Model,
    data: Data,
    split: Annotated[str, typer.Option(metavar="NAME", help="train, minival (held out), trainval or test.")],
    steps: Annotated[
        list[int], typer.Option("--steps", metavar="COUNT...", help="Settings, e.g. --steps 2 3; by default all.")
    ] = [],  # noqa: B006
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="cifar10, cifar100, folder or pictures; by default as trained.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, max=4096, metavar="PIXELS", help="Of a folder's images; by default as trained.")
    ] = None,
    sigmas: Annotated[
        list[float], typer.Option("--sigma", metavar="S...", help="Noise for a denoiser, e.g. --sigma 15 25 50.")
    ] = [],  # noqa: B006
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Error, or PSNR and SSIM, MACs and parameters at each setting, on a split."""
    with terminal.importing():
        from recurconv import evaluation

    with terminal.working() as say:
        result = evaluation.evaluate(
            model, data, split, steps=steps, dataset=dataset, size=size, sigma=sigmas or None, device=device, say=say
        )
    if as_json:
        print(result.as_json())
        return
    title = f"{model} on {result.data}, split {split}: {result.images:,} images"
    for noise, rows in itertools.groupby(result.rows, key=lambda row: getattr(row, "sigma", None)):
        denoises = noise is not None
        similarity, macs, unit = (("SSIM",), "k MACs/pixel", 1e3) if denoises else ((), "M MACs", 1e6)
        terminal.table(
            f"{title}, sigma {noise:g}" if denoises else title,
            ("steps", result.metric, "standard error", *similarity, macs, "parameters"),
            [
                (
                    row.steps,
                    f"{row.value:.2f}",
                    f"{row.standard_error:.2f}",
                    *([_similarity(row.ssim)] if isinstance(row, evaluation.NoisyRow) else []),
                    terminal.number(row.macs / unit),
                    f"{row.parameters:,}",
                )
                for row in rows
            ],
        )
    print(f"data: {result.condition}")
    for note in result.notes:
        print(f"note: {note}")


def _similarity(ssim: float | None) -> str:
    return "" if ssim is None else f"{ssim:.4f}"


@app.command(epilog="Example: recurconv profile r2-cifar10 --batch 64 --threads 1")
def profile(
    model: Model,
    size: Annotated[
        int | None,
        typer.Option(min=1, max=4096, metavar="PIXELS", help="Of the image; by default as in training."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Images in a call.")] = 1,
    threads: Threads = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="How long to measure each setting.")] = 1.0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """MACs, parameters, depth and measured latency at each setting."""
    import dataclasses
    import json
    import logging

    # It warns where there is CUDA's compiler and no GPU; nothing here compiles.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    with terminal.importing():
        from recurconv import costs, evaluation, loading, runs
        from recurconv.devices import choose_device

    target = choose_device(device)
    network = loading.load(model)
    side = size or evaluation.image_size(model, network)
    shape = (network.image_channels, side, side)
    spent = costs.cost(network, shape)
    with terminal.working() as say:
        say(f"measuring {len(spent)} settings, {seconds:g} s each")
        times = costs.latency(network, shape, batch=batch, threads=threads, seconds=seconds, device=target)
    if as_json:
        rows = [{**dataclasses.asdict(c), **dataclasses.asdict(t)} for c, t in zip(spent, times, strict=True)]
        facts = {"model": model, "image_shape": shape, "device": str(target), "rows": rows}
        print(json.dumps({**facts, "environment": runs.environment()}, indent=2))
        return
    place = f"CPU threads: {times[0].threads}" if target.type == "cpu" else str(target)
    terminal.table(
        f"{model}: {batch} x {list(shape)} in a call, {place}",
        ("steps", "M MACs", "parameters", "depth", "ms", "range", "runs"),
        [
            (
                c.steps,
                terminal.number(c.macs / 1e6),
                f"{c.parameters:,}",
                c.depth,
                f"{t.milliseconds:.2f}",
                f"{t.spread:.2f}",
                t.runs,
            )
            for c, t in zip(spent, times, strict=True)
        ],
    )
    print("MACs: for one image. ms: median time of a call, and its quartile range")


@app.command(epilog="Example: recurconv predict r2-cifar10 photo.jpg --steps 2")
def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE", help="Pictures of any kind, or folders of them.")],
    steps: Annotated[
        int | None, typer.Option(metavar="COUNT", help="A setting on the dial; by default the largest.")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, max=4096, metavar="PIXELS", help="Resize and crop to this; by default as in training."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The label of each picture, and its probability.

    A picture that cannot be read does not stop the others; the exit status is 1 then.
    """
    import dataclasses
    import json

    with terminal.importing():
        from recurconv import evaluation, loading, prediction
        from recurconv.data.pictures import list_pictures

    network = loading.load(model)
    setting = network.setting(steps)
    side = size or evaluation.image_size(model, network)
    prediction.check_classifier(network, side)
    found, failed = [], []
    pictures = [own for image in images for own in (list_pictures(image) if image.is_dir() else [image])]
    with terminal.working() as say:
        for number, image in enumerate(pictures, 1):
            say(f"picture {number} of {len(pictures)}")
            try:
                found.append(prediction.predict(network, image, steps=setting, size=side))
            except (ValueError, OSError) as error:
                failed.append(str(error))
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in found], indent=2))
    elif found:
        terminal.table(
            f"{model}, steps={setting}",
            ("picture", "label", "probability"),
            [(row.picture, row.label, f"{row.probability:.3f}") for row in found],
            words=2,
        )
    for reason in failed:
        terminal.complain(reason)
    if failed:
        raise typer.Exit(1 if found else 2)


@app.command(epilog="Example: recurconv demo --out demo.png")
def demo(
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The figure to write, PNG, SVG or PDF; replaced if it is there.")
    ] = Path("recurconv-demo.png"),
) -> None:
    """Make a noisy picture clean at every setting of the shipped denoiser: a table and a figure."""
    with terminal.importing():
        import torch

        from recurconv import demo as demonstration

    demonstration.check_figure(out)
    with terminal.working() as say:
        shown = demonstration.denoise_sample(say=say)
    height, width = shown.clean.shape
    terminal.table(
        f"{demonstration.MODEL}: {width} x {height} pixels, sigma {demonstration.SIGMA:g}, "
        f"CPU threads: {torch.get_num_threads()}",
        ("steps", "G MACs", "ms", "PSNR (dB)"),
        [
            ("noisy", "", "", f"{shown.noisy_psnr:.2f}"),
            *((s.steps, f"{s.macs / 1e9:.2f}", f"{s.milliseconds:.0f}", f"{s.psnr:.2f}") for s in shown.settings),
        ],
    )
    with terminal.working() as say:
        say(f"drawing {out}")
        demonstration.draw(shown, out)
    print(f"The pictures are in {out.resolve()}")
