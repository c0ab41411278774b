"""The run folder: config, environment, metrics, checkpoints; atomic writes; resume.

RUN/recipe.json          what was asked for
RUN/environment.json     versions, hardware, commit, the data's condition; a list, one entry for each start
RUN/metrics.jsonl        a line for each evaluation on the held-out images
RUN/config.json          with model.safetensors: the last checkpoint, as ``recurconv.load`` takes it
RUN/model.safetensors
RUN/trainer_state.pt     the same weights, the optimiser and the iteration: what --resume starts from
"""

import contextlib
import dataclasses
import io
import json
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from recurconv import checkpoint, files, recipes
from recurconv._version import __version__
from recurconv.network import Network
from recurconv.recipes import Recipe

LOCK = ".lock"  # in the folder of a run that is being trained


class RunFolder:
    """A training run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.json"
        self.metrics_file = path / "metrics.jsonl"
        self.environment_file = path / "environment.json"
        self.state_file = path / "trainer_state.pt"

    @classmethod
    def create(cls, path: Path, recipe: Recipe) -> "RunFolder":
        """A new run.

        Raises:
            FileExistsError: there is something at ``path`` already; it is left as it is.
            OSError: it cannot be written; nothing stays.
        """
        cls.check_new(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        try:
            files.write_json(run.recipe_file, dataclasses.asdict(recipe))
        except OSError:
            with contextlib.suppress(OSError):
                path.rmdir()
            raise
        return run

    @staticmethod
    def check_new(path: Path) -> None:
        """Raise FileExistsError if there is something at ``path``; an empty folder is nothing, or what a crash left."""
        if (path / "recipe.json").is_file():
            raise FileExistsError(f"{path} holds a run; go on with it by --resume, or choose another folder")
        if path.exists() and (not path.is_dir() or {*path.iterdir()} - {*_half_written(path), path / LOCK}):
            raise FileExistsError(f"{path} is not an empty folder; choose another")

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run.

        Raises:
            FileNotFoundError: there is none.
        """
        run = cls(path)
        if not run.recipe_file.is_file():
            raise FileNotFoundError(f"{path} is no run folder: it has no {run.recipe_file.name}")
        return run

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training in this folder meanwhile; a process that dies lets go.

        Raises:
            BlockingIOError: another process does so already.
        """
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BlockingIOError(f"{self.path} is being trained by another process; wait for it to end") from None
        try:
            yield
        finally:
            (self.path / LOCK).unlink(missing_ok=True)
            lock.release()

    def recipe(self) -> Recipe:
        """The recipe of the run.

        Raises:
            ValueError: the file is broken, or of another version of this package.
        """
        return recipes.read(self.recipe_file)

    def note_environment(self, **facts: Any) -> None:
        """Add an entry for this start."""
        files.write_json(self.environment_file, [*self.starts(), {**environment(), **facts}])

    def starts(self) -> list[dict[str, Any]]:
        """What was noted at each start; nothing where no run was started.

        Raises:
            ValueError: the file is broken.
        """
        if not self.environment_file.is_file():
            return []
        try:
            return list(json.loads(self.environment_file.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.environment_file} is not what a run wrote: {error}") from None

    def save(self, state: Mapping[str, Any], network: Network) -> None:
        """Write the state, then the network: after a crash between the two --resume writes the network.

        Args:
            state: tensors, numbers, strings, lists, tuples and dicts only.
            network: whose weights are in it.

        Raises:
            OSError: something cannot be written; what was saved before is kept.
        """
        buffer = io.BytesIO()  # torch.save into a file hides why it fails
        torch.save(dict(state), buffer)
        try:
            files.write_atomically(self.state_file, lambda path: path.write_bytes(buffer.getbuffer()))
            network.save_pretrained(self.path)
        except OSError as error:
            raise OSError(f"{self.path} cannot be saved ({error}); what was saved before is kept") from error

    def load_state(self, facts: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """The last state that was saved, on the CPU; None before the first.

        Args:
            facts: entries that must be what they were: the recipe, the data's condition, the number of iterations.

        Raises:
            ValueError: the file is broken or lost, or a fact is another one.
        """
        recipe = dataclasses.asdict(self.recipe())
        state: dict[str, Any] = {"recipe": recipe}
        if self.state_file.is_file():
            try:
                state |= torch.load(self.state_file, map_location="cpu", weights_only=True)
                state["recipe"] = {**recipe, **state["recipe"]}  # an older version had fewer fields
            except Exception as error:  # torch.load raises many kinds for a broken file
                reason = f"{type(error).__name__} {error}".splitlines()[0]
                raise ValueError(f"{self.state_file} cannot be read ({reason}); start anew in another folder") from None
        elif (self.path / checkpoint.WEIGHTS).is_file():  # which is written after it: to begin anew would overwrite it
            raise ValueError(f"{self.path} has a network but no {self.state_file.name}; start anew in another folder")
        for key, now in (facts or {}).items():
            if state.get(key, now) != now:
                raise ValueError(f"{self.path} was started {_difference(key, state[key], now)}")
        return state if self.state_file.is_file() else None

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a line."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All whole lines; a last line that a crash cut off is left out."""
        rows = []
        if self.metrics_file.exists():
            for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    rows.append(json.loads(line))
        return rows

    def rewind(self, iteration: int, network: Network) -> None:
        """Make the folder what it was when the state of ``iteration`` was saved, whatever a crash left in it.

        Takes off the metrics written since, which the resumed run writes again, and files half written; writes the
        network where it is not there or not this one. Changes nothing where nothing is wrong.

        Args:
            iteration: of the state; 0 where none was saved yet.
            network: with the weights of the state.
        """
        for file in _half_written(self.path):
            file.unlink()
        if self.metrics_file.exists():
            text = "".join(json.dumps(row) + "\n" for row in self.metrics() if row.get("iteration", 0) <= iteration)
            if text != self.metrics_file.read_text(encoding="utf-8"):
                files.write_atomically(self.metrics_file, lambda path: path.write_text(text, encoding="utf-8"))
        if iteration > 0 and not self._holds(network):
            network.save_pretrained(self.path)

    def _holds(self, network: Network) -> bool:
        """Whether the last checkpoint has this network's config and weights."""
        try:
            config = checkpoint.read_config(self.path)
            tensors = checkpoint.read_tensors(self.path / checkpoint.WEIGHTS)
        except (OSError, ValueError):
            return False
        state = network.state_dict()
        same = {key: config[key] for key in network.config if key in config} == network.config
        return same and tensors.keys() == state.keys() and all(tensors[k].equal(state[k].cpu()) for k in state)


def _half_written(folder: Path) -> list[Path]:
    """The temporary files of ``files.write_atomically`` that a crash left."""
    return [file for file in folder.glob(".*") if re.fullmatch(r"\..+\.[0-9a-f]{32}", file.name)]


def _difference(key: str, then: Any, now: Any) -> str:
    if key == "recipe":
        changed = [name for name in now if then.get(name) != now[name]]
        told = ", ".join(f"{name}={then.get(name)!r}" for name in changed)
        return f"with another recipe: {told}; go on with that, or start anew in another folder"
    if key == "iterations":
        return f"for {then} iterations, with this data it would be {now}; give the data that it was started with"
    return f'on other data, "{then}"; this is "{now}"; give the data that it was started with'


def environment() -> dict[str, Any]:
    """Versions, hardware and commit, for the record beside a result."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "recurconv": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{package: _version(package) for package in ("torchvision", "lightning", "numpy")},
        "cuda": torch.version.cuda,
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _version(package: str) -> str | None:
    """Of an installed package; without importing it, since some take seconds."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout this package runs from, with "-dirty" where it was changed; None if installed."""
    file = Path(__file__)
    try:
        _git(file.parent, "ls-files", "--error-unmatch", file.name)  # not of a repository that merely lies around it
        return _git(file.parent, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {torch.backends.cpu.get_cpu_capability()}"
    return platform.processor() or platform.machine()
