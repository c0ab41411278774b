"""Pictures for denoising: random patches with Gaussian noise to train on, whole noisy pictures to measure.

The settings are DnCNN's (Zhang et al., *Beyond a Gaussian Denoiser*, 2017), which the paper follows (section 5):
40x40 patches, flips and rotations, noise of one sigma on the scale of 0 to 255, not clipped. Beyond the paper: a range
of sigmas, and colour.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from recurconv.data.augment import iteration_generator
from recurconv.data.drawings import drawing

__all__ = ["PATCHES_PER_EPOCH", "UNKNOWN", "PicturePatches", "psnr", "ssim"]

PATCHES_PER_EPOCH = 204_800
"""DnCNN's 128 x 1,600 patches; its 50 epochs are about ten million."""

UNKNOWN = -1.0
"""The noise level of a patch whose level the network is not told."""


class PicturePatches:
    """Gray or colour pictures of any sizes, and the patches drawn from them.

    All pixels lie one after the other in one tensor, so that the patches of a whole batch, from pictures of
    different sizes, are gathered in one indexing operation on the training device.

    Attributes:
        name: what the pictures are, e.g. "bsd train".
        condition: the exact state of the data, for the record of a run.
        names: one name per picture, for messages and tables.
        pictures: uint8 `[C, H, W]` each, on the CPU.
        channels: C.
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
            pictures: uint8 `[C, H, W]` each, at least one, all gray (C = 1) or all colour (3).
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
        self.channels = len(pictures[0])
        self._pixels = torch.cat([picture.cpu().flatten(1).T for picture in pictures])  # [pixels, C]
        self.pictures = [
            part.T.unflatten(1, picture.shape[1:])  # type: ignore[no-untyped-call]
            for part, picture in zip(torch.split(self._pixels, areas.tolist()), pictures, strict=True)
        ]
        checksum = hashlib.sha256(repr([tuple(picture.shape) for picture in pictures]).encode())
        checksum.update(self._pixels.numpy().tobytes())
        self.condition = f"{condition or name}, pixels sha256 {checksum.hexdigest()[:12]}"

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self.pictures)

    def with_halves(self) -> PicturePatches:
        """Return these pictures and each of them at half size, to train on.

        Where pictures come from JPEG files, as BSD's do, their colour was stored at half the size: a network that sees
        them alone takes sharp colour for noise. At half size, the mean of 2x2 pixels, colour is as sharp as brightness,
        as it is in all pictures that were made smaller. A last odd row or column is left out. A patch is drawn
        uniformly from all of them, so that one in five is of half size.

        Raises:
            ValueError: a picture has one row or column alone.
        """
        small = [name for name, picture in zip(self.names, self.pictures, strict=True) if min(picture.shape[1:]) < 2]
        if small:
            raise ValueError(f"{', '.join(small)}: no half of one row or column; leave them out, or take halves=false")
        return PicturePatches(
            [*self.pictures, *map(_half, self.pictures)],
            name=self.name,
            names=[*self.names, *(f"{name} at half size" for name in self.names)],
            patches_per_epoch=self.patches_per_epoch,
        )

    def with_drawings(self, count: int) -> PicturePatches:
        """Return these pictures and `count` drawn ones, to train on: text, lines, shapes and gratings."""
        drawn = [drawing(seed, self.channels) for seed in range(count)]
        return PicturePatches(
            [*self.pictures, *drawn],
            name=self.name,
            names=[*self.names, *(f"drawing {seed}" for seed in range(count))],
            patches_per_epoch=self.patches_per_epoch,
        )

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
        sigma: float | tuple[float, float],
        patch: int,
        device: torch.device | str,
        tinted: float = 0.0,
        clipped: float = 0.0,
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
            sigma: standard deviation of the noise on the scale of 0 to 255; of a range (low, high) each patch draws
                its own, evenly.
            patch: height and width of a patch, in pixels.
            device: where the batches are made and lie.
            tinted: the part of colour patches, from 0 to 1, that are shown in two random colours.
            clipped: the part of noisy patches, from 0 to 1, that are clipped and rounded to 8 bits, as files are.
            rank: of this process, from 0.
            ranks: number of processes.
            start: first iteration.

        Yields:
            (noisy, clean): float32 `[batch_size / ranks, C, patch, patch]`; clean in [0, 1], noisy not clipped but for
            what `clipped` says. For a range of sigmas noisy has one channel more: the patch's sigma, or for every
            other patch `UNKNOWN`.

        Raises:
            ValueError: a picture is smaller than a patch (all of them are named), the batch size does not divide by
                the ranks, or an argument is out of its range.
        """
        iterations = self.iterations(batch_size)
        low, high = sigma if isinstance(sigma, tuple) else (sigma, sigma)
        _check_sigma(low)
        _check_sigma(high)
        if low > high:
            raise ValueError(f"sigma={sigma}; the first of a range must not be above the second")
        self._check_patch(patch)
        if not 0 <= tinted <= 1 or (tinted and self.channels == 1):
            raise ValueError(f"tinted={tinted}; it must lie between 0 and 1, and be 0 for gray pictures")
        if not 0 <= clipped <= 1:
            raise ValueError(f"clipped={clipped}; it must lie between 0 and 1")
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
                clean = pixels[_patch_index(drawn, patch)].permute(0, 3, 1, 2).float().div_(255)
                if tinted:
                    clean = _tint(clean, _draw_tints(batch_size, tinted, generator)[part].to(clean.device))
                noise = _noise((batch_size, self.channels, patch, patch), generator, clean.device)[part]
                levels = torch.full((batch_size, 1, 1, 1), high)
                if low < high:
                    levels = low + (high - low) * torch.rand(levels.shape, generator=generator)
                told = torch.where(torch.arange(batch_size).view(-1, 1, 1, 1) % 2 == 0, levels, UNKNOWN)
                sigmas, told = torch.stack([levels, told])[:, part].to(clean.device, non_blocking=True)
                noisy = clean + noise * (sigmas / 255)
                if clipped:
                    chosen = torch.rand(batch_size, 1, 1, 1, generator=generator)[part].to(clean.device) < clipped
                    noisy = torch.where(chosen, noisy.mul(255).round().clamp(0, 255).div(255), noisy)
                if isinstance(sigma, tuple):
                    noisy = torch.cat([noisy, told.expand(-1, 1, patch, patch)], 1)
                yield noisy, clean

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
            (noisy, clean): float32 `[1, C, H, W]`; clean in [0, 1], noisy not clipped.

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


def ssim(clean: Tensor, estimate: Tensor) -> Tensor:
    """Compute the structural similarity of each image, for a data range of 1.

    Args:
        clean: `[B, C, H, W]`, values in [0, 1].
        estimate: the same shape, any values; clipped to [0, 1] first.

    Returns:
        float64 `[B]`, up to 1; the mean over channels; NaN for images below 11x11, the size of the window.

    Raises:
        ImportError: scikit-image is not installed.

    Source: Wang et al., *Image Quality Assessment: From Error Visibility to Structural Similarity*, 2004, with its
    Gaussian window.
    """
    try:
        from skimage.metrics import structural_similarity
    except ImportError:
        raise ImportError('SSIM needs scikit-image: pip install "recurconv[denoise]"') from None
    if min(clean.shape[-2:]) < 11:
        return torch.full((len(clean),), math.nan, dtype=torch.float64)
    pairs = zip(clean.double().cpu().numpy(), estimate.double().clamp(0, 1).cpu().numpy(), strict=True)
    options = {"data_range": 1.0, "gaussian_weights": True, "use_sample_covariance": False, "channel_axis": 0}
    similarity: Any = structural_similarity
    return torch.tensor([float(similarity(a, b, **options)) for a, b in pairs], dtype=torch.float64)


def _half(picture: Tensor) -> Tensor:
    """The mean of each 2x2 pixels of uint8 `[C, H, W]`, rounded."""
    return torch.nn.functional.avg_pool2d(picture.float(), 2).round().byte()


def _patch_index(drawn: Tensor, patch: int) -> Tensor:
    """Index the pixels of turned patches in the joined pictures, `[B, patch, patch]`, from what `_draw` gives."""
    corner, width, turn = drawn.view(3, -1, 1, 1).unbind()
    near = torch.arange(patch, device=drawn.device)
    down = torch.where((turn & 1).bool(), patch - 1 - near, near).view(-1, patch, 1)
    across = torch.where((turn & 2).bool(), patch - 1 - near, near).view(-1, 1, patch)
    transposed = (turn & 4).bool()
    return corner + down * torch.where(transposed, 1, width) + across * torch.where(transposed, width, 1)


def _draw_tints(batch_size: int, tinted: float, generator: torch.Generator) -> Tensor:
    """Draw float32 `[B, 7]`: two colours, of which half the channels are 0 or 1; contrast, or 0 where not tinted."""
    colours = (2 * torch.rand(batch_size, 6, generator=generator) - 0.5).clamp_(0, 1)
    contrast, chance = torch.rand(2, batch_size, 1, generator=generator)
    return torch.cat([colours, torch.where(chance < tinted, 1 + 7 * contrast, 0)], 1)


def _tint(clean: Tensor, tints: Tensor) -> Tensor:
    """Show patches `[B, 3, P, P]` in two colours, mixed by their brightness with its contrast raised."""
    first, second, contrast = (part[..., None, None] for part in torch.split(tints, [3, 3, 1], 1))
    brightness = clean.mean(1, keepdim=True)
    share = (contrast * (brightness - brightness.mean((2, 3), keepdim=True)) + 0.5).clamp(0, 1)
    return torch.where(contrast > 0, first + (second - first) * share, clean)


def _noise(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    if device.type != "cpu":
        seed = int(torch.randint(2**62, (), generator=generator))
        generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device)


def _check_pictures(pictures: Sequence[Tensor]) -> None:
    if not pictures:
        raise ValueError("no pictures; at least one is needed")
    channels = pictures[0].shape[0] if pictures[0].ndim == 3 and pictures[0].shape[0] in (1, 3) else 1
    for index, picture in enumerate(pictures):
        if picture.dtype != torch.uint8 or picture.ndim != 3 or len(picture) != channels or not picture.numel():
            raise ValueError(
                f"picture {index} has shape {list(picture.shape)} and dtype {picture.dtype}; it must be uint8 "
                f"[{channels}, H, W]"
            )


def _check_sigma(sigma: float) -> None:
    if not (math.isfinite(sigma) and sigma >= 0):
        raise ValueError(f"sigma={sigma}; it must be 0 or more, on the scale of 0 to 255")
