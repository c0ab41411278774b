"""Writing: atomically, never over another file unasked, and never with less depth or alpha than the picture has."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recurconv.data.pictures import PathLike
from recurconv.files import write_atomically
from recurconv.imaging.chunks import add_png_chunks
from recurconv.imaging.exif import add_tiff_exif
from recurconv.imaging.library import libvips, reason
from recurconv.imaging.picture import Picture, Pixels

_CHUNKS = "png-chunks"
_KEEP_ALL, _KEEP_EXIF = 31, 1  # VipsForeignKeep: the kinds of metadata that libvips writes


@dataclass(frozen=True)
class _Format:
    """What a format holds, and how it is written."""

    name: str
    kinds: tuple[str, ...]  # dtypes
    channels: tuple[int, ...]  # without alpha
    alpha: bool
    profile: bool
    save: Callable[[Picture, Path], None]

    def lacks(self, picture: Picture) -> str:
        """What of the picture the format cannot hold; empty if it holds all."""
        if str(picture.pixels.dtype) not in self.kinds:
            return {"uint8": "8-bit", "uint16": "16-bit", "float32": "float"}[str(picture.pixels.dtype)] + " values"
        if (3 if picture.pixels.ndim == 3 else 1) not in self.channels:
            return "colour" if picture.pixels.ndim == 3 else "gray alone"
        if picture.alpha is not None and not self.alpha:
            return "alpha"
        return "colour profile" if picture.profile and not self.profile else ""


def write(picture: Picture, path: PathLike, *, overwrite: bool = False) -> None:
    """Write a picture in the format that the suffix of the path names.

    PNG, TIFF (deflate), WebP, BMP and PNM lose nothing of the pixels (WebP holds gray as colour); JPEG is written at
    quality 95 with colour at full resolution. Alpha and colour profile are kept; resolution, EXIF, XMP, IPTC and texts
    where the format has room for them (PNM has none, BMP for the resolution). EXIF says that the picture is upright,
    and holds no thumbnail, which would show the picture as it was before.

    Args:
        picture: what to write; C-contiguous pixels are not copied.
        path: ends in one of `WRITABLE_SUFFIXES`, in either case. Missing folders are made.
        overwrite: replace a file that is there, unless the picture was read from it.

    Raises:
        FileExistsError: there is such a file, and `overwrite` is false.
        ValueError: the suffix is none of those; the format cannot hold the picture's depth, colour, alpha or profile;
            `path` is the file that the picture was read from, a folder, or below a file.
        OSError: the file could not be written; a file that was there is as it was.
        ImportError: pyvips is not installed.
    """
    path = Path(path)
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"{path}: pictures are not written as {path.suffix or 'a file without suffix'}; {_others()}")
    if lack := kind.lacks(picture):
        raise ValueError(f"{path}: {kind.name} holds no {lack}, which this picture has; {_others(picture)}")
    if path.is_dir():
        raise ValueError(f"{path}: a folder where a file is to be written")
    if blocking := next((parent for parent in path.parents if parent.is_file()), None):
        raise ValueError(f"{path}: {blocking} is a file and not a folder")
    if os.path.lexists(path):  # a link to nowhere, too
        if path.exists() and picture.source is not None and picture.source.exists() and path.samefile(picture.source):
            raise ValueError(f"{path}: the picture was read from this file; write to another")
        if not overwrite:
            raise FileExistsError(f"{path}: is there already; choose another name or allow overwriting")
    try:
        write_atomically(path, lambda temporary: kind.save(picture, temporary))
    except OSError as error:
        raise type(error)(f"{path}: not written ({error.strerror or error})") from None


def suffix_for(picture: Picture, wanted: str) -> str:
    """Return a suffix under which all of a picture can be written.

    Args:
        picture: what to write.
        wanted: the suffix to take if it is possible, e.g. that of the source.

    Returns:
        `wanted`, or ".tif" for float values, else ".png".
    """
    kind = _FORMATS.get(wanted.lower())
    if kind is not None and not kind.lacks(picture):
        return wanted
    return ".tif" if picture.pixels.dtype == np.float32 else ".png"


def _others(picture: Picture | None = None) -> str:
    able = [suffix for suffix, kind in _FORMATS.items() if picture is None or not kind.lacks(picture)]
    return f"choose one of {' '.join(able)}"


def _wrap(pixels: Pixels) -> Any:
    """The pixels as an image of libvips that reads them where they are."""
    pixels = np.ascontiguousarray(pixels)
    names = {"uint8": "uchar", "uint16": "ushort", "float32": "float"}
    height, width, bands = (*pixels.shape, 1)[:3]
    return libvips().Image.new_from_memory(pixels.reshape(-1), width, height, bands, names[str(pixels.dtype)])


def _image(picture: Picture) -> Any:
    """The picture as an image of libvips, with everything but pixels and alpha as fields."""
    vips = libvips()
    image = _wrap(picture.pixels)
    if picture.alpha is not None:
        image = image.bandjoin(_wrap(picture.alpha))
    colours = {"uint8": ("b-w", "srgb"), "uint16": ("grey16", "rgb16"), "float32": ("b-w", "scrgb")}
    across, down = picture.resolution or (72.0, 72.0)
    image = image.copy(
        interpretation=colours[str(picture.pixels.dtype)][picture.pixels.ndim - 2], xres=across / 25.4, yres=down / 25.4
    )
    blocks = {**picture.metadata, "icc-profile-data": picture.profile}
    for name, block in blocks.items():
        if block is not None and name != _CHUNKS:
            image.set_type(vips.GValue.blob_type, name, block)
    image.set_type(vips.GValue.gstr_type, "resolution-unit", "in")
    image.set_type(vips.GValue.gint_type, "orientation", 1)
    return image


def _with_libvips(saver: str, **options: Any) -> Callable[[Picture, Path], None]:
    def save(picture: Picture, path: Path) -> None:
        vips = libvips()
        # libvips makes EXIF where there is none, and JPEG files written by it have no other place for the resolution.
        exif = "exif-data" in picture.metadata or (saver == "jpegsave" and picture.resolution is not None)
        try:
            getattr(_image(picture), saver)(
                os.fsencode(path), keep=_KEEP_ALL if exif else _KEEP_ALL - _KEEP_EXIF, **options
            )
        except vips.Error as error:
            raise OSError(reason(error)) from None

    return save


def _save_png(picture: Picture, path: Path) -> None:
    _with_libvips("pngsave", filter=0xF8)(picture, path)  # all five filters, the best one for each row
    if chunks := picture.metadata.get(_CHUNKS):
        add_png_chunks(path, chunks)


def _save_tiff(picture: Picture, path: Path) -> None:
    # The predictor for floats is left out: few readers other than libtiff know it.
    predictor = "none" if picture.pixels.dtype == np.float32 else "horizontal"
    _with_libvips("tiffsave", compression="deflate", predictor=predictor)(picture, path)
    if exif := picture.metadata.get("exif-data"):
        add_tiff_exif(path, exif)


def _with_pillow(name: str) -> Callable[[Picture, Path], None]:
    def save(picture: Picture, path: Path) -> None:
        from PIL import Image

        options = {"dpi": picture.resolution} if picture.resolution else {}
        Image.fromarray(np.ascontiguousarray(picture.pixels)).save(path, format=name, **options)

    return save


_PNG = _Format("PNG", ("uint8", "uint16"), (1, 3), True, True, _save_png)
_JPEG = _Format("JPEG", ("uint8",), (1, 3), False, True, _with_libvips("jpegsave", Q=95, subsample_mode="off"))
_TIFF = _Format("TIFF", ("uint8", "uint16", "float32"), (1, 3), True, True, _save_tiff)
_WEBP = _Format("WebP", ("uint8",), (1, 3), True, True, _with_libvips("webpsave", lossless=True, exact=True))
_BMP = _Format("BMP", ("uint8",), (1, 3), False, False, _with_pillow("BMP"))
_PGM = _Format("PGM", ("uint8", "uint16"), (1,), False, False, _with_pillow("PPM"))
_PPM = _Format("PPM", ("uint8",), (3,), False, False, _with_pillow("PPM"))
_FORMATS = {
    ".png": _PNG,
    ".jpg": _JPEG,
    ".jpeg": _JPEG,
    ".jpe": _JPEG,
    ".jfif": _JPEG,
    ".tif": _TIFF,
    ".tiff": _TIFF,
    ".webp": _WEBP,
    ".bmp": _BMP,
    ".pgm": _PGM,
    ".ppm": _PPM,
}
WRITABLE_SUFFIXES = tuple(_FORMATS)
"""File name endings, in lower case, under which `write` can write."""
