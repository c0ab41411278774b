"""The result files that ``recurconv reproduce`` writes: read, checked, and their means over seeds."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurconv import cells

FEW_SEEDS = 3  # from so many on their spread alone tells how uncertain a mean is
SEED_SPREAD = 0.05  # dB: how far the PSNR of fewer is taken to vary

_PLAIN = ("preset", "seed", "higher_is_better", "images", "epochs", "environment")
_BY_SETTING = ("values", "standard_errors", "macs", "depth")


@dataclass(frozen=True)
class Result:
    """A finished run, as its file tells it (``recurconv.cells.results`` says what stands there).

    ``values`` (errors in % or PSNR in dB), ``standard_errors``, ``macs`` (per image, or per pixel of a denoiser) and
    ``depth`` are by setting; a value is None where it was not finite. ``parameters`` are those of all settings
    together, ``seconds`` is the time of training.
    """

    file: Path
    run: str
    preset: str
    seed: int
    higher_is_better: bool
    values: Mapping[int, float | None]
    standard_errors: Mapping[int, float | None]
    images: int
    condition: str
    epochs: int
    seconds: float
    parameters: int
    macs: Mapping[int, float]
    depth: Mapping[int, int]
    environment: Mapping[str, Any]
    diverged: str | None
    variables: Mapping[str, Any]

    @property
    def hardware(self) -> str:
        """The GPU, or the processor and its threads; all of them where a run went on elsewhere."""
        return ", then ".join(map(str, self.environment.get("hardware") or [cells.hardware(self.environment)]))


@dataclass(frozen=True)
class Summary:
    """The runs of one cell at one setting.

    Attributes:
        seeds: how many runs there are.
        diverged: how many of these have no finite value.
        mean: of the finite values; None if there is none.
        spread: their standard deviation over seeds; None for fewer than two.
        standard_error: of the mean over seeds. Of fewer than three, whose spread may be small by chance, at least that
            over test images of an error in %, and ``SEED_SPREAD`` of a PSNR. (Test images do not count beside more
            seeds, nor pictures at all: all networks have the same ones.) None without a value.
    """

    seeds: int
    diverged: int
    mean: float | None
    spread: float | None
    standard_error: float | None


def summarise(results: Iterable[Result], setting: int) -> Summary:
    """The mean over seeds of what a cell's runs reach at a setting."""
    found = list(results)
    values = [value for result in found if (value := result.values.get(setting)) is not None]
    return _summary(len(found), values, [_least_error(result, setting) for result in found])


def summarise_relative(results: Iterable[Result], setting: int, largest: int) -> Summary:
    """Likewise of the accuracy at a setting, in % of that at the largest setting of the same run."""
    found = list(results)
    values, errors = [], []
    for result in found:
        own, full = result.values.get(setting), result.values.get(largest)
        if own is not None and full is not None and full < 100:
            values.append(100 * (100 - own) / (100 - full))
            both = math.hypot(_least_error(result, setting), _least_error(result, largest))
            errors.append(100 * both / (100 - full))
    return _summary(len(found), values, errors)


def _summary(seeds: int, values: Sequence[float], least_errors: Sequence[float]) -> Summary:
    """Of the finite values of some runs; the largest of ``least_errors`` counts where there are few."""
    count = len(values)
    spread = statistics.stdev(values) if count > 1 else None
    errors = [] if spread is None else [spread / math.sqrt(count)]
    if 0 < count < FEW_SEEDS:
        errors.append(max(least_errors))
    return Summary(
        seeds=seeds,
        diverged=seeds - count,
        mean=statistics.fmean(values) if values else None,
        spread=spread,
        standard_error=max(errors, default=None),
    )


def _least_error(result: Result, setting: int) -> float:
    """What the mean of few runs is uncertain by at least: over test images, or of a PSNR between seeds."""
    return SEED_SPREAD if result.higher_is_better else result.standard_errors.get(setting) or 0.0


def read_results(folder: Path) -> list[Result]:
    """Every result file in a folder, in the order of their names.

    Raises:
        ValueError: there is none; or some are broken, of another format or config, or tell of the same run; all of
            them in one message.
        OSError: the folder is not there or cannot be read.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; give the one that `recurconv reproduce` wrote by --results")
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ValueError(f"{folder} has no result file (*.json); `recurconv reproduce` writes them")
    results: dict[tuple[str, str, int], Result] = {}
    problems = []
    for file in files:
        try:
            result = _read(file)
        except ValueError as error:
            problems.append(str(error))
            continue
        twin = results.setdefault((result.run, result.preset, result.seed), result)
        if twin is not result:
            problems.append(f"{file} tells of the same run as {twin.file.name}; move one of them away")
    if problems:
        raise ValueError("; ".join(problems))
    return list(results.values())


def _read(file: Path) -> Result:
    """One file.

    Raises:
        ValueError: it cannot be read or is not what ``recurconv reproduce`` writes; the message names it.
    """
    try:
        found = cells.read_result(file)
        changed = cells.matches(found)
    except OSError as error:
        raise ValueError(f"{file} cannot be read ({error.strerror or error}); move it away") from None
    if changed:
        raise ValueError(f"{file} is of another config than its cell: {changed}; move it away, and run the cell again")
    for key in _BY_SETTING:
        found[key] = _by_setting(file, key, found.get(key))
    seconds = found.get("training_seconds") or 0
    settings = cells.RUNS[found["cell"]].recipe(found["preset"], found["seed"]).settings
    fine = {
        "parameters_total": type(found.get("parameters_total")) is int,
        "training_seconds": type(seconds) in (int, float),
        "diverged": isinstance(found.get("diverged"), str | None),
        "variables": isinstance(found.get("variables"), dict | None),
        "values": {*settings} <= {*found["values"]},
        "macs": None not in found["macs"].values(),
        "depth": None not in found["depth"].values(),
        "higher_is_better": found["higher_is_better"] == (found["recipe"]["task"] == "denoising"),
    }
    if wrong := [key for key, right in fine.items() if not right]:
        raise ValueError(f"{file}: {', '.join(wrong)} cannot be right; move it away, and make it anew")
    return Result(
        file=file,
        run=found["cell"],
        parameters=found["parameters_total"],
        diverged=found.get("diverged"),
        variables=found.get("variables") or {},
        condition=str(found.get("condition", "")),
        seconds=float(seconds),
        **{key: found[key] for key in (*_PLAIN, *_BY_SETTING)},
    )


def _by_setting(file: Path, key: str, values: Any) -> dict[int, Any]:
    """A mapping by setting, whose keys are text in JSON."""
    fine = isinstance(values, dict) and all(
        setting.isdigit() and (value is None or (type(value) in (int, float) and math.isfinite(value)))
        for setting, value in values.items()
    )
    if not fine:
        raise ValueError(f"{file}: {key} is not a number (or null) for each setting; move it away, and make it anew")
    return {int(setting): value for setting, value in values.items()}
