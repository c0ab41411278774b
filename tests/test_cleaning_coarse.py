"""Noise that is coarse in colour: where it is seen, what it is told to, and what becomes of it."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

import recurconv as rc
from conftest import within_noise
from recurconv.cleaning import Cleaner, cleaner, denoise
from recurconv.cleaning.coarse import CoarseColour
from recurconv.cleaning.noise import estimate_sigma, is_coarse
from recurconv.cleaning.tiles import denoise_tiles
from recurconv.data.pictures import sample_picture
from test_cleaning import mixing, noisy

GRAY_OF = np.array([0.299, 0.587, 0.114])  # BT.601
SUBSAMPLING = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}


@pytest.fixture(scope="module")
def photo():
    """A colour picture, uint8 [H, W, 3], whose colours are smooth."""
    light = sample_picture().astype(np.float64)
    y, x = np.mgrid[: light.shape[0], : light.shape[1]] / 100
    tint = np.stack([20 * np.sin(x), 12 * np.cos(y), 25 * np.sin(x + y)], axis=2)
    return np.clip(np.rint(40 + 0.6 * light[..., None] + tint), 0, 255).astype(np.uint8)


def with_noise(clean, sigma, channels=3):
    noise = np.random.default_rng(0).standard_normal((*clean.shape[:2], channels))
    return np.clip(np.rint(clean + sigma * noise), 0, 255).astype(np.uint8)


def jpeg(pixels, quality=95, subsampling="4:2:0"):
    """What comes back from a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling=SUBSAMPLING[subsampling])
    return np.array(Image.open(file))


def psnr(clean, made):
    return -10 * np.log10(np.mean((clean / 255 - made / 255.0) ** 2))


# --- what is coarse


@pytest.mark.parametrize("sigma", [5, 10, 25, 50])
def test_colour_that_was_stored_at_half_the_size_is_coarse(photo, sigma):
    pixels = with_noise(photo, sigma)
    assert not is_coarse(pixels)
    assert not is_coarse(jpeg(pixels, 95, "4:4:4"))
    for subsampling in ("4:2:0", "4:2:2"):
        for quality in (75, 95, 100) if sigma > 5 else (95, 100):
            assert is_coarse(jpeg(pixels, quality, subsampling)), (subsampling, quality)


def test_grain_of_brightness_alone_is_coarse_in_colour(photo):
    assert is_coarse(with_noise(photo, 20, channels=1))


@pytest.mark.parametrize("tint", [(1, 1, 1), (1, 0.97, 0.92), (1, 0.85, 0.65)])
def test_grain_of_a_toned_picture_is_taken_from_it(tint):
    """Each channel holds the same grain, stronger or weaker: it is white noise, and not the channel's own."""
    light = sample_picture().astype(np.float64)
    clean = np.rint(light[..., None] * tint)
    pixels = np.clip(np.rint(with_noise(light[..., None], 20, channels=1) * np.array(tint)), 0, 255).astype(np.uint8)
    assert is_coarse(pixels)
    assert psnr(clean, Cleaner().clean(pixels).pixels) > psnr(clean, pixels) + 6


def test_all_types_are_judged_alike(photo):
    for pixels, expected in ((with_noise(photo, 10), False), (jpeg(with_noise(photo, 10)), True)):
        for same in (pixels, pixels.astype(np.uint16) * 257, pixels / 255, (pixels / 255).astype(np.float16)):
            assert is_coarse(same) == expected


def test_only_what_is_seen_counts(photo):
    half = photo.shape[1] // 2
    pixels = with_noise(photo, 20)
    page = jpeg(pixels)
    page[:, half:] = pixels[:, half:]  # to the right single pixels, to the left blotches
    visible = np.zeros(page.shape[:2], bool)
    visible[:, :half] = True
    assert is_coarse(page, visible)
    assert not is_coarse(page, ~visible)
    framed = np.full((3 * photo.shape[0], 3 * photo.shape[1], 3), 255, np.uint8)
    framed[: photo.shape[0], : photo.shape[1]] = jpeg(pixels)
    assert is_coarse(framed)


def test_small_pictures_are_not_judged(photo):
    coarse = jpeg(with_noise(photo, 20))
    for height, width in ((1, 1), (63, 200), (200, 63)):
        assert not is_coarse(coarse[:height, :width])
    assert is_coarse(coarse[:64, :64])


def test_brightness_tells_the_noise_that_each_channel_had(photo):
    for sigma in (10, 25):
        pixels = with_noise(photo, sigma)
        assert estimate_sigma(pixels, luma=True) == pytest.approx(sigma, rel=0.1)
        assert estimate_sigma(jpeg(pixels), luma=True) == pytest.approx(sigma, rel=0.15)
        assert estimate_sigma(jpeg(pixels)) < 0.8 * sigma  # of each channel, where colour's was made smooth


# --- two networks as one


def larger(values):
    """Bilinear, twice as high and wide: each pixel is three quarters of the nearest, a quarter of the next."""
    for axis in (0, 1):
        before, after = (
            np.concatenate([values.take([0], axis), values, values.take([-1], axis)], axis).take(
                np.arange(shift, shift + values.shape[axis]), axis
            )
            for shift in (0, 2)
        )
        pair = np.stack([0.75 * values + 0.25 * before, 0.75 * values + 0.25 * after], axis + 1)
        values = pair.reshape(*values.shape[:axis], -1, *values.shape[axis + 1 :])
    return values


def expected(gray, color, pixels, steps, sigma):
    """The definition, in NumPy around the two networks."""

    def run(net, values, level):
        planes = torch.from_numpy(np.ascontiguousarray(np.atleast_3d(values).transpose(2, 0, 1)))[None]
        with torch.inference_mode():
            return net(planes, steps, sigma=level)[0].permute(1, 2, 0).numpy()

    height, width = pixels.shape[:2]
    even = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    small = (even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2]) / 4
    small = run(color, small, None if sigma is None else sigma / 2)
    tint = larger(small - (small @ GRAY_OF)[..., None])[:height, :width]
    told = None if sigma is None else sigma * np.sqrt((GRAY_OF**2).sum())
    return run(gray, pixels @ GRAY_OF, told) + tint


@pytest.fixture(scope="module")
def pair():
    return mixing(rc.r3_half), mixing(rc.r3_half, image_channels=3)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("sigma", [30.0, None])
def test_brightness_at_full_size_and_colour_at_half(pair, steps, sigma):
    for shape in ((30, 41, 3), (29, 24, 3), (1, 1, 3), (2, 7, 3)):
        pixels = noisy(*shape)
        made = denoise_tiles(CoarseColour(*pair), pixels, steps, sigma)
        whole = pixels + within_noise(expected(*pair, pixels, steps, sigma) - pixels, sigma)
        np.testing.assert_allclose(made, whole.clip(0, 1), rtol=0, atol=1e-7)  # the weights of BT.601 are float32


@pytest.mark.parametrize("steps", [1, 2])
def test_tiles_give_what_the_whole_picture_gives(pair, steps):
    net = CoarseColour(*pair)
    for height, width in ((61, 84), (90, 5), (1, 70)):
        pixels = noisy(height, width, 3)
        whole = denoise_tiles(net, pixels, steps, 30.0, side=1000)
        for side in (32, 7):
            np.testing.assert_allclose(denoise_tiles(net, pixels, steps, 30.0, side=side), whole, rtol=0, atol=1e-12)


def test_with_less_surroundings_there_would_be_seams(pair, monkeypatch):
    net = CoarseColour(*pair)
    pixels = noisy(120, 130, 3)
    whole = denoise_tiles(net, pixels, 2, None)
    monkeypatch.setattr(net, "reach", lambda steps, reach=net.reach: reach(steps) - 1 - net.alignment)
    assert np.abs(denoise_tiles(net, pixels, 2, None, side=20) - whole).max() > 1e-9


# --- which pictures it gets


def test_coarse_noise_is_removed_by_the_networks_of_this_package(photo):
    clean = photo[:200, :200]
    for pixels in (jpeg(with_noise(clean, 25)), with_noise(clean, 25, channels=1)):
        made = Cleaner(steps=1).clean(pixels)
        assert made.coarse
        given = Cleaner("denoise-color", steps=1).clean(pixels)
        assert not given.coarse  # a model runs as it is given
        assert psnr(clean, made.pixels) > psnr(clean, given.pixels) + 3
        assert Cleaner(sigma=25.0, steps=1).clean(pixels).coarse  # also where the noise is said
    pixels = with_noise(clean, 25)
    made = Cleaner(steps=1).clean(pixels)
    assert not made.coarse
    assert np.array_equal(made.pixels, Cleaner("denoise-color", steps=1).clean(pixels).pixels)


def test_weak_noise_is_not_worth_the_loss_of_fine_colour(photo, monkeypatch):
    pixels = jpeg(with_noise(photo[:100, :100], 10))
    for found, coarse in ((4.9, False), (5.1, True)):
        monkeypatch.setattr(cleaner, "estimate_sigma", lambda *_, luma=False, found=found: found if luma else 3.0)
        made = Cleaner(steps=1).clean(pixels)
        assert (made.coarse, made.sigma) == (coarse, found if coarse else 3.0)
        assert Cleaner(sigma=found, steps=1).clean(pixels).coarse == coarse


def test_a_gray_picture_in_three_channels_is_cleaned_as_a_gray_one(photo):
    gray = with_noise(photo[:80, :80, :1], 20, channels=1)[..., 0]
    for sigma in ("auto", 20):
        made = Cleaner(sigma=sigma, steps=1).clean(np.dstack([gray] * 3))
        alone = Cleaner(sigma=sigma, steps=1).clean(gray)
        assert np.array_equal(made.pixels, np.dstack([alone.pixels] * 3))
        assert (made.sigma, made.steps, made.coarse) == (alone.sigma, 1, False)


def test_a_budget_counts_both_networks(photo, monkeypatch):
    pixels = jpeg(with_noise(photo[:90, :90], 20))
    seen = []
    monkeypatch.setattr(
        Cleaner, "_seconds_per_pixel", lambda self, network, steps, *size: seen.append(network) or steps * 1e-6
    )
    made = Cleaner(sigma=20, milliseconds=17).clean(pixels)  # 8.1 ms for each step
    assert (made.steps, made.coarse) == (2, True)
    assert all(isinstance(network, CoarseColour) for network in seen)


def test_tensors_and_other_depths_come_back_in_their_type(photo):
    pixels = jpeg(with_noise(photo[:80, :80], 20))
    eight = denoise(pixels, 20, 1)
    sixteen = denoise(pixels.astype(np.uint16) * 257, 20, 1)
    assert sixteen.dtype == np.uint16
    assert np.abs(sixteen / 257 - eight).max() <= 0.51
    batch = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
    assert np.abs(denoise(batch, 20, 1)[0].permute(1, 2, 0).numpy() * 255 - eight).max() <= 0.51
