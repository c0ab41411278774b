"""Every kind of picture, written by another library or by hand, is read as it was stored."""

import dataclasses
import struct

import numpy as np
import pytest
import tifffile
from kinds import SIZES, png, values
from PIL import Image

from recurconv import imaging

GRAY = np.arange(256, dtype=np.uint8).reshape(8, 32)
COLOUR = values("uint8", 8, 32, 3)
ALPHA = GRAY[::-1]


@pytest.fixture
def saved(tmp_path):
    """``saved(image, "png", ...)``: the file that Pillow writes."""

    def save(image, suffix, **options):
        image = image if isinstance(image, Image.Image) else Image.fromarray(image)
        image.save(tmp_path / f"a.{suffix}", **options)
        return tmp_path / f"a.{suffix}"

    return save


def assert_holds(picture, pixels, alpha=None):
    assert picture.pixels.dtype == pixels.dtype
    np.testing.assert_array_equal(picture.pixels, pixels)
    assert (picture.alpha is None) == (alpha is None)
    if alpha is not None:
        assert picture.alpha.dtype == alpha.dtype
        np.testing.assert_array_equal(picture.alpha, alpha)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_png(tmp_path, dtype, channels, size):
    stored = values(dtype, *size, channels)
    (tmp_path / "a.png").write_bytes(png(stored))
    picture = imaging.read(str(tmp_path / "a.png"))
    colour, alpha = channels >= 3, channels in (2, 4)
    assert_holds(picture, stored[..., :3] if colour else stored[..., 0], stored[..., -1] if alpha else None)
    assert picture.white == np.iinfo(dtype).max
    assert (picture.format, picture.source) == ("PNG", tmp_path / "a.png")


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_tiff(tmp_path, dtype, channels, big):
    stored = values(dtype, 7, 5, channels)
    colour, alpha = channels >= 3, channels in (2, 4)
    tifffile.imwrite(
        tmp_path / "a.tif",
        stored if channels > 1 else stored[..., 0],
        photometric="rgb" if colour else "minisblack",
        planarconfig="contig" if channels > 1 else None,
        extrasamples=["unassalpha"] if alpha else None,
        bigtiff=big,
    )
    picture = imaging.read(tmp_path / "a.tif")
    assert_holds(picture, stored[..., :3] if colour else stored[..., 0], stored[..., -1] if alpha else None)
    assert picture.white == (1 if dtype == "float32" else np.iinfo(dtype).max)


def test_tiff_by_planes_with_white_as_0_and_of_half_floats(tmp_path):
    planes = values("uint16", 3, 6, 9)
    tifffile.imwrite(tmp_path / "planes.tif", planes, photometric="rgb", planarconfig="separate")
    assert_holds(imaging.read(tmp_path / "planes.tif"), np.moveaxis(planes, 0, -1))
    tifffile.imwrite(tmp_path / "white.tif", GRAY, photometric="miniswhite")
    assert_holds(imaging.read(tmp_path / "white.tif"), 255 - GRAY)
    half = values("float32", 6, 9).astype(np.float16)
    tifffile.imwrite(tmp_path / "half.tif", half)
    assert_holds(imaging.read(tmp_path / "half.tif"), half.astype(np.float32))


def test_colours_multiplied_by_alpha_are_divided(tmp_path):
    alpha = np.array([[0, 51, 128, 255]], np.uint8)
    stored = np.dstack([np.minimum(alpha, value) for value in (20, 40, 51)] + [alpha])
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="rgb", extrasamples=["assocalpha"])
    picture = imaging.read(tmp_path / "a.tif")
    np.testing.assert_array_equal(picture.alpha, alpha)
    expected = stored[..., :3] / np.maximum(alpha, 1)[..., None] * 255.0
    assert np.abs(picture.pixels - expected)[alpha > 0].max() <= 1


def test_one_bit_and_four_bits_of_gray(saved):
    bits = GRAY % 3 == 0
    expected = np.where(bits, 255, 0).astype(np.uint8)
    assert_holds(imaging.read(saved(bits, "png")), expected)
    assert_holds(imaging.read(saved(bits, "tif", compression="group4")), expected)
    assert_holds(imaging.read(saved(bits, "pbm")), expected)
    assert_holds(imaging.read(saved(bits, "bmp")), expected)


@pytest.mark.parametrize("suffix", ["png", "gif", "tif", "bmp"])
def test_a_palette_becomes_colour(saved, suffix):
    colours, indices = values("uint8", 16, 3), values("uint8", 9, 5) % 16
    image = Image.fromarray(indices)
    image.putpalette(colours.tobytes())
    assert_holds(imaging.read(saved(image, suffix)), colours[indices])


def test_a_palette_with_transparency_becomes_colour_with_alpha(saved):
    colours, indices = values("uint8", 16, 3), values("uint8", 9, 5) % 16
    opacity = values("uint8", 16)
    image = Image.fromarray(indices)
    image.putpalette(colours.tobytes())
    picture = imaging.read(saved(image, "png", transparency=opacity.tobytes()))
    assert_holds(picture, colours[indices], opacity[indices])
    picture = imaging.read(saved(image, "gif", transparency=3))
    seen = indices != 3
    np.testing.assert_array_equal(picture.alpha, np.where(seen, 255, 0))
    np.testing.assert_array_equal(picture.pixels[seen], colours[indices][seen])


def test_a_transparent_colour_becomes_alpha(saved):
    key = tuple(int(value) for value in COLOUR[3, 4])
    picture = imaging.read(saved(COLOUR, "png", transparency=key))
    assert_holds(picture, COLOUR, np.where(np.all(key == COLOUR, axis=-1), 0, 255).astype(np.uint8))


@pytest.mark.parametrize("suffix", ["bmp", "ppm", "webp"])
def test_other_lossless_formats(saved, suffix):
    assert_holds(imaging.read(saved(COLOUR, suffix, **({"lossless": True} if suffix == "webp" else {}))), COLOUR)


def test_alpha_of_webp_and_bmp(saved, tmp_path):
    both = np.dstack([COLOUR, ALPHA])
    assert_holds(imaging.read(saved(both, "webp", lossless=True, exact=True)), COLOUR, ALPHA)
    # Pillow writes no alpha into BMP: a BITMAPV4HEADER with bit masks for B, G, R and A
    masks = struct.pack("<4L", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    header = struct.pack("<LllHHL5L", 108, 32, -8, 1, 32, 3, 0, 0, 0, 0, 0) + masks + bytes(52)
    data = both[..., [2, 1, 0, 3]].tobytes()
    start = b"BM" + struct.pack("<LHHL", 122 + len(data), 0, 0, 122)
    (tmp_path / "a.bmp").write_bytes(start + header + data)
    assert_holds(imaging.read(tmp_path / "a.bmp"), COLOUR, ALPHA)


def test_pnm_of_8_and_16_bits(saved):
    assert_holds(imaging.read(saved(GRAY, "pgm")), GRAY)
    deep = values("uint16", 5, 7)
    assert_holds(imaging.read(saved(deep, "pgm")), deep)


@pytest.mark.parametrize("suffix", ["jpg", "avif"])
@pytest.mark.parametrize("colour", [False, True])
def test_lossy_formats_as_pillow_decodes_them(saved, suffix, colour):
    smooth = np.add.outer(np.arange(24), np.arange(32)).astype(np.uint8) * 2
    stored = np.stack([smooth, smooth[::-1], smooth[:, ::-1]], axis=-1) if colour else smooth
    path = saved(stored, suffix, quality=95)
    with Image.open(path) as image:
        expected = np.asarray(image.convert("RGB"))
    pixels = imaging.read(path).pixels
    # The two may enlarge the halved colour of the files differently.
    differences = np.abs((pixels if pixels.ndim == 3 else pixels[..., None]).astype(int) - expected)
    assert differences.max() <= 12
    assert differences.mean() < 2


def test_a_file_whose_name_looks_like_an_option_of_libvips(tmp_path):
    stored = values("uint8", 5, 7, 3)
    (tmp_path / "a[shrink=2].png").write_bytes(png(stored))
    assert_holds(imaging.read(tmp_path / "a[shrink=2].png"), stored)


def test_the_content_decides_and_not_the_name(tmp_path):
    stored = values("uint8", 5, 7, 3)
    (tmp_path / "a.jpg").write_bytes(png(stored))
    assert_holds(imaging.read(tmp_path / "a.jpg"), stored)


def test_a_file_that_changes_is_read_anew(tmp_path):
    for _ in range(2):
        stored = values("uint8", 5, 7, 3)
        (tmp_path / "a.png").write_bytes(png(stored))
        assert_holds(imaging.read(tmp_path / "a.png"), stored)


def test_float_values_that_noise_took_beyond_black_and_white(tmp_path):
    pixels = np.linspace(-0.2, 1.2, 30, dtype=np.float32).reshape(5, 6)
    tifffile.imwrite(tmp_path / "a.tif", pixels)
    np.testing.assert_array_equal(imaging.read(tmp_path / "a.tif").pixels, pixels)


def test_a_picture_refuses_what_is_none():
    with pytest.raises(ValueError, match=r"pixels are int64 \[2, 2\]; they must be uint8, uint16 or float32"):
        imaging.Picture(np.zeros((2, 2), np.int64))
    with pytest.raises(ValueError, match=r"\[2, 2, 4\]"):
        imaging.Picture(np.zeros((2, 2, 4), np.uint8))
    with pytest.raises(ValueError, match="at least one pixel"):
        imaging.Picture(np.zeros((0, 2), np.uint8))
    picture = imaging.Picture(np.zeros((2, 3, 3), np.uint8))
    with pytest.raises(ValueError, match=r"alpha is uint16 \[2, 3\]; it must be uint8 \[2, 3\]"):
        dataclasses.replace(picture, alpha=np.zeros((2, 3), np.uint16))
