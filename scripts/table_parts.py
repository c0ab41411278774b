"""What the tables of ``tables.py`` are made of: result files, where they were measured, how weights were trained."""

import json
from pathlib import Path
from typing import Any

from recurconv import recipes

ROOT = Path(__file__).parent.parent


def read(name: str) -> dict[str, Any]:
    """A result file."""
    found: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def settings(found: dict[str, Any], profile: dict[str, Any], macs_digits: int) -> list[str]:
    """A row for each setting: result, MACs, parameters, median latency."""
    latency = {row["steps"]: row["milliseconds"] for row in profile["rows"]}
    return [
        f"| {row['steps']} | {row['value']:.2f} | {row['macs'] / 1e6:.{macs_digits}f} | "
        f"{row['parameters'] / 1e6:.3f} | {latency[row['steps']]:.1f} |"
        for row in found["rows"]
    ]


def shipped(name: str, file: str) -> dict[str, Any]:
    """What stands beside shipped weights: "recipe" or "provenance"."""
    path = ROOT / "src" / "recurconv" / "weights" / name / f"{file}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def stages(name: str) -> tuple[int, float, str]:
    """Of all the runs that shipped weights come from, each begun with the one before: epochs, minutes, and in words."""
    run: dict[str, Any] | None = shipped(name, "provenance")
    runs = []
    while run is not None:
        runs.append(run)
        run = run.get("started_from")
    usual = recipes.get(runs[0]["recipe"]).epochs
    epochs = [run.get("settings", {}).get("epochs", usual) for run in reversed(runs)]
    words = f"{' + '.join(map(str, epochs))} epochs"
    return sum(epochs), sum(run["training_seconds"] for run in runs) / 60, words


def table(head: str, rows: list[str], note: str) -> str:
    """A Markdown table with a line below it."""
    columns = head.count("|") - 1
    return "\n".join([head, "|" + "---|" * columns, *rows, "", note])


def measured(value: dict[str, float], digits: int) -> str:
    """Median and interquartile range."""
    return f"{value['median']:.{digits}f} ± {value['iqr']:.{digits}f}"


def provenance(found: dict[str, Any]) -> str:
    """Where a benchmark ran."""
    where = found["provenance"]
    threads = f"{where['threads']} thread{'s' if where['threads'] > 1 else ''}"
    return (
        f"`{where['command']}`: {where['processor']}, {threads}, PyTorch {where['torch']}, commit {where['commit']}, "
        f"load {where['load']} at the start."
    )
