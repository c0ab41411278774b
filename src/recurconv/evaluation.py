"""Evaluation: a checkpoint on a split of the data, at every setting."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recurconv import costs, loading, recipes
from recurconv.network import Network
from recurconv.networks import Denoiser
from recurconv.recipes import Recipe
from recurconv.runs import environment
from recurconv.tasks import TASKS


@dataclass(frozen=True)
class Row:
    """What one setting reaches.

    ``value`` is the mean over the images of the error in % or the PSNR in dB, ``standard_error`` that mean's.
    ``parameters`` are those in use; ``macs`` are for one image, for a denoiser for one pixel.
    """

    steps: int
    value: float
    standard_error: float
    macs: float
    parameters: int


@dataclass(frozen=True)
class Evaluation:
    """A network on a split: a row for each setting, and what has to be known about them."""

    model: str
    data: str
    condition: str
    split: str
    metric: str
    images: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    environment: dict[str, Any]

    def as_json(self) -> str:
        """For a file under ``results/``."""
        return json.dumps(dataclasses.asdict(self), indent=2)


def recipe_of(source: str | Path, network: Network, data: str | None = None) -> Recipe:
    """How to read and measure data for this network: its run's recipe, or the one that fits its kind.

    Args:
        source: what it was loaded from.
        network: the network.
        data: "cifar10", "cifar100", "folder" or "pictures", where it is not to be what the network was trained on.

    Raises:
        ValueError: a network of the other task.
    """
    file = loading.find(source) / "recipe.json"
    if file.is_file():
        recipe = recipes.read(file)
    elif isinstance(network, Denoiser):
        recipe = recipes.get("r3-gray25")
    else:
        recipe = recipes.get("r2-cifar100" if network.head.linear.out_features == 100 else "r2-cifar10")  # type: ignore[union-attr]
    return recipe if data is None else recipes.override(recipe, [f"data={data}"])


def evaluate(
    source: str | Path,
    data: Path,
    split: str,
    *,
    steps: Sequence[int] | None = None,
    kind: str | None = None,
    sigma: float | None = None,
    device: str = "cpu",
) -> Evaluation:
    """Measure a network on a split.

    Args:
        source: a run folder, a folder with a network, or the name of shipped weights.
        data: where the data is.
        split: "train", "minival", "trainval" or "test".
        steps: settings on the dial; by default all.
        kind: see ``data`` of ``recipe_of``.
        sigma: of the noise, in 1/255; by default the recipe's.
        device: where to compute.

    Raises:
        ValueError: a setting off the dial; data that does not fit the network.
        FileNotFoundError: no such network or data.
    """
    network = loading.load(source).to(device)
    settings = tuple(network.setting(count) for count in steps) if steps else network.dial
    recipe = recipe_of(source, network, kind)
    if sigma is not None:
        recipe = recipes.override(recipe, [f"sigma={sigma}"])
    task = TASKS[recipe.task](recipe, data, split, torch.device(device), class_names=network.class_names)
    with torch.inference_mode():
        measured = {count: task.measure(network, count) for count in settings}
    values = {count: value.cpu() for count, (value, _) in measured.items()}
    outputs = {count: output.cpu() for count, (_, output) in measured.items()}
    shape, unit = task.cost_shape()
    spent = {row.steps: row for row in costs.cost(network, shape)}
    rows = [
        Row(
            steps=count,
            value=float(value.mean()),
            standard_error=float(value.std(correction=1) / len(value) ** 0.5) if len(value) > 1 else 0.0,
            macs=spent[count].macs / unit,
            parameters=spent[count].parameters,
        )
        for count, value in values.items()
    ]
    return Evaluation(
        model=str(source),
        data=task.set.name,
        condition=task.set.condition,
        split=split,
        metric=task.metric,
        images=len(task.set),
        rows=tuple(rows),
        notes=tuple(_dead_settings(outputs)),
        environment=environment(),
    )


def _dead_settings(outputs: dict[int, torch.Tensor]) -> list[str]:
    """A sentence for each two settings that agree on every image: the dial may be dead there."""
    return [
        f"steps={a} and steps={b} give the same on all {len(outputs[a])} images: the dial may be dead"
        for a, b in itertools.combinations(outputs, 2)
        if torch.equal(outputs[a], outputs[b])
    ]
