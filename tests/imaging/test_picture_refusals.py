"""Every file that is no good picture, and every output that would lose something: one line that names it."""

import builtins
import os
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from kinds import png, png_chunk, png_header, values
from PIL import Image, ImageCms

from recurconv import imaging
from recurconv.data.pictures import MAX_PIXELS

NOISE = Image.fromarray(values("uint8", 64, 64, 3))
FRAMES = [Image.fromarray(values("uint8", 8, 8, 3)) for _ in range(3)]


def file(path, write):
    write(path)
    return path.read_bytes()


def cut(path, suffix, part=0.6, **options):
    data = file(path.with_suffix(suffix), lambda whole: NOISE.save(whole, **options))
    return data[: int(part * len(data))]


def cut_tiles(path, compression):
    data = tiff(path, values("uint8", 128, 128, 3), tile=(64, 64), photometric="rgb", compression=compression)
    return data[: len(data) // 2]


def frames(path, suffix):
    return file(path.with_suffix(suffix), lambda p: FRAMES[0].save(p, save_all=True, append_images=FRAMES[1:]))


def tiff(path, pixels, **options):
    return file(path.with_suffix(".tif"), lambda whole: tifffile.imwrite(whole, pixels, **options))


def of_mode(path, mode, suffix):
    return file(path.with_suffix(suffix), NOISE.convert(mode).save)


def large_tiff_header():
    entries = [(256, 4, 70_000), (257, 4, 70_000), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (279, 4, 1)]
    body = b"".join(struct.pack("<HHLL", tag, kind, 1, value) for tag, kind, value in entries)
    return b"II*\0" + struct.pack("<L", 8) + struct.pack("<H", len(entries)) + body + b"\0" * 4


BAD = {
    "empty.png": (lambda _: b"", "the file is empty"),
    "text.png": (lambda _: b"not a picture at all\n" * 50, "not a picture, or of a format that is not read here"),
    "drawing.svg": (lambda _: b"<svg xmlns='http://www.w3.org/2000/svg' width='5' height='5'/>", "not a picture"),
    "paper.pdf": (lambda _: b"%PDF-1.4\n%%EOF", "not a picture"),
    "cut.png": (lambda p: cut(p, ".png"), "damaged, truncated or unreadable PNG file"),
    "cut.jpg": (lambda p: cut(p, ".jpg"), "damaged, truncated or unreadable JPEG file"),
    "cut.tif": (lambda p: cut(p, ".tif"), "damaged, truncated or unreadable TIFF file"),
    "tiles.tif": (lambda p: cut_tiles(p, "zlib"), "damaged, truncated or unreadable TIFF file"),
    "plain tiles.tif": (lambda p: cut_tiles(p, None), "damaged, truncated or unreadable TIFF file"),
    "cut.webp": (lambda p: cut(p, ".webp"), "damaged, truncated or unreadable WebP file"),
    "cut.gif": (lambda p: cut(p, ".gif"), "damaged, truncated or unreadable GIF file"),
    "cut.avif": (lambda p: cut(p, ".avif"), "damaged, truncated or unreadable HEIF file"),
    "cut.bmp": (lambda p: cut(p, ".bmp"), "damaged, truncated or unreadable BMP file"),
    "cut.ppm": (lambda p: cut(p, ".ppm"), "damaged, truncated or unreadable PNM file"),
    "start.png": (lambda p: cut(p, ".png", 0.003), "damaged, truncated or unreadable PNG file"),
    "start.bmp": (lambda p: cut(p, ".bmp", 0.001), "damaged, truncated or unreadable BMP file"),
    "flipped.png": (
        lambda p: bytes(byte ^ 255 if 60 < at < 90 else byte for at, byte in enumerate(cut(p, ".png", 1))),
        "damaged, truncated or unreadable PNG file",
    ),
    "bomb.png": (
        lambda _: png_header(60_000, 60_000) + png_chunk(b"IDAT", zlib.compress(b"")),
        f"promises 60,000 x 60,000 pixels, more than the {MAX_PIXELS:,} allowed",
    ),
    "bomb.tif": (lambda _: large_tiff_header(), "promises 70,000 x 70,000 pixels"),
    "bomb.ppm": (lambda _: b"P6 20000 20000 255 ", r"promises (20,000 x 20,000|more than the)"),
    "large.ppm": (lambda _: b"P6 15001 10000 255 ", r"promises 15,001 x 10,000"),
    "pages.tif": (lambda p: frames(p, ".tif"), "3 pages or frames; pictures of one are handled: split it first"),
    "moving.gif": (lambda p: frames(p, ".gif"), "3 pages or frames"),
    "moving.webp": (lambda p: frames(p, ".webp"), "3 pages or frames"),
    "moving.png": (lambda p: frames(p, ".png"), "3 pages or frames"),
    "ink.jpg": (lambda p: of_mode(p, "CMYK", ".jpg"), "its colours are CMYK; convert it to RGB first"),
    "ink.tif": (lambda p: of_mode(p, "CMYK", ".tif"), "its colours are CMYK; convert it to RGB first"),
    "lab.tif": (lambda p: of_mode(p, "LAB", ".tif"), "its colours are LAB; convert it to RGB first"),
    "signed.tif": (lambda p: tiff(p, np.zeros((4, 4), np.int16)), "values of the type short; 8 and 16 bits without"),
    "deep.tif": (lambda p: tiff(p, np.zeros((4, 4), np.uint32)), "values of the type uint; 8 and 16 bits without"),
    "double.tif": (lambda p: tiff(p, np.zeros((4, 4))), "values of an unusual type; 8 and 16 bits"),
    "bright.tif": (
        lambda p: tiff(p, np.full((4, 4), 2.5, np.float32)),
        r"float values from 2\.5 to 2\.5; they must be",
    ),
    "negative.tif": (lambda p: tiff(p, np.full((4, 4), -1.1, np.float32)), r"float values from -1\.1 to -1\.1"),
    "nan.tif": (lambda p: tiff(p, np.full((4, 4), np.nan, np.float32)), "float values from nan to nan"),
    "infinite.tif": (lambda p: tiff(p, np.full((4, 4), np.inf, np.float32)), "float values from inf to inf"),
    "five.tif": (
        lambda p: tiff(p, values("uint8", 6, 7, 5), photometric="rgb", planarconfig="contig"),
        "5 channels; gray or colour, each with or without alpha, is handled",
    ),
    "deep.ppm": (lambda _: b"P6 2 1 65535\n" + bytes(12), "16-bit colour in a PNM file is not read; convert it to"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line_that_names_them(tmp_path, capfd, name):
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content(tmp_path / "made"))
    with pytest.raises(ValueError, match=message) as raised:
        imaging.read(tmp_path / name)
    assert str(raised.value).startswith(f"{tmp_path / name}: ")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < len(str(tmp_path / name)) + 220
    assert capfd.readouterr() == ("", "")  # the libraries below print nothing either


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.png: no such file"):
        imaging.read(tmp_path / "absent.png")
    with pytest.raises(ValueError, match="not a file; give the path of one picture"):
        imaging.read(tmp_path)


def test_a_file_that_must_not_be_read(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(png(values("uint8", 2, 2, 3)))

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # a root user may read everything
    with pytest.raises(PermissionError, match=r"a\.png: not permitted to read it"):
        imaging.read(tmp_path / "a.png")


@pytest.mark.skipif(os.name == "nt", reason="no such files there")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(ValueError, match="not a file"):
        imaging.read(tmp_path / "a.png")


GRAY = imaging.Picture(np.zeros((3, 4), np.uint8))
COLOUR = imaging.Picture(np.zeros((3, 4, 3), np.uint8))
CLEAR = imaging.Picture(np.zeros((3, 4, 3), np.uint8), np.zeros((3, 4), np.uint8))
DEEP = imaging.Picture(np.zeros((3, 4, 3), np.uint16))
FLOAT = imaging.Picture(np.zeros((3, 4, 3), np.float32))
PROFILED = imaging.Picture(
    np.zeros((3, 4, 3), np.uint8), profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
)

UNFIT = [
    (DEEP, "a.jpg", "JPEG holds no 16-bit values, which this picture has; choose one of .png .tif .tiff"),
    (DEEP, "a.webp", "WebP holds no 16-bit values"),
    (DEEP, "a.ppm", "PPM holds no 16-bit values"),
    (CLEAR, "a.jpg", "JPEG holds no alpha, which this picture has; choose one of .png .tif .tiff .webp"),
    (CLEAR, "a.bmp", "BMP holds no alpha"),
    (FLOAT, "a.png", "PNG holds no float values, which this picture has; choose one of .tif .tiff"),
    (FLOAT, "a.JPG", "JPEG holds no float values"),
    (COLOUR, "a.pgm", "PGM holds no colour"),
    (GRAY, "a.ppm", "PPM holds no gray alone"),
    (PROFILED, "a.bmp", "BMP holds no colour profile"),
    (COLOUR, "a.gif", r"pictures are not written as \.gif; choose one of \.png \.jpg"),
    (COLOUR, "a.heic", r"pictures are not written as \.heic"),
    (COLOUR, "a", "not written as a file without suffix"),
]


@pytest.mark.parametrize(
    ("picture", "name", "message"), UNFIT, ids=[name + str(at) for at, (_, name, _) in enumerate(UNFIT)]
)
def test_no_format_takes_what_it_would_lose(tmp_path, picture, name, message):
    with pytest.raises(ValueError, match=message) as raised:
        imaging.write(picture, tmp_path / name)
    assert str(raised.value).startswith(f"{tmp_path / name}: ")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_unasked(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"a\.png: is there already; choose another name or allow overwriting"):
        imaging.write(COLOUR, path)
    assert path.read_bytes() == b"mine"
    imaging.write(COLOUR, path, overwrite=True)
    np.testing.assert_array_equal(imaging.read(path).pixels, COLOUR.pixels)


def test_the_source_is_never_replaced(tmp_path):
    path = tmp_path / "a.png"
    imaging.write(COLOUR, path)
    (tmp_path / "link.png").symlink_to(path)
    before = path.read_bytes()
    for name in ("a.png", "link.png"):
        with pytest.raises(ValueError, match="the picture was read from this file; write to another"):
            imaging.write(imaging.read(path), tmp_path / name, overwrite=True)
    assert path.read_bytes() == before


def test_a_folder_is_no_output(tmp_path):
    (tmp_path / "a.png").mkdir()
    with pytest.raises(ValueError, match="a folder where a file is to be written"):
        imaging.write(COLOUR, tmp_path / "a.png", overwrite=True)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "notes").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"a\.png: .*notes is a file and not a folder"):
        imaging.write(COLOUR, tmp_path / "notes" / "new" / "a.png")


def test_missing_folders_are_made(tmp_path):
    imaging.write(COLOUR, tmp_path / "new" / "deep" / "a.png")
    assert [path.name for path in (tmp_path / "new" / "deep").iterdir()] == ["a.png"]


def test_a_failed_writer_leaves_the_old_file(tmp_path):
    wide = imaging.Picture(np.zeros((1, 17_000), np.uint8))  # WebP ends at 16,383
    (tmp_path / "a.webp").write_bytes(b"mine")
    with pytest.raises(OSError, match=r"a\.webp: not written \(") as raised:
        imaging.write(wide, tmp_path / "a.webp", overwrite=True)
    assert "\n" not in str(raised.value)
    assert (tmp_path / "a.webp").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["a.webp"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def on_a_full_disk(path, write):
        write(Path("/dev/full"))

    monkeypatch.setattr("recurconv.imaging.writing.write_atomically", on_a_full_disk)
    for suffix in (".png", ".jpg", ".bmp"):
        with pytest.raises(OSError, match=rf"a\{suffix}: not written \("):
            imaging.write(COLOUR, tmp_path / f"a{suffix}")


def test_without_pyvips_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(png(values("uint8", 2, 2, 3)))
    original = builtins.__import__

    def missing(name, *rest, **options):
        if name == "pyvips":
            raise ImportError(name)
        return original(name, *rest, **options)

    monkeypatch.delitem(sys.modules, "pyvips", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r'pip install "recurconv\[denoise\]"'):
        imaging.read(tmp_path / "a.png")
