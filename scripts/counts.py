"""Count the networks of every cell of the paper into src/recurconv/reporting/networks.json; ``--check`` only compares.

python scripts/counts.py [--check]

The report shows the counts of a cell that was not run from there, since it runs without PyTorch.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from recurconv import cells, costs, networks
from recurconv.files import write_json
from recurconv.recipes import Recipe

FILE = Path(__file__).parent.parent / "src" / "recurconv" / "reporting" / "networks.json"
CLASSES = {"cifar10": 10, "cifar100": 100}
SIDE = 64  # of the image whose MACs are divided by its pixels


def counts(recipe: Recipe) -> dict[str, Any]:
    """Parameters of a recipe's network; by setting its MACs (per image of 32x32, or per pixel) and its depth."""
    arguments: dict[str, Any] = {"steps": recipe.steps if len(recipe.steps) > 1 else recipe.steps[0]}
    if recipe.network.startswith("r"):
        arguments |= {"norm": recipe.norm, "unified": recipe.sampling != "per-cell"}
    if recipe.task == "denoising":
        arguments |= {"channels": recipe.channels, "image_channels": recipe.image_channels}
        shape, unit = (recipe.image_channels, SIDE, SIDE), SIDE * SIDE
    else:
        arguments |= {"num_classes": CLASSES[recipe.data], "width": recipe.width}
        shape, unit = (3, 32, 32), 1
    with torch.device("meta"):
        network = getattr(networks, recipe.network)(**arguments)
    spent = costs.cost(network, shape)
    return {
        "parameters": spent[0].parameters_total,
        "macs": {str(row.steps): row.macs / unit for row in spent},
        "depth": {str(row.steps): row.depth for row in spent},
    }


def counted() -> dict[str, Any]:
    """What the file is to hold: the counts of each run in each preset."""
    return {
        f"{run.id}--{preset}": counts(run.recipe(preset, 0)) for run in cells.RUNS.values() for preset in cells.PRESETS
    }


def main() -> None:
    """Compare or write."""
    found = counted()
    if "--check" in sys.argv:
        if json.loads(FILE.read_text(encoding="utf-8")) != found:
            raise SystemExit(f"{FILE.name} is not what the code counts; run python scripts/counts.py")
    else:
        write_json(FILE, found)


if __name__ == "__main__":
    main()
