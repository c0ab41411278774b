"""The small file that a finished run leaves: its name, and how it is read back.

RUN--PRESET--seedN.json holds ``format`` (1), ``cell`` (the run's id), ``preset``, ``seed``, ``recipe`` (all fields),
``metric`` (with its unit), ``higher_is_better``, ``values`` and ``standard_errors`` of the last checkpoint on the test
set by setting (null if not finite), ``images``, ``condition`` (of the data), ``epochs``, ``iterations``,
``training_seconds``, ``parameters`` (in use), ``macs`` (per ``macs_per``) and ``depth`` by setting,
``parameters_total``, ``diverged`` (null, or what training said when its loss was no longer finite), ``environment``
(of training) and ``variables`` (what figures need of the network).
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurconv.cells.paper import PRESETS, RUNS, Preset, Run
from recurconv.recipe import Recipe

FORMAT = 1
_DEFAULTS = json.loads(  # of fields that came after a result was written
    json.dumps({f.name: f.default for f in dataclasses.fields(Recipe) if f.default is not dataclasses.MISSING})
)
_WORDS = ("name", "summary", "reaches", "takes")
_KEYS = {
    "cell": str,
    "preset": str,
    "seed": int,
    "recipe": dict,
    "metric": str,
    "higher_is_better": bool,
    "values": dict,
    "standard_errors": dict,
    "images": int,
    "epochs": int,
    "parameters": dict,
    "macs": dict,
    "environment": dict,
}


def result_name(run: Run, preset: Preset, seed: int) -> str:
    """The name of the run's folder, and with ".json" of its result."""
    return f"{run.id.replace('/', '-')}--{preset}--seed{seed}"


def read_result(file: Path) -> dict[str, Any]:
    """A result.

    Raises:
        ValueError: the file is broken, or not a result of a run that this version knows.
        OSError: it cannot be read.
    """
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is broken ({error}); move it away, and the run is reduced again") from None
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise ValueError(f"{file} is not a result of `recurconv reproduce` (format {FORMAT}); move it away")
    wrong = [key for key, kind in _KEYS.items() if type(result.get(key)) is not kind]
    if wrong or result["seed"] < 0:
        named = ", ".join(wrong or ["a seed of 0 or more"])
        raise ValueError(f"{file} lacks {named}, or has something else there; move it away")
    if result["cell"] not in RUNS or result["preset"] not in PRESETS:
        raise ValueError(f"{file} is of {result['cell']}, preset {result['preset']}, which this version does not know")
    return result


def hardware(environment: Mapping[str, Any]) -> str:
    """The GPU of a start, or the processor and its threads."""
    gpu, threads = environment.get("gpu"), environment.get("threads")
    count = "" if threads is None else f", {threads} thread{'s' if threads != 1 else ''}"
    return str(gpu or f"{environment.get('processor', 'unknown')}{count}")


def matches(result: dict[str, Any]) -> str:
    """How a result's recipe differs from what its run would be now; "" if it does not."""
    then = {**_DEFAULTS, **result["recipe"]}
    now = json.loads(json.dumps(dataclasses.asdict(RUNS[result["cell"]].recipe(result["preset"], result["seed"]))))
    changed = [key for key in now if key not in _WORDS and then.get(key) != now[key]]
    return ", ".join(f"{key}={then.get(key)!r} instead of {now[key]!r}" for key in changed)
