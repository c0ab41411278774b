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
import json
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from recurconv import checkpoint, recipes
from recurconv._version import __version__
from recurconv.recipes import Recipe


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
            FileExistsError: there is something at ``path`` already.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FileExistsError(f"{path} is not empty; go on with it by --resume, or choose another folder")
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        checkpoint.write_json(run.recipe_file, dataclasses.asdict(recipe))
        return run

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

    def recipe(self) -> Recipe:
        """The recipe of the run.

        Raises:
            ValueError: the file is broken, or of another version of this package.
        """
        return recipes.read(self.recipe_file)

    def note_environment(self, **facts: Any) -> None:
        """Add an entry for this start."""
        entries = (
            json.loads(self.environment_file.read_text(encoding="utf-8")) if self.environment_file.exists() else []
        )
        checkpoint.write_json(self.environment_file, [*entries, {**environment(), **facts}])

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Write the trainer's state: tensors, numbers, strings, lists and dicts only."""
        checkpoint.write_atomically(self.state_file, lambda path: torch.save(dict(state), path))

    def load_state(self) -> dict[str, Any] | None:
        """The trainer's state, on the CPU; None before the first checkpoint.

        Raises:
            ValueError: the file is broken.
        """
        if not self.state_file.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(self.state_file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises many kinds for a broken file
            reason = str(error).splitlines()[0]
            raise ValueError(f"{self.state_file} cannot be read ({reason}); start anew in another folder") from None
        return state

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

    def rewind_metrics(self, iteration: int) -> None:
        """Take off what was written after the checkpoint at ``iteration``; the resumed run writes it again."""
        kept = [json.dumps(row) + "\n" for row in self.metrics() if row["iteration"] <= iteration]
        checkpoint.write_atomically(self.metrics_file, lambda path: path.write_text("".join(kept), encoding="utf-8"))


def environment() -> dict[str, Any]:
    """Versions, hardware and commit, for the record beside a result."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "recurconv": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _commit() -> str | None:
    """The commit of the checkout this package runs from, with "-dirty" where it was changed; None if installed."""
    here = Path(__file__).parent
    try:
        told = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {torch.backends.cpu.get_cpu_capability()}"
    return platform.processor() or platform.machine()
