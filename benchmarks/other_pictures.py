"""Pictures that are no usual photographs: what ``recurconv denoise`` makes of drawings and of dark photographs.

    python benchmarks/other_pictures.py --data BSD

Type, line art, shapes and gratings as ``recurconv.data.drawings`` makes them, others than any network was trained on;
and pictures of BSD's training set at an eighth of their brightness. Gaussian noise, rounded and clipped to 8 bits as
files hold them; estimated, and told. About five minutes on one core.
"""

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from common import Pixels, arguments, as_a_file_holds_it, provenance, psnr
from recurconv.cleaning import Cleaner
from recurconv.data.bsd import load_pictures
from recurconv.data.drawings import drawing
from recurconv.files import write_json

LEVELS = (0, 2, 10, 25, 50)
SEEDS = range(100_000, 100_024)  # recipes take those from 0 on
DARK = 8


def main() -> None:
    options = arguments(__doc__, "denoising-other-pictures.json")
    options.add_argument("--data", type=Path, required=True, help="the folder of BSD")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    count = 3 if args.quick else 8
    levels = LEVELS[::2] if args.quick else LEVELS
    result: dict[str, Any] = {"provenance": provenance(args.threads), "rows": []}
    sets = {f"{kind}, {name}": (kind, channels) for kind in KINDS for name, channels in (("gray", 1), ("colour", 3))}
    for name, (kind, channels) in sets.items():
        clean = KINDS[kind](args.data, channels, count)
        for sigma in track(levels, name):
            result["rows"].append({"kind": name, "sigma": sigma, "pictures": len(clean), **measure(clean, sigma)})
            write_json(args.out, result)
    report(result)


def drawings(data: Path, channels: int, count: int) -> list[Pixels]:
    return [_pixels(drawing(seed, channels)) for seed in SEEDS[: 2 * count]]


def dark(data: Path, channels: int, count: int) -> list[Pixels]:
    pictures = load_pictures(data, "minival", minival=count, channels=channels).pictures
    return [_pixels(picture) // DARK for picture in pictures]


KINDS = {"drawings": drawings, "dark photographs": dark}


def _pixels(picture: torch.Tensor) -> Pixels:
    """[H, W] or [H, W, 3]."""
    return np.asarray(picture.permute(1, 2, 0).numpy()).squeeze()


def measure(clean: list[Pixels], sigma: int) -> dict[str, Any]:
    """The means over the pictures, and in how many the result is worse than the noisy picture by 0.1 dB or more."""
    ways = {"auto": Cleaner(), "told": Cleaner(sigma=float(sigma))}
    values: dict[str, list[float]] = {"noisy": [], "auto": [], "told": []}
    for number, picture in enumerate(clean):
        noisy = as_a_file_holds_it(picture, sigma, number)
        values["noisy"].append(psnr(picture, noisy))
        for way, cleaner in ways.items():
            values[way].append(psnr(picture, cleaner.clean(noisy).pixels))
    return {
        "psnr": {way: statistics.mean(own) for way, own in values.items()},
        "by_picture": {way: [round(value, 2) for value in own] for way, own in values.items()},
        "worse": sum(own < noisy - 0.1 for noisy, own in zip(values["noisy"], values["auto"], strict=True)),
    }


def report(result: dict[str, Any]) -> None:
    table = Table("pictures", "n", "sigma", "noisy", "auto", "told", "auto is worse")
    for row in result["rows"]:
        values = (f"{row['psnr'][way]:.2f}" for way in ("noisy", "auto", "told"))
        table.add_row(row["kind"], str(row["pictures"]), str(row["sigma"]), *values, str(row["worse"]))
    Console().print(table)


if __name__ == "__main__":
    main()
