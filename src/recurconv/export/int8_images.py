"""The images that int8 ranges are measured on: pictures in a folder, or CIFAR."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from recurconv.data.augment import iteration_generator
from recurconv.data.bsd import load_pictures
from recurconv.data.cifar import load_cifar
from recurconv.data.denoising import PicturePatches
from recurconv.data.folder import read_fitted
from recurconv.data.pictures import list_pictures
from recurconv.export.tracing import takes_sigma
from recurconv.network import Network
from recurconv.networks import Denoiser
from recurconv.prediction import check_classifier

IMAGES = 256  # for a classifier
BATCH = 32
LEVELS = 16  # of noise, for a denoiser that is told it; there are PATCHES of PATCH x PATCH pixels for each
PATCHES = 2
PATCH = 128

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sample:
    """A call of the network, and for a denoiser what it should give."""

    inputs: dict[str, Array]  # as an exported model takes them
    clean: Array | None = None  # [N, C, H, W]

    def __len__(self) -> int:
        """How many images it has."""
        return len(self.inputs["image"])


def samples(
    network: Network, folder: Path, *, size: int = 32, sigmas: tuple[float, float] | None = None
) -> list[Sample]:
    """What to run a network on to see how large its activations become.

    A classifier gets 256 pictures of the folder, or images of CIFAR's training set where that is what the folder holds;
    a denoiser gets 32 patches of the folder's pictures, of BSD those of its training set, with noise.

    Args:
        network: a classifier of colour images, or a denoiser.
        folder: where the images are.
        size: of a classifier's images in pixels; pictures are resized and cropped to it, CIFAR's are 32 anyway.
        sigmas: a denoiser's noise, from the first to the second, in 1/255; by default 25, and 0 to 50 where the network
            takes the noise level, which every other patch then does not tell.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: no pictures in it, or one that cannot be read; a network or size that does not go with pictures.
    """
    if isinstance(network, Denoiser):
        sigmas = sigmas or ((0.0, 50.0) if takes_sigma(network) else (25.0, 25.0))
        return noisy_samples(network, load_pictures(folder, "trainval", channels=network.image_channels), sigmas)
    check_classifier(network, size)
    images = _cifar(network, folder)
    if images is None:
        files = list_pictures(folder)
        images = torch.stack([read_fitted(files[index], size) for index in _some(len(files))])
    return [Sample({"image": batch.numpy() / np.float32(255)}) for batch in torch.split(images, BATCH)]


def _cifar(network: Network, folder: Path) -> torch.Tensor | None:
    """Training images, uint8 [N, 3, 32, 32], if that is what lies there; the test set is for measuring."""
    arguments = getattr(network, "config", {}).get("arguments", {})  # none, where no builder made the network
    name = "cifar100" if arguments.get("num_classes") == 100 else "cifar10"
    try:
        images = load_cifar(folder, name, "trainval", minival=0).images
    except FileNotFoundError:
        return None
    return images[_some(len(images))]


def _some(count: int) -> torch.Tensor:
    """At most ``IMAGES`` of ``count`` indices, evenly mixed, the same each time."""
    return torch.randperm(count, generator=iteration_generator(0))[:IMAGES]


def noisy_samples(network: Denoiser, pictures: PicturePatches, sigmas: tuple[float, float]) -> list[Sample]:
    """What ``samples`` shows a denoiser, of these pictures."""
    return list(_noisy(network, pictures, sigmas))


def _noisy(network: Denoiser, pictures: PicturePatches, sigmas: tuple[float, float]) -> Iterator[Sample]:
    patch = min(PATCH, *(min(picture.shape[1:]) for picture in pictures.pictures))
    low, high = sigmas
    for level in range(LEVELS):
        sigma = low + (high - low) * level / (LEVELS - 1)
        # An epoch of its own for each level draws other patches.
        batches = pictures.training_batches(PATCHES, epoch=level, seed=0, sigma=sigma, patch=patch, device="cpu")
        noisy, clean = next(batches)
        inputs = {"image": noisy.numpy()}
        if takes_sigma(network):
            inputs["sigma"] = np.array(sigma if level % 2 else -1.0, np.float32)
        yield Sample(inputs, clean.numpy())
