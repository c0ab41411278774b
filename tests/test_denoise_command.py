"""``recurconv denoise`` as a user meets it: which files it reads and writes, what it keeps, says and refuses."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

import recurconv as rc
from conftest import brightening, python
from recurconv import imaging
from recurconv.cleaning import Cleaner, files
from recurconv.cleaning.noise import estimate_sigma

PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


@pytest.fixture
def gray(saved):
    """A gray model that adds 10 and 20 gray levels."""
    return saved(brightening({1: 10 / 255, 2: 20 / 255}), "gray-model")


@pytest.fixture
def colour(saved):
    return saved(brightening({1: 10 / 255, 2: 20 / 255}, image_channels=3), "colour-model")


def noisy(*shape, sigma=20, dtype=np.uint8):
    levels = 100 + sigma * np.random.default_rng(0).standard_normal(shape)
    return levels.clip(30, 170).astype(np.uint8).astype(dtype) * dtype(257 if dtype == np.uint16 else 1)


@pytest.fixture
def photos(tmp_path):
    """Three gray pictures in a folder, one of them further down."""
    folder = tmp_path / "photos"
    for name in ("a.png", "b.jpg", "further/down/c.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy(20, 30)).save(folder / name)
    return folder


def written(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# --- which files


def test_one_picture(command, gray, photos, tmp_path):
    out = tmp_path / "new" / "clean.png"
    done = command("denoise", photos / "a.png", "-o", out, "--model", gray, "--sigma", 20, "--steps", 1)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{photos / 'a.png'} -> {out}: 30 x 20, sigma 20, steps 1, ")
    assert done.out.count("\n") == 1
    assert np.array_equal(np.asarray(Image.open(out)), noisy(20, 30) + 10)


def test_a_folder_keeps_its_order(command, gray, photos, tmp_path):
    done = command("denoise", photos, "-o", tmp_path / "clean", "--model", gray, "--sigma", 20)
    assert (done.status, done.err) == (0, "")
    assert written(tmp_path / "clean") == ["a.png", "b.jpg", "further/down/c.png"]
    assert [line.split(" -> ")[0] for line in done.out.splitlines()] == [
        str(photos / name) for name in ("a.png", "b.jpg", "further/down/c.png")
    ]
    assert np.array_equal(np.asarray(Image.open(tmp_path / "clean/further/down/c.png")), noisy(20, 30) + 20)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.png", ["a.png"]),
        ("**/*.png", ["a.png", "further/down/c.png"]),
        ("*/*/?.png", ["further/down/c.png"]),
        ("[ab].*", ["a.png", "b.jpg"]),
    ],
)
def test_patterns(photos, tmp_path, pattern, found):
    jobs = files.jobs([str(photos / pattern)], tmp_path / "clean")
    assert [job.source for job in jobs] == [photos / name for name in found]
    assert [job.target for job in jobs] == [tmp_path / "clean" / name for name in found]


def test_a_file_whose_name_looks_like_a_pattern(photos, tmp_path):
    odd = photos / "[1].png"
    odd.write_bytes((photos / "a.png").read_bytes())
    assert files.jobs([str(odd)], tmp_path / "x.png") == [files.Job(odd, tmp_path / "x.png", named=True)]


def test_a_name_without_suffix_or_a_folder_that_is_there_is_a_folder(photos, tmp_path):
    (tmp_path / "there.png").mkdir()
    for out in (tmp_path / "clean", tmp_path / "there.png"):
        assert files.jobs([str(photos / "a.png")], out) == [files.Job(photos / "a.png", out / "a.png")]


def test_what_was_written_into_the_folder_is_not_read_again(command, gray, photos):
    words = ("denoise", photos, "-o", photos / "clean", "--model", gray, "--sigma", 20)
    assert command(*words).status == 0
    first = written(photos)
    done = command(*words, "--overwrite")
    assert (done.status, written(photos)) == (0, first)


def test_what_was_written_is_no_source_of_a_pattern_either(photos):
    out = photos / "clean"
    found = files.jobs([f"{photos}/**/*.png"], out)
    (out / "further" / "down").mkdir(parents=True)
    Image.fromarray(noisy(9, 7)).save(out / "further" / "down" / "c.png")
    assert files.jobs([f"{photos}/**/*.png"], out) == found


def test_the_same_picture_twice_is_done_once(photos, tmp_path):
    jobs = files.jobs([str(photos / "a.png"), str(photos)], tmp_path / "clean")
    assert [job.source for job in jobs] == [photos / name for name in ("a.png", "b.jpg", "further/down/c.png")]


def test_a_format_that_is_not_written_becomes_another(command, colour, tmp_path):
    Image.fromarray(noisy(20, 20, 3)).convert("P").save(tmp_path / "old.gif")
    done = command("denoise", tmp_path / "old.gif", "-o", tmp_path / "clean", "--model", colour, "--sigma", 20)
    assert (done.status, written(tmp_path / "clean")) == (0, ["old.gif.png"])
    assert f" -> {tmp_path / 'clean/old.gif.png'}: " in done.out


def test_two_pictures_never_become_one_file(command, colour, tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    gif, png = folder / "old.gif", folder / "old.gif.png"
    Image.fromarray(np.full((20, 20, 3), 51, np.uint8)).convert("P").save(gif)
    Image.fromarray(np.full((20, 20, 3), 120, np.uint8)).save(png)
    for sources in ([folder], [png, gif]):
        for options in ([], ["--overwrite"]):
            done = command("denoise", *sources, "-o", out, "--model", colour, "--sigma", 20, *options)
            first, second = (gif, png) if sources == [folder] else (png, gif)
            assert done.status == 1
            assert f"{first} and {second} would both become {out / 'old.gif.png'}; run them apart" in done.err
            assert (done.err.count("\n"), done.out.count("\n")) == (1, 1)
            assert (np.asarray(Image.open(out / "old.gif.png")) == (71 if first == gif else 140)).all()
            (out / "old.gif.png").unlink()


# --- what a picture keeps


def test_depth_profile_metadata_and_transparency_are_kept(command, gray, colour, tmp_path):
    """The room of pictures has the tests of each kind; this is that the command loses nothing on the way."""
    exif = Image.Exif()
    exif[0x010E], exif[0x0112] = "a cat", 6  # turned
    sent = Image.fromarray(noisy(20, 30, 4))
    sent.save(tmp_path / "a.png", exif=exif, dpi=(300, 300), icc_profile=PROFILE)
    imaging.write(imaging.Picture(noisy(9, 7, dtype=np.uint16)), tmp_path / "b.tif")
    imaging.write(imaging.Picture(noisy(9, 7, 3, dtype=np.uint16)), tmp_path / "c.png")
    imaging.write(imaging.Picture(noisy(9, 7).astype(np.float32) / 255), tmp_path / "d.tif")
    for name, model, levels in (("a.png", colour, 20), ("b.tif", gray, 20 * 257), ("d.tif", gray, 20 / 255)):
        assert command("denoise", tmp_path / name, "-o", tmp_path / "out", "--model", model, "--sigma", 25).status == 0
        before, after = imaging.read(tmp_path / name), imaging.read(tmp_path / "out" / name)
        assert after.pixels.dtype == before.pixels.dtype
        np.testing.assert_allclose(after.pixels, before.pixels + levels, atol=1e-6)
    after = Image.open(tmp_path / "out/a.png")
    assert after.size == (20, 30)  # upright
    assert (after.getexif()[0x010E], after.getexif().get(0x0112, 1)) == ("a cat", 1)
    assert after.info["icc_profile"] == PROFILE
    assert after.info["dpi"] == pytest.approx((300, 300), abs=0.1)
    assert np.array_equal(np.asarray(after)[..., 3], np.rot90(np.asarray(sent)[..., 3], 3))


def test_colour_under_full_transparency_changes_no_visible_pixel(command, saved, tmp_path):
    net = rc.r3_half(steps=(1, 2), channels=4, image_channels=3).eval()
    for parameter in net.parameters():
        parameter.data += 0.1
    model = saved(net)
    alpha = np.full((40, 40), 200, np.uint8)
    alpha[10:30, 15:40] = 0
    results = []
    for name, hidden in (("a", 0), ("b", 255)):
        pixels = noisy(40, 40, 3)
        pixels[alpha == 0] = hidden
        Image.fromarray(np.dstack([pixels, alpha])).save(tmp_path / f"{name}.png")
        done = command("denoise", tmp_path / f"{name}.png", "-o", tmp_path / "out", "--model", model)
        assert done.status == 0, done
        assert "steps 2" in done.out
        result = np.asarray(Image.open(tmp_path / "out" / f"{name}.png"))
        assert np.array_equal(result[..., 3], alpha)
        assert (result[alpha == 0, :3] == hidden).all()  # and comes out as it was
        assert not np.array_equal(result[alpha > 0, :3], pixels[alpha > 0])
        results.append(result[alpha > 0])
    assert np.array_equal(*results)


# --- noise and settings


def test_the_noise_that_was_found_is_said(command, gray, tmp_path):
    picture = noisy(128, 128, sigma=12)
    Image.fromarray(picture).save(tmp_path / "a.png")
    Image.fromarray(np.full((64, 64), 90, np.uint8)).save(tmp_path / "flat.png")
    done = command("denoise", tmp_path / "a.png", tmp_path / "flat.png", "-o", tmp_path / "out", "--model", gray)
    first, second = done.out.splitlines()
    assert f": 128 x 128, sigma {estimate_sigma(picture):.1f} found, steps 2, " in first
    assert ": 64 x 64, sigma 0.0 found, clean: left as it is, " in second
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out/flat.png")), np.full((64, 64), 90))


def test_noise_that_is_coarse_in_colour_is_said(command, tmp_path):
    pixels = noisy(96, 96, 3)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=95, subsampling=2)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    done = command("denoise", tmp_path / "a.jpg", tmp_path / "a.png", "-o", tmp_path / "out", "--steps", 1)
    first, second = done.out.splitlines()
    assert " found, coarse in colour, steps 1, " in first
    assert " found, steps 1, " in second


def test_a_picture_that_is_too_small_to_judge_is_named_so(command, gray, tmp_path):
    for size in ((7, 40), (8, 8)):
        Image.fromarray(noisy(*size)).save(tmp_path / "a.png")
        done = command("denoise", tmp_path / "a.png", "-o", tmp_path / "out.png", "--model", gray, "--overwrite")
        small = "40 x 7, too small to estimate its noise: left as it is; give --sigma, "
        assert (done.status, small in done.out, "found" in done.out) == (0, size == (7, 40), size == (8, 8))
        if size == (7, 40):
            assert np.array_equal(np.asarray(Image.open(tmp_path / "out.png")), noisy(*size))
    Image.fromarray(noisy(7, 40)).save(tmp_path / "a.png")
    done = command("denoise", tmp_path / "a.png", "-o", tmp_path / "b.png", "--model", gray, "--sigma", 20)
    assert ": 40 x 7, sigma 20, steps 2, " in done.out


def test_options_reach_the_cleaner(command, gray, photos, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("recurconv.cleaning.Cleaner", lambda model, **options: seen.append(options) or Cleaner(gray))
    command("denoise", photos / "a.png", "-o", tmp_path / "x.png", "--milliseconds", "2.5", "--tile", 99, "--sigma", 7)
    command("denoise", photos / "a.png", "-o", tmp_path / "y.png", "--steps", 1, "--device", "cpu")
    first, second = seen
    assert (first["milliseconds"], first["tile"], first["sigma"], first["steps"]) == (2.5, 99, 7.0, None)
    assert (second["milliseconds"], second["sigma"], second["steps"], str(second["device"])) == (None, "auto", 1, "cpu")


# --- what goes wrong


def test_the_other_pictures_go_on(command, gray, photos, tmp_path):
    (photos / "a2.png").write_text("no picture")
    (photos / "further" / "empty.png").touch()
    words = ("denoise", photos, photos / "none.png", "-o", tmp_path / "clean", "--model", gray, "--sigma", 20)
    done = command(*words)
    assert done.status == 1
    assert written(tmp_path / "clean") == ["a.png", "b.jpg", "further/down/c.png"]
    assert [line.split(": ")[1] for line in done.err.splitlines()] == [
        str(photos / "a2.png"),
        str(photos / "further" / "empty.png"),
        str(photos / "none.png"),
    ]
    (tmp_path / "clean" / "a.png").unlink()
    done = command(*words)  # now some are there
    assert done.status == 1
    assert done.out.count("\n") == 1
    assert f"{tmp_path / 'clean/b.jpg'} is there already; give --overwrite" in done.err


def test_too_little_memory_for_one_picture_does_not_stop_the_others(command, gray, photos, tmp_path, monkeypatch):
    clean = Cleaner.clean

    def cleaning(self, pixels, *arguments, **options):
        if pixels.shape == (9, 7):
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] can't allocate memory: you tried to")
        return clean(self, pixels, *arguments, **options)

    monkeypatch.setattr(Cleaner, "clean", cleaning)
    imaging.write(imaging.Picture(noisy(9, 7)), photos / "large.png")
    done = command("denoise", photos, "-o", tmp_path / "clean", "--model", gray, "--sigma", 20)
    assert done.status == 1
    assert done.err == f"recurconv: {photos / 'large.png'}: there is too little memory for it; take a smaller --tile\n"
    assert written(tmp_path / "clean") == ["a.png", "b.jpg", "further/down/c.png"]


def test_nothing_is_overwritten_unasked(refused, command, gray, photos, tmp_path):
    out = tmp_path / "out.png"
    out.write_text("precious")
    words = ("denoise", photos / "a.png", "-o", out, "--model", gray, "--sigma", 20)
    assert f"{out} is there already; give --overwrite" in refused(*words)
    assert out.read_text() == "precious"
    assert command(*words, "--overwrite").status == 0
    assert Image.open(out).size == (30, 20)
    before = (photos / "a.png").read_bytes()
    itself = ("denoise", photos / "a.png", "--model", gray, "--sigma", 20, "--overwrite", "-o")
    assert "would be replaced by its own result" in refused(*itself, photos / "a.png")
    assert "would be replaced by its own result" in refused(*itself, photos)
    through_new_folder = photos / "new" / ".." / "a.png"
    assert "would be replaced by its own result" in refused(*itself, through_new_folder)
    other = ("denoise", photos / "a.png", "--model", gray, "--sigma", 20, "-o", photos / "new" / ".." / "b.jpg")
    assert f"{(photos / 'b.jpg').resolve()} is there already" in refused(*other)
    assert not (photos / "new").exists()
    assert (photos / "a.png").read_bytes() == before


def test_bad_input(refused, gray, colour, photos, tmp_path):
    def says(reason, *words, out=tmp_path / "x.png", model=gray):
        assert reason in refused("denoise", *words, "-o", out, *(["--model", model] if model else []))
        assert not (tmp_path / "x.png").exists()

    picture = photos / "a.png"
    says("no file matches", photos / "*.tif")
    says("a pattern has no .. behind its first * or ?", photos / "*" / ".." / "*.png", out=tmp_path / "x")
    says("a name of a picture or folder is empty", "", out=tmp_path / "x")
    says("no such file", photos / "none.png")
    says("no picture in this folder", gray, out=tmp_path / "x")
    says(f"{photos / 'b.jpg'} is a file; give a folder", photos, out=photos / "b.jpg")
    says("would both become", picture, photos / "further/down/../../a.png", photos / "further", out=tmp_path / "x")
    says("--sigma low; give auto, or a number from 0 to 55", picture, "--sigma", "low")
    says("sigma=56.0; give a number from 0 to 55", picture, "--sigma", 56)
    says("steps=3 is not on this network's dial (1, 2)", picture, "--steps", 3)
    says("-o -: pictures are not written to standard output; give a file or a folder", picture, out="-")
    says("/dev/null is a file; give a folder, or for one picture a name with a suffix", picture, out="/dev/null")
    says("give one of them", picture, "--steps", 1, "--milliseconds", 5)
    says("fits no setting for 30 x 20 pixels", picture, "--milliseconds", 1e-9, "--sigma", 5)
    says(f"{picture}: the model takes 3 channels and the picture is gray", picture, model=colour)
    says("neither a folder nor shipped weights", picture, model="nothing")
    says("r2-cifar10 is no denoiser", picture, model="r2-cifar10")
    says("trained for sigma 25 alone", picture, "--sigma", 30, model="r3-gray25")
    says("8-bit gray is not written as .xyz; .png holds it", picture, "--sigma", 5, out=tmp_path / "a.xyz")
    imaging.write(imaging.Picture(noisy(9, 7, dtype=np.uint16)), photos / "deep.png")
    says("16-bit gray is not written as .jpg; .png holds it", photos / "deep.png", out=tmp_path / "a.jpg")


def test_a_setting_that_no_shipped_network_has_is_refused_before_a_file_is_read(refused, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(imaging, "read", lambda path: pytest.fail(f"{path} was read"))
    told = refused("denoise", photos, "-o", tmp_path / "clean", "--steps", 9)
    assert told.startswith("recurconv: steps=9 is not on this network's dial (1, 2, 3, 4); choose one of these")
    with pytest.raises(ValueError, match="steps=0 is not on"):
        Cleaner(steps=0)
    for steps in (None, *rc.load("denoise-gray").dial):
        Cleaner(steps=steps)


def test_what_is_not_installed_is_said_once(refused, gray, photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    told = refused("denoise", photos, "-o", tmp_path / "clean", "--model", gray)
    assert 'pip install "recurconv[denoise]"' in told
    monkeypatch.setitem(sys.modules, "pyvips", None)
    assert 'pip install "recurconv[denoise]"' in refused("denoise", photos, "-o", tmp_path / "clean", "--model", gray)


def test_a_picture_that_cannot_be_written_leaves_nothing_behind(command, gray, photos, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    done = command("denoise", photos / "a.png", "-o", tmp_path / "clean", "--model", gray, "--sigma", 20)
    assert done.status == 2
    assert "No space left on device" in done.err
    assert written(tmp_path / "clean") == []


# --- memory


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux, where ru_maxrss includes the parent's")
def test_memory_does_not_grow_with_the_picture():
    code = (
        "import pathlib, re, numpy as np, recurconv as rc\n"
        "net = rc.r3_half(steps=1, channels=4, image_channels=3)\n"
        "for side in (256, 1536):\n"
        "    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)\n"
        "    rc.denoise(pixels, model=net, tile=128)\n"
        "    print(re.search(r'VmHWM:\\s*(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])"
    )
    small, large = (int(peak) / 1024 for peak in python(code).stdout.split())  # in MiB
    own = 3 * 1536**2 / 2**20
    assert large - small < 2 * own + 8  # itself and the result; a copy as float32 would be 4 times its size
