"""What the figures need of a network: the values are those that the network has and computes."""

import base64
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import recurconv as rc
from conftest import brightening
from recurconv import measuring, recipes
from recurconv.data.pictures import sample_picture
from small import make
from tiny import load_tiny, tiny_data

R2, R3 = recipes.get("r2-cifar10"), recipes.get("r3-gray25")


def pixels(text):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text, validate=True))))


def extras(network, recipe=R2):
    with tiny_data():
        return measuring.extras_for(recipe, network.float(), "tiny")


def test_the_norm_of_c1_is_told_for_each_step():
    net = make("r2", steps=(2, 3)).float()
    found = extras(net)["norm_over_steps"]
    assert found["steps"] == [1, 2, 3]
    for step in range(3):
        layer = net.cell1.bank[3, step][0]  # the row of the largest setting
        for name, tensor in (
            ("mean", layer.running_mean),
            ("variance", layer.running_var),
            ("scale", layer.weight),
            ("shift", layer.bias),
        ):
            np.testing.assert_allclose(found[name][step], tensor.detach().numpy(), rtol=1e-3)
    assert len({tuple(values) for values in found["mean"]}) == 3


def test_the_norm_of_t2_is_told_for_each_step_count_of_c1():
    net = make("r4", steps=(1, 3)).float()
    found = extras(net)["norm_by_steps"]
    assert found["steps"] == [1, 3]
    for place, row in enumerate((1, 3)):
        layer = net.transition2.bank[row, 0][0]
        np.testing.assert_allclose(found["variance"][place], layer.running_var.numpy(), rtol=1e-3)
        np.testing.assert_allclose(found["shift"][place], layer.bias.detach().numpy(), rtol=1e-3)


@pytest.mark.parametrize("norm", ["none", "shared"])
def test_without_a_group_for_each_step_there_are_no_variables(norm):
    assert set(extras(make("r2", steps=3, norm=norm))) == {"features"}


def test_untied_networks_have_neither_steps_nor_groups_to_show():
    assert extras(make("s2", steps=2)) == {}
    assert extras(make("deeply_supervised_s4", steps=2)) == {}


def test_feature_maps_are_those_of_the_most_active_channels_over_steps():
    net = make("r4", steps=3).float().eval()
    found = extras(net)["features"]
    data = load_tiny("tiny", "cifar10", "test", minival=0)
    images = data.images.float() / 255
    assert len(found["images"]) == measuring.IMAGES
    for shown in found["images"]:
        own = pixels(shown["image"]).transpose(2, 0, 1)
        (index,) = (i for i, image in enumerate(data.images.numpy()) if np.array_equal(image, own))
        with torch.no_grad():  # the forward pass again, step by step
            x = net.transition1(net.stem(net.normalize(images[index : index + 1])), row=1)
            x = net.transition2(net.cell1(x, 3), 3)
            steps = []
            for step in range(3):
                x = net.cell2.body(x, net.cell2.bank[3, step])
                steps.append(x[0])
        mean = steps[-1].mean((1, 2))
        channels = shown["C_2"]["channels"]
        assert channels == sorted(range(len(mean)), key=lambda c: -mean[c])[: len(channels)]
        side = steps[0].shape[-1]
        mosaic = pixels(shown["C_2"]["maps"])
        assert mosaic.shape == (len(channels) * side, 3 * side)
        for row, channel in enumerate(channels):
            maps = torch.stack([step[channel] for step in steps]).numpy()
            expected = np.hstack((maps - maps.min()) / np.ptp(maps)) * 255
            assert np.abs(mosaic[row * side : (row + 1) * side] - expected).max() <= 0.51
        assert "C_3" in shown
        assert "C_1" not in shown


def test_maps_pooled_within_the_cell_are_shown_as_large_as_before():
    shown = extras(make("r2", steps=4))["features"]["images"][0]
    mosaic = pixels(shown["C_2"]["maps"])
    side = 2  # 8 pixels, pooled in C_1, then by InvPool
    assert mosaic.shape == (len(shown["C_2"]["channels"]) * side, 4 * side)
    last = mosaic[:side, 3 * side :]
    assert (last == last[0, 0]).all()
    assert "C_3" not in shown


def test_a_denoiser_is_shown_on_the_sample_picture():
    net = brightening({1: 0.1, 2: 0.0})
    found = extras(net, recipes.override(R3, ["sigma=15"]))["denoised"]
    clean = sample_picture()
    rows, columns = measuring.DETAIL
    assert found["sigma"] == 15
    np.testing.assert_array_equal(pixels(found["clean"]), clean[rows, columns])
    np.testing.assert_array_equal(pixels(found["settings"]["2"]["image"]), pixels(found["noisy"]))
    brighter = pixels(found["settings"]["1"]["image"]).astype(int) - pixels(found["noisy"])
    inside = (pixels(found["noisy"]) > 0) & (pixels(found["noisy"]) < 229)
    assert set(brighter[inside]) == {25, 26}
    noise = pixels(found["noisy"])[inside].astype(float) - clean[rows, columns][inside]
    assert 13.5 < noise.std() < 15.5
    assert found["settings"]["2"]["psnr"] == found["noisy_psnr"] == pytest.approx(24.7, abs=0.3)
    assert found["settings"]["1"]["psnr"] < found["noisy_psnr"]


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(training):
    net = make("r2").float().train(training)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    extras(net)
    assert net.training is training
    assert all(tensor.equal(before[name]) for name, tensor in net.state_dict().items())
    assert not any(module._forward_hooks for module in net.modules())


def test_extras_of_the_papers_networks_are_small():
    with tiny_data():
        for net, recipe in ((rc.r2(), R2), (rc.r3(channels=4), R3)):
            size = len(json.dumps(measuring.extras_for(recipe, net, "tiny")))
            assert 5_000 < size < 100_000
