"""Noise as photographs have it: coarse in colour, after JPEG, or of brightness alone.

    python benchmarks/coarse_noise.py --data BSD

Colour pictures of BSD's training set with Gaussian noise, rounded and clipped to 8 bits, and then saved as JPEG with
colour at half the size, or with the same noise in all channels as film grain has. The PSNR of what comes out by
``denoise-color`` alone, and by ``recurconv denoise`` as it is, which takes brightness and colour apart where noise is
coarse in colour: with the noise estimated, and said. About ten minutes on one core.
"""

import io
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.progress import track

from common import Pixels, arguments, as_a_file_holds_it, provenance, psnr
from recurconv.cleaning import Cleaner
from recurconv.data.bsd import load_pictures
from recurconv.files import write_json

LEVELS = (3, 5, 10, 25, 50)
# Name, channels of the noise, quality and subsampling of the JPEG file (2: half as high and wide, 1: half as wide).
KINDS: tuple[tuple[str, int, int | None, int], ...] = (
    ("white", 3, None, 0),
    ("JPEG 4:2:0, quality 95", 3, 95, 2),
    ("JPEG 4:2:0, quality 75", 3, 75, 2),
    ("JPEG 4:2:2, quality 95", 3, 95, 1),
    ("grain", 1, None, 0),
)


def main() -> None:
    options = arguments(__doc__, "denoising-coarse-noise.json")
    options.add_argument("--data", type=Path, required=True, help="the folder of BSD")
    options.add_argument("--pictures", type=int, help="of the training set; by default 8, or 2 with --quick")
    options.add_argument("--steps", type=int, default=2, help="the setting; by default 2")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    count = args.pictures or (2 if args.quick else 8)
    pictures = load_pictures(args.data, "minival", minival=count, channels=3).pictures
    clean = [picture.permute(1, 2, 0).numpy() for picture in pictures]
    result: dict[str, Any] = {
        "provenance": provenance(args.threads),
        "pictures": count,
        "steps": args.steps,
        "rows": [],
    }
    for name, channels, quality, subsampling in KINDS:
        for sigma in track(LEVELS[::2] if args.quick else LEVELS, name):
            noisy = [
                damaged(picture, number, sigma, channels, quality, subsampling) for number, picture in enumerate(clean)
            ]
            row = {"kind": name, "sigma": sigma, **measure(clean, noisy, sigma, args.steps)}
            result["rows"].append(row)
            print(row)
            write_json(args.out, result)


def damaged(clean: Pixels, seed: int, sigma: float, channels: int, quality: int | None, subsampling: int) -> Pixels:
    """The picture with noise, as a file holds it."""
    noisy = as_a_file_holds_it(clean, sigma, seed, channels)
    if quality is None:
        return noisy
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "JPEG", quality=quality, subsampling=subsampling)
    return np.array(Image.open(file))


def measure(clean: list[Pixels], noisy: list[Pixels], sigma: float, steps: int) -> dict[str, Any]:
    """Means over the pictures, and how many were taken for coarse."""
    ways = {
        "alone": Cleaner("denoise-color", steps=steps),
        "auto": Cleaner(steps=steps),
        "told": Cleaner(sigma=float(sigma), steps=steps),
    }
    values: dict[str, list[float]] = {"noisy": [psnr(*pair) for pair in zip(clean, noisy, strict=True)]}
    coarse, found = 0, []
    for way, cleaner in ways.items():
        made = [cleaner.clean(picture) for picture in noisy]
        values[way] = [psnr(picture, own.pixels) for picture, own in zip(clean, made, strict=True)]
        if way == "auto":
            coarse = sum(own.coarse for own in made)
            found = [own.sigma for own in made]
    return {
        "psnr": {way: statistics.mean(own) for way, own in values.items()},
        "by_picture": {way: [round(value, 2) for value in own] for way, own in values.items()},
        "found": statistics.median(found),
        "coarse": coarse,
    }


if __name__ == "__main__":
    main()
