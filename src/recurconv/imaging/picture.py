"""A picture in memory: its pixels, and what of its file is no pixel but must not be lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[Any]

WHITE = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0, np.dtype(np.float32): 1.0}
"""The dtypes of pixels and the value of white in each."""

NOISIEST = (-1.0, 2.0)
"""What float values noise may take beyond black and white; farther, white is somewhere else than at 1."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture, upright. ``dataclasses.replace(picture, pixels=clean)`` keeps all but the pixels.

    Attributes:
        pixels: uint8, uint16 or float32, `[H, W]` (gray) or `[H, W, 3]` (colour, not premultiplied by alpha). From 0
            (black) to `white`; float ones may lie beyond, as noise takes them. A view where the file stores it turned
            or with alpha: not always contiguous.
        alpha: opacity from 0 to `white`, `[H, W]` of the same dtype; None if the picture has none.
        profile: its ICC profile, which is not applied.
        metadata: blocks as files hold them, by the names that libvips gives them: "exif-data", "xmp-data", "iptc-data",
            "photoshop-data"; and "png-chunks", those of a PNG file that hold its gamma, primaries and texts.
        resolution: pixels per inch, across and down; None if unknown.
        format: of the file, e.g. "PNG".
        source: the file that it was read from, which `write` does not replace.

    Raises:
        ValueError: `pixels` or `alpha` have another shape or dtype.
    """

    pixels: Pixels
    alpha: Pixels | None = None
    profile: bytes | None = None
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    resolution: tuple[float, float] | None = None
    format: str = ""
    source: Path | None = None

    def __post_init__(self) -> None:
        pixels, alpha = self.pixels, self.alpha
        if pixels.dtype not in WHITE or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)):
            raise ValueError(
                f"pixels are {pixels.dtype} {list(pixels.shape)}; they must be uint8, uint16 or float32, "
                "[H, W] or [H, W, 3]"
            )
        if pixels.size == 0:
            raise ValueError(f"pixels have the shape {list(pixels.shape)}; a picture has at least one pixel")
        if alpha is not None and (alpha.dtype != pixels.dtype or alpha.shape != pixels.shape[:2]):
            raise ValueError(
                f"alpha is {alpha.dtype} {list(alpha.shape)}; it must be {pixels.dtype} {list(pixels.shape[:2])}, "
                "as the pixels are"
            )

    @property
    def white(self) -> float:
        """The value of white: 255, 65535 or 1."""
        return WHITE[self.pixels.dtype]
