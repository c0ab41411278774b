"""What is written holds, to other libraries, exactly what the picture holds."""

import dataclasses
import io
import os
import struct

import numpy as np
import pytest
import tifffile
import torch
from kinds import SIZES, exif_with_thumbnail, png, png_chunk, values
from PIL import Image, ImageCms, ImageOps, IptcImagePlugin, PngImagePlugin
from PIL.TiffImagePlugin import IFDRational
from torchvision.io import ImageReadMode, decode_image

from recurconv import imaging

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")

ICC = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/></x:xmpmeta>'
TURNED = {  # EXIF 2.32, tag 274: stored to seen
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).swapaxes(0, 1),
    8: lambda x: np.rot90(x, 1),
}


def stacked(picture):
    """Pixels and alpha as one array `[H, W, channels]`."""
    pixels = picture.pixels if picture.pixels.ndim == 3 else picture.pixels[..., None]
    return pixels if picture.alpha is None else np.dstack([pixels, picture.alpha])


def decoded(path):
    """What another library than libvips reads, `[H, W, channels]`."""
    if path.suffix in (".png", ".webp"):
        return torch.movedim(decode_image(str(path), mode=ImageReadMode.UNCHANGED), 0, -1).numpy()
    if path.suffix == ".tif":
        pixels = tifffile.imread(path)
    elif path.suffix in (".pgm", ".ppm"):
        data = path.read_bytes()
        magic, width, height, white = data.split(None, 4)[:4]
        shape = int(height), int(width), {b"P5": 1, b"P6": 3}[magic]
        kind = np.dtype(">u2" if int(white) > 255 else "u1")
        raw = data[-kind.itemsize * shape[0] * shape[1] * shape[2] :]
        pixels = np.frombuffer(raw, kind).reshape(shape).astype(kind.newbyteorder("="))
    else:
        with Image.open(path) as image:
            pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def made(dtype, channels, size):
    whole = values(dtype, *size, channels)
    pixels = np.ascontiguousarray(whole[..., :3] if channels >= 3 else whole[..., 0])
    return imaging.Picture(pixels, np.ascontiguousarray(whole[..., -1]) if channels in (2, 4) else None)


HELD = (
    [(".png", dtype, channels) for dtype in ("uint8", "uint16") for channels in (1, 2, 3, 4)]
    + [(".tif", dtype, channels) for dtype in ("uint8", "uint16", "float32") for channels in (1, 2, 3, 4)]
    + [(".webp", "uint8", 3), (".webp", "uint8", 4), (".bmp", "uint8", 3), (".bmp", "uint8", 1)]
    + [(".ppm", "uint8", 3), (".pgm", "uint8", 1), (".pgm", "uint16", 1)]
)


@pytest.mark.parametrize("size", [(7, 5), (16, 20)])
@pytest.mark.parametrize(("suffix", "dtype", "channels"), HELD)
def test_lossless_formats_lose_nothing(tmp_path, suffix, dtype, channels, size):
    picture = made(dtype, channels, size)
    imaging.write(picture, tmp_path / f"a{suffix}")
    found = decoded(tmp_path / f"a{suffix}")
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.reshape(*size, channels), stacked(picture))
    np.testing.assert_array_equal(stacked(imaging.read(tmp_path / f"a{suffix}")), stacked(picture))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("suffix", imaging.WRITABLE_SUFFIXES)
def test_every_format_and_size_comes_back(tmp_path, suffix, size):
    picture = made("uint8", 1 if suffix == ".pgm" else 3, size)
    imaging.write(picture, tmp_path / f"a{suffix.upper()}")
    again = imaging.read(tmp_path / f"a{suffix.upper()}")
    assert again.pixels.shape == picture.pixels.shape
    if suffix not in (".jpg", ".jpeg", ".jpe", ".jfif"):
        np.testing.assert_array_equal(again.pixels, picture.pixels)


def test_jpeg_keeps_colour_at_full_resolution_and_high_quality(tmp_path):
    stripes = np.zeros((16, 16, 3), np.uint8)
    stripes[:, ::2, 0], stripes[:, 1::2, 2] = 200, 200  # lost if colour were halved
    imaging.write(imaging.Picture(stripes), tmp_path / "a.jpg")
    assert np.abs(decoded(tmp_path / "a.jpg").astype(int) - stripes).max() < 16


def test_views_are_written_as_they_look(tmp_path):
    whole = values("uint8", 6, 9, 4)
    picture = imaging.Picture(whole[::-1, :, 2::-1], whole[::-1, :, 3])
    imaging.write(picture, tmp_path / "a.png")
    np.testing.assert_array_equal(decoded(tmp_path / "a.png"), stacked(picture))


def rich(tmp_path, suffix, orientation=1):
    """A file of Pillow's with all sorts of metadata: its path and the pixels that it stores."""
    pixels = values("uint8", 6, 9, 3)
    exif = Image.Exif()
    exif.update({0x112: orientation, 0x10F: "Maker", 0x132: "2020:01:02 03:04:05", 0x8298: "Who"})
    exif.get_ifd(0x8769).update({0x829A: IFDRational(1, 125), 0x920A: IFDRational(50, 1), 0x927C: b"Note\0\1\2\3"})
    exif.get_ifd(0x8825).update({1: "N", 2: (IFDRational(10), IFDRational(20), IFDRational(61, 2))})
    options = {"exif": exif, "icc_profile": ICC}
    if suffix == ".png":
        options["pnginfo"] = PngImagePlugin.PngInfo()
        options["pnginfo"].add_text("Title", "A title")
        options["pnginfo"].add_itxt("XML:com.adobe.xmp", XMP.decode())
    else:
        options["xmp"] = XMP
    if suffix == ".webp":
        options["lossless"] = True
    else:
        options["dpi"] = (300, 200)
    Image.fromarray(pixels).save(tmp_path / f"in{suffix}", **options)
    return tmp_path / f"in{suffix}", pixels


def facts(path):
    """Metadata as Pillow reads it: named values that must not get lost."""
    with Image.open(path) as image:
        exif = image.getexif()
        shot, place = exif.get_ifd(0x8769), exif.get_ifd(0x8825)
        info = {**image.info, **image.text} if image.format == "PNG" else image.info
        return {
            "maker": exif.get(0x10F),
            "time": exif.get(0x132),
            "copyright": exif.get(0x8298),
            "exposure": shot.get(0x829A),
            "length": shot.get(0x920A),
            "note": shot.get(0x927C),
            "latitude": (place.get(1), place.get(2)),
            "profile": info.get("icc_profile"),
            "xmp": bytes(info.get("xmp") or info.get("XML:com.adobe.xmp", "").encode()),
        }


EXPECTED = {
    "maker": "Maker",
    "time": "2020:01:02 03:04:05",
    "copyright": "Who",
    "exposure": 1 / 125,
    "length": 50,
    "note": b"Note\0\1\2\3",
    "latitude": ("N", (10, 20, 30.5)),
    "profile": ICC,
    "xmp": XMP,
}


@pytest.mark.parametrize("target", [".jpg", ".png", ".tif", ".webp"])
@pytest.mark.parametrize("source", [".jpg", ".png", ".webp"])
def test_profile_and_metadata_are_kept(tmp_path, source, target):
    path, _ = rich(tmp_path, source)
    assert facts(path) == EXPECTED
    imaging.write(imaging.read(path), tmp_path / f"out{target}")
    assert facts(tmp_path / f"out{target}") == EXPECTED
    if target == ".tif":  # and back
        imaging.write(imaging.read(tmp_path / "out.tif"), tmp_path / "back.jpg")
        assert facts(tmp_path / "back.jpg") == EXPECTED


def test_profile_and_metadata_of_sixteen_bit_pictures(tmp_path):
    path, _ = rich(tmp_path, ".jpg")
    deep = dataclasses.replace(imaging.read(path), pixels=values("uint16", 6, 9, 3), source=None)
    imaging.write(deep, tmp_path / "a.tif")
    imaging.write(imaging.read(tmp_path / "a.tif"), tmp_path / "b.png")
    assert facts(tmp_path / "b.png") == EXPECTED
    np.testing.assert_array_equal(decoded(tmp_path / "b.png"), deep.pixels)


def test_iptc_is_kept(tmp_path):
    record = b"\x1c\x02\x78\x00\x09A caption" + b"\0"  # IIM 2:120
    block = b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0" + struct.pack(">L", 14) + record[:14]
    Image.fromarray(values("uint8", 8, 8, 3)).save(
        tmp_path / "a.jpg", extra=b"\xff\xed" + struct.pack(">H", len(block) + 2) + block
    )
    imaging.write(imaging.read(tmp_path / "a.jpg"), tmp_path / "b.jpg")
    for name in ("a.jpg", "b.jpg"):
        with Image.open(tmp_path / name) as image:
            assert IptcImagePlugin.getiptcinfo(image) == {(2, 120): b"A caption"}


def test_text_of_png_is_kept_in_every_encoding(tmp_path):
    texts = PngImagePlugin.PngInfo()
    texts.add_text("Copyright", "© Jürgen")  # Latin-1
    texts.add_itxt("Author", "Łukasz €")  # UTF-8
    texts.add_text("Long", "long " * 99, zip=True)
    texts.add_text("Raw profile type exif", "exif 0")  # would turn the picture again
    Image.fromarray(values("uint8", 5, 7, 3)).save(tmp_path / "a.png", pnginfo=texts)
    imaging.write(imaging.read(tmp_path / "a.png"), tmp_path / "b.png")
    imaging.write(imaging.read(tmp_path / "b.png"), tmp_path / "c.png")
    with Image.open(tmp_path / "c.png") as image:
        assert image.text == {"Copyright": "© Jürgen", "Author": "Łukasz €", "Long": "long " * 99}
    assert (tmp_path / "b.png").read_bytes() == (tmp_path / "c.png").read_bytes()


def test_gamma_and_primaries_of_png_are_kept(tmp_path):
    gamma = png_chunk(b"gAMA", struct.pack(">L", 100_000))
    primaries = png_chunk(b"cHRM", struct.pack(">8L", 31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000))
    data = png(values("uint16", 5, 7, 3))
    (tmp_path / "a.png").write_bytes(data[:33] + gamma + primaries + data[33:])
    picture = imaging.read(tmp_path / "a.png")
    imaging.write(picture, tmp_path / "b.png")
    written = (tmp_path / "b.png").read_bytes()
    assert written.count(gamma) == written.count(primaries) == 1
    np.testing.assert_array_equal(decoded(tmp_path / "b.png"), picture.pixels)
    with Image.open(tmp_path / "b.png") as image:
        assert image.info["gamma"] == 1
        image.load()


def test_texts_of_tiff_are_kept_in_their_encoding(tmp_path):
    described = {270: "© Jürgen".encode("latin-1"), 305: "Łukasz".encode(), 315: b"abc"}
    Image.fromarray(values("uint8", 5, 7, 3)).save(tmp_path / "a.tif", tiffinfo=described)
    imaging.write(imaging.read(tmp_path / "a.tif"), tmp_path / "b.tif")
    imaging.write(imaging.read(tmp_path / "b.tif"), tmp_path / "c.jpg")
    for name in ("b.tif", "c.jpg"):
        with Image.open(tmp_path / name) as image:
            exif = image.getexif()
        assert {tag: exif[tag].encode("latin-1") for tag in described} == described


def test_what_has_no_metadata_gets_none(tmp_path):
    for suffix in (".png", ".jpg", ".tif", ".webp"):
        imaging.write(made("uint8", 3, (5, 7)), tmp_path / f"a{suffix}")
        with Image.open(tmp_path / f"a{suffix}") as image:
            assert not image.info.get("exif")
            assert not image.info.get("icc_profile")


@pytest.mark.parametrize("target", [".jpg", ".png", ".tif"])
@pytest.mark.parametrize("source", [".jpg", ".png", ".tif", ".bmp"])
def test_resolution_is_kept_and_turned(tmp_path, source, target):
    for orientation in (1, 6):
        path, _ = rich(tmp_path, source, orientation)
        imaging.write(imaging.read(path), tmp_path / f"out{target}", overwrite=True)
        with Image.open(tmp_path / f"out{target}") as image:
            exif = image.getexif()
            dots = (exif[282], exif[283]) if target == ".jpg" else image.info["dpi"]
        turned = orientation == 6 and source != ".bmp"
        assert dots == pytest.approx((200, 300) if turned else (300, 200), abs=0.05)


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("suffix", [".png", ".webp", ".tif"])
def test_a_turned_picture_is_upright_in_memory_and_in_the_file(tmp_path, suffix, orientation):
    path, stored = rich(tmp_path, suffix, orientation)
    picture = imaging.read(path)
    np.testing.assert_array_equal(picture.pixels, TURNED[orientation](stored))
    for target in (".png", ".tif", ".jpg"):
        imaging.write(picture, tmp_path / f"out{target}", overwrite=True)
        with Image.open(tmp_path / f"out{target}") as image:
            assert image.getexif().get(0x112, 1) == 1
            assert image.size == (picture.pixels.shape[1], picture.pixels.shape[0])
            if target != ".jpg":
                np.testing.assert_array_equal(ImageOps.exif_transpose(image), picture.pixels)


def test_xmp_says_upright_too(tmp_path):
    forms = (b'tiff:Orientation="6"', b"<tiff:Orientation>6</tiff:Orientation>")
    for form, upright in zip(forms, (form.replace(b"6", b"1") for form in forms), strict=True):
        picture = imaging.Picture(values("uint8", 6, 5, 3), metadata={"xmp-data": b"<x " + form + b"/>"})
        imaging.write(picture, tmp_path / "a.png", overwrite=True)
        assert imaging.read(tmp_path / "a.png").metadata["xmp-data"] == b"<x " + upright + b"/>"


def test_a_name_of_255_bytes_and_one_that_is_no_utf8(tmp_path):
    for name in ("\u5199" * 83 + ".png", os.fsdecode(b"caf\xe9.png")):
        picture = imaging.Picture(values("uint8", 6, 5, 3), metadata={"png-chunks": png_chunk(b"tEXt", b"a\0b")})
        imaging.write(picture, tmp_path / name)
        np.testing.assert_array_equal(imaging.read(tmp_path / name).pixels, picture.pixels)


def test_a_link_to_nowhere_is_not_replaced_unasked(tmp_path):
    (tmp_path / "a.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(FileExistsError, match="is there already"):
        imaging.write(imaging.Picture(values("uint8", 6, 5, 3)), tmp_path / "a.png")
    assert (tmp_path / "a.png").is_symlink()


def test_a_thumbnail_of_the_picture_before_is_dropped(tmp_path):
    thumbnail = io.BytesIO()
    Image.fromarray(values("uint8", 8, 8, 3)).save(thumbnail, "JPEG")
    exif = exif_with_thumbnail(thumbnail.getvalue(), 6)
    Image.fromarray(values("uint8", 16, 24, 3)).save(tmp_path / "a.jpg", exif=exif)
    assert thumbnail.getvalue() in (tmp_path / "a.jpg").read_bytes()
    for suffix in (".jpg", ".png", ".webp", ".tif"):
        imaging.write(imaging.read(tmp_path / "a.jpg"), tmp_path / f"out{suffix}")
        assert thumbnail.getvalue() not in (tmp_path / f"out{suffix}").read_bytes()


def test_a_profile_that_is_none_is_dropped_and_a_padded_one_cut(tmp_path):
    pixels = values("uint8", 5, 7, 3)
    for stored, kept in ((ICC + b"\0\0", ICC), (b"\xff" + ICC[1:], None), (ICC[:100], None), (bytes(200), None)):
        Image.fromarray(pixels).save(tmp_path / "a.tif", icc_profile=stored)
        picture = imaging.read(tmp_path / "a.tif")
        assert picture.profile == kept
        imaging.write(picture, tmp_path / "b.png", overwrite=True)
        with Image.open(tmp_path / "b.png") as image:
            assert image.info.get("icc_profile") == kept


def test_an_absurd_resolution_is_dropped(tmp_path):
    phys = png_chunk(b"pHYs", struct.pack(">LLB", 2**31 - 1, 2**31 - 1, 1))
    data = png(values("uint8", 5, 7, 3))
    (tmp_path / "a.png").write_bytes(data[:33] + phys + data[33:])
    assert imaging.read(tmp_path / "a.png").resolution is None


@pytest.mark.parametrize("block", [b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"])
def test_damaged_exif_leaves_the_pixels(tmp_path, block):
    pixels = values("uint8", 16, 24, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=block)
    for suffix in (".png", ".tif"):
        imaging.write(imaging.read(tmp_path / "a.png"), tmp_path / f"out{suffix}")
        np.testing.assert_array_equal(decoded(tmp_path / f"out{suffix}"), pixels)


def test_suffix_for_gives_one_that_holds_the_picture():
    gray, deep = made("uint8", 1, (2, 2)), made("uint16", 4, (2, 2))
    assert imaging.suffix_for(gray, ".jpg") == ".jpg"
    assert imaging.suffix_for(gray, ".JPEG") == ".JPEG"
    assert imaging.suffix_for(gray, ".gif") == ".png"
    assert imaging.suffix_for(deep, ".jpg") == ".png"
    assert imaging.suffix_for(deep, ".tiff") == ".tiff"
    assert imaging.suffix_for(made("float32", 3, (2, 2)), ".png") == ".tif"


def test_the_same_picture_gives_the_same_file(tmp_path):
    (tmp_path / "in.png").write_bytes(png(values("uint8", 9, 9, 3)))
    for name in ("a", "b"):
        imaging.write(imaging.read(tmp_path / "in.png"), tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
