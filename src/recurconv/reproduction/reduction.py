"""A finished run becomes one small JSON: what it reaches on the test set, and what figures need of the network."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from recurconv import costs, files, loading, measuring
from recurconv.cells import CELLS
from recurconv.cells.results import FORMAT, hardware
from recurconv.devices import choose_device
from recurconv.evaluation import Row, evaluate
from recurconv.network import Network
from recurconv.reproduction.plan import Item
from recurconv.runs import RunFolder, environment
from recurconv.tasks import TASKS, Task, build_network

# Figures that show the network itself; they show that of the first seed that did not diverge.
_PICTURED = ("figure2", "figure3", "figure4", "figure6")


def reduce_run(item: Item, data: Path, *, device: str = "auto", diverged: str | None = None) -> dict[str, Any]:
    """Write the result of a run.

    Args:
        item: a run whose training has ended.
        data: the data that it was trained on.
        device: "auto", "cpu", "cuda" or "cuda:N".
        diverged: what training said when its loss was no longer finite; then there are no values.

    Returns:
        What was written; ``cells.results`` says what it is.

    Raises:
        ValueError: the data does not fit.
        OSError: something cannot be read or written.
    """
    run = RunFolder.open(item.folder)
    recipe = run.recipe()
    target = choose_device(device)
    task = TASKS[recipe.task](recipe, data, "test", target)
    network = build_network(recipe, task) if diverged else loading.load(item.folder)
    rows = () if diverged else evaluate(item.folder, data, "test", device=device).rows
    ended = (run.metrics() or [{"iteration": 0, "epoch": 0, "seconds": 0.0}])[-1]
    result = {
        "format": FORMAT,
        "cell": item.run.id,
        "preset": item.preset,
        "seed": item.seed,
        "recipe": dataclasses.asdict(recipe),
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        **_values(rows, network),
        "images": len(task.set),
        "condition": task.set.condition,
        "epochs": ended["epoch"],
        "iterations": ended["iteration"],
        "training_seconds": ended["seconds"],
        **_costs(network, task),
        "diverged": diverged,
        "environment": _environment(run),
        "variables": {},
    }
    if not diverged and any(c.run.id == item.run.id and c.table in _PICTURED for c in CELLS.values()):
        result["variables"] = measuring.extras_for(recipe, network.to(target), data)
    files.write_json(item.result, result)
    return result


def _values(rows: tuple[Row, ...], network: Network) -> dict[str, Any]:
    """By setting; null where there is none."""
    values = {row.steps: (row.value, row.standard_error) for row in rows}
    nothing = (math.nan, math.nan)
    return {
        "values": {str(k): _finite(values.get(k, nothing)[0]) for k in network.dial},
        "standard_errors": {str(k): _finite(values.get(k, nothing)[1]) for k in network.dial},
    }


def _costs(network: Network, task: Task) -> dict[str, Any]:
    shape, unit = task.cost_shape()
    spent = costs.cost(network, shape)
    return {
        "parameters": {str(row.steps): row.parameters for row in spent},
        "parameters_total": sum(parameter.numel() for parameter in network.parameters()),
        "macs": {str(row.steps): row.macs / unit for row in spent},
        "macs_per": "image" if unit == 1 else "pixel",
        "depth": {str(row.steps): row.depth for row in spent},
    }


def _environment(run: RunFolder) -> dict[str, Any]:
    """Of the last start; ``starts`` says how many there were, ``hardware`` on what, if not all on the same."""
    starts = run.starts()
    if not starts:
        return environment()
    used = list(dict.fromkeys(hardware(start) for start in starts))
    return {**starts[-1], "starts": len(starts), **({"hardware": used} if len(used) > 1 else {})}


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
