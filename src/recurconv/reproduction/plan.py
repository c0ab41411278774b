"""Which runs a sweep is to do, and how far each is. Without PyTorch, so that a listing is quick."""

import contextlib
import json
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from recurconv import files
from recurconv.cells import Cell, Preset, Run, matches, read_result, result_name, runs_of

PATIENCE = 1.0  # seconds to wait for a lock: a listing holds it for an instant, a sweep for a whole run

State = Literal["done", "running", "interrupted", "missing", "wrong"]


@dataclass(frozen=True)
class Item:
    """One run of a sweep: its folder is ``folder``, its result goes to ``result``."""

    run: Run
    preset: Preset
    seed: int
    folder: Path
    result: Path

    @property
    def name(self) -> str:
        """For a user to read."""
        return f"{self.run.id}, {self.preset}, seed {self.seed}"

    def is_done(self) -> bool:
        """Whether the result is there.

        Raises:
            ValueError: it is broken, of another run, or of another recipe than the run has now.
        """
        if not self.result.is_file():
            return False
        found = read_result(self.result)
        if (found["cell"], found["preset"], found["seed"]) != (self.run.id, self.preset, self.seed):
            told = f"{found['cell']}, {found['preset']}, seed {found['seed']}"
            raise ValueError(f"{self.result} is of {told}; give it back its name")
        if difference := matches(found):
            raise ValueError(
                f"{self.result} is of another recipe ({difference}); move it away, or choose other --results"
            )
        return True

    def was_started(self) -> bool:
        """Whether there is a run to go on with."""
        return (self.folder / "recipe.json").is_file()


def items(cells: Iterable[Cell], preset: Preset, seeds: int, out: Path, results: Path) -> list[Item]:
    """Every run of some cells, in the order of a sweep: all of one seed before any of the next.

    Args:
        cells: of the paper.
        preset: "full" or "short".
        seeds: how many runs of each, from seed 0 on.
        out: the folder of run folders.
        results: the folder of results.
    """
    runs = runs_of(cells)
    names = [(run, seed, result_name(run, preset, seed)) for seed in range(seeds) for run in runs]
    return [Item(run, preset, seed, out / name, results / f"{name}.json") for run, seed, name in names]


def state(item: Item) -> tuple[State, str]:
    """How far a run is, and what there is to say about it: who works on it, what is wrong."""
    try:
        if item.is_done():
            return "done", ""
    except (ValueError, OSError) as error:
        return "wrong", str(error)
    if _lock_file(item).is_file() and not _is_free(item):
        return "running", holder(item)
    return ("interrupted" if item.was_started() else "missing"), ""


def _is_free(item: Item) -> bool:
    """Whether no sweep holds a run; True where the lock cannot be tried, since the folder is read-only."""
    lock = FileLock(_lock_file(item))
    try:
        lock.acquire(timeout=0.0)
    except Timeout:
        return False
    except (OSError, NotImplementedError):
        return True
    lock.release()
    return True


@contextlib.contextmanager
def claim(item: Item, patience: float = PATIENCE) -> Iterator[bool]:
    """Hold a run, so that no other sweep works on it; yields False where another one does.

    The lock is the operating system's, which takes it back from a process that dies, on another machine too.

    Raises:
        OSError: the folder cannot be written, or its file system has no locks.
    """
    path = _lock_file(item)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=patience, poll_interval=0.05)
    except Timeout:
        yield False
        return
    except NotImplementedError:
        raise OSError(f"{path.parent}: this file system has no locks; choose another one for --out") from None
    try:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        files.write_json(_holder_file(item), {"host": socket.gethostname(), "pid": os.getpid(), "since": now})
        yield True
    finally:
        _holder_file(item).unlink(missing_ok=True)
        lock.release()


def holder(item: Item) -> str:
    """Who holds a run, for a user to read."""
    try:
        told = json.loads(_holder_file(item).read_text(encoding="utf-8"))
        return f"process {told['pid']} on {told['host']} since {told['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has just begun or ended
        return "another process"


def _lock_file(item: Item) -> Path:
    return item.folder.parent / "locks" / f"{item.folder.name}.lock"


def _holder_file(item: Item) -> Path:
    return _lock_file(item).with_suffix(".json")
