"""The shipped weights: what they are, where they come from, and that they work."""

import itertools
import json

import pytest
import torch
import torch.nn.functional as F

import recurconv as rc
from recurconv import loading, recipes
from recurconv.data.denoising import psnr
from recurconv.network import BUILDERS

NAMES = ("denoise-color", "denoise-gray", "r2-cifar10", "r3-gray25")
CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"


def read(name, file):
    return json.loads((loading.find(name) / file).read_text(encoding="utf-8"))


def test_all_are_there_and_small():
    assert loading.shipped() == sorted(NAMES)
    files = [file for name in NAMES for file in loading.find(name).rglob("*") if file.is_file()]
    assert 100_000 < sum(file.stat().st_size for file in files) < 8_000_000


@pytest.mark.parametrize(
    ("name", "builder", "dial", "channels"),
    [
        ("r2-cifar10", "r2", (2, 3, 4), 3),
        ("r3-gray25", "r3", (1, 2, 3, 4), 1),
        ("denoise-gray", "r3_half", (1, 2, 3, 4), 1),
        ("denoise-color", "r3_half", (1, 2, 3, 4), 3),
    ],
)
def test_they_load_by_name_with_their_dial(name, builder, dial, channels):
    net = rc.load(name)
    assert (net.dial, net.image_channels, net.training) == (dial, channels, False)
    assert all(tensor.isfinite().all() for tensor in net.state_dict().values())
    config = read(name, "config.json")
    assert config["network"] == builder
    twin = BUILDERS[builder](**config["arguments"])
    assert {k: v.shape for k, v in twin.state_dict().items()} == {k: v.shape for k, v in net.state_dict().items()}
    row = next(module for key, module in net.named_modules() if key == "cell1.bank")
    assert row.norm == "double"


@pytest.mark.parametrize("name", NAMES)
def test_provenance_says_where_they_come_from_and_what_they_reach(name):
    told = read(name, "provenance.json")
    assert {"recipe", "iterations", "training_seconds", "trained", "result"} <= set(told)
    recipe = recipes.read(loading.find(name) / "recipe.json")
    net = rc.load(name)
    assert told["recipe"] == recipe.name
    assert told["recipe"] in recipes.RECIPES
    assert recipe.steps == net.dial
    assert told["iterations"] > 0
    assert told["training_seconds"] > 0
    assert told["trained"]
    for start in told["trained"]:
        assert {"date", "torch", "processor", "condition", "device"} <= set(start)
    result = told["result"]
    assert result["split"] == "test"
    assert result["images"] > 0
    assert [row["steps"] for row in result["rows"]] == [*net.dial] * (3 if recipe.sigmas else 1)
    assert all(row["value"] > 0 and row["standard_error"] > 0 for row in result["rows"])
    assert {"condition", "metric", "environment"} <= set(result)


def best_gaussian_blur(clean, noisy):
    """The PSNR of the Gaussian blur that suits the picture best, found with the clean one before one's eyes."""
    offsets = torch.arange(-4, 5, dtype=torch.float32)
    best = 0.0
    for width in torch.arange(0.3, 2.0, 0.1):
        line = torch.exp(-(offsets**2) / (2 * width**2))
        kernel = torch.outer(line, line) / line.sum() ** 2
        padded = F.pad(noisy[None, None], [4] * 4, mode="reflect")
        best = max(best, float(psnr(clean[None, None], F.conv2d(padded, kernel[None, None]))))
    return best


def test_the_denoiser_denoises_at_every_setting(shown):
    # A network that learned nothing reaches neither; a linear filter that knows the answer reaches only one.
    bound = max(shown.noisy_psnr + 5, best_gaussian_blur(shown.clean, shown.noisy))
    reached = {setting.steps: setting.psnr for setting in shown.settings}
    assert min(reached.values()) > bound, reached


def test_the_classifier_gives_finite_logits_that_differ_between_settings():
    net = rc.load("r2-cifar10")
    assert net.class_names == tuple(CIFAR10.split())
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits = [net(images, steps) for steps in net.dial]
    assert all(tensor.shape == (4, 10) and tensor.isfinite().all() for tensor in logits)
    assert all((a - b).abs().max() > 1e-3 for a, b in itertools.pairwise(logits))
