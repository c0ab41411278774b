"""Prediction: a network whose logits are known, pictures of every kind."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

import recurconv as rc
from conftest import answering, brightening
from recurconv.prediction import predict

RGB = (220, 90, 30)
ORANGE = [math.exp(value / 255) for value in RGB]
ORANGE = [value / sum(ORANGE) for value in ORANGE]  # what ``colours`` says of it


def colours(**options):
    """A classifier whose logits are the mean red, green and blue of the image, in [0, 1]."""
    net = rc.r2(3, steps=(1, 2), width=1 / 16, mean=0, std=1, **options)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        channels = torch.arange(3)
        net.stem.weight[channels, channels, 1, 1] = 1
        net.head.linear.weight[channels, 4 * channels] = 1  # space to depth makes four channels of each
    return net.eval()


@pytest.fixture
def orange(tmp_path):
    """``orange("RGB", ".png")``: a file with one colour all over."""

    def save(mode, suffix, **options):
        image = Image.new("RGB", (23, 17), RGB).convert(mode)
        path = tmp_path / f"{mode}{suffix}"
        image.save(path, **options)
        return path

    return save


def test_probabilities_are_the_softmax_of_the_logits(orange):
    found = predict(colours(class_names=("red", "green", "blue")), orange("RGB", ".png"), size=8)
    assert (found.label, found.steps) == ("red", 2)
    assert list(found.probabilities) == ["red", "green", "blue"]
    assert list(found.probabilities.values()) == pytest.approx(ORANGE, abs=1e-6)
    assert found.probability == found.probabilities["red"]
    assert sum(found.probabilities.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_network_of_another_precision_predicts(orange, dtype):
    found = predict(colours().to(dtype), orange("RGB", ".png"), size=8)
    assert list(found.probabilities.values()) == pytest.approx(ORANGE, abs=0.01)


@pytest.mark.parametrize(
    ("mode", "suffix", "error"),
    [("RGBA", ".png", 0), ("P", ".gif", 0.02), ("CMYK", ".tif", 0), ("RGB", ".jpg", 0.01), ("YCbCr", ".jpg", 0.01)],
)
def test_colour_pictures_of_every_kind(orange, mode, suffix, error):
    found = predict(colours(), orange(mode, suffix), size=8)
    assert list(found.probabilities.values()) == pytest.approx(ORANGE, abs=error + 1e-6)


def test_gray_and_16_bit_pictures_are_of_no_colour(tmp_path):
    Image.new("L", (9, 9), 200).save(tmp_path / "gray.png")
    Image.fromarray(np.full((9, 9), 200 * 257, np.uint16)).save(tmp_path / "deep.png")
    for name in ("gray.png", "deep.png"):
        found = predict(colours(), tmp_path / name, size=8)
        assert list(found.probabilities.values()) == pytest.approx([1 / 3] * 3)


def test_a_rotated_picture_is_seen_upright(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[274] = 6  # to be turned by a quarter, clockwise
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    seen = []
    net = colours()
    net.stem.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    predict(net, tmp_path / "turned.png", size=8)
    expected = torch.from_numpy(np.rot90(pixels, -1).copy()).permute(2, 0, 1)[None] / 255
    assert torch.equal(seen[0], expected)


def test_each_setting_is_asked_for_itself(orange):
    net = answering({2: 3, 3: 5, 4: 1})
    picture = orange("RGB", ".png")
    for steps, answer in ((2, 3), (3, 5), (4, 1), (None, 1)):
        found = predict(net, picture, steps=steps, size=8)
        assert (found.label, found.steps) == (f"class {answer}", steps or 4)
        assert found.probability == pytest.approx(math.e / (math.e + 9), abs=1e-6)


def test_the_picture_is_resized_as_asked(orange):
    sizes = []
    net = colours()
    net.stem.register_forward_pre_hook(lambda module, inputs: sizes.append(tuple(inputs[0].shape)))
    for size in (8, 20):
        predict(net, orange("RGB", ".png"), size=size)
    assert sizes == [(1, 3, 8, 8), (1, 3, 20, 20)]


def test_what_cannot_be_predicted(orange, tmp_path):
    picture = orange("RGB", ".png")
    with pytest.raises(ValueError, match="denoiser and gives no label"):
        predict(brightening({1: 0, 2: 0.1}, image_channels=3), picture)
    with pytest.raises(ValueError, match="images of 1 channels"):
        predict(answering({1: 0, 2: 1}, image_channels=1), picture)
    with pytest.raises(ValueError, match="size=7: the smallest images this network takes are 8 pixels"):
        predict(colours(), picture, size=7)
    with pytest.raises(ValueError, match=r"steps=5 is not on this network's dial \(1, 2\)"):
        predict(colours(), picture, steps=5)
    with pytest.raises(FileNotFoundError, match=r"nothing\.png"):
        predict(colours(), tmp_path / "nothing.png")
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"text.png: not a picture"):
        predict(colours(), tmp_path / "text.png")


def test_an_output_that_is_not_finite_is_no_prediction(orange):
    net = colours()
    with torch.no_grad():
        net.stem.weight[0, 0, 1, 1] = math.nan
    with pytest.raises(ValueError, match=r"RGB.png: the network's output is not finite at steps=2; its weights are"):
        predict(net, orange("RGB", ".png"))
