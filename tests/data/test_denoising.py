"""Patches against a list of all of them, PSNR against torchmetrics, splits against the published lists."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio

from recurconv.data.bsd import BSD68, load_pictures
from recurconv.data.denoising import PicturePatches, psnr

REAL = Path(__file__).parents[3] / "shared" / "data"
SETTINGS: dict[str, Any] = {"epoch": 0, "seed": 7, "sigma": 25.0, "patch": 3, "device": "cpu"}


def distinct_pictures() -> list[Tensor]:
    """Three sizes, every pixel value once, so that a patch and its turn can be told from its pixels."""
    values = torch.arange(92, dtype=torch.uint8)
    return [values[:20].view(1, 4, 5), values[20:62].view(1, 6, 7), values[62:].view(1, 10, 3)]


def patches(patches_per_epoch: int = 24) -> PicturePatches:
    return PicturePatches(distinct_pictures(), name="toy", patches_per_epoch=patches_per_epoch)


def all_turned_patches(pictures: list[Tensor], size: int) -> set[bytes]:
    found = set()
    for picture in pictures:
        array = picture[0].numpy()
        for top in range(array.shape[0] - size + 1):
            for left in range(array.shape[1] - size + 1):
                square = array[top : top + size, left : left + size]
                for turned in (square, square.T):
                    found |= {np.rot90(turned, quarter).tobytes() for quarter in range(4)}
    return found


def test_every_patch_and_turn_is_drawn_equally_often_and_nothing_else() -> None:
    expected = all_turned_patches(distinct_pictures(), 3)
    assert len(expected) == 8 * (2 * 3 + 4 * 5 + 8 * 1)
    ((_, clean),) = patches(200 * len(expected)).training_batches(200 * len(expected), **SETTINGS)
    drawn = (clean * 255).round().to(torch.uint8)
    torch.testing.assert_close(clean, drawn / 255, rtol=0, atol=0)
    counts = Counter(patch.numpy().tobytes() for patch in drawn)
    assert set(counts) == expected
    chi_square = sum((count - 200) ** 2 / 200 for count in counts.values())
    assert abs(chi_square - len(expected)) < 5 * (2 * len(expected)) ** 0.5


def test_noise_is_gaussian_of_sigma_and_not_clipped() -> None:
    ((noisy, clean),) = patches(60_000).training_batches(60_000, **SETTINGS)
    assert noisy.dtype == clean.dtype == torch.float32
    assert noisy.shape == clean.shape == (60_000, 1, 3, 3)
    noise = (noisy - clean).double() * 255 / 25
    assert abs(noise.mean()) < 0.01
    assert abs(noise.std() - 1) < 0.01
    assert abs((noise**4).mean() - 3) < 0.1
    assert abs((noise[:, :, :, 1:] * noise[:, :, :, :-1]).mean()) < 0.01
    assert noisy.min() < -0.1


def test_sigma_only_scales_the_noise() -> None:
    batches = {sigma: next(patches().training_batches(8, **SETTINGS | {"sigma": sigma})) for sigma in (0, 15, 50)}
    (quiet, clean), (low, _), (high, _) = batches.values()
    assert torch.equal(quiet, clean)
    torch.testing.assert_close((low - clean) / 15, (high - clean) / 50, rtol=0, atol=1e-7)


def test_ranks_together_see_the_batches_of_one() -> None:
    whole = list(patches().training_batches(8, **SETTINGS))
    parts = [list(patches().training_batches(8, **SETTINGS, rank=rank, ranks=2)) for rank in range(2)]
    assert len(whole) == patches().iterations(8) == 3
    for together, *shares in zip(whole, *parts, strict=True):
        for expected, *got in zip(together, *shares, strict=True):
            assert all(share.shape == (4, 1, 3, 3) for share in got)
            assert torch.equal(torch.cat(got), expected)


def test_a_restart_goes_on_as_if_never_stopped_and_draws_repeat() -> None:
    whole = list(patches().training_batches(8, **SETTINGS))
    for start in range(4):
        rest = list(patches().training_batches(8, **SETTINGS, start=start))
        assert len(rest) == 3 - start
        for expected, got in zip(whole[start:], rest, strict=True):
            assert torch.equal(got[0], expected[0])
            assert torch.equal(got[1], expected[1])


def test_iterations_epochs_and_seeds_differ() -> None:
    batches = list(patches().training_batches(8, **SETTINGS))
    for change in ({"epoch": 1}, {"seed": 8}):
        batches += list(patches().training_batches(8, **SETTINGS | change))
    assert len({clean.numpy().tobytes() for _, clean in batches}) == 9
    assert len({(noisy - clean).numpy().tobytes() for noisy, clean in batches}) == 9


@pytest.mark.gpu
def test_cuda_sees_the_patches_of_the_cpu_and_its_noise_repeats() -> None:
    on_cpu = list(patches().training_batches(8, **SETTINGS))
    runs = [list(patches().training_batches(8, **SETTINGS | {"device": "cuda"})) for _ in range(2)]
    for (_, expected), (noisy, clean), (noisy_again, _) in zip(on_cpu, *runs, strict=True):
        assert clean.is_cuda
        torch.testing.assert_close(clean.cpu(), expected, rtol=2e-7, atol=0)  # CUDA divides by multiplying
        assert torch.equal(noisy, noisy_again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 25}, "batch_size=25; an epoch has 24 patches"),
        ({"ranks": 3}, "batch_size=8 cannot be divided among 3 ranks"),
        ({"rank": 2, "ranks": 2}, "rank=2; with ranks=2 it must lie between 0 and 1"),
        ({"start": 4}, "start=4; this epoch has 3 iterations"),
        ({"sigma": -1.0}, "sigma=-1.0"),
        ({"sigma": float("nan")}, "sigma=nan"),
        ({"patch": 0}, "patch=0"),
        ({"seed": -1}, "-1"),
        ({"epoch": -1}, "-1"),
        ({"patch": 5}, r"2 of 3 pictures are smaller than a 5x5 patch.*: picture 0 \(4x5\), picture 2 \(10x3\)$"),
    ],
)
def test_bad_arguments_fail_at_the_call(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        patches().training_batches(**{"batch_size": 8} | SETTINGS | change)


def test_pictures_are_kept_as_given_and_checked() -> None:
    data = patches()
    assert (data.name, len(data), data.names) == ("toy", 3, ["picture 0", "picture 1", "picture 2"])
    for kept, given in zip(data.pictures, distinct_pictures(), strict=True):
        assert torch.equal(kept, given)
    changed = distinct_pictures()
    changed[2][0, 0, 0] += 1
    conditions = [PicturePatches(pictures, name="toy").condition for pictures in (changed, distinct_pictures())]
    assert conditions[0] != conditions[1] == data.condition
    for pictures in ([], [torch.zeros(1, 4, 4)], [torch.zeros(4, 4, dtype=torch.uint8)], [changed[0][:, :0]]):
        with pytest.raises(ValueError, match=r"at least one|must be uint8 \[1, H, W\]"):
            PicturePatches(pictures, name="toy")
    with pytest.raises(ValueError, match="1 names for 3 pictures"):
        PicturePatches(changed, name="toy", names=["a"])
    with pytest.raises(ValueError, match="patches_per_epoch=0"):
        PicturePatches(changed, name="toy", patches_per_epoch=0)


def test_pictures_at_half_size_are_the_means_of_four_pixels() -> None:
    data = patches()
    both = data.with_halves()
    assert both.names[3:] == ["picture 0 at half size", "picture 1 at half size", "picture 2 at half size"]
    assert (both.patches_per_epoch, len(data)) == (data.patches_per_epoch, 3)
    for half, picture in zip(both.pictures[3:], data.pictures, strict=True):
        height, width = (side // 2 for side in picture.shape[1:])
        array = picture[0, : 2 * height, : 2 * width].numpy().astype(float).reshape(height, 2, width, 2)
        assert np.array_equal(half[0].numpy(), np.rint(array.mean((1, 3))))
    expected = all_turned_patches(both.pictures, 1)
    ((_, clean),) = PicturePatches(both.pictures, name="toy", patches_per_epoch=5000).training_batches(
        5000, **SETTINGS | {"patch": 1}
    )
    assert {(patch * 255).round().byte().numpy().tobytes() for patch in clean} == expected
    with pytest.raises(ValueError, match="picture 0: no half of one row or column"):
        PicturePatches([torch.zeros(1, 1, 9, dtype=torch.uint8)], name="thin").with_halves()


def test_evaluation_noise_depends_on_seed_and_position_alone() -> None:
    def noises(pictures: list[Tensor], sigma: float, seed: int = 0) -> list[Tensor]:
        pairs = list(PicturePatches(pictures, name="toy").evaluation_pictures(sigma, device="cpu", seed=seed))
        for (noisy, clean), picture in zip(pairs, pictures, strict=True):
            assert noisy.dtype == clean.dtype == torch.float32
            assert torch.equal(clean, picture[None] / 255)
            assert noisy.shape == clean.shape
        return [(noisy - clean) * 255 / sigma for noisy, clean in pairs]

    same = [torch.full((1, 30, 40), 128, dtype=torch.uint8)] * 3
    first = noises(same, 25)
    assert abs(torch.stack(first).std() - 1) < 0.03
    assert len({noise.numpy().tobytes() for noise in (*first, *noises(same, 25, seed=1))}) == 6
    for position, noise in enumerate(noises([*distinct_pictures()[:2], same[2]], 25)):
        if position == 2:  # whatever stands before it
            assert torch.equal(noise, first[2])
    for low, high in zip(first, noises(same, 50), strict=True):
        torch.testing.assert_close(low, high, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="sigma=-5"):
        patches().evaluation_pictures(-5, device="cpu")


def test_psnr_equals_torchmetrics_of_the_clipped_estimate() -> None:
    generator = torch.Generator().manual_seed(3)
    clean = torch.rand(5, 2, 9, 7, generator=generator)
    estimate = clean + torch.randn(clean.shape, generator=generator) * torch.linspace(0.01, 1, 5).view(-1, 1, 1, 1)
    clipped = estimate.clamp(0, 1).double()
    expected = peak_signal_noise_ratio(clipped, clean.double(), data_range=1.0, dim=(1, 2, 3), reduction="none")
    torch.testing.assert_close(psnr(clean, estimate), expected, rtol=0, atol=1e-5)  # its logarithm is in float32
    for value, clean_image, image in zip(psnr(clean, estimate), clean.double().numpy(), clipped.numpy(), strict=True):
        assert float(value) == pytest.approx(-10 * np.log10(np.mean((clean_image - image) ** 2)), abs=1e-10)


def test_psnr_of_identical_and_of_known_differences() -> None:
    clean = torch.full((3, 1, 4, 4), 0.5)
    estimate = torch.stack([clean[0], clean[1] + 0.25, clean[2] + 100])
    expected = torch.tensor([torch.inf, -20 * np.log10(0.25), -20 * np.log10(0.5)], dtype=torch.float64)
    torch.testing.assert_close(psnr(clean, estimate), expected)
    assert psnr(clean, clean).dtype == torch.float64


def test_psnr_refuses_integers_and_other_shapes() -> None:
    with pytest.raises(ValueError, match="uint8"):
        psnr(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"clean \[1, 1, 2, 2\] and estimate \[1, 1, 2, 3\]"):
        psnr(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 3))


def write(folder: Path, names: list[str], first: int = 0) -> None:
    """Write 2x2 pictures whose gray value tells their place in the list, modulo 256."""
    folder.mkdir(parents=True, exist_ok=True)
    for value, name in enumerate(names, first):
        Image.new("L", (2, 2), value % 256).save(folder / name, format="png")


def values(data: PicturePatches) -> list[int]:
    return [int(picture[0, 0, 0]) for picture in data.pictures]


def test_a_flat_folder_is_split_by_name_or_taken_whole(tmp_path: Path) -> None:
    write(tmp_path, ["a.png", "b.png", "c.png", "d.png", "e.png"])
    got = {split: values(load_pictures(tmp_path, split, minival=2)) for split in ("train", "minival", "trainval")}
    assert got == {"train": [0, 1, 2], "minival": [3, 4], "trainval": [0, 1, 2, 3, 4]}
    test = load_pictures(tmp_path, "test", patches_per_epoch=9)
    assert (values(test), test.patches_per_epoch) == ([0, 1, 2, 3, 4], 9)
    assert test.names == ["a.png", "b.png", "c.png", "d.png", "e.png"]
    assert test.name == f"{tmp_path.name} test"
    assert test.condition.startswith(f"5 gray pictures of {tmp_path.name}, split test, ")


def test_train_and_test_subfolders_are_used(tmp_path: Path) -> None:
    write(tmp_path / "train", ["a.png", "b.png", "c.png"])
    write(tmp_path / "test", ["a.png", "b.png"], first=10)
    splits = ("train", "minival", "trainval", "test")
    assert [values(load_pictures(tmp_path, split, minival=1)) for split in splits] == [[0, 1], [2], [0, 1, 2], [10, 11]]
    assert values(load_pictures(tmp_path, "train", minival=0)) == [0, 1, 2]


def test_load_pictures_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    write(tmp_path, ["a.png", "b.png"])
    for split, minival, message in (
        ("val", 1, "split='val'; choose one of train, minival, trainval, test, train400, train432"),
        ("train400", 1, "exists for BSD only; train on all of a folder by --set trained_on=trainval"),
        ("train", 2, "2 training pictures with minival=2 leave split train empty"),
        ("minival", 0, "leave split minival empty"),
        ("train", -1, "minival=-1"),
    ):
        with pytest.raises(ValueError, match=message):
            load_pictures(tmp_path, split, minival=minival)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_pictures(tmp_path / "absent", "test")
    write(tmp_path / "half" / "train", ["a.png"])
    with pytest.raises(FileNotFoundError, match="test: no such folder"):
        load_pictures(tmp_path / "half", "test")


def test_all_unreadable_pictures_are_named_at_once(tmp_path: Path) -> None:
    write(tmp_path, ["a.png", "b.png"])
    (tmp_path / "c.png").write_text("no picture")
    (tmp_path / "d.jpg").touch()
    with pytest.raises(ValueError, match=r"2 of 4 pictures cannot be read: .*c\.png: not a picture.*d\.jpg: the file"):
        load_pictures(tmp_path, "test")


def bsd_numbers() -> tuple[list[str], list[str], list[str]]:
    """Stand-ins for the 200 training, 100 validation (BSD68 among them) and 200 test pictures of BSDS500."""
    train, rest, test = (
        [str(number) for number in range(at, at + count)] for at, count in ((400, 200), (7, 32), (800, 200))
    )
    return train, sorted([*BSD68, *rest]), test


def write_bsd(root: Path, change: dict[str, list[str]] | None = None) -> None:
    train, val, test = bsd_numbers()
    write(root / "images", [f"{number}.jpg" for number in (*train, *val, *test)])
    splits = {
        "bsds500_train": train,
        "bsds500_val": val,
        "bsds500_test": test,
        "paper_train232": sorted({*train, *val} - set(BSD68)),
        "bsd68_in_order": list(BSD68),
    }
    (root / "splits.json").write_text(json.dumps(splits | (change or {})))


def write_official(root: Path) -> None:
    for part, numbers in zip(("train", "val", "test"), bsd_numbers(), strict=True):
        write(root / "images" / part, [f"{number}.jpg" for number in numbers])


def test_bsd_splits_are_the_same_from_both_layouts(tmp_path: Path) -> None:
    write_bsd(tmp_path / "a")
    write_official(tmp_path / "b")
    train, val, test = bsd_numbers()
    training = sorted([*train, *(set(val) - set(BSD68))])
    expected = {
        "train": training[:-8],
        "minival": training[-8:],
        "trainval": training,
        "test": list(BSD68),
        "train400": sorted([*train, *test]),
    }
    for split, numbers in expected.items():
        for root in (tmp_path / "a", tmp_path / "b"):
            data = load_pictures(root, split)
            got = [Path(name).stem for name in data.names]
            assert (sorted(got) if split == "train400" else got) == numbers
            assert data.name == f"bsd {split}"


def test_bsd_folders_that_are_not_right_are_refused(tmp_path: Path) -> None:
    train, val, _ = bsd_numbers()
    write_bsd(tmp_path / "a", {"paper_train232": sorted([*train, *val])[:232]})
    with pytest.raises(ValueError, match="holds pictures of the test set BSD68: 10"):
        load_pictures(tmp_path / "a", "train")
    write_bsd(tmp_path / "a", {"paper_train232": train})
    with pytest.raises(ValueError, match="200 pictures where 232 are usual"):
        load_pictures(tmp_path / "a", "minival")
    for content in ("{}", "[]", "{", '{"paper_train232": 5}'):
        (tmp_path / "a" / "splits.json").write_text(content)
        with pytest.raises(ValueError, match=r"splits\.json: not the splits of BSD"):
            load_pictures(tmp_path / "a", "test")
    write_official(tmp_path / "b")
    for number in BSD68[:2]:
        (tmp_path / "b" / "images" / "val" / f"{number}.jpg").unlink()
    with pytest.raises(ValueError, match=f"2 pictures of split test are missing: {BSD68[0]}, {BSD68[1]}"):
        load_pictures(tmp_path / "b", "test")


@pytest.mark.skipif(not (REAL / "bsd" / "splits.json").is_file(), reason="needs the real BSD beside the checkout")
def test_real_bsd_trains_on_no_picture_of_bsd68() -> None:
    data = {split: load_pictures(REAL / "bsd", split) for split in ("train", "minival", "trainval", "train400", "test")}
    assert [len(part) for part in data.values()] == [224, 8, 232, 400, 68]
    pixels = {split: {picture.numpy().tobytes() for picture in part.pictures} for split, part in data.items()}
    assert all(pixels["test"].isdisjoint(pixels[split]) for split in data if split != "test")
    assert pixels["train"].isdisjoint(pixels["minival"])
    assert pixels["train"] | pixels["minival"] == pixels["trainval"]
    assert [Path(name).stem for name in data["test"].names] == list(BSD68)
    assert {tuple(sorted(picture.shape[1:])) for picture in data["test"].pictures} == {(321, 481)}
    noisy_psnr = [psnr(clean, noisy) for noisy, clean in data["test"].evaluation_pictures(25, device="cpu")]
    assert 20.2 < torch.cat(noisy_psnr).mean() < 20.8  # 20.17 dB before clipping
    noisy, clean = next(data["train"].training_batches(64, **SETTINGS | {"patch": 40}))
    assert noisy.shape == clean.shape == (64, 1, 40, 40)


@pytest.mark.skipif(not (REAL / "set12").is_dir(), reason="needs the real Set12 beside the checkout")
def test_real_set12_is_a_folder_for_evaluation() -> None:
    data = load_pictures(REAL / "set12", "test")
    assert [
        (name, picture.shape[1:].numel() > 60_000) for name, picture in zip(data.names, data.pictures, strict=True)
    ] == [(f"{number:02d}.png", True) for number in range(1, 13)]
