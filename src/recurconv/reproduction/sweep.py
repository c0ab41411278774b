"""The sweep: fills the runs that are missing, one after the other, until all are there or the time is over."""

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from recurconv.data.places import TITLES, find_data
from recurconv.devices import choose_device
from recurconv.divergence import TrainingError
from recurconv.interruption import InterruptionError
from recurconv.reproduction.plan import Item, claim, holder
from recurconv.reproduction.reduction import reduce_run
from recurconv.training import train

RESERVE = 0.1  # the part of the time, at most a minute, that is kept to measure a run that ends

Status = Literal["finished", "there before", "elsewhere", "no time left", "no data", "failed"]


@dataclass(frozen=True)
class Report:
    """How a run of a sweep ended; ``note`` is a sentence where there is something to say."""

    item: Item
    status: Status
    note: str = ""


@dataclass(frozen=True)
class _Means:
    """What a sweep works with: where the data sets are, until when, on what, whom to tell."""

    data: dict[str, Path | None]
    deadline: float
    device: str
    quiet: bool
    say: Callable[[str], object]


def sweep(
    items: Sequence[Item],
    data: Sequence[Path],
    *,
    minutes: float = math.inf,
    device: str = "auto",
    quiet: bool = False,
    say: Callable[[str], object] = lambda message: None,
) -> list[Report]:
    """Fill the runs that are missing, in their order; a run that was interrupted goes on where it was.

    A run that fails does not stop the others. Any number of sweeps may work on the same folders at once, each on one
    device, on other machines too: no run is done twice.

    Args:
        items: the runs, in order.
        data: places where the data sets are.
        minutes: how long this may take. A run in progress is saved then, to go on next time.
        device: "auto", "cpu", "cuda" or "cuda:N".
        quiet: lines instead of a progress bar.
        say: told of each run as it begins and ends.

    Raises:
        ValueError: no data set of these runs is there; a place for runs or results is a file; there is no
            such device; or this is one of several processes of ``torchrun``.
        FileNotFoundError: a place of the data is not there.
        OSError: a folder for runs or results cannot be made or written.
        InterruptionError: Ctrl-C; the run in progress is saved.
    """
    begun = time.monotonic()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("reproduce works on one device; start it once for each, with --device cuda:0, cuda:1, ...")
    choose_device(device)  # complains now, not once for each run
    found = {name: find_data(name, data) for name in dict.fromkeys(item.run.data for item in items)}
    named = ", ".join(map(str, data))
    if not any(found.values()):
        wanted = ", ".join(TITLES[name] for name in found)
        raise ValueError(f"{named} holds no data for these runs ({wanted}); give the folders that do, each by --data")
    for folder in sorted({item.folder.parent for item in items} | {item.result.parent for item in items}):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is not a folder; give another place for runs or results")
        folder.mkdir(parents=True, exist_ok=True)
        _check_writable(folder)
    seconds = minutes * 60
    means = _Means(found, begun + seconds - min(60.0, RESERVE * seconds), device, quiet, say)
    for name in (name for name, place in found.items() if place is None):
        say(f"{named} holds no {TITLES[name]}: {sum(i.run.data == name for i in items)} runs are left out")
    reports = []
    for number, item in enumerate(items, 1):
        report = _attempt(item, means, f"{number}/{len(items)} {item.name}")
        if report.note:
            say(f"{item.name}: {report.note}")
        reports.append(report)
    return reports


def _attempt(item: Item, means: _Means, title: str) -> Report:
    """Fill one run, if it is for this sweep to do and there is time."""
    place = means.data[item.run.data]
    try:
        if item.is_done():
            return Report(item, "there before")
        if place is None:
            return Report(item, "no data")
        if time.monotonic() >= means.deadline:
            return Report(item, "no time left")
        with claim(item) as mine:
            if not mine:
                return Report(item, "elsewhere", f"{holder(item)} works on it")
            if item.is_done():  # since
                return Report(item, "there before")
            return _fill(item, place, means, title)
    except InterruptionError:
        raise
    except (ValueError, OSError, RuntimeError, MemoryError) as error:  # a GPU's full memory is a RuntimeError
        return Report(item, "failed", str(error).partition("\n")[0] or type(error).__name__)


def _check_writable(folder: Path) -> None:
    """Now, not when a run has been trained to the end."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{folder} cannot be written ({error.strerror or error}); give another place") from None


def _fill(item: Item, place: Path, means: _Means, title: str) -> Report:
    """Train and reduce a run that this sweep holds."""
    resume = item.was_started()
    means.say(f"{title}: {'goes on' if resume else 'begins'}")
    recipe = item.run.recipe(item.preset, item.seed)
    if recipe.compile:
        torch.compiler.reset()  # the bodies of the run before count towards its limit of recompilations
    seconds, diverged = means.deadline - time.monotonic(), None
    try:
        train(recipe, place, item.folder, resume=resume, device=means.device, quiet=means.quiet, seconds=seconds)
    except InterruptionError:
        if time.monotonic() < means.deadline:
            raise InterruptionError(f"stopped; {item.folder} is saved, the same command goes on with it") from None
        return Report(item, "no time left", "saved as far as it is; the same command goes on with it")
    except TrainingError as error:
        diverged = str(error)
    means.say(f"{title}: measuring on the test set")
    result = reduce_run(item, place, device=means.device, diverged=diverged)
    return Report(item, "finished", diverged or _told(result["values"], result["metric"]))


def _told(values: dict[str, float | None], metric: str) -> str:
    shown = ", ".join(f"{'not finite' if v is None else f'{v:.2f}'} at {k}" for k, v in values.items())
    return f"{metric} {shown} steps"
