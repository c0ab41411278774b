"""Unknown noise: what the estimate finds, and what a network makes of it instead of the true noise or of none.

    python benchmarks/unknown_noise.py --data BSD

Pictures of BSD's training set with Gaussian noise, rounded and clipped to 8 bits as files hold them. For each level of
noise: the estimate of ``recurconv.cleaning`` and scikit-image's of the whole picture; the PSNR of the shipped network
if it is told the true noise, either estimate, or nothing (blind), and by ``sigma="auto"``; how far pictures change, in
gray levels. What "auto" does was chosen by it. About six minutes on one core.
"""

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from skimage import restoration

import recurconv as rc
from common import Pixels, arguments, as_a_file_holds_it, provenance
from recurconv.cleaning import Cleaner
from recurconv.cleaning.noise import estimate_sigma
from recurconv.cleaning.tiles import denoise_tiles
from recurconv.data.bsd import load_pictures
from recurconv.files import write_json
from recurconv.networks import Denoiser

LEVELS = (0, 2, 5, 10, 15, 25, 40, 50)


def main() -> None:
    options = arguments(__doc__, "denoising-unknown-noise.json")
    options.add_argument("--data", type=Path, required=True, help="the folder of BSD")
    options.add_argument("--models", nargs=2, default=["denoise-gray", "denoise-color"], help="a gray and a colour one")
    options.add_argument("--pictures", type=int, help="of the training set; by default 12, or 3 with --quick")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    count = args.pictures or (3 if args.quick else 12)
    levels = LEVELS[::3] if args.quick else LEVELS
    result: dict[str, Any] = {"provenance": provenance(args.threads), "pictures": count, "rows": []}
    for model, channels in zip(args.models, (1, 3), strict=True):
        network = rc.load(model)
        assert isinstance(network, Denoiser)
        pictures = load_pictures(args.data, "minival", minival=count, channels=channels).pictures
        clean = [np.asarray(picture.permute(1, 2, 0).numpy()).squeeze() for picture in pictures]
        for sigma in track(levels, f"{channels} channels"):
            row = measure(network, clean, sigma)
            result["rows"].append({"channels": channels, "sigma": sigma, "steps": network.dial[-1], **row})
            write_json(args.out, result)
    report(result)


def measure(network: Denoiser, clean: list[Pixels], sigma: float) -> dict[str, Any]:
    """One level of noise: estimates, and the mean over pictures of what each way of telling the network gives."""
    found: dict[str, list[float]] = {"estimate": [], "whole": []}
    ways: dict[str, list[float]] = defaultdict(list)
    changes: dict[str, list[float]] = defaultdict(list)
    for number, picture in enumerate(clean):
        noisy = as_a_file_holds_it(picture, sigma, number)
        estimates = {"estimate": estimate_sigma(noisy), "whole": whole_picture(noisy)}
        told: dict[str, float | None] = {"true": sigma, **estimates, "blind": None}
        results = {way: run(network, noisy, level) for way, level in told.items()}
        results["auto"] = Cleaner(network).clean(noisy).pixels / 255
        results["noisy"] = noisy / 255
        for way, result in results.items():
            ways[way].append(psnr(picture, result))
            changes[way].append(float(np.abs(255 * result - noisy).mean()))
        for way, level in estimates.items():
            found[way].append(level)
    quartiles = {
        way: [round(float(q), 2) for q in np.quantile(own, [0, 0.25, 0.5, 0.75, 1])] for way, own in found.items()
    }
    return {
        "found": quartiles,
        "psnr": {way: statistics.mean(own) for way, own in ways.items()},
        "change": {way: statistics.mean(own) for way, own in changes.items()},
        "largest_change": {way: max(own) for way, own in changes.items()},
    }


def run(network: Denoiser, noisy: Pixels, sigma: float | None) -> Pixels:
    told = None if sigma is None else min(sigma, 55.0)
    return denoise_tiles(network, noisy.astype(np.float32) / 255, network.dial[-1], told)


def whole_picture(noisy: Pixels) -> float:
    """scikit-image's estimate."""
    axis = -1 if noisy.ndim == 3 else None
    return float(restoration.estimate_sigma(noisy.astype(np.float64), average_sigmas=True, channel_axis=axis))


def psnr(clean: Pixels, result: Pixels) -> float:
    error = np.mean((result.astype(np.float64) - clean / 255.0) ** 2)
    return float(10 * np.log10(1 / max(error, 1e-10)))


def report(result: dict[str, Any]) -> None:
    """Print what decides."""
    for row in result["rows"]:
        values = " ".join(f"{way} {value:.2f}" for way, value in row["psnr"].items())
        print(row["channels"], row["sigma"], row["found"], "| PSNR", values, "| change", row["change"])


if __name__ == "__main__":
    main()
