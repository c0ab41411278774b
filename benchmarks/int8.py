"""What int8 costs a trained network, and what sharing activation ranges over the steps would cost.

    python benchmarks/int8.py r2-cifar10 --data cifar
    python benchmarks/int8.py r3-gray25 --data BSR/BSDS500/data

At each setting, on minival, which most recipes hold out of training, by onnxruntime: fp32; int8 as it is exported,
each step of each setting with activation ranges of its own; int8 with one range for all the steps of a setting; and
int8 with one range for all steps of all settings, as a quantised body would have that is stored once with its
ranges. Only the ranges differ, not the kernels nor the scales that hold a step's norm layer. They are measured on
other training images.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import recurconv as rc
from common import RESULTS, arguments, provenance
from recurconv.data.bsd import load_pictures
from recurconv.data.cifar import load_cifar
from recurconv.data.denoising import psnr
from recurconv.evaluation import recipe_for
from recurconv.export import static_model
from recurconv.export.int8 import kept_convolutions, session
from recurconv.export.int8_graphs import Feed, Layer, Ranges, layers, measured, quantised
from recurconv.export.int8_images import IMAGES, noisy_samples
from recurconv.export.tracing import takes_sigma
from recurconv.files import write_json
from recurconv.network import Network
from recurconv.networks import Denoiser
from recurconv.recipe import Recipe

Role = tuple[str, str]  # what a shared range would be for: what a kernel takes, or what it gives to no other kernel
Score = Callable[[onnx.ModelProto], list[float]]
Setup = tuple[list[Feed], Score, str]  # what to measure ranges on, the metric of each held-out image, its name


def main() -> None:
    options = arguments(__doc__, "int8-MODEL.json")
    options.add_argument("model", help="shipped weights or a run folder")
    options.add_argument("--data", type=Path, required=True, help="what it was trained on")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    network = rc.load(args.model)
    recipe = recipe_for(args.model, network)
    feeds, score, metric = (denoising if isinstance(network, Denoiser) else classification)(network, recipe, args)
    fp32 = {steps: static_model(network, steps) for steps in track(network.dial, "tracing")}
    found = {steps: layers(model, kept_convolutions(network)) for steps, model in fp32.items()}
    own = {steps: measured(model, feeds) for steps, model in track(fp32.items(), "measuring ranges")}
    within = {steps: shared({steps: found[steps]}, {steps: own[steps]})[steps] for steps in fp32}
    across = shared(found, own)
    rows = []
    for steps in track(network.dial, "settings"):
        variants = {"own": own[steps], "shared_steps": within[steps], "shared_all": across[steps]}
        reference = score(fp32[steps])
        row: dict[str, Any] = {"steps": steps, "fp32": float(np.mean(reference)), "images": len(reference)}
        for name, ranges in variants.items():
            change = np.subtract(score(quantised(fp32[steps], found[steps], ranges)), reference)
            row[name] = {"change": float(change.mean()), "standard_error": float(change.std() / len(change) ** 0.5)}
        rows.append(row)
    result = {
        "provenance": provenance(args.threads),
        "model": Path(args.model).name,
        "metric": metric,
        "rows": rows,
        "ranges": {str(steps): listed(found[steps], own[steps]) for steps in network.dial},
    }
    name = f"int8-{Path(args.model).name}.json"
    out = RESULTS / name if args.out.name == "int8-MODEL.json" else args.out
    write_json(out, result)
    report(result, out)


def classification(network: Network, recipe: Recipe, args: argparse.Namespace) -> Setup:
    count = recipe.minival or 5000  # a recipe that holds nothing out has seen all of them
    train, held = (load_cifar(args.data, recipe.data, split, minival=count) for split in ("train", "minival"))
    few = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:IMAGES]
    feeds = [{"image": batch.numpy() / np.float32(255)} for batch in train.images[few].split(32)]
    count = 250 if args.quick else len(held)

    def wrong(model: onnx.ModelProto) -> list[float]:
        running = session(model, threads=args.threads)
        values: list[float] = []
        for images, labels in zip(held.images[:count].split(250), held.labels[:count].split(250), strict=True):
            logits = running.run(None, {"image": images.numpy() / np.float32(255)})[0]
            values += (100.0 * (logits.argmax(1) != labels.numpy())).tolist()
        return values

    return feeds, wrong, "error (%)"


def denoising(network: Denoiser, recipe: Recipe, args: argparse.Namespace) -> Setup:
    train, held = (load_pictures(args.data, split, channels=network.image_channels) for split in ("train", "minival"))
    noise = recipe.sigmas or (recipe.sigma,)
    shown = noisy_samples(network, train, (noise[0], noise[-1]))
    pictures = list(held.evaluation_pictures(recipe.sigma, device="cpu"))[: 1 if args.quick else None]
    told = {"sigma": np.array(recipe.sigma, np.float32)} if takes_sigma(network) else {}

    def decibels(model: onnx.ModelProto) -> list[float]:
        running = session(model, threads=args.threads)
        outputs = [running.run(None, {"image": noisy.numpy(), **told})[0] for noisy, _ in pictures]
        return [float(psnr(clean, torch.from_numpy(o))) for (_, clean), o in zip(pictures, outputs, strict=True)]

    return [sample.inputs for sample in shown], decibels, f"PSNR (dB), sigma {recipe.sigma:g}"


def roles(found: list[Layer]) -> dict[str, Role]:
    """For each tensor that is quantised what it is: the input of a kernel, or the output of one that no other takes."""
    given = {layer.result: ("output", layer.kernel) for layer in found}
    return {**given, **{layer.source: ("input", layer.kernel) for layer in found}}


def shared(found: Mapping[int, list[Layer]], own: Mapping[int, Ranges]) -> dict[int, Ranges]:
    """Ranges of these settings, in which all tensors of one role have the range that holds all of theirs."""
    joined: dict[Role, tuple[float, float]] = {}
    for steps, known in found.items():
        for tensor, role in roles(known).items():
            low, high = own[steps][tensor]
            least, most = joined.get(role, (low, high))
            joined[role] = min(least, low), max(most, high)
    return {steps: {tensor: joined[role] for tensor, role in roles(known).items()} for steps, known in found.items()}


def listed(found: list[Layer], own: Ranges) -> list[dict[str, Any]]:
    """The range of each quantised tensor, in the order of the graph."""
    return [
        {"kernel": kernel, "is": which, "low": own[tensor][0], "high": own[tensor][1]}
        for tensor, (which, kernel) in roles(found).items()
    ]


def report(result: dict[str, Any], out: Path) -> None:
    table = Table(title=f"{result['model']}, minival: {result['metric']}, and its change in int8")
    for name in ("steps", "fp32", "own ranges", "one range for all steps", "one for all steps and settings"):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        changes = [row[name] for name in ("own", "shared_steps", "shared_all")]
        cells = [f"{change['change']:+.3f} ± {change['standard_error']:.3f}" for change in changes]
        table.add_row(str(row["steps"]), f"{row['fp32']:.2f}", *cells)
    console = Console()
    console.print(table)
    console.print(f"written to {out}", soft_wrap=True)


if __name__ == "__main__":
    main()
