"""A picture of any size through a denoiser tile by tile, with the result of the whole picture at once.

An output pixel depends on the ``network.reach(steps)`` pixels around it and on no others. A tile is computed with so
many pixels of its surroundings, or up to the picture's border where that is nearer, so that no seam can show.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from recurconv.cleaning.coarse import CoarseColour
from recurconv.cleaning.values import as_floats, as_values
from recurconv.networks import Denoiser

Pixels = NDArray[Any]
Done = Callable[[int, int], object]  # told how many tiles are done, and how many there are

SIDE = 512
"""Pixels of a tile by default: `benchmarks/denoising.py` and docs/denoising.md say what others cost."""

MOST = 4.0
"""How much a pixel may change, in sigmas of the noise that is told: there is less noise than that in all but 1 of
16,000. So a picture with next to no noise stays what it is, whatever a network makes of it."""

TOO_MUCH = 1.3
"""What is taken from a neighbourhood may have so many times the variance of the noise that is told. Where it has more,
thin lines, type or a fine pattern were taken for noise, and part of it is given back."""

NEIGHBOURHOOD, NEIGHBOURHOOD_REACH = 7, 6
"""Side of a box of pixels, over which the variance is averaged twice, nearly a Gaussian; how far that sees."""


@dataclass(frozen=True)
class Tile:
    """A part of a picture: rows and columns that the tile makes, and those that are read for them."""

    rows: slice
    columns: slice
    seen_rows: slice
    seen_columns: slice

    @property
    def seen(self) -> int:
        """Pixels that are computed for it."""
        rows, columns = self.seen_rows, self.seen_columns
        return int((rows.stop - rows.start) * (columns.stop - columns.start))


def tiles(height: int, width: int, side: int, reach: int, alignment: int = 1) -> list[Tile]:
    """Cut a picture into tiles of nearly one size.

    Args:
        height, width: of the picture, in pixels, at least 1.
        side: the largest height and width of a tile without its surroundings, at least 1.
        reach: pixels on each side that a pixel depends on.
        alignment: where tiles and surroundings may start and end, in pixels; the picture's own end is always allowed.

    Returns:
        Tiles that cover each pixel once, row by row.

    Raises:
        ValueError: ``side`` is below 1.
    """
    if side < 1:
        raise ValueError(f"tile={side}; give its height and width in pixels, at least 1")
    return [
        Tile(rows, columns, seen_rows, seen_columns)
        for rows, seen_rows in _cuts(height, side, reach, alignment)
        for columns, seen_columns in _cuts(width, side, reach, alignment)
    ]


def denoise_tiles(
    network: Denoiser | CoarseColour,
    pixels: Pixels,
    steps: int,
    sigma: float | None = None,
    *,
    side: int = SIDE,
    done: Done = lambda count, of: None,
) -> Pixels:
    """Denoise a picture tile by tile. A gray network takes the channels of a colour picture one by one.

    Beside the result this needs memory for a tile only, whatever the size of the picture.

    Args:
        network: in eval mode, anywhere; it takes one channel, or as many as the picture has.
        pixels: [H, W] or [H, W, C]: uint8, uint16, or float with white at 1.
        steps: a count on the dial.
        sigma: of the noise, in 1/255, for a network that takes it, and for the most that a pixel and its neighbourhood
            may change (``MOST``, ``TOO_MUCH``); None: unknown.
        side: of a tile, in pixels, without its surroundings.
        done: told after each tile, how many are done and how many there are.

    Returns:
        A new array of the same shape and dtype, clipped to the range of the dtype ([0, 1] for float), rounded to
        the nearest value.

    Raises:
        ValueError: ``side`` is below 1, or another dtype.
    """
    height, width = pixels.shape[:2]
    reach = network.reach(steps) + (0 if sigma is None else NEIGHBOURHOOD_REACH)
    cut = tiles(height, width, side, reach, network.alignment)
    result = np.empty(pixels.shape, pixels.dtype)
    for number, tile in enumerate(cut, 1):
        part = _denoise(network, pixels[tile.seen_rows, tile.seen_columns], steps, sigma)
        inside = (_within(tile.rows, tile.seen_rows), _within(tile.columns, tile.seen_columns))
        result[tile.rows, tile.columns] = as_values(part[inside], pixels.dtype)
        done(number, len(cut))
    return result


def _denoise(network: Denoiser | CoarseColour, part: Pixels, steps: int, sigma: float | None) -> Pixels:
    """A tile, [H, W] or [H, W, C], as float of the same shape."""
    weight = next(network.parameters())
    precision = np.float64 if weight.dtype == torch.float64 else np.float32
    channels = np.atleast_3d(as_floats(part, precision)).transpose(2, 0, 1)
    planes = torch.from_numpy(np.ascontiguousarray(channels)).to(weight.device, weight.dtype)
    images = planes[:, None] if network.image_channels == 1 else planes[None]
    with torch.inference_mode():
        clean = network(images, steps, sigma=sigma) if network.takes_sigma else network(images, steps)
        if sigma is not None:
            clean = images + _no_more_than_noise(clean - images, sigma / 255)
    found: Pixels = clean.reshape(planes.shape).permute(1, 2, 0).to("cpu", torch.from_numpy(channels[:0]).dtype).numpy()
    return found.reshape(part.shape)


def _no_more_than_noise(change: torch.Tensor, sigma: float) -> torch.Tensor:
    """What a network adds to images, [B, C, H, W], made less where it is more than noise of ``sigma`` can be."""
    change = change.clamp(-MOST * sigma, MOST * sigma)
    variance = change.square().mean(1, keepdim=True)
    for _ in range(2):
        variance = F.avg_pool2d(variance, NEIGHBOURHOOD, 1, NEIGHBOURHOOD // 2, count_include_pad=False)
    return change * (TOO_MUCH * sigma**2 / variance).clamp(max=1).nan_to_num(1)


def _cuts(length: int, side: int, reach: int, alignment: int) -> Iterator[tuple[slice, slice]]:
    """One axis: what each tile makes, and what it sees for that."""
    count = -(-length // max(side, alignment))
    size = _up(-(-length // count), alignment)
    for start in range(0, length, size):
        stop = min(start + size, length)
        first = max(0, (start - reach) // alignment * alignment)
        yield slice(start, stop), slice(first, min(_up(stop + reach, alignment), length))


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _within(part: slice, whole: slice) -> slice:
    return slice(part.start - whole.start, part.stop - whole.start)
