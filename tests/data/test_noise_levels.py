"""Ranges of noise levels, and colour: against statistics and the pictures themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from recurconv.data.bsd import BSD68, load_pictures
from recurconv.data.denoising import UNKNOWN, PicturePatches
from recurconv.data.drawings import drawing
from recurconv.data.pictures import read_rgb

REAL = Path(__file__).parents[3] / "shared" / "data"
SETTINGS: dict[str, Any] = {"epoch": 0, "seed": 7, "sigma": (5.0, 45.0), "patch": 4, "device": "cpu"}


def colour(count: int = 2, side: int = 9) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (3, side, side + 1)
    return [torch.randint(256, shape, generator=generator, dtype=torch.uint8) for _ in range(count)]


def patches(count: int = 4_000, pictures: list[torch.Tensor] | None = None) -> PicturePatches:
    return PicturePatches(pictures or colour(), name="toy", patches_per_epoch=count)


def test_each_patch_has_noise_of_its_own_level_drawn_evenly_and_every_other_is_told() -> None:
    ((noisy, clean),) = patches().training_batches(4_000, **SETTINGS)
    assert noisy.shape == (4_000, 4, 4, 4)
    assert clean.shape == (4_000, 3, 4, 4)
    told = noisy[:, 3]
    assert torch.equal(told, told[:, :1, :1].expand(-1, 4, 4))
    level = told[:, 0, 0]
    assert torch.equal(level[1::2], torch.full((2_000,), UNKNOWN))
    known = level[::2].double()
    assert 5 <= known.min() < 6
    assert 44 < known.max() <= 45
    assert abs(known.mean() - 25) < 5 * 40 / 12**0.5 / 2_000**0.5
    measured = (noisy[:, :3] - clean).mul(255).square().flatten(1).mean(1)
    ratio = (measured[::2] / known.square()).mean()  # 48 values in each patch: chi-squared over its degrees of freedom
    assert abs(ratio - 1) < 5 * (2 / 48 / 2_000) ** 0.5
    assert abs(measured[1::2].mean() / measured[::2].mean() - 1) < 0.1  # the others have the same range


def test_ranks_and_restarts_see_the_levels_of_one_process() -> None:
    whole = list(patches(24).training_batches(8, **SETTINGS))
    parts = [list(patches(24).training_batches(8, **SETTINGS, rank=rank, ranks=2)) for rank in range(2)]
    for together, *shares in zip(whole, *parts, strict=True):
        for expected, *got in zip(together, *shares, strict=True):
            assert torch.equal(torch.cat(got), expected)
    again = list(patches(24).training_batches(8, **SETTINGS, start=1))
    assert all(torch.equal(a, b) for pair in zip(whole[1:], again, strict=True) for a, b in zip(*pair, strict=True))


def test_tinted_patches_have_two_colours_mixed_by_their_brightness() -> None:
    plain, half, all_of_them = (
        next(patches(2_000).training_batches(2_000, **SETTINGS, tinted=part))[1] for part in (0.0, 0.5, 1.0)
    )
    tinted = (half != plain).flatten(1).any(1)
    assert abs(tinted.double().mean() - 0.5) < 5 * 0.5 / 2_000**0.5
    assert (all_of_them != plain).flatten(1).any(1).all()
    assert torch.equal(half[tinted], all_of_them[tinted])
    assert 0 <= all_of_them.min() < all_of_them.max() <= 1
    colours = all_of_them.flatten(2).double()
    lines = torch.linalg.svdvals(colours - colours.mean(2, keepdim=True))  # on one line through the colour cube
    assert lines[:, 1].max() < 1e-5
    order = plain.mean(1).flatten(1).argsort(1)
    along = colours.gather(2, order[:, None].expand(-1, 3, -1)).diff(dim=2)
    assert ((along >= -1e-6).all(2) | (along <= 1e-6).all(2)).all()  # a channel rises with brightness, or falls
    assert not torch.equal(*(all_of_them[at].mean((1, 2)) for at in (0, 1)))  # each has colours of its own


def test_ranks_see_the_tints_of_one_process() -> None:
    (whole,) = patches(24).training_batches(24, **SETTINGS, tinted=0.5)
    shares = [next(patches(24).training_batches(24, **SETTINGS, tinted=0.5, rank=r, ranks=3)) for r in range(3)]
    for expected, *got in zip(whole, *shares, strict=True):
        assert torch.equal(torch.cat(got), expected)


def test_tints_are_refused_of_gray_pictures_and_beyond_one() -> None:
    gray = [picture[:1] for picture in colour()]
    for pictures, tinted in ((gray, 0.5), (colour(), 1.5), (colour(), -0.5), (colour(), np.nan)):
        with pytest.raises(ValueError, match=f"tinted={tinted}"):
            patches(8, pictures).training_batches(8, **SETTINGS, tinted=tinted)


@pytest.mark.parametrize("sigma", [25.0, (5.0, 45.0)])
def test_clipped_patches_are_as_a_file_of_8_bits_would_hold_them(sigma: float | tuple[float, float]) -> None:
    (plain, clean), (half, same) = (
        next(patches(2_000).training_batches(2_000, **SETTINGS | {"sigma": sigma}, clipped=part)) for part in (0.0, 0.5)
    )
    assert torch.equal(clean, same)
    assert torch.equal(half[:, 3:], plain[:, 3:])  # the levels that are told
    half, plain = half[:, :3], plain[:, :3]
    clipped = (half != plain).flatten(1).any(1)
    assert abs(clipped.double().mean() - 0.5) < 5 * 0.5 / 2_000**0.5
    written = torch.from_numpy(np.rint(plain[clipped].numpy() * 255).clip(0, 255).astype(np.uint8))
    torch.testing.assert_close(half[clipped], written / 255, rtol=0, atol=1e-7)


def test_a_part_beyond_one_is_refused() -> None:
    for clipped in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match=f"clipped={clipped}"):
            patches(8).training_batches(8, **SETTINGS, clipped=clipped)


@pytest.mark.parametrize("channels", [1, 3])
def test_drawings_are_added_to_train_on(channels: int) -> None:
    pictures = [picture[:channels] for picture in colour()]
    more = patches(64, pictures).with_drawings(3)
    assert [tuple(picture.shape) for picture in more.pictures[2:]] == [(channels, 320, 480)] * 3
    assert all(
        torch.equal(a, b) for a, b in zip(more.pictures[2:], map(drawing, range(3), [channels] * 3), strict=True)
    )
    assert more.names[2:] == ["drawing 0", "drawing 1", "drawing 2"]
    assert more.patches_per_epoch == 64


@pytest.mark.parametrize("channels", [1, 3])
def test_drawings_differ_and_are_sharp(channels: int) -> None:
    drawings = [drawing(seed, channels) for seed in range(20)]
    assert len({picture.numpy().tobytes() for picture in drawings}) == 20
    assert all(torch.equal(drawing(seed, channels), picture) for seed, picture in enumerate(drawings))
    edges = torch.stack([picture.float().diff(dim=2).abs().amax() for picture in drawings])
    assert edges.median() > 128
    gray = [(picture == picture[:1]).all() for picture in drawings]
    assert all(gray) if channels == 1 else sum(map(bool, gray)) < 5


def test_a_range_that_runs_backwards_is_refused() -> None:
    for sigma, words in (
        ((9.0, 5.0), "the first of a range"),
        ((-1.0, 5.0), "sigma=-1.0"),
        ((0.0, np.inf), "sigma=inf"),
    ):
        with pytest.raises(ValueError, match=words):
            patches(8).training_batches(8, **SETTINGS | {"sigma": sigma})


def test_colour_patches_are_cut_from_the_pictures_with_their_channels_together() -> None:
    pictures = colour()
    ((_, clean),) = patches(64, pictures).training_batches(64, **SETTINGS | {"sigma": 0.0})
    cut = {
        torch.rot90(part if flip else part.flip(2), turn, (1, 2)).numpy().tobytes()
        for picture in pictures
        for part in picture.unfold(1, 4, 1).unfold(2, 4, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
        for flip in (False, True)
        for turn in range(4)
    }
    assert {patch.numpy().tobytes() for patch in (clean * 255).round().to(torch.uint8)} <= cut


def test_gray_and_colour_do_not_mix() -> None:
    with pytest.raises(ValueError, match=r"picture 1 has shape \[1, 9, 10\].* it must be uint8 \[3, H, W\]"):
        PicturePatches([*colour(1), colour(1)[0][:1]], name="toy")


def test_a_folder_is_read_in_colour(tmp_path: Path) -> None:
    pixels = colour(1)[0].permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(tmp_path / "a.png")
    data = load_pictures(tmp_path, "test", channels=3)
    assert torch.equal(data.pictures[0], colour(1)[0])
    assert data.condition.startswith("1 colour pictures of ")
    with pytest.raises(ValueError, match="channels=2; give 1 for gray or 3 for colour"):
        load_pictures(tmp_path, "test", channels=2)


@pytest.mark.skipif(not (REAL / "bsd" / "splits.json").is_file(), reason="needs the real BSD beside the checkout")
def test_the_largest_training_set_is_all_of_real_bsd_but_bsd68() -> None:
    data = load_pictures(REAL / "bsd", "train432", channels=3)
    numbers = {Path(name).stem for name in data.names}
    everything = {file.stem for file in (REAL / "bsd" / "images").iterdir()}
    assert numbers == everything - set(BSD68)
    assert len(data) == 432
    first = read_rgb(REAL / "bsd" / data.names[0])
    assert np.array_equal(data.pictures[0].permute(1, 2, 0).numpy(), first)
