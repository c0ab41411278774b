"""Making arrays and tensors clean: tiles without seams, the same type out, what is refused."""

import numpy as np
import pytest
import torch

import recurconv as rc
from conftest import brightening, within_noise
from recurconv.cleaning import Cleaner, cleaner, denoise
from recurconv.cleaning.tiles import denoise_tiles, tiles
from recurconv.data.pictures import sample_picture

DIAL = (1, 2)


def mixing(build, dtype=torch.float64, **options):
    """A small network that changes pictures much, differently at each setting, and as far as it reaches."""
    generator = torch.Generator().manual_seed(3)
    net = build(**{"steps": DIAL, "channels": 4, **options}).to(dtype).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            spread = 1.5 / parameter[0].numel() ** 0.5 if parameter.ndim == 4 else 0.5
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator, dtype=dtype))
        for body in (cell.body for cell in net.cells()):
            for parameter in body.parameters():
                parameter.mul_(1.5)
    return net


NETWORKS = {
    "r3": lambda dtype: mixing(rc.r3, dtype),
    "half": lambda dtype: mixing(rc.r3_half, dtype),
    "half, colour": lambda dtype: mixing(rc.r3_half, dtype, image_channels=3),
}


def noisy(*shape, dtype=np.float64, seed=0):
    values = np.random.default_rng(seed).random(shape)
    return (values * (1 if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max)).astype(dtype)


def whole(net, pixels, steps, sigma):
    """The network on all of a picture at once, its changes and values clipped: what tiles must give."""
    planes = torch.from_numpy(np.atleast_3d(pixels).transpose(2, 0, 1).copy())[None]
    options = {"sigma": sigma} if net.takes_sigma else {}
    with torch.inference_mode():
        clean = net(planes.to(next(net.parameters()).dtype), steps, **options)
    clean = clean[0].permute(1, 2, 0).numpy().reshape(pixels.shape)
    return (pixels + within_noise(clean - pixels, sigma)).clip(0, 1)


# --- tiles


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("steps", DIAL)
def test_tiles_give_what_the_whole_picture_gives(kind, dtype, tolerance, steps):
    net = NETWORKS[kind](dtype)
    for height, width in ((61, 84), (40, 29), (1, 70), (90, 1), (3, 2)):  # odd ones, thin ones
        pixels = noisy(height, width, *([3] if net.image_channels == 3 else []))
        expected = whole(net, pixels, steps, 30.0)
        if min(height, width) > 2:
            assert np.abs(expected - pixels).mean() > 0.03  # the network does something, as much as noise of 30 allows
        for side in (1000, 32, 7) if height * width > 100 else (2, 1):  # 7 is below each reach
            made = denoise_tiles(net, pixels, steps, 30.0, side=side)
            np.testing.assert_allclose(made, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", NETWORKS)
def test_with_less_surroundings_there_would_be_seams(kind, monkeypatch):
    net = NETWORKS[kind](torch.float64)
    pixels = noisy(61, 84, *([3] if net.image_channels == 3 else []))
    expected = whole(net, pixels, 2, None)
    monkeypatch.setattr(net, "reach", lambda steps, reach=net.reach: reach(steps) - 1 - net.alignment)
    assert np.abs(denoise_tiles(net, pixels, 2, side=20) - expected).max() > 1e-9


CUTS = [
    # height, width, side, reach, alignment
    (100, 70, 32, 5, 1),
    (101, 71, 32, 53, 2),
    (1, 1, 512, 14, 2),
    (7, 999, 1, 3, 2),
    (64, 64, 64, 9, 2),
    (65, 3, 64, 9, 4),
]


@pytest.mark.parametrize(("height", "width", "side", "reach", "alignment"), CUTS)
def test_tiles_cover_each_pixel_once_and_see_enough(height, width, side, reach, alignment):
    seen = np.zeros((height, width), int)
    for tile in tiles(height, width, side, reach, alignment):
        seen[tile.rows, tile.columns] += 1
        for inner, outer, length in ((tile.rows, tile.seen_rows, height), (tile.columns, tile.seen_columns, width)):
            assert inner.stop - inner.start <= max(side, alignment)
            assert outer.start % alignment == 0
            assert outer.start <= max(0, inner.start - reach)
            assert outer.stop == length or (outer.stop >= inner.stop + reach and outer.stop % alignment == 0)
            assert outer.stop - outer.start < side + 2 * (reach + alignment) + alignment
    assert (seen == 1).all()


# --- types, shapes, ranges


@pytest.mark.parametrize("dtype", ["uint8", "uint16", ">u2", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(20, 25), (20, 25, 3), (1, 1), (1, 9, 3)])
def test_arrays_come_back_in_their_type_and_shape(dtype, shape):
    net = brightening({1: 0.1, 2: 0.02}, image_channels=1 if len(shape) == 2 else 3)
    pixels = noisy(*shape, dtype=dtype)
    before = pixels.copy()
    made = denoise(pixels, 25, 1, net)
    assert (made.dtype, made.shape) == (pixels.dtype, pixels.shape)
    assert np.array_equal(pixels, before)
    white = 1 if pixels.dtype.kind == "f" else np.iinfo(pixels.dtype).max
    expected = np.clip(pixels.astype(np.float64) / white + 0.1, 0, 1) * white
    error = np.abs(made.astype(np.float64) - expected).max()
    assert error <= {"float16": 1e-3, "float32": 1e-6, "float64": 1e-6}.get(dtype, 0.5 + 1e-2)  # half a level: nearest


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("channels", [1, 3])
def test_tensors_come_back_as_the_arrays_do(dtype, channels):
    net = mixing(rc.r3_half, torch.float32, image_channels=channels)
    arrays = noisy(2, 12, 15, channels, dtype=dtype if dtype != "bfloat16" else "float32")
    batch = torch.from_numpy(arrays).permute(0, 3, 1, 2).to(getattr(torch, dtype))
    made = denoise(batch, 10.0, model=net)
    assert (made.dtype, made.shape) == (batch.dtype, batch.shape)
    if dtype == "bfloat16":
        arrays = batch.permute(0, 2, 3, 1).float().numpy()
    for own, array in zip(made, arrays, strict=True):
        expected = denoise(array if channels == 3 else array[..., 0], 10.0, model=net)
        found = own.permute(1, 2, 0).double().numpy().reshape(expected.shape)
        assert np.allclose(found, expected.astype(np.float64), rtol=0, atol=4e-3 if dtype == "bfloat16" else 0)


def test_views_of_any_kind_are_read():
    net = mixing(rc.r3_half, torch.float32, image_channels=3)
    pixels = noisy(40, 30, 3, dtype=np.uint8)
    fixed = pixels[::2, ::-1, ::-1]
    fixed.flags.writeable = False
    assert np.array_equal(denoise(fixed, 10, model=net), denoise(fixed.copy(), 10, model=net))


def test_a_gray_network_takes_the_channels_of_a_colour_picture_one_by_one():
    net = mixing(rc.r3_half, torch.float32)
    pixels = noisy(33, 20, 3, dtype=np.uint8)
    made = denoise(pixels, 20, 2, net)
    assert np.array_equal(made, np.stack([denoise(pixels[..., c], 20, 2, net) for c in range(3)], axis=2))


def test_the_noise_level_and_the_setting_reach_the_network():
    net = mixing(rc.r3_half)
    pixels = noisy(20, 20)
    for steps in DIAL:
        for sigma in (5, 50):
            np.testing.assert_allclose(denoise(pixels, sigma, steps, net), whole(net, pixels, steps, float(sigma)))
    assert np.array_equal(denoise(pixels, 5, None, net), denoise(pixels, 5, DIAL[-1], net))


def test_a_network_in_train_mode_is_used_as_in_eval_mode_and_left_alone():
    net = mixing(rc.r3, torch.float32).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    pixels = noisy(20, 20, dtype=np.uint8)
    made = denoise(pixels, 25, model=net)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert net.training
    assert np.array_equal(made, denoise(pixels, 25, model=net.eval()))


# --- clean pictures


def test_without_noise_a_picture_comes_back_as_it_is():
    net = mixing(rc.r3_half)
    pixels = noisy(20, 20, 3, dtype=np.uint16)
    made = denoise(pixels, 0, model=net)
    assert np.array_equal(made, pixels)
    assert not np.shares_memory(made, pixels)
    assert denoise(np.full((4, 4), 1.25), 0, model=net).max() == 1
    cleaned = Cleaner(net).clean(np.full((64, 64), 100, np.uint8))  # no detail, so no noise
    assert (cleaned.sigma, cleaned.steps) == (0, 0)


@pytest.mark.parametrize("model", ["denoise-gray", "denoise-color"])
def test_told_of_next_to_no_noise_a_network_changes_next_to_nothing(model):
    pixels = noisy(40, 40, *([3] if model == "denoise-color" else []))
    for sigma in (0.01, 0.1):
        assert 0 < np.abs(denoise(pixels, sigma=sigma, model=model) - pixels).max() <= 4 * sigma / 255 + 1e-6


def lines(ground, ink):
    """Lines of one pixel, across, down and aslant."""
    picture = np.full((96, 96), ground, np.uint8)
    picture[::24, :] = picture[:, ::18] = ink
    np.fill_diagonal(picture, ink)
    return picture


@pytest.mark.parametrize("sigma", [2, 10, 25])
@pytest.mark.parametrize(("ground", "ink"), [(235, 20), (30, 220)])
def test_thin_lines_are_not_taken_for_noise(sigma, ground, ink):
    clean = lines(ground, ink).astype(float)
    drawn = np.clip(np.rint(clean + sigma * np.random.default_rng(0).standard_normal(clean.shape)), 0, 255)
    made = denoise(drawn.astype(np.uint8), sigma).astype(float)
    # Of weak noise hardly anything can be told from lines; a network alone makes it four times as much.
    assert ((made - clean) ** 2).mean() < (1.2 if sigma == 2 else 0.8) * ((drawn - clean) ** 2).mean()


def test_noise_that_is_found_is_told_to_the_network_as_far_as_it_was_trained(monkeypatch):
    net = mixing(rc.r3_half)
    pixels = noisy(20, 20)
    for found, told in ((0.9, 0), (1.1, 1.1), (29.9, 29.9), (54.9, 54.9), (55.1, None), (99.0, None)):
        monkeypatch.setattr(cleaner, "estimate_sigma", lambda *_, found=found: found)
        cleaned = Cleaner(net).clean(pixels)
        assert (cleaned.sigma, cleaned.steps) == (found, 2 if told != 0 else 0)
        np.testing.assert_allclose(cleaned.pixels, pixels if told == 0 else whole(net, pixels, 2, told))
    for said in (50, np.float32(50), np.int64(50)):
        np.testing.assert_allclose(
            denoise(pixels, said, model=net), whole(net, pixels, 2, 50.0)
        )  # what is said is told


@pytest.mark.parametrize("turned", [False, True])
def test_dark_and_overexposed_colour_is_made_clean_channel_by_channel(turned):
    photo = sample_picture()[:128, :128]
    colour = np.stack([photo, photo[::-1], photo[:, ::-1]], axis=2)
    for clean, model in ((colour // 8, "denoise-gray"), (colour // 2 + 64, "denoise-color")):
        clean = 255 - clean if turned else clean
        noise = np.random.default_rng(0).standard_normal(clean.shape)
        pixels = np.clip(np.rint(clean + 40 * noise), 0, 255).astype(np.uint8)
        made = denoise(pixels, 40)
        assert np.array_equal(made, denoise(pixels, 40, model=model))
        if model == "denoise-gray":
            other = denoise(pixels, 40, model="denoise-color")
            assert ((made - clean.astype(float)) ** 2).mean() < 0.5 * ((other - clean.astype(float)) ** 2).mean()


# --- budgets


def test_a_budget_takes_the_largest_setting_that_fits(monkeypatch):
    net = mixing(rc.r3, torch.float32, steps=(1, 2, 4))
    pixels = noisy(50, 40, 3, dtype=np.uint8)
    # 1 ms for each step and 1,000 pixels: the picture is 6,000 pixels for a gray network.
    monkeypatch.setattr(Cleaner, "_seconds_per_pixel", lambda self, network, steps, *size: steps * 1e-6)
    for budget, steps in ((6.5, 1), (12.5, 2), (23.9, 2), (24.1, 4), (1e9, 4)):
        assert Cleaner(net, sigma=9, milliseconds=budget).clean(pixels).steps == steps
    # In small tiles each tile's surroundings count.
    assert Cleaner(net, sigma=9, milliseconds=24.1, tile=10).clean(pixels).steps < 4
    with pytest.raises(ValueError, match=r"milliseconds=5 fits no setting for 40 x 50 pixels; steps=1 takes about 6"):
        Cleaner(net, sigma=9, milliseconds=5).clean(pixels)


def test_a_budget_is_measured():
    net = mixing(rc.r3, torch.float32)
    pixels = noisy(64, 64, dtype=np.uint8)
    assert Cleaner(net, sigma=9, milliseconds=1e6).clean(pixels).steps == DIAL[-1]
    with pytest.raises(ValueError, match="fits no setting"):
        denoise(pixels, 9, model=net, milliseconds=1e-6)


# --- what is refused


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (np.zeros((4, 4, 4), np.uint8), r"shape \[4, 4, 4\]; give \[H, W\] or \[H, W, 3\]"),
        (np.zeros((0, 4), np.uint8), r"shape \[0, 4\]"),
        (np.zeros(4, np.uint8), r"shape \[4\]"),
        (np.zeros((4, 4), np.int64), "pixels are int64; give uint8, uint16, or float"),
        (np.zeros((4, 4), bool), "pixels are bool"),
        (np.full((4, 4), 120.0), "float pixels from 120 to 120; give black as 0 and white as 1"),
        (np.full((4, 4), np.nan), "float pixels from nan to nan"),
        (torch.zeros(3, 4, 4), r"tensor has shape \[3, 4, 4\]; give \[B, C, H, W\]"),
        (torch.zeros(1, 2, 4, 4), r"tensor has shape \[1, 2, 4, 4\]"),
        (torch.zeros(1, 1, 4, 4, dtype=torch.int32), "pixels are int32"),
    ],
)
def test_what_is_no_picture_is_refused(image, reason):
    with pytest.raises(ValueError, match=reason):
        denoise(image, 25, model=brightening({1: 0.1}))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"sigma": -1}, "sigma=-1; give a number from 0 to 55"),
        ({"sigma": 75}, "sigma=75"),
        ({"sigma": "low"}, "sigma='low'"),
        ({"sigma": float("nan")}, "sigma=nan"),
        ({"sigma": np.array([25.0, 3.0])}, "sigma=array"),
        ({"steps": 3}, r"steps=3 is not on this network's dial \(1, 2\)"),
        ({"steps": 1, "milliseconds": 5}, "steps=1 and milliseconds=5; give one of them"),
        ({"milliseconds": 0}, "milliseconds=0 is no budget"),
        ({"tile": 0}, "tile=0"),
        ({"model": rc.r2(width=1 / 16)}, "TwoCellClassifier is no denoiser; give one such as denoise-gray"),
        ({"model": "r2-cifar10"}, "r2-cifar10 is no denoiser"),
        ({"model": "r3-gray25", "sigma": 40}, "sigma=40: r3-gray25 was trained for sigma 25 alone"),
        ({"model": rc.r3(image_channels=3)}, "the model takes 3 channels and the picture is gray"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        denoise(np.zeros((4, 4), np.uint8), **{"sigma": 25, "model": brightening({1: 0.1, 2: 0.2}), **arguments})
