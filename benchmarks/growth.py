"""How cost grows: time and peak memory of R_2 against steps, batch and image size.

    python benchmarks/growth.py

Around the point of 4 steps, 8 images and 32x32 pixels one quantity is varied at a time, for inference and for training
(forward and backward). Each point is measured in processes of its own, one after the other, round by round, so that
other load on the machine hits all points alike. Memory is the peak of the process in its first call beyond its peak
after a call on two images of 8x8; on a GPU, that of PyTorch's allocator. The network, with the dial (1, 2, 3, 4, 6, 8),
is the same at every point. About fifteen minutes on two cores.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

import recurconv as rc
from common import arguments, provenance, show, summary
from recurconv.files import write_json

DIAL = (1, 2, 3, 4, 6, 8)
MODES = ("inference", "training")
AXES = {"steps": DIAL, "batch": (1, 2, 4, 8, 16, 32, 64), "side": (16, 32, 64, 128)}
UNITS = {"steps": "unrolling steps", "batch": "images in a call", "side": "side of the image / pixels"}


class Point(NamedTuple):
    """What is run once."""

    mode: str = "inference"
    steps: int = 4
    batch: int = 8
    side: int = 32


def main() -> None:
    options = arguments(__doc__, "growth.json", device=True)
    options.add_argument("--plot", type=Path, help="the figure, PNG or SVG; by default beside the result file")
    options.add_argument("--rounds", type=int, help="processes for each point; by default 5, or 1 with --quick")
    options.add_argument("--point", help=argparse.SUPPRESS)  # a process of its own: measure this point and print it
    args = options.parse_args()
    width, rounds = (0.125, 1) if args.quick else (1.0, 5)
    if args.point:
        print(json.dumps(measure(Point(*json.loads(args.point)), width, args.threads, args.device)))
        return
    origin = provenance(args.threads, args.device)
    axes = {"steps": (1, 4), "batch": (2, 8), "side": (16, 32)} if args.quick else AXES
    measured = run(points(axes), args.rounds or rounds)
    result = {"provenance": origin, "width": width, "axes": axes, "points": rows(measured, width)}
    write_json(args.out, result)
    figure = args.plot or args.out.with_suffix(".png")
    plot(result, figure)
    report(result)
    Console().print(f"written to {args.out} and {figure}", soft_wrap=True)


def points(axes: dict[str, Sequence[int]]) -> list[Point]:
    """The centre with one coordinate varied at a time, each point once."""
    varied = [Point(mode)._replace(**{axis: value}) for mode in MODES for axis in axes for value in axes[axis]]
    return list(dict.fromkeys(varied))


def run(todo: list[Point], rounds: int) -> dict[Point, list[dict[str, float]]]:
    """Measure every point in ``rounds`` processes."""
    measured: dict[Point, list[dict[str, float]]] = {point: [] for point in todo}
    for point in track(todo * rounds, "points"):
        command = [sys.executable, __file__, *sys.argv[1:], "--point", json.dumps(point)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{point} failed:\n{done.stderr}")
        measured[point].append(json.loads(done.stdout))
    return measured


def measure(point: Point, width: float, threads: int, device: str) -> dict[str, float]:
    """Milliseconds of a call, the median of several, and megabytes of its peak: in a fresh process."""
    torch.set_num_threads(threads)
    net = rc.r2(steps=DIAL, width=width).to(device).train(point.mode == "training")
    call = workload(net, point.mode)
    call(torch.rand(2, 3, 8, 8, device=device), point.steps)
    images = torch.rand(point.batch, 3, point.side, point.side, device=device)
    before = held(device)
    call(images, point.steps)
    megabytes = (peak(device) - before) / 2**20
    times: list[float] = []
    while len(times) < 3 or sum(times) < 0.5:
        start = time.perf_counter()
        call(images, point.steps)
        times.append(time.perf_counter() - start)
    return {"milliseconds": 1e3 * summary(times)["median"], "megabytes": megabytes}


def workload(net: nn.Module, mode: str) -> Callable[[torch.Tensor, int], None]:
    """One call, to its end also on a GPU."""

    def infer(images: torch.Tensor, steps: int) -> None:
        with torch.inference_mode():
            net(images, steps=steps).cpu()

    def train(images: torch.Tensor, steps: int) -> None:
        loss = net(images, steps=steps).square().mean()
        net.zero_grad(set_to_none=False)  # gradients are there from the first call on, as in a training loop
        loss.backward()
        loss.detach().cpu()
        if images.is_cuda:
            torch.cuda.synchronize()

    return infer if mode == "inference" else train


def held(device: str) -> int:
    """Bytes before the measured call, from which its peak is counted."""
    if not device.startswith("cuda"):
        return peak(device)
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak(device: str) -> int:
    """The largest number of bytes so far. Not ``ru_maxrss`` on Linux: it remembers what the parent process held."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * next(int(line.split()[1]) for line in status.read_text().splitlines() if "VmHWM" in line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def rows(measured: dict[Point, list[dict[str, float]]], width: float) -> list[dict[str, Any]]:
    net = rc.r2(steps=DIAL, width=width)
    macs = {
        (row.steps, side): row.macs
        for side in {point.side for point in measured}
        for row in rc.cost(net, image_shape=(3, side, side))
    }
    return [
        {**point._asdict(), "macs": point.batch * macs[point.steps, point.side]}
        | {name: summary([run[name] for run in runs]) for name in ("milliseconds", "megabytes")}
        for point, runs in measured.items()
    ]


def along(result: dict[str, Any], mode: str, axis: str) -> list[dict[str, Any]]:
    """The measured points on one axis."""
    centre = Point(mode)._asdict()
    fixed = [name for name in Point._fields if name != axis]
    return [row for row in result["points"] if all(row[name] == centre[name] for name in fixed)]


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(title="median ± interquartile range over the processes")
    for name in (*Point._fields, "MMACs forward", "milliseconds", "megabytes"):
        table.add_column(name, justify="right")
    for mode in MODES:
        for axis in result["axes"]:
            for row in sorted(along(result, mode, axis), key=lambda row: row[axis]):
                place = [str(row[name]) for name in Point._fields]
                table.add_row(*place, f"{row['macs'] / 1e6:.0f}", show(row["milliseconds"]), show(row["megabytes"]))
            table.add_section()
    Console().print(table)


def plot(result: dict[str, Any], path: Path) -> None:
    """Time above, memory below, one column for each axis. Line and marker tell the modes apart, without colour."""
    import matplotlib as mpl  # not in the processes that measure

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 3, figsize=(10, 6), sharex="col", sharey="row", layout="constrained")
    styles = {"inference": ("black", "-", "o"), "training": ("dimgray", "--", "s")}
    for column, axis in zip(panels.T, result["axes"], strict=True):
        for panel, quantity in zip(column, ("milliseconds", "megabytes"), strict=True):
            for mode, (colour, line, marker) in styles.items():
                found = sorted(along(result, mode, axis), key=lambda row: row[axis])
                x, y = [row[axis] for row in found], [row[quantity]["median"] for row in found]
                errors = [row[quantity]["iqr"] / 2 for row in found]
                panel.errorbar(x, y, errors, color=colour, linestyle=line, marker=marker, capsize=3, label=mode)
                if quantity == "milliseconds":
                    panel.plot(x, scaled_macs(found, mode), ":", color=colour, label=f"{mode}, if it grew as MACs do")
            panel.set(yscale="log")
            panel.set_xscale("linear" if axis == "steps" else "log", **({} if axis == "steps" else {"base": 2}))
            panel.set_xticks(x, [str(value) for value in x])
            panel.grid(visible=True, color="lightgray")
        column[-1].set_xlabel(UNITS[axis])
    panels[0, 0].set_ylabel("time of a call / ms")
    panels[1, 0].set_ylabel("peak memory of a call / MB")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    centre = Point()
    figure.suptitle(f"R_2 around {centre.steps} steps, {centre.batch} images, {centre.side}x{centre.side} pixels")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def scaled_macs(found: list[dict[str, Any]], mode: str) -> list[float]:
    """What each point would take if time grew with MACs from the centre on."""
    centre = Point(mode)._asdict()
    (middle,) = [row for row in found if all(row[name] == centre[name] for name in Point._fields)]
    return [middle["milliseconds"]["median"] * row["macs"] / middle["macs"] for row in found]


if __name__ == "__main__":
    main()
