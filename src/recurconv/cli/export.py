"""``recurconv export``."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recurconv.cli import terminal
from recurconv.cli.app import Model, app

if TYPE_CHECKING:
    from recurconv.export.writing import Exported


@app.command(epilog="Example: recurconv export r2-cifar10 -o model.onnx")
def export(
    model: Model,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="model.onnx, or model.pt2 for torch.export.")
    ],
    steps: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Export this setting alone; by default the whole dial.")
    ] = None,
    opset: Annotated[
        int | None, typer.Option(metavar="N", help="Of ONNX, from 18 on; by default what PyTorch prefers.")
    ] = None,
    single_file: Annotated[
        bool | None,
        typer.Option(
            "--single-file/--data-file", help="Weights inside the model, or beside it; by default inside up to 4 MiB."
        ),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantise weights and activations to 8 bits.")] = False,
    calibration: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For --int8: CIFAR or a folder of pictures to measure ranges on.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
) -> None:
    """Write a network as one ONNX model with the dial, or one setting of it.

    The model has an input "steps" beside the image. It is checked against PyTorch before it is put in place.
    """
    program = out.suffix == ".pt2"
    if not program and out.suffix != ".onnx":
        raise ValueError(f"{out}: the name says what to write, and must end in .onnx or .pt2")
    if int8 != (calibration is not None):
        raise ValueError("--int8 and --calibration DIR go together: ranges are measured on the pictures in DIR")
    if program and (int8 or opset is not None or single_file is not None):
        raise ValueError("--int8, --opset and --single-file are for ONNX; write to a name that ends in .onnx")
    if steps is not None and single_file is False:
        raise ValueError("--data-file is for the whole dial; one setting (--steps) is always one file")
    logging.getLogger("onnxscript").setLevel(logging.ERROR)  # of how it comes to an opset
    with terminal.importing():
        from recurconv import export as exporting
        from recurconv.loading import load

    network = load(model)
    with terminal.working() as say:
        if program:
            made = exporting.export_program(network, out, steps=steps, overwrite=overwrite, say=say)
        elif calibration is not None:
            from recurconv.evaluation import image_size, stored_recipe
            from recurconv.export.int8 import export_int8

            recipe = stored_recipe(model)
            noise = (recipe.sigmas or (recipe.sigma,)) if recipe else ()
            made = export_int8(
                network,
                out,
                calibration,
                steps=steps,
                size=image_size(model, network),
                sigmas=(noise[0], noise[-1]) if noise else None,
                opset=opset,
                single_file=single_file,
                overwrite=overwrite,
                say=say,
            )
        else:
            made = exporting.export_onnx(
                network, out, steps=steps, opset=opset, single_file=single_file, overwrite=overwrite, say=say
            )
    files = f"{made.path}" if made.data is None else f"{made.path} and {made.data.name}"
    title = f"{files}: {made.bytes:,} bytes"
    if calibration is not None:
        _report_int8(title, made)
        return
    terminal.table(
        title,
        ("steps", "difference from PyTorch"),
        [(steps, f"{difference:.1e}") for steps, difference in made.differences.items()],
    )
    print("difference: the largest, by the largest output; for noise and patterns of several sizes")


def _report_int8(title: str, made: "Exported") -> None:
    from recurconv.export.int8 import ExportedInt8

    assert isinstance(made, ExportedInt8)
    terminal.table(
        title,
        ("steps", made.measure, "largest difference"),
        [(steps, f"{value:.2f}", f"{made.differences[steps]:.1e}") for steps, value in made.agreement.items()],
    )
    print(f"int8 against fp32 on the {made.images} calibration images; difference: relative to the largest output")
