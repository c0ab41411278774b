"""Colour under alpha 0 shows in no visible pixel, whatever filter comes after."""

import numpy as np
import pytest
from kinds import values

from recurconv.imaging import fill_hidden, hidden


@pytest.fixture
def alpha():
    alpha = values("uint8", 14, 17)
    alpha[alpha < 128] = 0
    return alpha


@pytest.mark.parametrize("shape", [(14, 17), (14, 17, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_the_result_does_not_depend_on_hidden_colours(alpha, dtype, shape):
    pixels = values(dtype, *shape)
    other = pixels.copy()
    other[alpha == 0] = values(dtype, *shape)[alpha == 0]
    filled = fill_hidden(pixels, alpha)
    assert filled.dtype == pixels.dtype
    np.testing.assert_array_equal(filled, fill_hidden(other, alpha))
    np.testing.assert_array_equal(filled[alpha > 0], pixels[alpha > 0])


def test_hidden_pixels_get_the_colour_of_a_nearest_visible_one(alpha):
    pixels = np.arange(14 * 17, dtype=np.uint16).reshape(14, 17)  # each pixel's colour says where it is
    filled = fill_hidden(pixels, alpha)
    visible = np.argwhere(alpha > 0)
    for y, x in np.argwhere(alpha == 0):
        distances = ((visible - (y, x)) ** 2).sum(axis=1)
        origin = np.array(divmod(int(filled[y, x]), 17))
        assert alpha[tuple(origin)] > 0
        assert ((origin - (y, x)) ** 2).sum() == distances.min()


def test_bands_give_what_the_whole_picture_gives(alpha, monkeypatch):
    pixels = values("uint8", 14, 17, 3)
    expected = fill_hidden(pixels, alpha)
    for band, near in ((1, 14), (4, 14), (13, 10)):
        monkeypatch.setattr(hidden, "BAND", band)
        monkeypatch.setattr(hidden, "NEAR", near)
        np.testing.assert_array_equal(fill_hidden(pixels, alpha), expected)


def test_far_from_what_is_visible_there_is_no_colour(monkeypatch):
    monkeypatch.setattr(hidden, "BAND", 2)
    monkeypatch.setattr(hidden, "NEAR", 3)
    alpha = np.zeros((12, 5), np.uint8)
    alpha[0] = 255
    filled = fill_hidden(np.full((12, 5), 7, np.uint8), alpha)
    assert filled[:4].tolist() == [[7] * 5] * 4
    assert filled[5:].tolist() == [[0] * 5] * 7


def test_nothing_hidden_and_nothing_visible():
    pixels = values("uint8", 4, 5, 3)
    assert fill_hidden(pixels, np.full((4, 5), 1, np.uint8)) is pixels
    np.testing.assert_array_equal(fill_hidden(pixels, np.zeros((4, 5), np.uint8)), np.zeros_like(pixels))


def test_the_input_is_left_as_it_is(alpha):
    pixels = values("uint8", 14, 17, 3)
    before = pixels.copy()
    fill_hidden(pixels, alpha)
    np.testing.assert_array_equal(pixels, before)
