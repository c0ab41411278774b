"""Gray pictures for denoising: random patches with Gaussian noise to train on, whole noisy pictures to measure.

The settings are DnCNN's (Zhang et al., *Beyond a Gaussian Denoiser*, 2017), which the paper follows (section 5):
40x40 patches, flips and rotations, noise of one sigma on the scale of 0 to 255, not clipped.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from recurconv.data.augment import iteration_generator
from recurconv.data.pictures import PathLike, list_pictures, read_gray

__all__ = ["BSD68", "PATCHES_PER_EPOCH", "SPLITS", "PicturePatches", "load_pictures", "psnr"]

PATCHES_PER_EPOCH = 204_800
"""DnCNN's 128 x 1,600 patches; its 50 epochs are about ten million."""

SPLITS = ("train", "minival", "trainval", "test", "train400")

_BSD68 = """
    101085 101087 102061 103070 105025 106024 108005 108070 108082 109053 119082 12084 123074 126007 130026 134035
    14037 143090 145086 147091 148026 148089 157055 159008 160068 16077 163085 167062 167083 170057 175032 175043
    182053 189080 19021 196073 197017 208001 210088 21077 216081 219090 220075 223061 227092 229036 236037 24077
    241004 241048 253027 253055 260058 271035 285079 291000 295087 296007 296059 299086 300091 302008 304034 304074
    306005 3096 33039 351093
"""
BSD68 = tuple(_BSD68.split())
"""The 68 test pictures (Roth and Black, 2009) by their BSD numbers, as test001 to test068 in that order."""


class PicturePatches:
    """Gray pictures of any sizes, and the patches drawn from them.

    All pictures lie one after the other in one 1-D tensor, so that the patches of a whole batch, from pictures of
    different sizes, are gathered in one indexing operation on the training device.

    Attributes:
        name: what the pictures are, e.g. "bsd train".
        condition: the exact state of the data, for the record of a run.
        names: one name per picture, for messages and tables.
        pictures: uint8 `[1, H, W]` each, on the CPU.
        patches_per_epoch: how many patches count as one epoch.
    """

    def __init__(
        self,
        pictures: Sequence[Tensor],
        *,
        name: str,
        condition: str = "",
        names: Sequence[str] | None = None,
        patches_per_epoch: int = PATCHES_PER_EPOCH,
    ) -> None:
        """Join the pictures.

        Args:
            pictures: uint8 `[1, H, W]` each, at least one.
            name: what the pictures are.
            condition: the state of the data; the checksum of the pixels is added.
            names: one name per picture; numbered from 0 by default.
            patches_per_epoch: at least 1.

        Raises:
            ValueError: no picture, a picture of another shape or dtype, too few names or patches.
        """
        _check_pictures(pictures)
        if patches_per_epoch < 1:
            raise ValueError(f"patches_per_epoch={patches_per_epoch}; it must be at least 1")
        self.name = name
        self.names = [f"picture {index}" for index in range(len(pictures))] if names is None else list(names)
        if len(self.names) != len(pictures):
            raise ValueError(f"{len(self.names)} names for {len(pictures)} pictures")
        self.patches_per_epoch = patches_per_epoch
        self._heights = torch.tensor([picture.shape[1] for picture in pictures])
        self._widths = torch.tensor([picture.shape[2] for picture in pictures])
        areas = self._heights * self._widths
        self._offsets = areas.cumsum(0) - areas
        self._pixels = torch.cat([picture.cpu().reshape(-1) for picture in pictures])
        self.pictures = [
            part.view(picture.shape)
            for part, picture in zip(torch.split(self._pixels, areas.tolist()), pictures, strict=True)
        ]
        checksum = hashlib.sha256(repr([tuple(picture.shape) for picture in pictures]).encode())
        checksum.update(self._pixels.numpy().tobytes())
        self.condition = f"{condition or name}, pixels sha256 {checksum.hexdigest()[:12]}"

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.pictures)

    def iterations(self, batch_size: int) -> int:
        """Return the iterations of one epoch: `patches_per_epoch // batch_size`, a last partial batch left out.

        Raises:
            ValueError: the batch size is below 1 or above `patches_per_epoch`.
        """
        if not 1 <= batch_size <= self.patches_per_epoch:
            raise ValueError(
                f"batch_size={batch_size}; an epoch has {self.patches_per_epoch} patches; choose 1 to that"
            )
        return self.patches_per_epoch // batch_size

    def training_batches(
        self,
        batch_size: int,
        *,
        epoch: int,
        seed: int,
        sigma: float,
        patch: int,
        device: torch.device | str,
        rank: int = 0,
        ranks: int = 1,
        start: int = 0,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch, made on `device`.

        Each patch is drawn uniformly from all patch positions of all pictures, with one of the eight flips and
        rotations. What iteration i sees depends on `(seed, epoch, i)` alone: it is drawn for the whole batch, of
        which every rank takes its part, so that the ranks together see what one process sees, and a run that starts
        again at iteration `start` goes on as if never stopped. The noise is drawn on `device`: it repeats on one
        kind of device, and differs between a CPU and a GPU. Patches and their order are the same on both.

        Args:
            batch_size: patches of one iteration over all ranks.
            epoch: from 0.
            seed: of the run, not negative.
            sigma: standard deviation of the noise on the scale of 0 to 255.
            patch: height and width of a patch, in pixels.
            device: where the batches are made and lie.
            rank: of this process, from 0.
            ranks: number of processes.
            start: first iteration.

        Yields:
            (noisy, clean): float32 `[batch_size / ranks, 1, patch, patch]`; clean in [0, 1], noisy not clipped.

        Raises:
            ValueError: a picture is smaller than a patch (all of them are named), the batch size does not divide by
                the ranks, or an argument is out of its range.
        """
        iterations = self.iterations(batch_size)
        _check_sigma(sigma)
        self._check_patch(patch)
        if not 0 <= rank < ranks:
            raise ValueError(f"rank={rank}; with ranks={ranks} it must lie between 0 and {ranks - 1}")
        if batch_size % ranks:
            raise ValueError(f"batch_size={batch_size} cannot be divided among {ranks} ranks; choose a multiple")
        if not 0 <= start <= iterations:
            raise ValueError(f"start={start}; this epoch has {iterations} iterations")
        iteration_generator(seed, epoch)  # refuses negative ones
        share = batch_size // ranks
        part = slice(rank * share, (rank + 1) * share)

        # The checks above are to fail at the call; a generator function would fail at its first batch only.
        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            pixels = self._pixels.to(device)
            for iteration in range(start, iterations):
                generator = iteration_generator(seed, epoch, iteration)
                drawn = self._draw(batch_size, patch, generator)[:, part].to(device, non_blocking=True)
                index = _patch_index(drawn, patch)
                clean = pixels[index].float().div_(255).unsqueeze(1)
                noise = _noise((batch_size, 1, patch, patch), generator, clean.device)[part]
                yield clean.add(noise, alpha=sigma / 255), clean

        return batches()

    def evaluation_pictures(
        self, sigma: float, *, device: torch.device | str, seed: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every picture whole, with noise that depends on `(seed, position in the list)` alone.

        The noise is drawn on the CPU, so that all devices are measured on the same pictures.

        Args:
            sigma: standard deviation of the noise on the scale of 0 to 255.
            device: where the pictures are put.
            seed: of the noise, not negative.

        Yields:
            (noisy, clean): float32 `[1, 1, H, W]`; clean in [0, 1], noisy not clipped.

        Raises:
            ValueError: sigma is negative or not finite, or the seed negative.
        """
        _check_sigma(sigma)
        iteration_generator(seed)  # refuses a negative one

        def pictures() -> Iterator[tuple[Tensor, Tensor]]:
            for position, picture in enumerate(self.pictures):
                clean = picture.unsqueeze(0).float().div_(255)
                noise = torch.randn(clean.shape, generator=iteration_generator(seed, position))
                yield clean.add(noise, alpha=sigma / 255).to(device), clean.to(device)

        return pictures()

    def _draw(self, batch_size: int, patch: int, generator: torch.Generator) -> Tensor:
        """Draw int64 `[3, B]`: index of the corner in the joined pictures, width of the picture, turn from 0 to 7."""
        across = self._widths - patch + 1
        positions = (self._heights - patch + 1) * across
        ends = positions.cumsum(0)
        position = torch.randint(int(ends[-1]), (batch_size,), generator=generator)
        picture = torch.searchsorted(ends, position, right=True)
        position -= (ends - positions)[picture]
        width, across = self._widths[picture], across[picture]
        corner = self._offsets[picture] + position // across * width + position % across
        return torch.stack([corner, width, torch.randint(8, (batch_size,), generator=generator)])

    def _check_patch(self, patch: int) -> None:
        if patch < 1:
            raise ValueError(f"patch={patch}; it must be at least 1")
        sizes = [(name, *picture.shape[1:]) for name, picture in zip(self.names, self.pictures, strict=True)]
        small = [f"{name} ({height}x{width})" for name, height, width in sizes if min(height, width) < patch]
        if small:
            counts = f"{len(small)} of {len(self)} pictures are smaller than a {patch}x{patch} patch"
            raise ValueError(f"{counts}; leave them out or choose a smaller patch: {', '.join(small)}")


def psnr(clean: Tensor, estimate: Tensor) -> Tensor:
    """Compute the peak signal-to-noise ratio of each image, for a data range of 1.

    Args:
        clean: `[B, C, H, W]`, values in [0, 1].
        estimate: the same shape, any values; clipped to [0, 1] first.

    Returns:
        float64 `[B]`, in dB; infinite where both are identical.

    Raises:
        ValueError: the shapes differ or have no batch axis; integer values.
    """
    if clean.shape != estimate.shape or clean.ndim < 2:
        raise ValueError(f"clean {list(clean.shape)} and estimate {list(estimate.shape)}; both must be [B, C, H, W]")
    if not (clean.is_floating_point() and estimate.is_floating_point()):
        raise ValueError(f"clean is {clean.dtype} and estimate {estimate.dtype}; both must be float in [0, 1]")
    difference = estimate.double().clamp(0, 1) - clean.double()
    return -10 * difference.square().flatten(1).mean(1).log10()


def load_pictures(
    path: PathLike, split: str, *, minival: int = 8, patches_per_epoch: int = PATCHES_PER_EPOCH
) -> PicturePatches:
    """Read one split of a folder of pictures as gray.

    =========== ============================================ ==================== ==========================
    split       BSD                                          `train/` and `test/` any other folder
    =========== ============================================ ==================== ==========================
    "train"     the paper's 232 without the last `minival`   `train/` likewise    all but the last `minival`
    "minival"   the last `minival` of the 232                of `train/`          the last `minival`
    "trainval"  the 232: BSDS300 without BSD68               `train/`             all
    "test"      BSD68, in its usual order                    `test/`              all, as for Set12
    "train400"  DnCNN's 400: BSDS500's train and test        --                   --
    =========== ============================================ ==================== ==========================

    BSD is recognised by `images/` with `splits.json` beside it, or by the official archive's `images/train`,
    `images/val` and `images/test` (give `BSR/BSDS500/data`). Elsewhere pictures are taken in the order of their
    names. "train400" holds the pictures of "minival", so it is for final runs, not for choices. In any other folder
    "test" is for a folder kept for evaluation alone: it holds the folder's "train" too.

    Args:
        path: a folder.
        split: one of the above.
        minival: how many training pictures are held out for choices, 0 or more.
        patches_per_epoch: see `PicturePatches`.

    Returns:
        The pictures, gray by `recurconv.data.pictures.read_gray`, named by their paths inside the folder.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: an unknown split, one that the folder does not have or with too few pictures, pictures that cannot
            be read (all of them are named), or BSD folders that are incomplete or train on BSD68.
    """
    root = Path(path)
    if split not in SPLITS:
        raise ValueError(f"split={split!r}; choose one of {', '.join(SPLITS)}")
    if minival < 0:
        raise ValueError(f"minival={minival}; it must be 0 or more")
    images = root / "images"
    if (root / "splits.json").is_file():
        layout, files = "bsd", _bsd_files(images, split, _read_splits(root / "splits.json"))
    elif all((images / part).is_dir() for part in ("train", "val", "test")):
        layout, files = "bsd", _bsd_files(images, split, _official_splits(images))
    else:
        layout, files = root.resolve().name, _folder_files(root, split)
    if split in ("train", "minival"):
        files = _hold_out(files, split, minival, root)
    return PicturePatches(
        _read_all(files),
        name=f"{layout} {split}",
        condition=f"{len(files)} gray pictures of {layout}, split {split}, minival {minival}",
        names=[file.relative_to(root).as_posix() for file in files],
        patches_per_epoch=patches_per_epoch,
    )


def _patch_index(drawn: Tensor, patch: int) -> Tensor:
    """Index the pixels of turned patches in the joined pictures, `[B, patch, patch]`, from what `_draw` gives."""
    corner, width, turn = drawn.view(3, -1, 1, 1).unbind()
    near = torch.arange(patch, device=drawn.device)
    down = torch.where((turn & 1).bool(), patch - 1 - near, near).view(-1, patch, 1)
    across = torch.where((turn & 2).bool(), patch - 1 - near, near).view(-1, 1, patch)
    transposed = (turn & 4).bool()
    return corner + down * torch.where(transposed, 1, width) + across * torch.where(transposed, width, 1)


def _noise(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    if device.type != "cpu":
        seed = int(torch.randint(2**62, (), generator=generator))
        generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device)


def _check_pictures(pictures: Sequence[Tensor]) -> None:
    if not pictures:
        raise ValueError("no pictures; at least one is needed")
    for index, picture in enumerate(pictures):
        if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[0] != 1 or not picture.numel():
            raise ValueError(
                f"picture {index} has shape {list(picture.shape)} and dtype {picture.dtype}; it must be uint8 [1, H, W]"
            )


def _check_sigma(sigma: float) -> None:
    if not (math.isfinite(sigma) and sigma >= 0):
        raise ValueError(f"sigma={sigma}; it must be 0 or more, on the scale of 0 to 255")


def _read_splits(file: Path) -> dict[str, list[str]]:
    """Read the splits of BSD by their names here from `splits.json`."""
    keys = {"trainval": ["paper_train232"], "test": ["bsd68_in_order"], "train400": ["bsds500_train", "bsds500_test"]}
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return {split: [str(number) for key in parts for number in stored[key]] for split, parts in keys.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: not the splits of BSD ({type(error).__name__}: {error})") from error


def _official_splits(images: Path) -> dict[str, list[str]]:
    """Make the splits of BSD from the folders of the official archive; BSD68 lies in its `val`."""
    train, val, test = (sorted(file.stem for file in list_pictures(images / part)) for part in ("train", "val", "test"))
    return {
        "trainval": sorted(train + [number for number in val if number not in BSD68]),
        "test": list(BSD68),
        "train400": train + test,
    }


def _bsd_files(images: Path, split: str, splits: Mapping[str, list[str]]) -> list[Path]:
    numbers = splits[split if split in splits else "trainval"]
    forbidden = sorted(set(numbers) & set(BSD68))
    if split != "test" and forbidden:
        raise ValueError(f"{images}: split {split} holds pictures of the test set BSD68: {', '.join(forbidden)}")
    expected = {"test": 68, "train400": 400}.get(split, 232)
    if len(set(numbers)) != expected:
        raise ValueError(f"{images}: split {split} of BSD has {len(set(numbers))} pictures where {expected} are usual")
    files = {file.stem: file for file in list_pictures(images)}
    missing = [number for number in numbers if number not in files]
    if missing:
        raise ValueError(f"{images}: {len(missing)} pictures of split {split} are missing: {', '.join(missing)}")
    return [files[number] for number in numbers]


def _folder_files(root: Path, split: str) -> list[Path]:
    if split == "train400":
        raise ValueError(f"{root}: split train400 exists for BSD only; choose train, minival, trainval or test")
    if (root / "train").is_dir() or (root / "test").is_dir():
        return list_pictures(root / ("test" if split == "test" else "train"))
    return list_pictures(root)


def _hold_out(files: list[Path], split: str, minival: int, root: Path) -> list[Path]:
    kept = len(files) - minival
    if kept < 1 or (split == "minival" and minival == 0):
        counts = f"{len(files)} training pictures with minival={minival}"
        raise ValueError(f"{root}: {counts} leave split {split} empty; change minival or choose split trainval")
    return files[:kept] if split == "train" else files[kept:]


def _read_all(files: list[Path]) -> list[Tensor]:
    pictures, failures = [], []
    for file in files:
        try:
            pictures.append(torch.from_numpy(read_gray(file)).unsqueeze(0))
        except ValueError as error:
            failures.append(str(error))
    if failures:
        raise ValueError(f"{len(failures)} of {len(files)} pictures cannot be read: {'; '.join(failures)}")
    return pictures
