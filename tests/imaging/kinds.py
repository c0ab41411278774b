"""Pictures of every kind, and an encoder of PNG that shares nothing with the libraries under test."""

import struct
import zlib

import numpy as np

RANDOM = np.random.default_rng(4)
SIZES = ((1, 1), (1, 9), (8, 1), (7, 5), (16, 20))


def values(dtype, *shape):
    if dtype == "float32":
        return RANDOM.random(shape, dtype=np.float32)
    return RANDOM.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_header(width, height, depth=8, colour=0):
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))


def png(pixels):
    """Encode uint8 or uint16 `[H, W, 1 to 4]` as the PNG specification says, without filters."""
    height, width, channels = pixels.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = pixels.astype(pixels.dtype.newbyteorder(">"))
    data = b"".join(b"\0" + row.tobytes() for row in rows)
    header = png_header(width, height, 8 * pixels.itemsize, colour)
    return header + png_chunk(b"IDAT", zlib.compress(data)) + png_chunk(b"IEND", b"")


def exif_with_thumbnail(thumbnail, orientation):
    """EXIF 2.32, 4.5: a directory with the orientation, and a second one with a thumbnail."""
    first = struct.pack("<H", 1) + struct.pack("<HHLHH", 0x112, 3, 1, orientation, 0) + struct.pack("<L", 26)
    entries = ((0x103, 6), (0x201, 26 + 2 + 36 + 4), (0x202, len(thumbnail)))
    second = struct.pack("<H", 3) + b"".join(struct.pack("<HHLL", tag, 4, 1, value) for tag, value in entries)
    return b"Exif\0\0II*\0" + struct.pack("<L", 8) + first + second + b"\0" * 4 + thumbnail
