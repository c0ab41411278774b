"""Pixel values: which types a picture may have, where white is, and back and forth to float."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Pixels = NDArray[Any]

# Noise takes float values beyond black and white; much farther, white is somewhere else than at 1.
LOWEST, HIGHEST = -2.0, 3.0


def white(dtype: np.dtype[Any]) -> float:
    """The value of white: 255, 65535, or 1 for float.

    Raises:
        ValueError: another dtype.
    """
    if dtype.kind == "u" and dtype.itemsize <= 2:
        return float(np.iinfo(dtype).max)
    if dtype.kind == "f":
        return 1.0
    raise ValueError(f"pixels are {dtype}; give uint8, uint16, or float in [0, 1]")


def as_floats(pixels: Pixels, precision: DTypeLike = np.float32) -> Pixels:
    """A copy as float with white at 1, of the same shape."""
    values = np.array(pixels, precision)
    values /= white(pixels.dtype)
    return values


def as_values(floats: Pixels, dtype: np.dtype[Any]) -> Pixels:
    """Float with white at 1, clipped to [0, 1], as ``dtype``; integers to the nearest."""
    values = floats.clip(0, 1)
    values *= white(dtype)
    return (np.rint(values) if dtype.kind == "u" else values).astype(dtype)


def check(pixels: Pixels) -> None:
    """Whether ``pixels`` are a picture.

    Raises:
        ValueError: not [H, W] or [H, W, 3]; no pixel; another dtype; float values that are not finite, or far from
            [0, 1].
    """
    if pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)) or not pixels.size:
        raise ValueError(
            f"the picture has shape {list(pixels.shape)}; give [H, W] or [H, W, 3] with at least one pixel"
        )
    white(pixels.dtype)
    if pixels.dtype.kind == "f":
        low, high = float(pixels.min()), float(pixels.max())
        if not LOWEST <= low <= high <= HIGHEST:  # NaN is neither
            raise ValueError(f"float pixels from {low:g} to {high:g}; give black as 0 and white as 1")


def clipped(pixels: Pixels) -> Pixels:
    """A copy, clipped to the range of its dtype; to [0, 1] if it is float."""
    return pixels.clip(0, 1) if pixels.dtype.kind == "f" else pixels.copy()
