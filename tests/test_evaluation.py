"""Evaluation: numbers against values worked out by hand, and what must be said of them."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

import recurconv as rc
from conftest import CIFAR10, TEST_LABELS, answering, brightening
from recurconv import files, recipes
from recurconv.data.augment import iteration_generator
from recurconv.denoisers import HalfResolutionDenoiser
from recurconv.devices import choose_device
from recurconv.evaluation import evaluate, recipe_for, stored_recipe


def by_steps(result):
    return {row.steps: row for row in result.rows}


def train_like(folder, recipe):
    """Put the recipe beside a network, as a run does."""
    files.write_json(folder / "recipe.json", dataclasses.asdict(recipe))
    return folder


# --- the numbers


def test_errors_are_those_counted_by_hand(saved, cifar):
    folder = saved(answering({1: 0, 2: 1}, class_names=CIFAR10))
    result = evaluate(folder, cifar, "test")
    rows = by_steps(result)
    assert (result.metric, result.images, result.split) == ("error (%)", 8, "test")
    assert TEST_LABELS.count(0) == 3
    assert rows[1].value == pytest.approx(100 * 5 / 8)
    assert rows[2].value == pytest.approx(100 * 6 / 8)
    # of a mean of n values that are 0 or 1: sqrt(p (1 - p) / (n - 1))
    assert rows[1].standard_error == pytest.approx(100 * math.sqrt(5 / 8 * 3 / 8 / 7))
    assert result.notes == ()


def test_costs_are_those_counted_by_hand(saved, cifar):
    result = evaluate(saved(answering({1: 0, 2: 1}, class_names=CIFAR10)), cifar, "test")
    rows = by_steps(result)
    stem, head = 3 * 4 * 9, 16 * 10
    bodies = 2 * 4 * 4 * 9, 2 * 16 * 16 * 9  # two convolutions each
    # One step: at full size, then pooled, space to depth, at full size. The second step comes after the pooling.
    first = stem * 32**2 + bodies[0] * 32**2 + bodies[1] * 8**2 + head
    assert rows[1].macs == first
    assert rows[2].macs == first + bodies[0] * 16**2 + bodies[1] * 4**2
    assert result.macs_per == "image"
    weights = stem + sum(bodies) + head + 10
    group = 2 * 2 * (4 + 16)  # weight and bias of two norms, in both cells
    assert [row.parameters for row in result.rows] == [weights + group, weights + 2 * group]
    assert result.parameters_total == weights + 3 * group


def test_psnr_is_that_of_the_offset(saved, pictures):
    folder = saved(brightening({1: 0.1, 2: 0.02}))
    (pictures / "white.png").unlink()
    result = evaluate(folder, pictures, "test", sigma=0)
    rows = by_steps(result)
    assert (result.metric, result.images, result.sigma) == ("PSNR (dB)", 2, 0)
    assert rows[1].value == pytest.approx(20, abs=1e-4)  # -20 log10(0.1)
    assert rows[2].value == pytest.approx(-20 * math.log10(0.02), abs=1e-4)
    assert rows[1].standard_error == pytest.approx(0, abs=1e-4)
    assert result.macs_per == "pixel"
    assert rows[1].macs == 9 * (4 + 3 * 16 + 4)
    assert rows[2].macs == 9 * (4 + 6 * 16 + 4)


def test_noise_of_the_given_sigma_is_what_a_network_that_does_nothing_leaves(saved, pictures):
    (pictures / "white.png").unlink()
    (pictures / "ramp.png").unlink()
    folder = saved(brightening({1: 0, 2: 0.1}))
    expected = {10: 20 * math.log10(255 / 10), 40: 20 * math.log10(255 / 40)}
    for sigma, decibel in expected.items():
        row = evaluate(folder, pictures, "test", sigma=sigma, steps=[1]).rows[0]
        assert row.value == pytest.approx(decibel, abs=0.8)  # 192 draws
        assert math.isnan(row.standard_error)  # of one picture


def test_several_noise_levels_are_measured_one_after_the_other(saved, pictures):
    folder = saved(brightening({1: 0.1, 2: 0.02}))
    result = evaluate(folder, pictures, "test", sigma=[0, 30])
    assert [(row.sigma, row.steps) for row in result.rows] == [(0, 1), (0, 2), (30, 1), (30, 2)]
    assert result.sigma is None
    for sigma, rows in ((0, result.rows[:2]), (30, result.rows[2:])):
        alone = evaluate(folder, pictures, "test", sigma=sigma)
        assert alone.rows == rows
        assert result.notes[: len(alone.notes)] != alone.notes or not alone.notes
        assert {f"sigma={sigma}, {note}" for note in alone.notes} <= set(result.notes)


def test_a_network_that_takes_the_noise_is_told_it(saved, pictures, monkeypatch):
    seen = []
    forward = HalfResolutionDenoiser.forward
    spy = lambda self, images, steps=None, sigma=None: seen.append(sigma) or forward(self, images, steps, sigma)  # noqa: E731
    monkeypatch.setattr(HalfResolutionDenoiser, "forward", spy)
    evaluate(saved(rc.r3_half(steps=(1, 2), channels=4)), pictures, "test", sigma=[5, 45], steps=[2])
    assert [sigma for sigma in seen if sigma is not None] == [5] * 3 + [45] * 3


def similarity_by_the_formula(x, y):
    """Equation 13 of Wang et al. (2004) in 11x11 windows with Gaussian weights, where they fit into the picture."""
    bell = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    weights = np.outer(bell, bell) / bell.sum() ** 2

    def mean(values):
        return (np.lib.stride_tricks.sliding_window_view(values, (11, 11)) * weights).sum((-2, -1))

    a, b, c1, c2 = mean(x), mean(y), 0.01**2, 0.03**2
    covariance, variances = mean(x * y) - a * b, mean(x * x) - a * a + mean(y * y) - b * b
    return np.mean((2 * a * b + c1) * (2 * covariance + c2) / ((a * a + b * b + c1) * (variances + c2)))


def test_each_picture_is_there_with_its_psnr_and_ssim(saved, pictures):
    result = evaluate(saved(brightening({1: 0.1, 2: 0.02})), pictures, "test", sigma=20, steps=[1])
    (row,) = result.rows
    assert [own.picture for own in row.pictures] == ["flat.png", "ramp.png", "white.png"]
    assert row.value == pytest.approx(sum(own.psnr for own in row.pictures) / 3)
    assert row.ssim == pytest.approx(sum(own.ssim for own in row.pictures) / 3)
    for position, own in enumerate(row.pictures):
        clean = torch.from_numpy(np.asarray(Image.open(pictures / own.picture)) / np.float32(255))
        noise = torch.randn((1, 1, *clean.shape), generator=iteration_generator(0, position))
        estimate = (clean + noise * 20 / 255 + 0.1).clamp(0, 1)
        made, true = estimate[0, 0].double().numpy(), clean.double().numpy()
        assert own.psnr == pytest.approx(-10 * math.log10(np.mean((made - true) ** 2)), abs=1e-6)
        assert own.ssim == pytest.approx(similarity_by_the_formula(true, made), abs=1e-6)
    told = json.loads(result.as_json())["rows"][0]
    assert told["pictures"][1] == {"picture": "ramp.png", "psnr": row.pictures[1].psnr, "ssim": row.pictures[1].ssim}


def test_without_scikit_image_there_is_no_ssim_and_a_note(saved, pictures, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = evaluate(saved(brightening({1: 0.1, 2: 0.02})), pictures, "test", sigma=20)
    assert {row.ssim for row in result.rows} == {None}
    assert result.notes == ('without scikit-image there is no SSIM: pip install "recurconv[denoise]"',)


@pytest.mark.parametrize("name", ["bsd68", "Set12"])
def test_the_names_of_papers_are_no_folders(saved, tmp_path, name):
    with pytest.raises(ValueError, match=r"nothing is downloaded; BSD68 is --split test of BSDS500's folder"):
        evaluate(saved(brightening({1: 0.1})), tmp_path / name, "test")


def test_only_the_settings_asked_for_are_measured(saved, cifar):
    folder = saved(answering({1: 0, 2: 1, 4: 2}, class_names=CIFAR10))
    said = []
    result = evaluate(folder, cifar, "test", steps=[4, 1, 4], say=said.append)
    assert [row.steps for row in result.rows] == [4, 1]
    assert [row.value for row in result.rows] == [87.5, 62.5]
    assert ["steps=4" in line for line in said[-2:]] == [True, False]
    with pytest.raises(ValueError, match=r"steps=3 is not on this network's dial \(1, 2, 4\)"):
        evaluate(folder, cifar, "test", steps=[3])


def test_an_exact_picture_does_not_swamp_the_mean(saved, pictures):
    result = evaluate(saved(brightening({1: 0.1, 2: 0})), pictures, "test", sigma=0)
    rows = by_steps(result)
    assert rows[1].value == pytest.approx(20, abs=1e-4)  # white stays white when it is clipped
    assert rows[1].standard_error == pytest.approx(0, abs=1e-4)
    assert rows[2].value == math.inf
    one, all_three = (note for note in result.notes if "infinite PSNR" in note)
    assert one.startswith("steps=1: 1 of 3 images")
    assert "the mean leaves them out" in one
    assert all_three.startswith("steps=2: 3 of 3 images")


def test_nan_is_told(saved, pictures):
    net = brightening({1: 0.1, 2: 0.2})
    with torch.no_grad():
        net.cell3.bank[2, 0][0].bias[0] = math.nan
    result = evaluate(saved(net), pictures, "test", sigma=0)
    rows = by_steps(result)
    assert rows[1].value == pytest.approx(20, abs=1e-4)
    assert math.isnan(rows[2].value)
    assert "steps=2: the output is NaN for 3 of 3 images" in result.notes


def test_an_image_whose_logits_are_nan_has_no_class(saved, cifar):
    net = answering({1: 0, 2: 1})
    with torch.no_grad():
        net.cell1.bank[2, 0][0].bias[0] = math.nan
    result = evaluate(saved(net), cifar, "test")
    assert [math.isnan(row.value) for row in result.rows] == [False, True]
    assert "steps=2: the output is NaN for 8 of 8 images" in result.notes


def test_a_test_on_what_was_trained_on_is_told(saved, pictures):
    folder = saved(brightening({1: 0, 2: 0.1}))
    train_like(folder, recipes.override(recipes.get("r3-gray25"), ["sigma=7"]))
    note = "the network was trained on just these pictures: this is no test; put others into test/"
    assert note not in evaluate(folder, pictures, "test").notes
    condition = evaluate(folder, pictures, "trainval").condition
    (folder / "environment.json").write_text(json.dumps([{"condition": "other"}, {"condition": condition}]))
    assert note in evaluate(folder, pictures, "test").notes
    assert note not in evaluate(folder, pictures, "trainval").notes
    (folder / "environment.json").write_text("[{")
    with pytest.raises(ValueError, match=r"environment\.json is not what a run wrote"):
        evaluate(folder, pictures, "test")


def test_a_dead_dial_is_told_of_just_the_settings_that_agree(saved, cifar, pictures):
    dead = "images: the dial may be dead, or the images too few to tell"
    result = evaluate(saved(answering({1: 4, 2: 1, 3: 4}, class_names=CIFAR10)), cifar, "test")
    assert result.notes == (f"steps=1 and 3 give the same on all 8 {dead}",)
    result = evaluate(saved(answering({1: 4, 2: 4, 3: 4}, class_names=CIFAR10), "all"), cifar, "test")
    assert result.notes == (f"steps=1, 2 and 3 give the same on all 8 {dead}",)
    (pictures / "white.png").unlink()
    result = evaluate(saved(brightening({1: 0.1, 2: 0.2, 4: 0.2}), "denoiser"), pictures, "test", sigma=5)
    assert result.notes == (f"steps=2 and 4 give the same on all 2 {dead}",)


def test_two_settings_with_the_same_error_but_other_predictions_are_no_dead_dial(saved, cifar):
    result = evaluate(saved(answering({1: 2, 2: 3}, class_names=CIFAR10)), cifar, "test")
    assert result.rows[0].value == result.rows[1].value
    assert result.notes == ()


# --- the record


def test_the_json_has_what_a_result_file_needs(saved, cifar):
    folder = saved(answering({1: 0, 2: 1}, class_names=CIFAR10))
    told = json.loads(evaluate(folder, cifar, "test", device="cpu").as_json())
    assert (told["model"], told["data"], told["split"], told["images"]) == (str(folder), "cifar10", "test", 8)
    assert (told["metric"], told["macs_per"], told["device"], told["sigma"]) == ("error (%)", "image", "cpu", None)
    assert told["condition"].startswith("CIFAR-10 test: SHA-1 of test_batch")
    assert set(told["rows"][0]) == {"steps", "value", "standard_error", "macs", "parameters"}
    assert {"torch", "processor", "commit", "date"} <= set(told["environment"])


def test_the_json_is_strict_where_a_value_is_not_finite(saved, pictures):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    result = evaluate(saved(brightening({1: 0, 2: 0.1})), pictures, "test", sigma=0)
    exact, other = json.loads(result.as_json(), parse_constant=refuse)["rows"]
    assert exact["value"] is exact["standard_error"] is None
    assert other["value"] == pytest.approx(20, abs=1e-4)


# --- what to read the data as


def test_a_network_without_a_recipe_is_measured_on_a_named_data_set(saved, animals):
    folder = saved(answering({1: 0, 2: 2}, num_classes=3))
    assert stored_recipe(folder) is None
    with pytest.raises(ValueError, match=r"3 classes and no recipe\.json; say by --dataset"):
        evaluate(folder, animals, "test")
    result = evaluate(folder, animals, "test", dataset="folder")
    assert [row.value for row in result.rows] == pytest.approx([100 * 4 / 6, 100 * 3 / 6])
    assert result.data == "animals"


def test_labels_follow_the_names_in_the_checkpoint(saved, animals):
    folder = saved(answering({1: 0, 2: 2}, num_classes=3, class_names=("cow", "ant", "bee")))
    result = evaluate(folder, animals, "test", dataset="folder")
    assert [row.value for row in result.rows] == pytest.approx([100 * 3 / 6, 100 * 5 / 6])  # cow, bee


def test_other_classes_are_refused(saved, animals, cifar):
    names = saved(answering({1: 0, 2: 1}, num_classes=3, class_names=("ant", "bee", "dog")), "names")
    with pytest.raises(ValueError, match="missing dog; unexpected cow"):
        evaluate(names, animals, "test", dataset="folder")
    with pytest.raises(ValueError, match="this network was trained on ant, bee, dog"):
        evaluate(names, cifar, "test", dataset="cifar10")
    nameless = saved(answering({1: 0, 2: 1}, num_classes=4), "nameless")
    with pytest.raises(ValueError, match="has 3 classes, this network 4"):
        evaluate(nameless, animals, "test", dataset="folder")


def test_a_run_is_measured_as_it_was_trained(saved, pictures):
    folder = saved(brightening({1: 0, 2: 0.1}))
    train_like(folder, recipes.override(recipes.get("r3-gray25"), ["sigma=7", "minival=1"]))
    result = evaluate(folder, pictures, "minival")
    assert (result.sigma, result.images) == (7, 1)
    assert evaluate(folder, pictures, "train", sigma=3).sigma == 3


def test_the_size_of_a_folders_images_is_that_of_training(saved, animals):
    folder = saved(answering({1: 0, 2: 1}, num_classes=3, class_names=("ant", "bee", "cow")))
    train_like(folder, recipes.override(recipes.get("r2-folder"), ["size=16", "workers=0"]))

    def macs(**options):
        return evaluate(folder, animals, "test", steps=[1], **options).rows[0].macs

    at_16 = 16**2 * (108 + 288) + 4**2 * 4608 + 16 * 3
    assert macs() == at_16
    assert macs(size=32) == 4 * at_16 - 3 * 16 * 3
    (folder / "recipe.json").unlink()
    assert macs(dataset="folder") == 4 * at_16 - 3 * 16 * 3  # of 32 pixels, since nothing tells
    config = json.loads((folder / "config.json").read_text())
    config["arguments"]["image_size"] = 16
    files.write_json(folder / "config.json", config)
    assert macs(dataset="folder") == at_16


def test_what_has_no_meaning_for_the_network_is_refused(saved, cifar, pictures):
    classifier = saved(answering({1: 0, 2: 1}), "classifier")
    denoiser = saved(brightening({1: 0, 2: 0.1}), "denoiser")
    for options, reason in (
        ({"sigma": 25}, "sigma=25 is the noise for a denoiser"),
        ({"size": 16}, "size=16 is for a folder of images, not for cifar10"),
        ({"dataset": "mnist"}, "dataset='mnist' is not known; choose one of cifar10, cifar100, folder, pictures"),
        ({"dataset": "pictures"}, "a classifier; choose cifar10, cifar100 or folder"),
    ):
        with pytest.raises(ValueError, match=reason):
            evaluate(classifier, cifar, "test", **options)
    with pytest.raises(ValueError, match="a denoiser; choose pictures"):
        evaluate(denoiser, cifar, "test", dataset="cifar10")
    with pytest.raises(ValueError, match="sigma"):
        evaluate(denoiser, pictures, "test", sigma=-1)
    with pytest.raises(ValueError, match="image_channels=2 must be 1 or 3 for denoising"):
        evaluate(saved(brightening({1: 0, 2: 0.1}, image_channels=2), "two"), pictures, "test")


def test_what_was_saved_in_bf16_is_measured_in_fp32(saved, cifar):
    net = answering({1: 0, 2: 1})
    exact = evaluate(saved(net, "exact"), cifar, "test")
    low = evaluate(saved(net.to(torch.bfloat16), "low"), cifar, "test")
    assert [row.value for row in low.rows] == [row.value for row in exact.rows]


def test_where_nothing_was_held_out_there_is_no_minival(saved, animals):
    folder = saved(rc.r2(3, steps=(1, 2), width=1 / 16, class_names=("ant", "bee", "cow")), "net")
    recipe = recipes.override(recipes.get("r2-folder"), ["minival=0", "size=16"])
    train_like(folder, recipe)
    with pytest.raises(ValueError, match="minival=0 holds nothing out, so the split minival is empty"):
        evaluate(folder, animals, "minival")


def test_a_colour_denoiser_is_measured_in_colour(saved, pictures):
    gray, colour = (
        evaluate(
            saved(brightening({1: 0.1, 2: 0.2}, image_channels=channels), f"{channels}"), pictures, "test", sigma=0
        )
        for channels in (1, 3)
    )
    assert "gray pictures" in gray.condition
    assert "colour pictures" in colour.condition
    assert [row.value for row in colour.rows] == pytest.approx([row.value for row in gray.rows], abs=0.1)


def test_the_recipe_for_a_network_fits_its_kind(saved):
    denoiser = brightening({1: 0, 2: 0.1})
    assert recipe_for(saved(denoiser, "a"), denoiser).data == "pictures"
    for classes, data in ((10, "cifar10"), (100, "cifar100")):
        net = rc.r2(classes, steps=(1, 2), width=1 / 16)
        assert recipe_for(saved(net, str(classes)), net).data == data


@pytest.mark.parametrize("name", ["gpu", "cpu:0", "auto:1", "cuda:", "cuda:x", "cuda:-1", ""])
def test_a_device_that_is_none(name):
    with pytest.raises(ValueError, match="choose auto, cpu, cuda or cuda:N"):
        choose_device(name)


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="PyTorch sees 0 CUDA devices"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="PyTorch sees 2 CUDA devices"):
        choose_device("cuda:2")
