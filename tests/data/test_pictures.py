"""Every mode against NumPy arithmetic on the stored values; every kind of damaged file by its message."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from recurconv.data.pictures import (
    MAX_PIXELS,
    list_pictures,
    read_gray,
    read_picture,
    read_rgb,
    rgb_to_gray,
    sample_picture,
)

RNG = np.random.default_rng(5)
RGB = RNG.integers(0, 256, (11, 7, 3), dtype=np.uint8)
GRAY = np.arange(256, dtype=np.uint8).reshape(8, 32)
ALPHA = np.arange(255, -1, -1, dtype=np.uint8).reshape(8, 32)


def exact_gray(red: int, green: int, blue: int) -> int:
    weights = [Fraction(text) for text in ("0.298936021293776", "0.587043074451121", "0.114020904255103")]
    value = sum(weight * channel for weight, channel in zip(weights, (red, green, blue), strict=True))
    return int((value + Fraction(1, 2)).__floor__())


def on_white(colour: NDArray[np.uint8], alpha: NDArray[np.uint8]) -> NDArray[np.float64]:
    opacity = alpha[..., None] / 255
    return colour * opacity + 255 * (1 - opacity)


def three(gray: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.stack([gray] * 3, axis=-1)


def test_rgb_is_read_as_stored_and_its_gray_is_matlabs(tmp_path: Path) -> None:
    Image.fromarray(RGB).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_rgb(tmp_path / "a.png"), RGB)
    expected = [[exact_gray(*map(int, pixel)) for pixel in row] for row in RGB]
    np.testing.assert_array_equal(read_gray(str(tmp_path / "a.png")), expected)


def test_gray_files_keep_every_value(tmp_path: Path) -> None:
    Image.fromarray(GRAY).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_gray(tmp_path / "a.png"), GRAY)
    np.testing.assert_array_equal(read_rgb(tmp_path / "a.png"), three(GRAY))
    np.testing.assert_array_equal(rgb_to_gray(three(GRAY)), GRAY)


def test_one_bit(tmp_path: Path) -> None:
    Image.fromarray(GRAY % 3 == 0).save(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png").mode == "1"
    expected = np.where(GRAY % 3 == 0, 255, 0)
    np.testing.assert_array_equal(read_gray(tmp_path / "a.png"), expected)
    np.testing.assert_array_equal(read_rgb(tmp_path / "a.png")[..., 1], expected)


def test_gray_with_alpha_lies_on_white(tmp_path: Path) -> None:
    Image.fromarray(np.stack([GRAY, ALPHA], axis=-1)).save(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png").mode == "LA"
    expected = on_white(three(GRAY), ALPHA)
    assert np.abs(read_rgb(tmp_path / "a.png") - expected).max() <= 1
    assert np.abs(read_gray(tmp_path / "a.png") - expected[..., 0]).max() <= 1


def test_colour_with_alpha_lies_on_white(tmp_path: Path) -> None:
    colour = RNG.integers(0, 256, (8, 32, 3), dtype=np.uint8)
    Image.fromarray(np.dstack([colour, ALPHA])).save(tmp_path / "a.png")
    picture = read_rgb(tmp_path / "a.png")
    assert np.abs(picture - on_white(colour, ALPHA)).max() <= 1
    np.testing.assert_array_equal(picture[ALPHA == 255], colour[ALPHA == 255])
    np.testing.assert_array_equal(picture[ALPHA == 0], 255)
    np.testing.assert_array_equal(read_gray(tmp_path / "a.png"), rgb_to_gray(picture))


@pytest.mark.parametrize("suffix", ["png", "gif"])
def test_palette_with_a_transparent_entry(tmp_path: Path, suffix: str) -> None:
    colours = np.array([[200, 10, 30], [0, 255, 0], [17, 18, 19]], dtype=np.uint8)
    indices = RNG.integers(0, 3, (9, 5), dtype=np.uint8)
    image = Image.fromarray(indices)
    image.putpalette(colours.tobytes())
    image.save(tmp_path / f"a.{suffix}", transparency=1)
    expected = np.array([[200, 10, 30], [255, 255, 255], [17, 18, 19]])[indices]
    np.testing.assert_array_equal(read_rgb(tmp_path / f"a.{suffix}"), expected)


def test_palette_without_transparency_and_with_partial_alpha(tmp_path: Path) -> None:
    colours = RNG.integers(0, 256, (256, 3), dtype=np.uint8)
    image = Image.fromarray(GRAY)
    image.putpalette(colours.tobytes())
    image.save(tmp_path / "opaque.png")
    image.save(tmp_path / "partial.png", transparency=ALPHA.tobytes())
    np.testing.assert_array_equal(read_rgb(tmp_path / "opaque.png"), colours[GRAY])
    assert np.abs(read_rgb(tmp_path / "partial.png") - on_white(colours[GRAY], ALPHA)).max() <= 1


def test_colour_key_transparency(tmp_path: Path) -> None:
    key = tuple(int(value) for value in RGB[3, 4])
    Image.fromarray(RGB).save(tmp_path / "rgb.png", transparency=key)
    Image.fromarray(GRAY).save(tmp_path / "gray.png", transparency=40)
    np.testing.assert_array_equal(
        read_rgb(tmp_path / "rgb.png"), np.where(np.all(key == RGB, axis=-1, keepdims=True), 255, RGB)
    )
    np.testing.assert_array_equal(read_gray(tmp_path / "gray.png"), np.where(GRAY == 40, 255, GRAY))


@pytest.mark.parametrize("suffix", ["tif", "jpg"])
def test_cmyk(tmp_path: Path, suffix: str) -> None:
    inks = np.broadcast_to(np.array([30, 100, 200, 40], dtype=np.uint8), (16, 16, 4))
    Image.fromarray(np.ascontiguousarray(inks), mode="CMYK").save(tmp_path / f"a.{suffix}")
    assert read_picture(tmp_path / f"a.{suffix}").mode == "CMYK"
    expected = (255 - inks[..., :3].astype(float)) * (255 - 40) / 255
    assert np.abs(read_rgb(tmp_path / f"a.{suffix}") - expected).max() <= 3


def test_ycbcr(tmp_path: Path) -> None:
    ycbcr = np.array([[[100, 128, 128], [150, 90, 170], [80, 160, 110]]], dtype=np.uint8)
    Image.fromarray(ycbcr, mode="YCbCr").save(tmp_path / "a.tif")
    assert read_picture(tmp_path / "a.tif").mode == "YCbCr"
    luma, blue, red = (ycbcr[..., channel] - float(centre) for channel, centre in enumerate((0, 128, 128)))
    expected = np.stack([luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue], axis=-1)
    assert np.abs(read_rgb(tmp_path / "a.tif") - expected).max() <= 1


@pytest.mark.parametrize("lightness", [0, 255])
def test_lab(tmp_path: Path, lightness: int) -> None:
    Image.new("LAB", (4, 3), (lightness, 128, 128)).save(tmp_path / "a.tif")
    assert read_picture(tmp_path / "a.tif").mode == "LAB"
    assert np.abs(read_rgb(tmp_path / "a.tif").astype(int) - lightness).max() <= 1


@pytest.mark.parametrize(("suffix", "kind"), [("png", np.uint16), ("tif", np.uint16), ("tif", np.int32)])
def test_sixteen_bits_are_scaled_and_rounded(tmp_path: Path, suffix: str, kind: type[np.integer]) -> None:
    values = np.arange(65536).astype(kind).reshape(256, 256)
    Image.fromarray(values).save(tmp_path / f"a.{suffix}")
    expected = np.rint(np.arange(65536).reshape(256, 256) * (255 / 65535))
    np.testing.assert_array_equal(read_gray(tmp_path / f"a.{suffix}"), expected)
    np.testing.assert_array_equal(read_rgb(tmp_path / f"a.{suffix}")[..., 2], expected)


def test_float_in_unit_range_is_scaled_and_rounded(tmp_path: Path) -> None:
    Image.fromarray(GRAY.astype(np.float32) / 255).save(tmp_path / "a.tif")
    assert read_picture(tmp_path / "a.tif").mode == "F"
    np.testing.assert_array_equal(read_gray(tmp_path / "a.tif"), GRAY)
    np.testing.assert_array_equal(read_rgb(tmp_path / "a.tif"), three(GRAY))


ORIENTATIONS: dict[int, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {  # stored to seen, EXIF 2.32 table
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).transpose(1, 0, 2),
    8: lambda x: np.rot90(x, 1),
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_exif_rotation(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(RGB).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(read_rgb(tmp_path / "a.png"), ORIENTATIONS[orientation](RGB))


def test_exif_rotation_of_sixteen_bits(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    values = RNG.integers(0, 65536, (3, 5)).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(read_gray(tmp_path / "a.png"), np.rint(np.rot90(values, -1) / 257))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_leaves_the_pixels(tmp_path: Path) -> None:
    Image.fromarray(RGB).save(tmp_path / "a.png", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    np.testing.assert_array_equal(read_rgb(tmp_path / "a.png"), RGB)


def test_the_first_frame_of_an_animation_is_read(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((4, 6), value, dtype=np.uint8)) for value in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(read_gray(tmp_path / "a.gif"), 10)


def test_large_pictures_are_converted_in_blocks_without_a_seam() -> None:
    rgb = RNG.integers(0, 256, (5, 2**19 + 3, 3), dtype=np.uint8)
    weights = np.array([0.298936021293776, 0.587043074451121, 0.114020904255103])
    np.testing.assert_array_equal(rgb_to_gray(rgb), np.floor(rgb @ weights + 0.5))


def test_rgb_to_gray_refuses_other_arrays() -> None:
    with pytest.raises(ValueError, match=r"shape \[4, 5\] and dtype uint8"):
        rgb_to_gray(np.zeros((4, 5), dtype=np.uint8))
    with pytest.raises(ValueError, match="dtype float64"):
        rgb_to_gray(np.zeros((4, 5, 3)))  # type: ignore[arg-type]


def png_header(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"")
    chunks = [struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) for body in (header, data)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def encoded(tmp_path: Path, image: Image.Image, suffix: str) -> bytes:
    image.save(tmp_path / f"whole.{suffix}")
    return (tmp_path / f"whole.{suffix}").read_bytes()


NOISE = Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))
BAD: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "empty.png": (lambda _: b"", "the file is empty"),
    "text.png": (lambda _: b"not a picture at all\n" * 50, "not a picture"),
    "drawing.svg": (lambda _: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture"),
    "truncated.png": (lambda tmp: encoded(tmp, NOISE, "png")[:3000], "truncated"),
    "truncated.jpg": (lambda tmp: encoded(tmp, NOISE, "jpg")[:1500], "truncated"),
    "truncated.tif": (lambda tmp: encoded(tmp, NOISE, "tif")[:3000], "unreadable picture|not a picture"),
    "header-only.png": (lambda tmp: encoded(tmp, NOISE, "png")[:12], "unreadable picture|not a picture"),
    "flipped-bits.png": (
        lambda tmp: bytes(byte ^ 255 if 60 < at < 90 else byte for at, byte in enumerate(encoded(tmp, NOISE, "png"))),
        "unreadable picture",
    ),
    "bomb.png": (lambda _: png_header(60_000, 60_000), f"more than the {MAX_PIXELS:,} pixels allowed"),
    "large.png": (lambda _: png_header(15_001, 10_000), f"more than the {MAX_PIXELS:,} pixels allowed"),
    "bright.tif": (lambda tmp: encoded(tmp, Image.new("F", (4, 4), 200.0), "tif"), "float values from 200 to 200"),
    "nan.tif": (lambda tmp: encoded(tmp, Image.new("F", (4, 4), float("nan")), "tif"), "float values from nan"),
    "deep.tif": (lambda tmp: encoded(tmp, Image.new("I", (4, 4), 70_000), "tif"), "from 70000 to 70000"),
    "negative.tif": (lambda tmp: encoded(tmp, Image.new("I", (4, 4), -1), "tif"), "from -1 to -1"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("read", [read_rgb, read_gray])
@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line_that_names_them(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content(tmp_path))
    with pytest.raises(ValueError, match=message) as raised:
        read(tmp_path / name)
    assert str(raised.value).startswith(f"{tmp_path / name}: ")
    assert "\n" not in str(raised.value)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.png: no such file"):
        read_picture(tmp_path / "absent.png")
    with pytest.raises(ValueError, match="not a file"):
        read_picture(tmp_path)


def test_pillows_own_limits_are_left_alone(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK
    (tmp_path / "bomb.png").write_bytes(png_header(60_000, 60_000))
    with pytest.raises(ValueError, match="pixels allowed"):
        read_picture(tmp_path / "bomb.png")
    assert before == (Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK)


def test_list_pictures_is_recursive_sorted_and_skips_the_rest(tmp_path: Path) -> None:
    wanted = ["a/2.png", "a/3.JPG", "a/b/1.tiff", "a0.webp", "z.bmp"]
    for name in [*wanted, "notes.txt", ".hidden.png", ".git/x.png", "a/._2.png", "png"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list_pictures(str(tmp_path)) == [tmp_path / name for name in wanted]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
def test_list_pictures_follows_links_but_not_in_circles(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "1.png").touch()
    (tmp_path / "in" / "circle").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "out")
    assert list_pictures(tmp_path / "in") == [tmp_path / "in" / "linked" / "1.png"]


def test_list_pictures_refuses_nothing_to_list(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        list_pictures(tmp_path / "absent")
    with pytest.raises(ValueError, match="no picture in this folder"):
        list_pictures(tmp_path)
    (tmp_path / "a.png").touch()
    with pytest.raises(ValueError, match="a file where a folder"):
        list_pictures(tmp_path / "a.png")


def test_the_sample_picture_ships_and_is_worth_denoising() -> None:
    picture = sample_picture()
    assert picture.dtype == np.uint8
    assert picture.shape == (256, 384)
    sky, coat = picture[10:40, 250:350], picture[150:200, 30:90]
    assert sky.std() < 8 < 50 < picture.std()
    assert coat.mean() < 40 < 150 < sky.mean()
