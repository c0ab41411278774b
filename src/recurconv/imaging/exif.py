"""EXIF in TIFF files, which libvips neither reads nor writes there."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

_EXIF, _GPS = 0x8769, 0x8825
# Of the first directory, what describes the picture and not how its pixels are stored: ImageDescription, Make, Model,
# Software, DateTime, Artist, HostComputer, Copyright.
_DESCRIPTIONS = (270, 271, 272, 305, 306, 315, 316, 33432)


def read_tiff_exif(path: Path) -> bytes | None:
    """Return the EXIF block of a TIFF file as other formats hold it; None if there is none or it cannot be read."""
    from PIL import Image

    exif, kept = Image.Exif(), Image.Exif()
    with contextlib.suppress(Exception), path.open("rb") as file:  # damaged metadata does not make the pixels wrong
        exif.load_from_fp(file)
        kept.update({tag: exif[tag] for tag in _DESCRIPTIONS if tag in exif})
        for directory in (_EXIF, _GPS):
            if values := exif.get_ifd(directory):
                kept.get_ifd(directory).update(values)
        return bytes(kept.tobytes()) if len(kept) else None
    return None


def add_tiff_exif(path: Path, block: bytes) -> None:
    """Put an EXIF block into a TIFF file that has none: a new first directory behind all else, and the pointer to it.

    Args:
        path: a TIFF file (not BigTIFF), complete; changed in place.
        block: EXIF as JPEG files hold it.
    """
    from PIL import Image
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    exif = Image.Exif()
    exif.load(block)
    with path.open("rb+") as file:
        header = file.read(8)
        directory: Any = ImageFileDirectory_v2(header)
        file.seek(directory.next)
        directory.load(file)
        directory.update({tag: directory[tag] for tag in directory})  # what is not decoded would not be written
        for tag in _DESCRIPTIONS:
            if tag in exif:
                directory[tag] = exif[tag]
        for tag in (_EXIF, _GPS):
            if values := exif.get_ifd(tag):
                directory[tag] = dict(values)
        start = file.seek(0, os.SEEK_END)
        start += file.write(b"\0" * (start % 2))  # directories begin at even offsets
        file.write(directory.tobytes(start))
        file.seek(4)
        file.write(struct.pack("<L" if header[:2] == b"II" else ">L", start))
