"""Reading: the content says which format it is, one decoder per format, all else is refused in one line."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recurconv.data.pictures import MAX_PIXELS, PathLike
from recurconv.imaging.chunks import read_png_chunks
from recurconv.imaging.exif import read_tiff_exif, without_thumbnail
from recurconv.imaging.library import libvips, reason
from recurconv.imaging.picture import NOISIEST, Picture, Pixels

_METADATA = ("exif-data", "xmp-data", "iptc-data", "photoshop-data")
_COLOURS = ("b-w", "grey16", "srgb", "rgb", "rgb16", "scrgb")
_UNKNOWN = 1.0  # pixels per mm: what libvips says where a file says nothing
_ABSURD = 1e5  # pixels per mm
_XMP_ORIENTATION = re.compile(rb"""(tiff:Orientation\s*(?:=\s*["']|>\s*))[2-8]""")
_DEPTHS = "8 and 16 bits without sign and 32-bit float are handled"
_MEANINGS = {  # words of libvips about files that are not damaged
    "samples out of range": f"values of an unusual type; {_DEPTHS}",
    "bad labq format": "its colours are LAB; convert it to RGB first",
}
_TURNS = {  # EXIF orientation: how the stored pixels become upright (EXIF 2.32, tag 274)
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: x.swapaxes(0, 1)[:, ::-1],
    7: lambda x: x.swapaxes(0, 1)[::-1, ::-1],
    8: lambda x: x.swapaxes(0, 1)[::-1],
}


def read(path: PathLike) -> Picture:
    """Read a picture of any kind, with its depth, alpha, colour profile and metadata.

    PNG, JPEG, TIFF, WebP, GIF, AVIF and HEIF (where libvips has the codec), BMP and PNM. Palettes become colour, 1-, 2-
    and 4-bit gray becomes uint8, 10- and 12-bit values fill uint16, half floats become float32, alpha that colours were
    premultiplied by is divided out. Pixels are turned upright as EXIF says; `write` then marks them as upright.

    Args:
        path: the file; its content decides what it is, not its name.

    Returns:
        The picture. At its peak, memory holds it once; twice where a file cannot be decoded row by row (interlaced PNG,
        WebP, AVIF) and for BMP and PNM.

    Raises:
        FileNotFoundError: no such file.
        PermissionError: it must not be read.
        ValueError: it is empty, truncated, no picture, or has several pages or frames; it promises more than
            `MAX_PIXELS` pixels; its colours are CMYK or Lab; its values have another depth; float values are farther
            from [0, 1] than noise takes them. One line that begins with the path.
        ImportError: pyvips is not installed.
    """
    path = Path(path)
    name, decode = _format_of(path)
    picture = decode(path, name)
    _check_range(path, picture.pixels)
    return picture


def _format_of(path: Path) -> tuple[str, Callable[[Path, str], Picture]]:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if not path.is_file():
        raise ValueError(f"{path}: not a file; give the path of one picture")
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except PermissionError:
        raise PermissionError(f"{path}: not permitted to read it") from None
    if not start:
        raise ValueError(f"{path}: the file is empty")
    for name, signatures in _SIGNATURES.items():
        if any(start[at : at + len(mark)] == mark for at, mark in signatures):
            return name, _with_pillow if name in ("BMP", "PNM") else _with_libvips
    raise ValueError(f"{path}: not a picture, or of a format that is not read here ({', '.join(_SIGNATURES)} are)")


_SIGNATURES = {
    "PNG": [(0, b"\x89PNG\r\n\x1a\n")],
    "JPEG": [(0, b"\xff\xd8\xff")],
    "TIFF": [(0, b"II*\0"), (0, b"MM\0*"), (0, b"II+\0"), (0, b"MM\0+")],
    "WebP": [(8, b"WEBP")],
    "GIF": [(0, b"GIF87a"), (0, b"GIF89a")],
    "HEIF": [(4, b"ftyp")],  # AVIF too
    "BMP": [(0, b"BM")],
    "PNM": [(0, f"P{digit}{space}".encode()) for digit in range(1, 7) for space in " \t\r\n"],
}


def _with_libvips(path: Path, name: str) -> Picture:
    vips = libvips()
    # A source and not a file name: libvips would read options in the brackets of "a[1].png".
    load = getattr(vips.Image, f"{name.lower()}load_source")
    frames, chunks = read_png_chunks(path) if name == "PNG" else (1, b"")
    try:
        # Of a tile that is cut off or damaged libtiff only warns.
        fail_on = "warning" if name == "TIFF" else "error"
        image = load(vips.Source.new_from_file(os.fsencode(path)), access="sequential", fail_on=fail_on)
        _check_pixels(path, image.width, image.height)
        _check_pages(path, max(frames, _field(image, "n-pages", 1)))
        _check_kind(path, image)
        memory = image.write_to_memory()
    except vips.Error as error:
        raise _damaged(path, name, error) from None
    dtype = {"uchar": np.uint8, "ushort": np.uint16, "float": np.float32}[image.format]
    whole = np.frombuffer(memory, dtype).reshape(image.height, image.width, image.bands)
    orientation = _field(image, "orientation", 1)
    whole = _TURNS.get(orientation, lambda x: x)(whole)
    return Picture(
        pixels=whole[..., :3] if image.bands >= 3 else whole[..., 0],
        alpha=whole[..., -1] if image.bands in (2, 4) else None,
        profile=_profile(_field(image, "icc-profile-data", b"")),
        metadata=_metadata(path, name, image, chunks),
        resolution=_resolution(image.xres, image.yres, turned=orientation >= 5),
        format=name,
        source=path,
    )


def _metadata(path: Path, name: str, image: Any, chunks: bytes) -> dict[str, bytes]:
    metadata = {field: image.get(field) for field in _METADATA if image.get_typeof(field)}
    exif = read_tiff_exif(path) if name == "TIFF" else metadata.get("exif-data")
    if exif is not None:
        metadata["exif-data"] = without_thumbnail(exif)
    if "xmp-data" in metadata:  # pixels are turned upright, as EXIF is made to say, too
        metadata["xmp-data"] = _XMP_ORIENTATION.sub(rb"\g<1>1", metadata["xmp-data"])
    return {**metadata, "png-chunks": chunks} if chunks else metadata


def _profile(block: bytes) -> bytes | None:
    """The profile that a block begins with; None if it is none, which viewers overlook and encoders refuse."""
    size = int.from_bytes(block[:4], "big")  # ICC.1:2022, 7.2
    return block[:size] if 128 <= size <= len(block) and block[36:40] == b"acsp" else None


def _resolution(across: float, down: float, *, turned: bool) -> tuple[float, float] | None:
    """Pixels per inch of pixels per mm; None where a file says nothing or nonsense."""
    if across == down == _UNKNOWN or not (0 < across < _ABSURD and 0 < down < _ABSURD):
        return None
    return (down * 25.4, across * 25.4) if turned else (across * 25.4, down * 25.4)


def _field(image: Any, name: str, default: Any) -> Any:
    return image.get(name) if image.get_typeof(name) else default


def _with_pillow(path: Path, name: str) -> Picture:
    """Read what the libvips of PyPI cannot."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the check below is stricter
            opened = Image.open(path, formats=["BMP", "PPM"])
        with opened as image:
            _check_pixels(path, image.width, image.height)
            if image.mode == "RGB" and name == "PNM" and _largest_value(image) > 255:
                raise ValueError(f"{path}: 16-bit colour in a PNM file is not read; convert it to .png or .tif")
            image.load()
            across, down = image.info.get("dpi", (_UNKNOWN * 25.4, _UNKNOWN * 25.4))
            whole = np.asarray(_plain(image))
    except Image.DecompressionBombError:
        raise ValueError(f"{path}: promises more than the {MAX_PIXELS:,} pixels allowed") from None
    except Exception as error:  # decoders of damaged data raise nearly anything
        if str(error).startswith(f"{path}: "):
            raise
        raise _damaged(path, name, error) from None
    has_alpha = whole.shape[2:] == (4,)
    return Picture(
        pixels=whole[..., :3] if has_alpha else whole,
        alpha=whole[..., 3] if has_alpha else None,
        resolution=_resolution(across / 25.4, down / 25.4, turned=False),
        format=name,
        source=path,
    )


def _damaged(path: Path, name: str, error: Exception) -> ValueError:
    said = reason(error)
    for words, meaning in _MEANINGS.items():
        if words in said:
            return ValueError(f"{path}: {meaning}")
    return ValueError(f"{path}: damaged, truncated or unreadable {name} file ({said})")


def _plain(image: Any) -> Any:
    """The picture in one of Pillow's modes L, RGB, RGBA and I;16."""
    if image.mode == "P":
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    if image.mode == "1":
        return image.convert("L")
    return image.convert("I;16") if image.mode == "I" else image


def _largest_value(image: Any) -> int:
    arguments = image.tile[0].args
    return int(arguments[1]) if isinstance(arguments, tuple) and len(arguments) > 1 else 255


def _check_pixels(path: Path, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ValueError(
            f"{path}: promises {width:,} x {height:,} pixels, more than the {MAX_PIXELS:,} allowed; "
            "cut it into parts first"
        )


def _check_pages(path: Path, pages: int) -> None:
    if pages > 1:
        raise ValueError(f"{path}: {pages} pages or frames; pictures of one are handled: split it first")


def _check_kind(path: Path, image: Any) -> None:
    if image.interpretation not in _COLOURS:
        raise ValueError(f"{path}: its colours are {image.interpretation.upper()}; convert it to RGB first")
    if image.bands > 4:
        raise ValueError(f"{path}: {image.bands} channels; gray or colour, each with or without alpha, is handled")
    if image.format not in ("uchar", "ushort", "float"):
        raise ValueError(f"{path}: values of the type {image.format}; {_DEPTHS}")


def _check_range(path: Path, pixels: Pixels) -> None:
    if pixels.dtype != np.float32:
        return
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= NOISIEST[0] and high <= NOISIEST[1]):  # also catches NaN
        raise ValueError(f"{path}: float values from {low:g} to {high:g}; they must be from 0 (black) to 1 (white)")
