"""Evaluation: a checkpoint on a split of the data, at every setting."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from recurconv import checkpoint, costs, loading, recipes
from recurconv.devices import choose_device
from recurconv.network import Network
from recurconv.networks import Denoiser
from recurconv.recipes import Recipe
from recurconv.runs import environment
from recurconv.tasks import TASKS, Classification, Task, mean_metric


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
class Evaluation:
    """A network on a split: a row for each setting, and what has to be known about them.

    ``macs_per`` is "image" for a classifier, "pixel" for a denoiser; ``sigma`` the noise in 1/255, None for a
    classifier; ``condition`` the state of the data; ``notes`` are sentences that a reader of the rows must see.
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
        fields["rows"] = [{key: _finite(value) for key, value in row.items()} for row in fields["rows"]]
        return json.dumps(fields, indent=2, allow_nan=False)


def stored_recipe(source: str | Path) -> Recipe | None:
    """The recipe that a network was trained by; None where only ``save_pretrained`` wrote it.

    Args:
        source: as for ``recurconv.load``.

    Raises:
        ValueError: the file is broken.
    """
    file = loading.find(source) / checkpoint.RECIPE
    return recipes.read(file) if file.is_file() else None


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
    sigma: float | None = None,
    device: str = "auto",
    say: Callable[[str], object] = lambda progress: None,
) -> Evaluation:
    """Measure a network on a split.

    Args:
        source: a run folder, a folder with a network, or the name of shipped weights.
        data: where the data is.
        split: "train", "minival", "trainval" or "test".
        steps: settings on the dial; by default all.
        dataset, size, sigma: as for ``recipe_for``.
        device: "auto", "cpu", "cuda" or "cuda:N".
        say: told what is being done.

    Raises:
        ValueError: a setting off the dial; data that does not fit the network; no such device.
        FileNotFoundError: no such network or data.
    """
    target = choose_device(device)
    network = loading.load(source)
    settings = tuple(dict.fromkeys(network.setting(count) for count in steps)) or network.dial
    recipe = recipe_for(source, network, dataset=dataset, size=size, sigma=sigma)
    say(f"reading {data}")
    task = TASKS[recipe.task](recipe, data, split, target, class_names=network.class_names)
    _check_fit(network, task, data)
    network = network.to(target)
    values, outputs = {}, {}
    with torch.inference_mode():
        for count in settings:
            say(f"measuring steps={count} of {', '.join(map(str, settings))}")
            values[count], outputs[count] = (tensor.cpu() for tensor in task.measure(network, count))
    shape, unit = task.cost_shape()
    spent = {row.steps: row for row in costs.cost(network, shape)}
    rows = [
        Row(count, mean_metric(own), _standard_error(own), spent[count].macs / unit, spent[count].parameters)
        for count, own in values.items()
    ]
    return Evaluation(
        model=str(source),
        data=task.set.name.removesuffix(f" {split}"),
        condition=task.set.condition,
        split=split,
        sigma=recipe.sigma if recipe.task == "denoising" else None,
        metric=task.metric,
        images=len(task.set),
        macs_per="image" if unit == 1 else "pixel",
        parameters_total=sum(parameter.numel() for parameter in network.parameters()),
        rows=tuple(rows),
        notes=(*_not_finite(values), *_dead_settings(outputs)),
        device=str(target),
        environment=environment(),
    )


def _classes(network: Network) -> int:
    """How many a classifier knows."""
    return int(network.config["arguments"]["num_classes"])


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
    return None if isinstance(value, float) and not math.isfinite(value) else value
