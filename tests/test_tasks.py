"""Losses and metrics against loops written by hand; networks as the recipe and the data ask for."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import recurconv as rc
import tiny
from recurconv import recipes
from recurconv.networks import Denoiser
from recurconv.tasks import Classification, Denoising, build_network, mean_metric, measure_settings


def classification(*settings, split="minival"):
    with tiny.tiny_data():
        return Classification(tiny.recipe(*settings), tiny.Path("tiny"), split, torch.device("cpu"))


def denoising(folder, *settings, split="minival"):
    return Denoising(tiny.denoising(*settings), folder, split, torch.device("cpu"))


def test_the_error_is_that_of_a_loop_written_by_hand():
    task = classification(split="test")
    task.set = tiny.image_arrays(260)  # more than a batch
    net = rc.r2(num_classes=3, width=1 / 16).eval()
    images, labels = task.set.images.split(13), task.set.labels.split(13)
    for steps in net.dial:
        wrong, guesses = task.measure(net, steps)
        assert wrong.dtype == torch.float64
        expected = torch.cat([net(some.float() / 255, steps).detach().argmax(1) for some in images])
        assert torch.equal(guesses, expected)
        assert wrong.tolist() == [0 if same else 100 for same in expected == torch.cat(labels)]
        assert 0 < wrong.mean() < 100


def test_the_psnr_is_that_of_a_loop_over_pictures(tmp_path):
    task = denoising(tiny.gray_pictures(tmp_path, count=5), "minival=3", "sigma=40")
    net = rc.r3(channels=4).eval()
    for steps in net.dial:
        values, compared = task.measure(net, steps)
        expected = []
        for noisy, clean in task.set.evaluation_pictures(40, device="cpu"):
            error = (net(noisy, steps).detach().numpy().clip(0, 1) - clean.numpy()).astype(np.float64)
            expected.append(10 * math.log10(1 / np.mean(error**2)))
        assert values.tolist() == pytest.approx(expected, rel=1e-6)
        assert torch.equal(compared, values)
    assert len(values) == 3


class Flawless(nn.Module):
    """Gives white for every picture."""

    dial = (1,)

    def forward(self, images, steps):
        return torch.ones_like(images)


def test_a_picture_that_comes_out_exactly_does_not_swamp_the_mean(tmp_path):
    for name, value in (("a", 255), ("b", 200), ("c", 155)):
        Image.fromarray(np.full((16, 16), value, np.uint8)).save(tmp_path / f"{name}.png")
    task = denoising(tmp_path, split="trainval")
    values, _ = task.measure(Flawless(), 1)
    rest = [-20 * math.log10((255 - value) / 255) for value in (200, 155)]
    assert values.tolist() == pytest.approx([math.inf, *rest])
    assert measure_settings(Flawless(), task) == {"1": pytest.approx(sum(rest) / 2)}
    assert mean_metric(torch.tensor([math.inf, math.inf])) == math.inf
    assert math.isnan(mean_metric(torch.tensor([math.nan, 3.0, math.inf])))
    assert mean_metric(torch.tensor([100.0, 0.0, 0.0, 0.0])) == 25


def test_measuring_changes_neither_weights_nor_running_statistics():
    task = classification()
    net = rc.r2(num_classes=3, width=1 / 16).train()
    before = tiny.snapshot(net)
    found = measure_settings(net, task)
    assert tiny.same(net.state_dict(), before)
    assert net.training
    assert list(found) == ["2", "3", "4"]
    net.eval()
    assert found["3"] == pytest.approx(float(task.measure(net, 3)[0].mean()))


def test_the_loss_of_a_denoiser_is_one_when_nothing_is_removed(tmp_path):
    task = denoising(tiny.gray_pictures(tmp_path), "batch_size=12", "patch=16", "sigma=15", split="train")
    noisy, clean = next(task.training_batches(0, 0, 0, 1))
    assert float(task.loss(noisy, clean)) == pytest.approx(1, rel=0.1)
    assert float(task.loss(clean, clean)) == 0
    assert float(task.distance(noisy, clean)) == float(task.loss(noisy, clean))


class Echo(nn.Module):
    """Gives the images back and notes the noise level that it was told."""

    dial = (1,)
    takes_sigma = True

    def forward(self, images, steps, sigma=None):
        self.told = sigma
        return images


class EchoDenoiser(Echo, Denoiser):
    def __init__(self):
        nn.Module.__init__(self)


def test_a_range_of_noise_levels_is_told_to_the_network(tmp_path):
    task = denoising(tiny.gray_pictures(tmp_path), "network=r3_half", "sigmas=5,45", "sigma=30", split="train")
    inputs, targets = next(task.training_batches(0, 0, 0, 1))
    net = EchoDenoiser()
    assert torch.equal(task.run(net, inputs, 1), inputs[:, :1])
    assert torch.equal(net.told, inputs[:, 1, 0, 0])
    assert targets.shape == inputs[:, :1].shape
    task.measure(net, 1)
    assert net.told == 30
    tied = rc.r3(channels=4).eval()  # takes no noise level: it is trained on the same patches without it
    assert torch.equal(task.run(tied, inputs, 1), tied(inputs[:, :1], 1))


def test_patches_of_half_size_are_trained_on_and_not_measured(tmp_path):
    checkers = 255 * (np.indices((24, 24)).sum(0) % 2)
    for number in range(2):
        tiny.Image.fromarray(checkers.astype(np.uint8)).save(tmp_path / f"{number}.png")
    for halves, grays in (("true", {0, 128, 255}), ("false", {0, 255})):
        settings = (f"halves={halves}", "batch_size=64", "patches_per_epoch=64", "patch=8", "minival=0")
        task = denoising(tmp_path, *settings, split="trainval")
        _, clean = next(task.training_batches(0, 0, 0, 1))
        assert set((clean * 255).round().int().unique().tolist()) == grays
        assert len(task.set) == len(task.measure(EchoDenoiser(), 1)[0])
    with pytest.raises(ValueError, match="halves"):
        tiny.recipe("halves=true")


def test_the_loss_over_a_range_is_minus_psnr_up_to_a_gray_level(tmp_path):
    task = denoising(tiny.gray_pictures(tmp_path), "network=r3_half", "sigmas=0,55", split="train")
    clean = torch.zeros(2, 1, 4, 4)
    outputs = torch.cat([torch.full((1, 1, 4, 4), 0.1), torch.full((1, 1, 4, 4), 0.5)])
    psnr = [-10 * math.log10(value**2 + 255**-2) for value in (0.1, 0.5)]
    assert float(task.loss(outputs, clean)) == pytest.approx(-np.mean(psnr) / 10 * math.log(10), rel=1e-5)
    assert float(task.loss(clean, clean)) == pytest.approx(-2 * math.log(255), rel=1e-5)


def test_label_smoothing_is_the_recipes():
    logits, labels = torch.randn(8, 3), torch.arange(8) % 3
    target = 0.8 * nn.functional.one_hot(labels, 3) + 0.2 / 3
    expected = -(target * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(classification("label_smoothing=0.2").loss(logits, labels), expected)


# Networks


class Stub(Classification):
    """A task without data."""

    def __init__(self, recipe, classes):
        self.recipe = recipe
        self.set = tiny.ImageArrays(
            *(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)),
            *("stub", tuple(map(str, range(classes))), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "none"),
        )


class DenoisingStub(Denoising):
    def __init__(self, recipe):
        self.recipe = recipe


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_recipe_has_its_network(name):
    recipe = recipes.get(name)
    task = DenoisingStub(recipe) if recipe.task == "denoising" else Stub(recipe, 100 if "100" in name else 10)
    with torch.device("meta"):
        net = build_network(recipe, task)
    assert net.dial == recipe.settings
    assert net.config["network"] == recipe.network
    shape, _ = task.cost_shape()
    outputs = net(torch.zeros(2, *shape, device="meta"), recipe.settings[0])
    assert outputs.shape == ((2, *shape) if recipe.task == "denoising" else (2, 100 if "100" in name else 10))
    bank = {name.split(".")[2] for name in net.state_dict() if name.startswith("cell2.bank.row")}
    double = recipe.network.startswith("r") and len(recipe.steps) > 1
    assert bank == ({f"row{row}_step{step}" for row in recipe.steps for step in range(row)} if double else set())


def test_a_network_takes_classes_and_channel_statistics_from_the_data():
    net = build_network(tiny.recipe(), Stub(tiny.recipe(), 7))
    assert net.head.linear.out_features == 7
    assert net.class_names == tuple("0123456")
    assert net.normalize.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert net.normalize.std.flatten().tolist() == pytest.approx([0.4, 0.5, 0.6])


def test_per_cell_counts_have_the_rectangle():
    net = build_network(tiny.recipe("sampling=per-cell"), Stub(tiny.recipe("sampling=per-cell"), 3))
    assert net.counts((3, 2)) == (3, 2)
    with pytest.raises(ValueError, match="one step count for all cells"):
        build_network(tiny.recipe(), Stub(tiny.recipe(), 3)).counts((3, 2))


@pytest.mark.parametrize("norm", ["none", "shared", "independent", "double", "default"])
def test_the_norm_usage_is_the_recipes(norm):
    recipe = tiny.recipe(f"norm={norm}")
    net = build_network(recipe, Stub(recipe, 3))
    assert net.cell1.bank.norm == ("double" if norm == "default" else norm)


def test_the_seed_decides_the_weights_and_nothing_else():
    state = torch.get_rng_state()
    nets = []
    for seed in (0, 0, 1):
        torch.rand(5)
        recipe = tiny.recipe(f"seed={seed}")
        nets.append(build_network(recipe, Stub(recipe, 3)).state_dict())
    assert tiny.same(nets[0], nets[1])
    assert not nets[0]["stem.weight"].equal(nets[2]["stem.weight"])
    torch.set_rng_state(state)
    build_network(recipe, Stub(recipe, 3))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_of_other_classes_is_refused():
    with tiny.tiny_data(), pytest.raises(ValueError, match="cifar10 has the classes dark, left, right; this network"):
        Classification(tiny.recipe(), tiny.Path("tiny"), "test", torch.device("cpu"), class_names=("a", "b", "c"))
