"""What a problem is: its data, its loss and its metric. Classification and denoising."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from recurconv import loading
from recurconv.data.augment import Augment, ImageSet
from recurconv.data.bsd import load_pictures
from recurconv.data.cifar import load_cifar
from recurconv.data.denoising import PicturePatches, psnr
from recurconv.data.folder import load_folder
from recurconv.network import BUILDERS, Network
from recurconv.networks import Denoiser
from recurconv.recipes import Recipe
from recurconv.starting import take_weights

Batch = tuple[torch.Tensor, torch.Tensor]


class DataSet(Protocol):
    """What every task's data set has; its batches are the task's affair."""

    @property
    def name(self) -> str:
        """For tables."""

    @property
    def condition(self) -> str:
        """The exact state of the data, for the record of a run."""

    def __len__(self) -> int: ...

    def iterations(self, batch_size: int) -> int:
        """Iterations of an epoch; ValueError where ``batch_size`` does not fit."""


class Task(ABC):
    """A problem: data, network, loss and metric for a recipe.

    Args:
        recipe: the config.
        data: where the data is.
        split: "train", "minival", "trainval" or "test".
        device: where images are kept or put.
        download: fetch CIFAR if it is not there.
        class_names: what a trained network's logits stand for; the data must have the same classes.

    Raises:
        ValueError: the data cannot be read, or has other classes.
    """

    metric: str  # its name, with the unit
    higher_is_better: bool
    set: DataSet

    def __init__(
        self,
        recipe: Recipe,
        data: Path,
        split: str,
        device: torch.device,
        *,
        download: bool = False,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.recipe, self.device = recipe, device
        self.set = self._open(data, split, download, class_names)

    @abstractmethod
    def _open(self, data: Path, split: str, download: bool, class_names: Sequence[str] | None) -> DataSet:
        """The data set."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """What the data decides of the network: classes, channel statistics."""

    @abstractmethod
    def training_batches(self, epoch: int, start: int, rank: int, ranks: int) -> Iterator[Batch]:
        """(inputs, targets) of an epoch, from iteration ``start`` on; a rank's share of each batch.

        Raises:
            ValueError: at the call, where the recipe does not fit the data.
        """

    def run(self, network: Network, inputs: torch.Tensor, steps: int | tuple[int, ...]) -> torch.Tensor:
        """What the network makes of inputs that ``training_batches`` gave."""
        return network(inputs, steps)  # type: ignore[no-any-return]

    @abstractmethod
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of a batch."""

    @abstractmethod
    def distance(self, outputs: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """The mean distillation loss: how far ``outputs`` are from those of the largest setting."""

    @abstractmethod
    def measure(self, network: Network, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The metric of each image of the set at one setting, float64 [N], and the predictions to compare, [N]."""

    @abstractmethod
    def cost_shape(self) -> tuple[tuple[int, ...], int]:
        """The image shape [C, H, W] to count MACs for, and what to divide them by."""

    def iterations(self) -> int:
        """Iterations in an epoch."""
        return self.set.iterations(self.recipe.batch_size)


class Classification(Task):
    """Cross-entropy; top-1 error in %."""

    metric = "error (%)"
    higher_is_better = False
    set: ImageSet

    def _open(self, data: Path, split: str, download: bool, class_names: Sequence[str] | None) -> ImageSet:
        recipe = self.recipe
        if recipe.data == "folder":
            if recipe.minival == 0 and split == "minival":  # its number is not how many are held out, but whether any
                raise ValueError("minival=0 holds nothing out, so the split minival is empty; give another split")
            return load_folder(data, split, size=recipe.size, workers=recipe.workers, class_names=class_names)
        images = load_cifar(data, recipe.data, split, minival=recipe.minival, download=download, device=self.device)
        if class_names is not None and tuple(class_names) != images.class_names:
            raise ValueError(
                f"{recipe.data} has the classes {_few(images.class_names)}; this network was trained on "
                f"{_few(class_names)}; give the data set that it was trained on by --dataset"
            )
        return images

    def cost_shape(self) -> tuple[tuple[int, ...], int]:
        """An image of the set."""
        return self.set.image_shape, 1

    def arguments(self) -> dict[str, Any]:
        """Number and names of the classes, channel statistics."""
        names = self.set.class_names
        return {
            "num_classes": len(names),
            "class_names": names,
            "mean": self.set.mean,
            "std": self.set.std,
            "image_size": self.set.image_shape[-1],
            "width": self.recipe.width,
        }

    def training_batches(self, epoch: int, start: int, rank: int, ranks: int) -> Iterator[Batch]:
        """Images [B, 3, H, W] in [0, 1], labels [B]."""
        recipe = self.recipe
        return self.set.training_batches(
            recipe.batch_size,
            epoch=epoch,
            seed=recipe.seed,
            how=Augment(recipe.crop, recipe.flip, recipe.cutout),
            device=self.device,
            rank=rank,
            ranks=ranks,
            start=start,
        )

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross-entropy with the recipe's label smoothing."""
        return F.cross_entropy(outputs, targets, label_smoothing=self.recipe.label_smoothing)

    def distance(self, outputs: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """Cross-entropy against the soft output of the largest setting."""
        return F.cross_entropy(outputs, teacher.softmax(1))

    def measure(self, network: Network, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """100 for an image that is wrong, 0 for one that is right, NaN where logits are; the predicted labels."""
        wrong, predicted = [], []
        batch = 250 if self.device.type == "cpu" else 1000  # a GPU is kept busy by larger ones
        for images, labels in self.set.evaluation_batches(batch, device=self.device):
            logits = network(images, steps)
            guess = logits.argmax(1)
            wrong.append(((guess != labels).double() * 100).where(logits.isfinite().all(1), torch.nan))
            predicted.append(guess)
        return torch.cat(wrong), torch.cat(predicted)


GRAY_LEVEL = 1 / 255


class Denoising(Task):
    """Mean squared error of the residual, or for a range of noise levels its logarithm; PSNR in dB."""

    metric = "PSNR (dB)"
    higher_is_better = True
    set: PicturePatches
    _trained_on: PicturePatches | None = None  # the set, and what the recipe adds to it

    def _open(self, data: Path, split: str, download: bool, class_names: Sequence[str] | None) -> PicturePatches:
        recipe = self.recipe
        return load_pictures(
            data,
            split,
            minival=recipe.minival,
            patches_per_epoch=recipe.patches_per_epoch,
            channels=recipe.image_channels,
        )

    def cost_shape(self) -> tuple[tuple[int, ...], int]:
        """A pixel."""
        return (self.recipe.image_channels, 64, 64), 64 * 64

    def arguments(self) -> dict[str, Any]:
        """Channels of the cells and of the image."""
        return {"channels": self.recipe.channels, "image_channels": self.recipe.image_channels}

    def training_batches(self, epoch: int, start: int, rank: int, ranks: int) -> Iterator[Batch]:
        """Noisy and clean patches [B, C, P, P]; for a range of noise levels the noisy end with a channel of it."""
        recipe = self.recipe
        sigmas = recipe.sigmas
        if self._trained_on is None:
            pictures = self.set.with_halves() if recipe.halves else self.set
            self._trained_on = pictures.with_drawings(recipe.drawings) if recipe.drawings else pictures
        return self._trained_on.training_batches(
            recipe.batch_size,
            epoch=epoch,
            seed=recipe.seed,
            sigma=(sigmas[0], sigmas[1]) if sigmas else recipe.sigma,
            patch=recipe.patch,
            device=self.device,
            tinted=recipe.tinted,
            clipped=recipe.clipped,
            rank=rank,
            ranks=ranks,
            start=start,
        )

    def run(self, network: Network, inputs: torch.Tensor, steps: int | tuple[int, ...]) -> torch.Tensor:
        """The denoised patches; the noise level goes to a network that takes it."""
        if not self.recipe.sigmas:
            return network(inputs, steps)  # type: ignore[no-any-return]
        noisy, level = inputs[:, :-1], inputs[:, -1, 0, 0]
        told = {"sigma": level} if isinstance(network, Denoiser) and network.takes_sigma else {}
        return network(noisy, steps, **told)  # type: ignore[no-any-return]

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean squared error, in units of the noise's variance so that 1 is "nothing removed".

        For a range of noise levels the mean logarithm of each patch's error, as PSNR is: strong noise would outweigh
        weak noise otherwise. An error of a gray level counts as that much more, so that none is too small to matter.
        """
        if self.recipe.sigmas:
            errors = (outputs - targets).square().flatten(1).mean(1)
            return (errors + GRAY_LEVEL**2).log().mean()
        return F.mse_loss(outputs, targets) / (self.recipe.sigma / 255) ** 2

    def distance(self, outputs: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """The same, to the picture of the largest setting."""
        return self.loss(outputs, teacher)

    def measure(self, network: Network, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """PSNR of each picture, noise seeded per picture; the PSNR again as what to compare.

        It is infinite where a picture comes out exactly, as a wholly white one may after clipping; ``mean_metric``
        leaves such pictures out.
        """
        values = [psnr(clean, estimate) for clean, estimate in self.estimates(network, steps)]
        return torch.cat(values), torch.cat(values)

    def estimates(self, network: Network, steps: int) -> Iterator[Batch]:
        """Each picture of the set, clean and as the network makes it from its noisy self, float32 [1, C, H, W]."""
        for noisy, clean in self.set.evaluation_pictures(self.recipe.sigma, device=self.device):
            yield clean, self.denoised(network, noisy, steps).float()

    def denoised(self, network: Network, noisy: torch.Tensor, steps: int) -> torch.Tensor:
        """A noisy picture made clean; a network that takes the noise level is told it."""
        if isinstance(network, Denoiser) and network.takes_sigma:
            return network(noisy, steps, sigma=self.recipe.sigma)  # type: ignore[no-any-return]
        return network(noisy, steps)  # type: ignore[no-any-return]


def measure_settings(network: Network, task: Task) -> dict[str, float]:
    """The mean metric at each setting, under the setting's count; modules are left in the modes that they were in."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    with torch.inference_mode():
        means = {str(steps): mean_metric(task.measure(network, steps)[0]) for steps in network.dial}
    for module, mode in modes:
        module.training = mode
    return means


def mean_metric(values: torch.Tensor) -> float:
    """The mean over images of what ``measure`` returns. One infinite PSNR would hide all others: it is left out.

    Args:
        values: float64 [N].

    Returns:
        The mean of the finite ones; infinity if all are infinite, NaN if one is NaN.
    """
    counted = values[values != torch.inf]
    return float((counted if len(counted) else values).mean())


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f", ... ({len(names)})" if len(names) > 3 else "")


TASKS: dict[str, type[Task]] = {"classification": Classification, "denoising": Denoising}


def build_network(recipe: Recipe, task: Task) -> Network:
    """The recipe's network for the task's data, initialised by the recipe's seed, or by a trained network.

    The global random state stays as it was.

    Raises:
        FileNotFoundError: there is no network ``recipe.init``.
        ValueError: it cannot be read, or is of another kind.
    """
    source = loading.load(recipe.init) if recipe.init else None
    arguments = task.arguments()
    if source is not None:  # its weights want the normalisation that they were trained with
        arguments |= {key: value for key, value in source.config["arguments"].items() if key in ("mean", "std")}
    arguments["steps"] = recipe.steps if len(recipe.steps) > 1 else recipe.steps[0]
    if recipe.network.startswith("r"):
        arguments |= {"norm": recipe.norm, "unified": recipe.sampling != "per-cell"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = BUILDERS[recipe.network](**arguments)
    if source is not None:
        take_weights(network, source, recipe.init)
    return network
