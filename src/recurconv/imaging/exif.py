"""EXIF: of TIFF files, where libvips neither reads nor writes it, and without the thumbnail elsewhere."""

from __future__ import annotations

import contextlib
import os
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_EXIF, _GPS = 0x8769, 0x8825
# Of the first directory, what describes the picture and not how its pixels are stored: ImageDescription, Make, Model,
# Software, DateTime, Artist, HostComputer, Copyright.
_DESCRIPTIONS = (270, 271, 272, 305, 306, 315, 316, 33432)
_ASCII, _LONG = 2, 4


def without_thumbnail(block: bytes) -> bytes:
    """Return an EXIF block whose second directory, the thumbnail's, nothing points to; a damaged one as it is."""
    start = 6 if block.startswith(b"Exif\0\0") else 0
    order = "<" if block[start : start + 2] == b"II" else ">"
    try:
        (first,) = struct.unpack_from(order + "L", block, start + 4)
        (count,) = struct.unpack_from(order + "H", block, start + first)
    except struct.error:
        return block
    pointer = start + first + 2 + 12 * count
    return block[:pointer] + b"\0" * 4 + block[pointer + 4 :] if pointer + 4 <= len(block) else block


def read_tiff_exif(path: Path) -> bytes | None:
    """Return the EXIF block of a TIFF file as other formats hold it; None if there is none or it cannot be read."""
    from PIL import Image

    exif, kept = Image.Exif(), Image.Exif()
    with _tolerance(), path.open("rb") as file:
        exif.load_from_fp(file)
        # As bytes: Pillow reads texts as Latin-1, and would write those that are not ASCII with question marks.
        kept.update({tag: exif[tag].encode("latin-1") for tag in _DESCRIPTIONS if isinstance(exif.get(tag), str)})
        for directory in (_EXIF, _GPS):
            if values := exif.get_ifd(directory):
                kept.get_ifd(directory).update(values)
        return bytes(kept.tobytes()) if len(kept) else None
    return None


def add_tiff_exif(path: Path, block: bytes) -> None:
    """Put an EXIF block into a TIFF file that has none.

    A new first directory is written behind all else: the entries of the old one as they are, and those of the block.

    Args:
        path: a complete TIFF file with one picture, not BigTIFF; changed in place.
        block: EXIF as JPEG files hold it; what is damaged of it is left out.
    """
    with path.open("rb+") as file:
        header = file.read(8)
        order = "<" if header[:2] == b"II" else ">"
        file.seek(*struct.unpack(order + "L", header[4:]))
        (count,) = struct.unpack(order + "H", file.read(2))
        entries = [file.read(12) for _ in range(count)]
        by_tag = {struct.unpack(order + "H", entry[:2])[0]: entry for entry in entries}

        def append(data: bytes) -> int:
            end = file.seek(0, os.SEEK_END)
            file.write(b"\0" * (end % 2) + data)  # what is pointed to begins at an even place
            return end + end % 2

        texts, directories = _parts(block)
        for tag in texts.keys() - by_tag.keys():
            data = texts[tag].encode("latin-1", "replace") + b"\0"  # as Pillow decoded it
            value = data.ljust(4, b"\0") if len(data) <= 4 else struct.pack(order + "L", append(data))
            by_tag[tag] = struct.pack(order + "HHL", tag, _ASCII, len(data)) + value
        for tag, directory in directories.items():
            start = append(b"")
            file.write(_encoded(header, tag, directory, start))
            by_tag[tag] = struct.pack(order + "HHLL", tag, _LONG, 1, start)
        sorted_entries = b"".join(by_tag[tag] for tag in sorted(by_tag))
        first = append(struct.pack(order + "H", len(by_tag)) + sorted_entries + b"\0" * 4)
        file.seek(4)
        file.write(struct.pack(order + "L", first))


def _parts(block: bytes) -> tuple[dict[int, str], dict[int, dict[int, Any]]]:
    """The texts of an EXIF block's first directory, and the directories that it points to."""
    from PIL import Image

    exif = Image.Exif()
    texts, directories = {}, {}
    with _tolerance():
        exif.load(block)
        texts = {tag: exif[tag] for tag in _DESCRIPTIONS if isinstance(exif.get(tag), str)}
        directories = {tag: dict(values) for tag in (_EXIF, _GPS) if (values := exif.get_ifd(tag))}
    return texts, directories


def _encoded(header: bytes, tag: int, values: dict[int, Any], start: int) -> bytes:
    """A directory as it stands in a TIFF file with this header from the place `start` on."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    directory = ImageFileDirectory_v2(header, group=tag)
    directory.update(values)
    return directory.tobytes(start)


@contextlib.contextmanager
def _tolerance() -> Iterator[None]:
    """Damaged metadata does not make the pixels wrong: Pillow neither warns nor fails."""
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        yield
