"""How long a call takes at each setting on this machine: measured once, and kept in a file."""

import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recurconv.files import write_json

FORMAT = 1
ROUNDS, PATIENCE = 5, 1.0  # of the settings in turn, and seconds after which no other round starts

Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Machine:
    """What a calibration holds for; another value of any of these asks for another one."""

    processor: str
    threads: int
    providers: tuple[str, ...]
    onnxruntime: str


@dataclass(frozen=True)
class Calibration:
    """Median milliseconds of a call at each setting, and the shape [N, C, H, W] that they were measured with."""

    shape: Shape
    milliseconds: dict[int, float]

    def expected(self, steps: int, shape: Shape) -> float:
        """Milliseconds for images of another shape of the same class: they grow as the pixels do."""
        return self.milliseconds[steps] * math.prod(shape) / math.prod(self.shape)


def shape_class(shape: Shape) -> str:
    """The shapes that share a calibration: batch and pixels each rounded up to a power of two.

    So a folder of pictures of a hundred sizes asks for a few calibrations and not for a hundred.
    """
    batch, _, height, width = shape
    return f"{_power_of_two(batch)} x {_power_of_two(height * width)}"


def measure(call: Callable[[int], object], dial: Sequence[int]) -> dict[int, float]:
    """Median milliseconds of ``call(steps)`` for each setting.

    The settings are measured in turn, so that other load on the machine hits them alike, after a first call of each
    that sets things up; it counts only where it took so long that no other follows.
    """
    times: dict[int, list[float]] = {steps: [] for steps in dial}
    began = time.perf_counter()
    for _ in range(1 + ROUNDS):
        for steps in dial:
            start = time.perf_counter()
            call(steps)
            times[steps].append((time.perf_counter() - start) * 1e3)
        if time.perf_counter() - began > PATIENCE:
            break
    return {steps: statistics.median(own[1:] or own) for steps, own in times.items()}


class Store:
    """The file that keeps a model's calibrations.

    Args:
        model: the SHA-256 sum of the model file; calibrations of another one are forgotten.
        machine: what they hold for; those of other machines stay in the file.
        dial: the settings; a calibration of others is forgotten.
        files: where it is looked for, in this order; the first one that can be written is written.

    A file that is broken counts as absent. What cannot be written is measured again in the next process.
    """

    def __init__(self, model: str, machine: Machine, dial: Sequence[int], files: Sequence[Path]) -> None:
        self.model, self.dial, self.files = model, dial, files
        self.machine = ", ".join(f"{name} {_words(value)}" for name, value in asdict(machine).items())

    def get(self, name: str) -> Calibration | None:
        """The calibration of a class of shapes; None if there is none."""
        for file in self.files:
            with suppress(KeyError, TypeError, ValueError, AttributeError):
                return self._checked(self._read(file)[self.machine][name])
        return None

    def put(self, name: str, calibration: Calibration) -> None:
        """Keep a calibration."""
        for file in self.files:
            machines = self._read(file)
            own = machines.setdefault(self.machine, {})
            own[name] = asdict(calibration)
            with suppress(OSError):
                write_json(file, {"format": FORMAT, "model": self.model, "machines": machines})
                return

    def _read(self, file: Path) -> dict[str, Any]:
        """What the file holds of this model, by machine."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(file.read_text(encoding="utf-8"))
            if (found["format"], found["model"]) == (FORMAT, self.model) and _nested(found["machines"]):
                return dict(found["machines"])
        return {}

    def _checked(self, found: dict[str, Any]) -> Calibration:
        batch, channels, height, width = map(int, found["shape"])
        milliseconds = {int(steps): float(value) for steps, value in found["milliseconds"].items()}
        sensible = (
            all(0 < value < math.inf for value in milliseconds.values()) and batch * channels * height * width > 0
        )
        if sorted(milliseconds) != sorted(self.dial) or not sensible:
            raise ValueError(found)
        return Calibration((batch, channels, height, width), milliseconds)


def default_files(model: Path, sha256: str) -> tuple[Path, ...]:
    """Beside the model, and in the user's cache for a folder that cannot be written."""
    if sys.platform == "win32":
        cache = os.environ.get("LOCALAPPDATA", "")
    else:
        cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if cache else Path("~/.cache").expanduser()
    name = f"{model.name}.calibration.json"
    return model.with_name(name), home / "recurconv" / f"{sha256[:16]}-{name}"


def processor() -> str:
    """The name of this machine's processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Processor cores that this process may use: what onnxruntime's own choice of threads follows."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _words(value: object) -> str:
    return " and ".join(value) if isinstance(value, tuple) else str(value)


def _nested(machines: Any) -> bool:
    return isinstance(machines, dict) and all(isinstance(own, dict) for own in machines.values())
