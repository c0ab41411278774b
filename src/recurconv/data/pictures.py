"""Picture files of any kind as uint8 arrays: RGB or gray, upright, without transparency.

Pillow decodes. This file says what becomes of each of its modes, and turns every way in which a file can be
damaged into one line that names the file.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

__all__ = [
    "MAX_PIXELS",
    "PICTURE_SUFFIXES",
    "list_pictures",
    "read_gray",
    "read_picture",
    "read_rgb",
    "rgb_to_gray",
    "sample_picture",
]

PICTURE_SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in (
        *("avif", "bmp", "gif", "heic", "heif", "jfif", "jp2", "jpe", "jpeg", "jpg"),
        *("pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp"),
    )
)
"""File name endings, in lower case, that count as a picture when a folder is listed."""

MAX_PIXELS = 150_000_000
"""A header that promises more pixels than this is refused before anything is decoded (a decompression bomb)."""

PathLike: TypeAlias = "str | os.PathLike[str]"
Pixels: TypeAlias = NDArray[np.uint8]

# MATLAB's rgb2gray, which made the gray BSD68 files that denoising papers share.
_GRAY_WEIGHTS = (0.298936021293776, 0.587043074451121, 0.114020904255103)
_SIXTEEN_BIT_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")


def read_picture(path: PathLike) -> Image.Image:
    """Decode a picture file completely, turned as its EXIF orientation says.

    Of an animation or a multi-page file this is the first frame. Colour profiles are not applied.

    Args:
        path: a file in any format that Pillow reads; the content decides, not the name.

    Returns:
        The picture in the mode that Pillow gives it, detached from the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is empty, truncated, not a picture, of an unsupported kind, not permitted to be read, or
            promises more than `MAX_PIXELS` pixels; the message is one line that names it.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if not path.is_file():
        raise ValueError(f"{path}: not a file; give the path of one picture")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")
    # Decoders of damaged data raise nearly anything (OSError, SyntaxError, struct.error, IndexError, ...).
    try:
        with Image.open(path) as image:
            _check_pixels(image)
            image.load()
            return _upright(image)
    except UnidentifiedImageError:
        raise ValueError(f"{path}: not a picture, or of a format that Pillow cannot read") from None
    except Image.DecompressionBombError:
        raise ValueError(f"{path}: promises more than the {MAX_PIXELS:,} pixels allowed") from None
    except Exception as error:
        raise ValueError(f"{path}: unreadable picture ({_one_line(error)})") from error


def read_rgb(path: PathLike) -> Pixels:
    """Read any picture as colour.

    Transparency is composited on white. 16-bit values are scaled by 255/65535 and rounded, float values (in [0, 1])
    by 255. CMYK, YCbCr and LAB are converted as Pillow does it.

    Args:
        path: a file as for `read_picture`.

    Returns:
        uint8 `[H, W, 3]`, values 0 to 255.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: as for `read_picture`, or the values have no defined scale (float outside [0, 1], 32-bit integers
            outside 0 to 65535).
    """
    return _pixels(path, read_picture(path), "RGB")


def read_gray(path: PathLike) -> Pixels:
    """Read any picture as gray; 8-bit gray files keep every value.

    Colour becomes `rgb_to_gray` of what `read_rgb` gives.

    Args:
        path: a file as for `read_picture`.

    Returns:
        uint8 `[H, W]`, values 0 to 255.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: as for `read_rgb`.
    """
    image = read_picture(path)
    if image.mode in ("1", "L", "F", *_SIXTEEN_BIT_MODES) and not image.has_transparency_data:
        return _pixels(path, image, "L")
    return rgb_to_gray(_pixels(path, image, "RGB"))


def rgb_to_gray(rgb: Pixels) -> Pixels:
    """Gray of colour as MATLAB's `rgb2gray`: floor(0.2989 R + 0.5870 G + 0.1140 B + 0.5) in float64.

    Args:
        rgb: uint8 `[H, W, 3]`.

    Returns:
        uint8 `[H, W]`. Equal channels keep their value.

    Raises:
        ValueError: another shape or dtype.
    """
    if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3:
        raise ValueError(f"rgb has shape {list(rgb.shape)} and dtype {rgb.dtype}; it must be uint8 [H, W, 3]")
    gray = np.empty(rgb.shape[:2], dtype=np.uint8)
    rows = max(1, 2**20 // max(1, rgb.shape[1]))  # float64 of a whole large picture would take eight times its size
    red, green, blue = _GRAY_WEIGHTS
    for top in range(0, rgb.shape[0], rows):
        part = rgb[top : top + rows].astype(np.float64)
        gray[top : top + rows] = np.floor(red * part[..., 0] + green * part[..., 1] + blue * part[..., 2] + 0.5)
    return gray


def list_pictures(folder: PathLike) -> list[Path]:
    """Find the pictures under a folder, by `PICTURE_SUFFIXES` (in either case).

    Args:
        folder: searched with its subfolders, also linked ones; names that start with a dot are left out.

    Returns:
        Paths that start with `folder`, sorted by their POSIX path relative to it; the same on every platform.

    Raises:
        FileNotFoundError: there is no such folder.
        PermissionError: it or a folder in it must not be read.
        ValueError: it is a file, or no picture lies in it.
    """
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise ValueError(f"{folder}: a file where a folder of pictures is expected")
    found: list[Path] = []
    seen: set[str] = set()  # linked folders may form a circle
    for parent, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        real = os.path.realpath(parent)
        visited = real in seen
        seen.add(real)
        folders[:] = [] if visited else sorted(name for name in folders if not name.startswith("."))
        if not visited:
            found += [Path(parent, name) for name in files if _is_picture_name(name)]
    if not found:
        raise ValueError(f"{folder}: no picture in this folder ({' '.join(sorted(PICTURE_SUFFIXES))})")
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _refuse(error: OSError) -> None:
    """Pictures that cannot be seen are not left out without a word."""
    raise error


def sample_picture() -> Pixels:
    """Return the freely licensed gray picture that ships with the package (`assets/README.md` states its source).

    Returns:
        uint8 `[H, W]`, values 0 to 255.
    """
    with resources.as_file(resources.files("recurconv") / "assets" / "sample.png") as path:
        return read_gray(path)


def _is_picture_name(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in PICTURE_SUFFIXES


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _check_pixels(image: Image.Image) -> None:
    # Pillow alone only warns up to twice its limit; a caller may also have switched its limit off.
    if image.width * image.height > MAX_PIXELS:
        raise Image.DecompressionBombError


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a damaged EXIF block does not make the pixels wrong
        return image.copy()


def _pixels(path: PathLike, image: Image.Image, mode: str) -> Pixels:
    try:
        return np.array(_opaque(image, mode), dtype=np.uint8)
    except ValueError as error:
        raise ValueError(f"{path}: {_one_line(error)}") from error


def _opaque(image: Image.Image, mode: str) -> Image.Image:
    """Convert to `mode` ("L" or "RGB"), on white where the picture is transparent."""
    if image.mode in _SIXTEEN_BIT_MODES:
        return Image.fromarray(_eight_bits_of_sixteen(np.asarray(image))).convert(mode)
    if image.mode == "F":
        return Image.fromarray(_eight_bits_of_float(np.asarray(image))).convert(mode)
    if image.has_transparency_data:
        colour = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", colour.size, "white"), colour)
    return image.convert(mode)


def _eight_bits_of_sixteen(values: NDArray[np.integer]) -> Pixels:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise ValueError(f"integer values from {low} to {high}; only 0 to 65535 has a defined scale")
    return ((values.astype(np.int64) * 2 + 257) // 514).astype(np.uint8)  # round(value / 257)


def _eight_bits_of_float(values: NDArray[np.floating]) -> Pixels:
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 1):  # also catches NaN
        raise ValueError(f"float values from {low:g} to {high:g}; only 0 to 1 has a defined scale")
    return np.floor(values.astype(np.float64) * 255 + 0.5).astype(np.uint8)
