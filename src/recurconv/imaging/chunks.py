"""Chunks of PNG files that libvips overlooks (the frames of an animation) or spoils (texts that are not ASCII)."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
# XMP, which libvips handles, and EXIF of old programs, which would say how the picture had been turned.
_NO_TEXTS = (b"XML:com.adobe.xmp", b"Raw profile type exif", b"Raw profile type APP1")
_END_LENGTH = 12


def read_png_chunks(path: Path) -> tuple[int, bytes]:
    """Return how many frames a PNG file has and its texts: the chunks one after the other, as they are."""
    frames, texts = 1, b""
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length, name = struct.unpack(">L4s", head)
            if name not in (*_TEXTS, b"acTL"):
                file.seek(length + 4, os.SEEK_CUR)  # the body and its checksum
                continue
            body = file.read(length + 4)
            if name == b"acTL":
                frames = int.from_bytes(body[:4], "big")
            elif body.split(b"\0", 1)[0] not in _NO_TEXTS:
                texts += head + body
    return frames, texts


def add_png_texts(path: Path, texts: bytes) -> None:
    """Put chunks of text behind the pixels of a PNG file, which is changed in place."""
    with path.open("rb+") as file:
        file.seek(-_END_LENGTH, os.SEEK_END)
        end = file.read()
        file.seek(-_END_LENGTH, os.SEEK_END)
        file.write(texts + end)
