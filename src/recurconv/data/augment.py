"""What every labelled image set shares: the order of an epoch, the share of a rank, random crop, flip and cutout.

All randomness is a pure function of (seed, epoch, iteration). A resumed run therefore repeats it bit for bit, and
several ranks together see what one rank sees with the joined batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Augment", "ImageSet", "augment", "augment_as_drawn", "draw_augment", "iteration_generator"]

PerChannel: TypeAlias = tuple[float, float, float]
Device: TypeAlias = "torch.device | str"


@dataclass(frozen=True)
class Augment:
    """How training images are varied: crop, then flip, then cutout.

    Args:
        crop: pixels of black added on each side before a random crop of the original size; 0 = no crop.
        flip: mirror every image left to right with probability 1/2.
        cutout: side in pixels of a square set to black around a random centre (at the border only the part inside);
            0 = off.

    Raises:
        ValueError: `crop` or `cutout` is negative.
    """

    crop: int = 4
    flip: bool = True
    cutout: int = 0

    def __post_init__(self) -> None:
        for name in ("crop", "cutout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is negative; give pixels, or 0 for none")


def iteration_generator(*numbers: int) -> torch.Generator:
    """Make a CPU generator whose stream depends on the given numbers and on nothing else.

    Args:
        numbers: whole numbers from 0 on, such as seed, epoch, iteration. Their count matters too: (1, 2) and
            (1, 2, 0) give different streams.

    Raises:
        ValueError: a number is negative.
    """
    if min(numbers, default=0) < 0:
        raise ValueError(f"random streams are numbered from 0 on, got {numbers}")
    # SeedSequence fills short input up with zeros, hence the count in front.
    state = np.random.SeedSequence((len(numbers), *numbers)).generate_state(1)
    return torch.Generator().manual_seed(int(state[0]))  # torch's CPU generator takes its state from 32 bits


def draw_augment(count: int, height: int, width: int, how: Augment, generator: torch.Generator) -> Tensor:
    """Draw the random numbers of `count` images.

    Every row is drawn whatever `how` switches off, so that one option does not change the draws of another.

    Returns:
        int64 `[5, count]` on the CPU, one row each: top and left corner of the crop in the padded image
        (0 to 2 * crop), flip (0 or 1), row and column of the cutout's centre.

    Raises:
        ValueError: the padding or the cutout is larger than the image.
    """
    for name, pixels in (("crop", how.crop), ("cutout", how.cutout)):
        if pixels > min(height, width):
            raise ValueError(f"{name}={pixels} is larger than the images ({height}x{width}); choose a smaller one")
    spans = (2 * how.crop + 1, 2 * how.crop + 1, 2, height, width)
    return torch.stack([torch.randint(span, (count,), generator=generator) for span in spans])


def augment_as_drawn(images: Tensor, how: Augment, drawn: Tensor) -> Tensor:
    """Apply `draw_augment`'s numbers to a whole batch at once, on the images' device.

    Args:
        images: uint8 `[B, C, H, W]`.
        how: which of the steps to do.
        drawn: int64 `[5, B]`.

    Returns:
        uint8 `[B, C, H, W]`.
    """
    count, _, height, width = images.shape
    top, left, flip, row, column = drawn.to(images.device, non_blocking=True)
    if how.crop:
        # A view [B, C, 2 crop + 1, 2 crop + 1, H, W] of all crops; indexing copies the drawn ones only.
        crops = F.pad(images, [how.crop] * 4).unfold(2, height, 1).unfold(3, width, 1)
        images = crops[torch.arange(count, device=images.device), :, top, left]
    if how.flip:
        images = torch.where(flip.bool()[:, None, None, None], images.flip(3), images)
    if how.cutout:
        rows = _inside(row - how.cutout // 2, how.cutout, height)
        columns = _inside(column - how.cutout // 2, how.cutout, width)
        images = images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)
    return images


def augment(images: Tensor, how: Augment, generator: torch.Generator) -> Tensor:
    """Crop, flip and cut out at random, each image for itself.

    Args:
        images: uint8 `[B, C, H, W]` on any device.
        how: which of the steps to do.
        generator: a CPU generator; the result is the same on every device.

    Returns:
        uint8 `[B, C, H, W]` on the same device.

    Raises:
        ValueError: another dtype or rank, or images too small for `how`.
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(f"images are {images.dtype} {list(images.shape)}; they must be uint8 [B, C, H, W]")
    count, _, height, width = images.shape
    return augment_as_drawn(images, how, draw_augment(count, height, width, how, generator))


class ImageSet(ABC):
    """Labelled RGB images of one size that come in batches.

    Attributes:
        name: the set's name.
        class_names: names in the order of the labels.
        mean, std: per channel, of pixels in [0, 1], over the training images.
        condition: one sentence on the data's condition.
    """

    name: str
    class_names: tuple[str, ...]
    mean: PerChannel
    std: PerChannel
    condition: str

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, int, int]:
        """(3, H, W)."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _fetch(self, batches: Sequence[Tensor], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield uint8 images `[B, 3, H, W]` and int64 labels `[B]` on `device` for each tensor of indices."""

    def iterations(self, batch_size: int) -> int:
        """Count the iterations of an epoch; images left over from the last full batch are dropped.

        Args:
            batch_size: images of one iteration over all ranks.

        Raises:
            ValueError: `batch_size` is below 1 or larger than the set.
        """
        if not 1 <= batch_size <= len(self):
            raise ValueError(f"batch_size={batch_size} does not fit {self.name}; choose 1 to {len(self)} (its images)")
        return len(self) // batch_size

    def training_batches(
        self,
        batch_size: int,
        *,
        epoch: int,
        seed: int,
        how: Augment,
        device: Device,
        rank: int = 0,
        ranks: int = 1,
        start: int = 0,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through the set once, shuffled and augmented.

        Args:
            batch_size: images of one iteration over all ranks.
            epoch: with `seed` it decides the order; with `seed` and the iteration the augmentation.
            seed: a whole number from 0 on.
            how: the augmentation.
            device: where the batches are wanted.
            rank: which share of each batch to yield: the images from rank * batch_size / ranks on.
            ranks: number of shares.
            start: iterations to leave out at the beginning, to resume inside an epoch; they cost nothing.

        Yields:
            float32 images `[batch_size / ranks, 3, H, W]` in [0, 1] and int64 labels `[batch_size / ranks]`.

        Raises:
            ValueError: `batch_size` is larger than the set or not divisible by `ranks`; `rank`, `start`, `seed` or
                `epoch` is out of range; the images are too small for `how`.
        """
        iterations = self.iterations(batch_size)
        _check_rank(rank, ranks)
        if batch_size % ranks:
            raise ValueError(f"batch_size={batch_size} cannot be shared by {ranks} ranks; choose a multiple of {ranks}")
        if not 0 <= start <= iterations:
            raise ValueError(f"start={start} is not in this epoch; choose 0 to {iterations} (its iterations)")
        draw_augment(0, *self.image_shape[1:], how, iteration_generator(seed, epoch))  # complains now, not later
        order = torch.randperm(len(self), generator=iteration_generator(seed, epoch))
        batches = order[: iterations * batch_size].view(iterations, batch_size)[start:]
        share = slice(rank * batch_size // ranks, (rank + 1) * batch_size // ranks)
        return self._augmented(batches, share, (seed, epoch, start), how, torch.device(device))

    def _augmented(
        self, batches: Tensor, share: slice, first: tuple[int, int, int], how: Augment, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        seed, epoch, start = first
        fetched = self._fetch(batches[:, share].unbind(), device)
        for iteration, (images, labels) in enumerate(fetched, start):
            generator = iteration_generator(seed, epoch, iteration)
            drawn = draw_augment(batches.shape[1], *self.image_shape[1:], how, generator)
            yield _unit_range(augment_as_drawn(images, how, drawn[:, share])), labels

    def evaluation_batches(
        self, batch_size: int, *, device: Device, rank: int = 0, ranks: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through the set once, in order, not augmented; the last batch may be smaller.

        Args:
            batch_size: images of one batch over all ranks.
            device: where the batches are wanted.
            rank: which share of each batch to yield. The shares differ by one image at most; a rank that gets none
                of the last batch has one batch less.
            ranks: number of shares.

        Yields:
            float32 images `[B, 3, H, W]` in [0, 1] and int64 labels `[B]`.

        Raises:
            ValueError: `batch_size` is below 1, or `rank` out of range.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} is below 1; choose the images of one batch")
        _check_rank(rank, ranks)
        shares = [
            batch[rank * len(batch) // ranks : (rank + 1) * len(batch) // ranks]
            for batch in torch.split(torch.arange(len(self)), batch_size)
        ]
        fetched = self._fetch([share for share in shares if len(share)], torch.device(device))
        return ((_unit_range(images), labels) for images, labels in fetched)


def _inside(start: Tensor, length: int, size: int) -> Tensor:
    """Whether each of `size` positions lies in [start, start + length), bool `[B, size]`."""
    position = torch.arange(size, device=start.device)
    return (position >= start[:, None]) & (position < start[:, None] + length)


def _unit_range(images: Tensor) -> Tensor:
    return images.to(torch.float32).div_(255)


def _check_rank(rank: int, ranks: int) -> None:
    if not 0 <= rank < ranks:
        raise ValueError(f"rank={rank} is not one of {ranks} ranks; they are numbered from 0 to ranks - 1")
