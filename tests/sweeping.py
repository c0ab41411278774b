"""Runs of the paper that train in a moment, for the tests of the sweep; also in processes of their own."""

import dataclasses
import json
from pathlib import Path

import tiny
from recurconv import cells
from recurconv.cells import paper
from recurconv.reproduction import plan

WORDS = ("--preset", "short", "--quiet", "--device", "cpu")


def tiny_size(recipe):
    """In place of the short preset: 3 iterations an epoch of ``tiny``'s data, 2 epochs."""
    if recipe.task == "denoising":
        size = {"channels": 4, "batch_size": 4, "patch": 8, "patches_per_epoch": 12}
    else:
        size = {"width": 1 / 16, "batch_size": 8, "crop": 1, "rate": 0.05}
    return dataclasses.replace(recipe, **size, epochs=2, compile=False)


def shrink():
    """Make the short preset tiny, in this process."""
    paper._short = tiny_size


def places(root):
    """A folder in which CIFAR-10 is found, for ``tiny.load_tiny`` to stand in for it."""
    folder = root / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "batches.meta").touch()


def items(root, *names, seeds=1):
    return plan.items(cells.select(names), "short", seeds, root / "runs", root / "runs" / "results")


def command(root, *words, **options):
    """``recurconv reproduce`` in a process of its own."""
    arguments = ["reproduce", *words, "--data", root / "data", "--out", root / "runs", *WORDS]
    return tiny.Command(*arguments, prepare=options.pop("prepare", shrink), **options)


def result(item):
    return json.loads(Path(item.result).read_text())


def starts(item):
    """How often its training was begun or taken up."""
    return len(json.loads((item.folder / "environment.json").read_text()))
