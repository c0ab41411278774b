"""Denoising: our networks at each setting against what a person would use instead, all on one CPU in one run.

    python benchmarks/denoising.py --data BSD --threads 1

Gray pictures of BSD68, evenly chosen, with Gaussian noise of sigma 25 that every method is told: `denoise-gray` and the
paper's `r3-gray25` at each setting, BM3D (package bm3d, which only this script needs), non-local means of scikit-image
(fast mode) and of OpenCV (on 8 bits, as it takes no others), and a DnCNN of the published size, 17 layers of 64
channels, untied, built here. It is not trained: its speed is measured, and the PSNR beside it is the published one, of
all 68 pictures. Each picture goes through every method before the next one, so that other load on the machine hits all
alike. Peak memory is that of a process of its own for one picture of 640x640 pixels, beyond its peak after one of
64x64. Five minutes on one quiet core; results are written as they come.

It needs `pip install bm3d opencv-python-headless`.
"""

import argparse
import contextlib
import importlib.util
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

import recurconv as rc
from common import arguments, provenance, show, summary
from growth import peak
from recurconv.cleaning.tiles import denoise_tiles
from recurconv.data.bsd import load_pictures
from recurconv.data.denoising import psnr
from recurconv.files import write_json
from recurconv.networks import Denoiser

SIGMA = 25
# K. Zhang et al., Beyond a Gaussian Denoiser, 2017 (README of its repository): all of BSD68.
DNCNN_PUBLISHED = {15: 31.73, 25: 29.23, 50: 26.23}
TIMED = 3  # pictures that DnCNN is timed on: it is slow, and there is nothing else to learn of it
SIDE = 640  # of the picture that memory is measured with
NETWORKS = ("denoise-gray", "r3-gray25")

Pixels = NDArray[np.float32]
Method = Callable[[Pixels], NDArray[Any]]


def main() -> None:
    options = arguments(__doc__, "denoising.json")
    options.add_argument("--data", type=Path, required=True, help="the folder of BSD")
    options.add_argument("--pictures", type=int, help="of BSD68; by default 8, or 1 with --quick")
    options.add_argument("--plot", type=Path, help="the figure, PNG or SVG; by default beside the result file")
    options.add_argument("--memory", help=argparse.SUPPRESS)  # a process of its own: print this method's peak
    args = options.parse_args()
    limit_threads(args.threads)
    if args.memory:
        print(megabytes(methods()[args.memory]))
        return
    missing = [package for package in ("bm3d", "cv2") if importlib.util.find_spec(package) is None]
    if missing:
        options.error(f"{' and '.join(missing)} not installed; pip install bm3d opencv-python-headless")
    origin = provenance(args.threads)
    chosen = choose(args.data, args.pictures or (1 if args.quick else 8))
    result: dict[str, Any] = {"provenance": origin, "sigma": SIGMA, "pictures": sorted(chosen), "rows": []}
    every = methods()
    rows = {name: {"method": name, **facts(name)} for name in every}
    measured: dict[str, dict[str, list[float]]] = {name: {"psnr": [], "seconds": []} for name in rows}
    for number, clean in enumerate(track(list(chosen.values()), "pictures")):
        measure(every, clean, number, measured)
        for name, values in measured.items():
            rows[name]["seconds_per_megapixel"] = summary(values["seconds"])
            trained = name != "DnCNN"
            rows[name]["psnr"] = sum(values["psnr"]) / len(values["psnr"]) if trained else DNCNN_PUBLISHED[SIGMA]
        result["rows"] = list(rows.values())
        write_json(args.out, result)
    for name in track(list(rows), "memory"):
        command = [sys.executable, __file__, *sys.argv[1:], "--memory", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows[name]["megabytes"] = float(done.stdout)
        write_json(args.out, result)
    figure = args.plot or args.out.with_suffix(".png")
    plot(result, figure)
    report(result)
    Console().print(f"written to {args.out} and {figure}", soft_wrap=True)


def limit_threads(threads: int) -> None:
    """As many for OpenCV as for PyTorch; OMP_NUM_THREADS, which BM3D heeds, is set by the caller."""
    torch.set_num_threads(threads)
    with contextlib.suppress(ImportError):
        import cv2

        cv2.setNumThreads(threads)


def choose(data: Path, count: int) -> dict[str, Pixels]:
    """Pictures of BSD68 by their names, in [0, 1], evenly over the list."""
    found = load_pictures(data, "test")
    numbers = [int(number) for number in np.linspace(0, len(found) - 1, count)]
    return {found.names[n]: found.pictures[n][0].numpy().astype(np.float32) / 255 for n in numbers}


def methods() -> dict[str, Method]:
    """What takes a noisy picture [H, W], float32 with white at 1, not clipped, and makes it clean."""
    found: dict[str, Method] = {}
    for name in NETWORKS:
        network = rc.load(name)
        assert isinstance(network, Denoiser)
        for steps in network.dial:
            found[f"{name}, steps {steps}"] = through(network, steps)
    found |= {"DnCNN": whole(dncnn()), "BM3D": bm3d, "NLM (scikit-image)": nlm_skimage, "NLM (OpenCV)": nlm_opencv}
    return found


def through(network: Denoiser, steps: int) -> Method:
    return lambda noisy: denoise_tiles(network, noisy, steps, SIGMA)


def dncnn() -> nn.Module:
    """DnCNN-S: 17 layers, 64 channels, batch norm in all but the first and the last; predicts the noise."""
    layers: list[nn.Module] = [nn.Conv2d(1, 64, 3, padding=1), nn.ReLU()]
    for _ in range(15):
        layers += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(64, 1, 3, padding=1, bias=False)).eval()


def whole(network: nn.Module) -> Method:
    def run(noisy: Pixels) -> NDArray[Any]:
        images = torch.from_numpy(noisy)[None, None]
        with torch.inference_mode():
            clean: NDArray[Any] = (images - network(images))[0, 0].numpy()
        return clean

    return run


def bm3d(noisy: Pixels) -> NDArray[Any]:
    import bm3d as package  # type: ignore[import-untyped]

    clean: NDArray[Any] = package.bm3d(noisy, SIGMA / 255)
    return clean


def nlm_skimage(noisy: Pixels) -> NDArray[Any]:
    """With the parameters that its documentation gives for a known sigma."""
    from skimage import restoration

    method: Any = restoration.denoise_nl_means
    sigma = SIGMA / 255
    clean: NDArray[Any] = method(noisy, h=0.6 * sigma, sigma=sigma, fast_mode=True, patch_size=5, patch_distance=6)
    return clean


def nlm_opencv(noisy: Pixels) -> NDArray[Any]:
    """Its usual windows, the filter strength equal to the noise."""
    import cv2

    levels = np.clip(np.rint(255 * noisy), 0, 255).astype(np.uint8)
    return cv2.fastNlMeansDenoising(levels, None, h=SIGMA, templateWindowSize=7, searchWindowSize=21) / 255.0


def measure(every: dict[str, Method], clean: Pixels, number: int, measured: dict[str, dict[str, list[float]]]) -> None:
    """One picture through every method, in an order drawn anew."""
    noisy = clean + SIGMA / 255 * np.random.default_rng(number).standard_normal(clean.shape).astype(np.float32)
    order = list(every.items())
    random.Random(number).shuffle(order)
    for name, method in order:
        if name == "DnCNN" and number >= TIMED:
            continue
        if number == 0:
            method(noisy[:64, :64].copy())  # the first call sets things up
        start = time.perf_counter()
        made = method(noisy)
        measured[name]["seconds"].append(1e6 * (time.perf_counter() - start) / clean.size)
        pair = (torch.from_numpy(np.asarray(image, np.float64))[None, None] for image in (clean, made))
        measured[name]["psnr"].append(float(psnr(*pair)))


def facts(name: str) -> dict[str, Any]:
    """Parameters in use and MACs per pixel of a network."""
    if name == "DnCNN":
        parameters = sum(parameter.numel() for parameter in dncnn().parameters())
        return {"parameters": parameters, "macs": 9 * (64 + 15 * 64 * 64 + 64)}
    if "steps" not in name:
        return {"parameters": None, "macs": None}
    model, _, steps = name.partition(", steps ")
    (spent,) = [row for row in rc.cost(rc.load(model), (1, 64, 64)) if row.steps == int(steps)]
    return {"parameters": spent.parameters, "macs": spent.macs / 64**2}


def megabytes(method: Method) -> float:
    """The peak of this process for one picture, beyond its peak for a small one."""
    noisy = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
    method(noisy[:64, :64].copy())
    before = peak("cpu")
    method(noisy)
    return (peak("cpu") - before) / 2**20


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(title=f"sigma {result['sigma']}, {len(result['pictures'])} pictures of BSD68")
    for name in ("method", "PSNR (dB)", "s per megapixel", "peak MB", "k MACs/pixel"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in result["rows"]:
        macs = "" if row["macs"] is None else f"{row['macs'] / 1e3:.0f}"
        table.add_row(
            row["method"], f"{row['psnr']:.2f}", show(row["seconds_per_megapixel"], 2), f"{row['megabytes']:.0f}", macs
        )
    Console().print(table)


def plot(result: dict[str, Any], path: Path) -> None:
    """PSNR against time; the settings of a network are one line."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    points = {row["method"]: (row["seconds_per_megapixel"]["median"], row["psnr"]) for row in result["rows"]}
    for model, style in zip(NETWORKS, ("o-", "s--"), strict=True):
        own = {name: point for name, point in points.items() if name.startswith(model)}
        panel.plot(*zip(*own.values(), strict=True), style, color="black" if style[0] == "o" else "gray", label=model)
        for name, (x, y) in own.items():
            panel.annotate(name[-1], (x, y), xytext=(0, 7), textcoords="offset points", ha="center")
    for name, marker in (("BM3D", "^"), ("NLM (scikit-image)", "v"), ("NLM (OpenCV)", "<")):
        panel.plot(*points[name], marker, color="black", markersize=9, linestyle="none", label=name)
    # Its PSNR is of other pictures, so that it has no place on this axis.
    seconds, published = points["DnCNN"]
    panel.axvline(seconds, color="black", linestyle=":", label=f"DnCNN (published: {published} dB on all 68)")
    where = result["provenance"]
    threads = f"{where['threads']} thread{'s' if where['threads'] > 1 else ''}"
    panel.set(xscale="log", xlabel=f"seconds per megapixel, {threads} of {where['processor']}", ylabel="PSNR / dB")
    panel.set_title(
        f"{len(result['pictures'])} gray pictures of BSD68, sigma {result['sigma']}; digits: steps", fontsize=11
    )
    panel.margins(y=0.12)  # room for the digits
    panel.grid(visible=True, which="both", color="lightgray", linewidth=0.5)
    panel.legend(loc="best", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
