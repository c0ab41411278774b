"""Made-up result files of finished runs, for the report's tests."""

import dataclasses
import json

from recurconv import cells

ENVIRONMENT = {"processor": "a CPU", "threads": 1, "gpu": None, "torch": "2.14", "commit": "abc", "date": "2026-11-28"}


def result(run, values, preset="full", seed=0, **changes):
    """What a finished run leaves; ``values`` by setting, each with a standard error of 0.1."""
    recipe = cells.RUNS[run].recipe(preset, seed)
    denoising = recipe.task == "denoising"
    by_setting = {str(setting): value for setting, value in values.items()}
    return {
        "format": 1,
        "cell": run,
        "preset": preset,
        "seed": seed,
        "recipe": dataclasses.asdict(recipe),
        "metric": "PSNR (dB)" if denoising else "error (%)",
        "higher_is_better": denoising,
        "values": by_setting,
        "standard_errors": dict.fromkeys(by_setting, 0.1),
        "images": 68 if denoising else 10000,
        "condition": "made up",
        "epochs": recipe.epochs,
        "iterations": 1000,
        "training_seconds": 90.0,
        "parameters": dict.fromkeys(by_setting, 1_262_794),
        "parameters_total": 1_262_794,
        "macs": {setting: 1e8 * int(setting) for setting in by_setting},
        "macs_per": "pixel" if denoising else "image",
        "depth": {setting: 4 * int(setting) + 2 for setting in by_setting},
        "diverged": None,
        "environment": ENVIRONMENT,
        **changes,
    }


def write(folder, run, values, preset="full", seed=0, **changes):
    """Write such a file under the name that a run gives it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{cells.result_name(cells.RUNS[run], preset, seed)}.json"
    file.write_text(json.dumps(result(run, values, preset, seed, **changes)), encoding="utf-8")
    return file
