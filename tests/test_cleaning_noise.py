"""How noisy a picture is: against noise that was added, and against scikit-image's estimate of the whole picture."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from skimage import restoration

from recurconv.cleaning.noise import PATCHES, SIDE, _patches, estimate_sigma
from recurconv.data.pictures import sample_picture


def with_noise(clean, sigma, seed=0):
    """As a file holds it: rounded and clipped."""
    noise = np.random.default_rng(seed).standard_normal(clean.shape)
    return np.clip(np.rint(clean + sigma * noise), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def photo():
    return sample_picture()


@pytest.mark.parametrize("sigma", [3, 5, 10, 15, 25, 50])
def test_the_noise_of_a_photograph_is_found(photo, sigma):
    colour = np.stack([photo, photo[::-1], photo[:, ::-1]], axis=2)
    for clean in (photo, colour):
        assert estimate_sigma(with_noise(clean, sigma)) == pytest.approx(sigma, rel=0.1, abs=0.6)


@pytest.mark.parametrize("sigma", [5, 10, 25, 50])
@pytest.mark.parametrize("channels", [1, 3])
def test_noise_that_black_or_white_cuts_off_is_found_whole(photo, sigma, channels):
    colour = np.stack([photo, photo[::-1], photo[:, ::-1]][:channels], axis=2).squeeze()
    for clean in (colour // 8, 255 - colour // 8, np.zeros_like(colour)):
        assert estimate_sigma(with_noise(clean, sigma)) == pytest.approx(sigma, rel=0.12, abs=0.7)


def test_a_clean_photograph_has_none(photo):
    assert estimate_sigma(photo) < 1


def test_all_types_are_judged_alike(photo):
    noisy = with_noise(photo, 20)
    expected = estimate_sigma(noisy)
    assert estimate_sigma(noisy.astype(np.uint16) * 257) == pytest.approx(expected, rel=1e-4)
    assert estimate_sigma(noisy / 255) == pytest.approx(expected, rel=1e-4)
    assert estimate_sigma(np.dstack([noisy] * 3)) == pytest.approx(expected, rel=1e-4)


def test_pure_noise_is_estimated_without_bias():
    flat = np.full((512, 512), 128.0)
    found = [estimate_sigma(with_noise(flat, 20, seed)) for seed in range(3)]
    assert np.mean(found) == pytest.approx(20, rel=0.02)


def test_texture_is_not_taken_for_noise():
    clean = np.full((256, 256), 128.0)
    clean[:, :150] += 40 * np.random.default_rng(1).standard_normal((256, 150))  # grass, say
    noisy = with_noise(clean, 5)
    assert restoration.estimate_sigma(noisy.astype(float)) > 10
    assert estimate_sigma(noisy) == pytest.approx(5, rel=0.1)


def test_where_values_are_clipped_the_noise_is_not_judged():
    clean = np.full((256, 256), 120.0)
    clean[:, :130] = 254  # an overexposed sky
    assert estimate_sigma(with_noise(clean, 15)) == pytest.approx(15, rel=0.1)
    assert estimate_sigma(with_noise(np.full((128, 128), 254.0), 15)) > 3  # nowhere else to look


def test_where_nothing_is_seen_the_noise_is_not_judged():
    visible = np.zeros((256, 256), bool)
    visible[:, 128:] = True
    noisy = with_noise(np.full((256, 256), 120.0), 15)
    filled = np.where(visible, noisy, np.uint8(7))
    assert estimate_sigma(filled, visible) == pytest.approx(15, rel=0.1)
    scattered = np.random.default_rng(0).random((256, 256)) > 0.5  # no patch is wholly visible
    assert estimate_sigma(noisy, scattered) == pytest.approx(15, rel=0.1)


SHAPES = {1: (600, 600), 3: (600, 600, 3)}


def smooth(side, channels):
    """Light and shade without texture, far from black and white."""
    y, x = np.mgrid[:side, :side] / side
    light = 128 + 40 * np.sin(3 * x + 2 * y) + 25 * np.cos(5 * y)
    return light if channels == 1 else np.stack([light, light[::-1], light.T], axis=2)


@pytest.mark.parametrize("sigma", [10, 25])
@pytest.mark.parametrize("side", [64, 120, 200])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.filterwarnings("error")
def test_what_lies_on_a_large_ground_is_judged_alone(sigma, side, channels):
    inside = (slice(137, 137 + side), slice(251, 251 + side))
    photo = with_noise(smooth(side, channels), sigma)
    for ground in (0, 255):  # a page; 200 x 200 pixels are 11 % of it
        page = np.full(SHAPES[channels], ground, np.uint8)
        page[inside] = photo
        assert estimate_sigma(page) == pytest.approx(sigma, rel=0.15)
    visible = np.zeros((600, 600), bool)
    visible[inside] = True
    cutout = np.full(SHAPES[channels], 90, np.uint8)
    cutout[inside] = photo
    assert estimate_sigma(cutout, visible) == pytest.approx(sigma, rel=0.15)


@pytest.mark.parametrize("sigma", [10, 25])
def test_the_ground_between_photos_is_not_judged(sigma):
    page = np.full((600, 600), 255, np.uint8)
    for number, (top, left) in enumerate([(0, 0), (400, 450)]):
        page[top : top + 150, left : left + 150] = with_noise(smooth(150, 1), sigma, number)
    assert estimate_sigma(page) == pytest.approx(sigma, rel=0.15)


@pytest.mark.parametrize("level", [0, 16, 128, 250, 255])
@pytest.mark.parametrize(("down", "across"), [(40, 0), (0, 70), (40, 70)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_frame_of_one_level_is_not_judged(level, down, across, channels):
    picture = with_noise(smooth(400, channels), 20)
    inside = np.zeros((400, 400), bool)
    inside[down : 400 - down, across : 400 - across] = True
    picture[~inside] = level + (np.indices((400, 400)).sum(0)[~inside] % 2).reshape(-1, *[1] * (channels > 1)) * (
        level == 128
    )
    assert estimate_sigma(picture) == pytest.approx(20, rel=0.15)
    assert estimate_sigma(picture / 255) == pytest.approx(20, rel=0.15)


def test_a_picture_of_flat_areas_and_edges_has_no_noise():
    drawing = np.full((300, 300), 250, np.uint8)
    drawing[40:200, 50:260] = 90
    drawing[100:120, 20:280] = 30
    assert estimate_sigma(drawing) == 0


@pytest.mark.parametrize("shape", [(64, 64), (600, 600), (100, 300, 3)])
@pytest.mark.filterwarnings("error")
def test_where_nothing_is_useful_the_answer_is_still_a_number(shape):
    for ground in (0, 255):
        assert estimate_sigma(np.full(shape, ground, np.uint8)) == 0
    assert estimate_sigma(np.full(shape, 99, np.uint8), np.zeros(shape[:2], bool)) == 0
    lines = 255 * (np.random.default_rng(0).random(shape) > 0.5).astype(np.uint8)  # black and white alone
    assert estimate_sigma(lines) == 0  # as strong as no noise is
    assert estimate_sigma((lines > 0) * np.uint8(160) + np.uint8(40)) == 0  # two values, as of a dithered picture
    speck = np.zeros(shape, np.uint8)
    speck[-1, -1] = 99
    assert np.isfinite(estimate_sigma(speck))
    stripes = np.zeros(shape, np.uint8)
    stripes[:, ::2] = 200  # detail, and none of it diagonal
    assert estimate_sigma(stripes) == 0


def typed(ground, ink):
    """A page of small type, its edges smooth."""
    page = Image.new("L", (512, 512), ground)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size=18)
    for top in range(4, 512, 26):
        draw.text((6, top), "The quick brown fox jumps over the lazy dog 0123456789 and runs", fill=ink, font=font)
    return np.array(page.resize((256, 256), Image.Resampling.BOX))


@pytest.mark.parametrize(("ground", "ink", "most"), [(235, 20, 0), (255, 0, 1.5), (30, 220, 0)])
def test_clean_type_has_no_noise(ground, ink, most):
    assert estimate_sigma(typed(ground, ink)) <= most


@pytest.mark.parametrize("levels", [2, 3, 8])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_dithered_picture_has_no_noise(photo, levels, channels):
    chance = np.random.default_rng(0).random((*photo.shape, channels))
    steps = np.floor(photo[..., None] / 255 * (levels - 1) + chance)
    dithered = np.rint(40 + steps * 160 / (levels - 1)).astype(np.uint8)
    assert estimate_sigma(dithered.squeeze()) == 0
    assert estimate_sigma(dithered.squeeze() / 255) == 0


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (7, 7), (64, 64), (200, 90, 3)])
@pytest.mark.filterwarnings("error")
def test_without_any_detail_there_is_no_noise(shape):
    assert estimate_sigma(np.full(shape, 77, np.uint8)) == 0


@pytest.mark.parametrize("shape", [(20, 20), (8, 300), (63, 65), (65, 63, 3)])
@pytest.mark.filterwarnings("error")
def test_small_pictures_are_judged_as_well_as_they_can_be(shape):
    assert estimate_sigma(with_noise(np.full(shape, 128.0), 20)) == pytest.approx(20, rel=0.35)


@pytest.mark.parametrize(("height", "width"), [(64, 64), (70, 1000), (321, 481), (5000, 300), (10_000, 10_000)])
def test_patches_lie_all_over_the_picture(height, width):
    patches = _patches(height, width)
    assert 1 <= len(patches) <= PATCHES
    assert len(set(map(str, patches))) == len(patches)
    for axis, length in enumerate((height, width)):
        parts = [patch[axis] for patch in patches]
        assert all(part.stop - part.start == SIDE for part in parts)
        assert min(part.start for part in parts) == 0
        if length >= 2 * SIDE:
            assert max(part.stop for part in parts) == length
