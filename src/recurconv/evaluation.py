"""Evaluation: a checkpoint on a split of the data, at every setting."""

import dataclasses
import importlib.util
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from recurconv import checkpoint, costs, loading, recipes
from recurconv.data.denoising import psnr, ssim
from recurconv.devices import choose_device
from recurconv.network import IMAGE_SIZE, Network
from recurconv.networks import Denoiser
from recurconv.recipes import Recipe
from recurconv.runs import RunFolder, environment
from recurconv.tasks import TASKS, Classification, Denoising, Task, mean_metric


@dataclass(frozen=True)
class Row:
    """What one setting reaches.

    ``value`` is the mean over the images of the error in % or the PSNR in dB, ``standard_error`` that mean's (NaN for
    a single image). ``parameters`` are those in use; ``macs`` are for what ``Evaluation.macs_per`` says.
    """

    steps: int
    value: float
    standard_error: float
    macs: float
    parameters: int


@dataclass(frozen=True)
class PictureResult:
    """What one setting makes of one picture: its name in the folder, PSNR in dB, SSIM; see ``NoisyRow``."""

    picture: str
    psnr: float
    ssim: float | None


@dataclass(frozen=True)
class NoisyRow(Row):
    """What one setting of a denoiser reaches at one noise level ``sigma``, in 1/255.

    ``ssim`` is the mean over the pictures; None without scikit-image.
    """

    sigma: float
    ssim: float | None
    pictures: tuple[PictureResult, ...]


@dataclass(frozen=True)
class Evaluation:
    """A network on a split: a row for each setting, for each noise level; and what has to be known about them.

    ``macs_per`` is "image" for a classifier, "pixel" for a denoiser, whose rows are ``NoisyRow``; ``sigma`` the noise
    in 1/255, None for a classifier or where there are several; ``condition`` the state of the data; ``notes`` are
    sentences that a reader of the rows must see.
    """

    model: str
    data: str
    condition: str
    split: str
    sigma: float | None
    metric: str
    images: int
    macs_per: str
    parameters_total: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    device: str
    environment: dict[str, Any]

    def as_json(self) -> str:
        """For a file under ``results/``; a value that is not finite is null."""
        fields = dataclasses.asdict(self)
        return json.dumps(_finite(fields), indent=2, allow_nan=False)


def stored_recipe(source: str | Path) -> Recipe | None:
    """The recipe that a network was trained by; None where only ``save_pretrained`` wrote it.

    Args:
        source: as for ``recurconv.load``.

    Raises:
        ValueError: the file is broken.
    """
    file = loading.find(source) / checkpoint.RECIPE
    return recipes.read(file) if file.is_file() else None


def image_size(source: str | Path, network: Network) -> int:
    """Height and width in pixels of the images that a network was trained on; 32 where nothing tells.

    Args:
        source: what it was loaded from: runs of an earlier version have it in their recipe alone.
        network: the network.

    Raises:
        ValueError: the recipe is broken.
    """
    recipe = stored_recipe(source)
    return network.image_size or (recipe.size if recipe is not None else IMAGE_SIZE)


def recipe_for(
    source: str | Path,
    network: Network,
    *,
    dataset: str | None = None,
    size: int | None = None,
    sigma: float | None = None,
) -> Recipe:
    """How to read and measure data for a network: the recipe it was trained by, or the one that fits its kind.

    Args:
        source: what it was loaded from.
        network: the network.
        dataset: "cifar10", "cifar100", "folder" or "pictures"; by default what it was trained on.
        size: of a folder's images after resize and crop, in pixels; by default as in training.
        sigma: of the noise, in 1/255; by default as in training.

    Raises:
        ValueError: one of these is not for this network, or ``dataset`` is needed.
    """
    known = get_args(get_type_hints(Recipe)["data"])
    if dataset is not None and dataset not in known:
        raise ValueError(f"dataset={dataset!r} is not known; choose one of {', '.join(known)}")
    recipe = stored_recipe(source) or _guessed_recipe(source, network, dataset)
    denoises = isinstance(network, Denoiser)
    if dataset is not None and (dataset == "pictures") != denoises:
        kind, fitting = ("denoiser", "pictures") if denoises else ("classifier", "cifar10, cifar100 or folder")
        raise ValueError(f"dataset={dataset!r} is not for {source}, a {kind}; choose {fitting}")
    changes = [] if dataset is None else [f"data={dataset}"]
    if sigma is not None and not denoises:
        raise ValueError(f"sigma={sigma} is the noise for a denoiser, and {source} is a classifier; leave it out")
    if size is not None and (dataset or recipe.data) != "folder":
        raise ValueError(f"size={size} is for a folder of images, not for {dataset or recipe.data}; leave it out")
    changes += [f"{key}={value}" for key, value in (("size", size), ("sigma", sigma)) if value is not None]
    if size is None and (dataset or recipe.data) == "folder":
        changes += [f"size={image_size(source, network)}"]
    return recipes.override(recipe, changes)


def _guessed_recipe(source: str | Path, network: Network, dataset: str | None) -> Recipe:
    if isinstance(network, Denoiser):
        return recipes.override(recipes.get("r3-gray25"), [f"image_channels={network.image_channels}"])
    classes = _classes(network)
    if dataset is None and classes not in (10, 100):
        raise ValueError(f"{source} has {classes} classes and no recipe.json; say by --dataset what the data is")
    return recipes.get("r2-cifar100" if classes == 100 else "r2-cifar10")


def evaluate(
    source: str | Path,
    data: Path,
    split: str,
    *,
    steps: Sequence[int] = (),
    dataset: str | None = None,
    size: int | None = None,
    sigma: float | Sequence[float] | None = None,
    device: str = "auto",
    say: Callable[[str], object] = lambda progress: None,
) -> Evaluation:
    """Measure a network on a split.

    Args:
        source: a run folder, a folder with a network, or the name of shipped weights.
        data: where the data is.
        split: "train", "minival", "trainval" or "test".
        steps: settings on the dial; by default all.
        dataset, size: as for ``recipe_for``.
        sigma: of the noise, in 1/255, one level or several; by default as in training. Networks that take it are told.
        device: "auto", "cpu", "cuda" or "cuda:N".
        say: told what is being done.

    Raises:
        ValueError: a setting off the dial; data that does not fit the network; no such device.
        FileNotFoundError: no such network or data.
    """
    target = choose_device(device)
    network = loading.load(source)
    settings = tuple(dict.fromkeys(network.setting(count) for count in steps)) or network.dial
    levels = (*dict.fromkeys(sigma),) if isinstance(sigma, Sequence) else (sigma,)
    levelled = [recipe_for(source, network, dataset=dataset, size=size, sigma=level) for level in levels or (None,)]
    recipe = levelled[0]
    _check_path(data)
    say(f"reading {data}")
    task = TASKS[recipe.task](recipe, data, split, target, class_names=network.class_names)
    _check_fit(network, task, data)
    network = network.to(target, torch.promote_types(network.normalize.mean.dtype, torch.float32))  # if saved in bf16
    rows: list[Row] = []
    notes: list[str] = []
    for own in levelled:
        task.recipe = own
        at = f"sigma={own.sigma:g}, " if len(levelled) > 1 else ""
        values, outputs, pictures = _measure(network, task, settings, f"measuring {at}", say)
        rows += _rows(network, task, values, pictures)
        notes += [f"{at}{note}" for note in (*_not_finite(values), *_dead_settings(outputs))]
    if split == "test" and _was_trained_on(source, task.set.condition):
        notes.append("the network was trained on just these pictures: this is no test; put others into test/")
    if isinstance(task, Denoising) and not _has_ssim():
        notes.append('without scikit-image there is no SSIM: pip install "recurconv[denoise]"')
    return Evaluation(
        model=str(source),
        data=task.set.name.removesuffix(f" {split}"),
        condition=task.set.condition,
        split=split,
        sigma=recipe.sigma if recipe.task == "denoising" and len(levelled) == 1 else None,
        metric=task.metric,
        images=len(task.set),
        macs_per="image" if task.cost_shape()[1] == 1 else "pixel",
        parameters_total=sum(parameter.numel() for parameter in network.parameters()),
        rows=tuple(rows),
        notes=tuple(notes),
        device=str(target),
        environment=environment(),
    )


Results = dict[int, torch.Tensor]  # under each setting, a value for each image


def _measure(
    network: Network, task: Task, settings: Sequence[int], what: str, say: Callable[[str], object]
) -> tuple[Results, Results, dict[int, tuple[PictureResult, ...]]]:
    """The metric of each image, the predictions to compare, and of a denoiser what there is of each picture."""
    values, outputs, pictures = {}, {}, {}
    with torch.inference_mode():
        for count in settings:
            say(f"{what}steps={count} of {', '.join(map(str, settings))}")
            if isinstance(task, Denoising):
                pictures[count] = tuple(_pictures(network, task, count))
                values[count] = torch.tensor([own.psnr for own in pictures[count]], dtype=torch.float64)
                outputs[count] = values[count]
            else:
                values[count], outputs[count] = (tensor.cpu() for tensor in task.measure(network, count))
    return values, outputs, pictures


def _pictures(network: Network, task: Denoising, count: int) -> Iterator[PictureResult]:
    """Every picture at one setting."""
    for name, (clean, estimate) in zip(task.set.names, task.estimates(network, count), strict=True):
        similarity = float(ssim(clean, estimate)) if _has_ssim() else None
        yield PictureResult(name, float(psnr(clean, estimate)), similarity)


def _has_ssim() -> bool:
    return importlib.util.find_spec("skimage") is not None


def _rows(
    network: Network, task: Task, values: Results, pictures: dict[int, tuple[PictureResult, ...]]
) -> Iterator[Row]:
    """A row for each setting."""
    shape, unit = task.cost_shape()
    spent = {row.steps: row for row in costs.cost(network, shape)}
    for count, own in values.items():
        row = Row(count, mean_metric(own), _standard_error(own), spent[count].macs / unit, spent[count].parameters)
        if count in pictures:
            known = [picture.ssim for picture in pictures[count] if picture.ssim is not None]
            mean = sum(known) / len(known) if known else None
            row = NoisyRow(**vars(row), sigma=task.recipe.sigma, ssim=mean, pictures=pictures[count])
        yield row


def _check_path(data: Path) -> None:
    """The names that papers have for sets of pictures are folders here."""
    if not data.exists() and data.name.lower() in ("bsd68", "set12"):
        raise ValueError(
            f"{data}: no such folder, and nothing is downloaded; BSD68 is --split test of BSDS500's folder, such as "
            "BSR/BSDS500/data, and Set12 any folder that holds its 12 pictures"
        )


def _classes(network: Network) -> int:
    """How many a classifier knows."""
    return int(network.config["arguments"]["num_classes"])


def _was_trained_on(source: str | Path, condition: str) -> bool:
    """Whether a run folder says that it was trained on pictures of the same checksum."""
    checksum = re.search(r"sha256 \w+$", condition)
    starts = RunFolder(loading.find(source)).starts()
    return checksum is not None and any(start.get("condition", "").endswith(checksum[0]) for start in starts)


def _check_fit(network: Network, task: Task, data: Path) -> None:
    """What the class names, where a network has any, do not tell."""
    if isinstance(task, Classification) and len(task.set.class_names) != _classes(network):
        raise ValueError(
            f"{data} has {len(task.set.class_names)} classes, this network {_classes(network)}; give the data that it "
            "was trained on, and --dataset"
        )


def _standard_error(values: torch.Tensor) -> float:
    """Of ``mean_metric``, which leaves infinite values out."""
    counted = values[values != math.inf]
    return float(counted.std(correction=1)) / math.sqrt(len(counted)) if len(counted) > 1 else math.nan


def _not_finite(values: dict[int, torch.Tensor]) -> list[str]:
    notes = []
    for count, own in values.items():
        exact, broken = int((own == math.inf).sum()), int(own.isnan().sum())
        if exact:
            notes.append(
                f"steps={count}: {exact} of {len(own)} images come out exactly clean, with an infinite PSNR; "
                f"{'the mean leaves them out' if exact < len(own) else 'there is no other'}"
            )
        if broken:
            notes.append(f"steps={count}: the output is NaN for {broken} of {len(own)} images")
    return notes


def _dead_settings(outputs: dict[int, torch.Tensor]) -> list[str]:
    """A sentence for each group of settings that agree on every image: the dial may be dead there."""
    groups: list[list[int]] = []
    for count, own in outputs.items():
        alike = next((group for group in groups if torch.equal(outputs[group[0]], own)), None)
        if alike is None:
            groups.append([count])
        else:
            alike.append(count)
    return [
        f"steps={', '.join(map(str, group[:-1]))} and {group[-1]} give the same on all {len(outputs[group[0]]):,} "
        "images: the dial may be dead, or the images too few to tell"
        for group in groups
        if len(group) > 1
    ]


def _finite(value: Any) -> Any:
    """``value`` with None for each number in it that is not finite."""
    if isinstance(value, dict):
        return {key: _finite(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
