"""Chunks of PNG files that libvips overlooks (frames of an animation, gamma) or spoils (texts that are not ASCII)."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

_COLOURS = (b"gAMA", b"cHRM", b"sRGB", b"cICP")
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
# XMP, which libvips handles, and EXIF of old programs, which would say how the picture had been turned.
_NO_TEXTS = (b"XML:com.adobe.xmp", b"Raw profile type exif", b"Raw profile type APP1")
_START_LENGTH = 33  # the signature and the header chunk


def read_png_chunks(path: Path) -> tuple[int, bytes]:
    """Return how many frames a PNG file has, and its chunks of colour and text, one after the other, as they are."""
    frames, chunks = 1, b""
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length, name = struct.unpack(">L4s", head)
            if name not in (*_COLOURS, *_TEXTS, b"acTL"):
                file.seek(length + 4, os.SEEK_CUR)  # the body and its checksum
                continue
            body = file.read(length + 4)
            if name == b"acTL":
                frames = int.from_bytes(body[:4], "big")
            elif name in _COLOURS or body.split(b"\0", 1)[0] not in _NO_TEXTS:
                chunks += head + body
    return frames, chunks


def add_png_chunks(path: Path, chunks: bytes) -> None:
    """Put chunks before the pixels of a PNG file, which is replaced."""
    longer = path.with_name(f"{path.name}.longer")
    try:
        with path.open("rb") as old, longer.open("xb") as new:
            new.write(old.read(_START_LENGTH) + chunks)
            shutil.copyfileobj(old, new)
        longer.replace(path)
    finally:
        longer.unlink(missing_ok=True)
