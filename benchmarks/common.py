"""What the benchmarks share: where a number comes from, medians with their spread."""

import argparse
import os
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recurconv.runs import environment

Pixels = NDArray[Any]
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def arguments(description: str, out: str, *, device: bool = False) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark takes.

    Args:
        description: the benchmark's docstring.
        out: the result file's name.
        device: whether it can run elsewhere than on the CPU.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a narrow network or few pictures: to try the script")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch on the CPU")
    if device:
        parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", type=Path, default=RESULTS / out, help="the result file")
    return parser


def provenance(threads: int, device: str = "cpu") -> dict[str, Any]:
    """Hardware, versions, commit and date of a measurement, and the machine's load average at this moment."""
    return {
        **environment(),
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *map(_portable, sys.argv[1:])]),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "cores": os.cpu_count(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 2),
    }


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, interquartile range and number of ``values``."""
    low, _, high = statistics.quantiles(values, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return {"median": statistics.median(values), "iqr": high - low, "n": len(values)}


def show(value: dict[str, float], digits: int = 1) -> str:
    """A summary for people: ``median ± interquartile range``."""
    return f"{value['median']:.{digits}f} ± {value['iqr']:.{digits}f}"


def as_a_file_holds_it(clean: Pixels, sigma: float, seed: int, channels: int | None = None) -> Pixels:
    """A picture [H, W] or [H, W, C] with Gaussian noise, rounded and clipped to 8 bits; 1 channel: the same in all."""
    shape = clean.shape if channels is None else (*clean.shape[:2], channels)
    noise = np.random.default_rng(seed).standard_normal(shape)
    return np.clip(np.rint(clean + sigma * noise), 0, 255).astype(np.uint8)


def psnr(clean: Pixels, made: Pixels) -> float:
    """Of 8-bit pictures, in dB; 100 stands for a picture that came back as it is."""
    error = np.mean((clean / 255 - made / 255) ** 2)
    return float(10 * np.log10(1 / max(error, 1e-10)))


def _portable(word: str) -> str:
    """A path without the folders of this machine."""
    return Path(word).name if Path(word).is_absolute() else word
