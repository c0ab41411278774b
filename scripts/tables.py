"""Write the tables of README.md and docs/benchmarks.md anew from the files under results/; ``--check`` only compares.

python scripts/tables.py [--check]
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "benchmarks.md"]


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


def table(head: str, rows: list[str], note: str) -> str:
    """A Markdown table with a line below it."""
    columns = head.count("|") - 1
    return "\n".join([head, "|" + "---|" * columns, *rows, "", note])


def classifier() -> str:
    """What the shipped classifier reaches."""
    found, profile = read("r2-cifar10"), read("profile-r2-cifar10")
    rows = settings(found, profile, macs_digits=1)
    where = profile["environment"]
    epochs = shipped("r2-cifar10", "recipe")["epochs"]
    minutes = shipped("r2-cifar10", "provenance")["training_seconds"] / 60
    return table(
        "| `r2-cifar10`, steps | CIFAR-10 test error (%) | MACs (M) | parameters in use (M) | ms |",
        rows,
        f"One network, n = 1 run of `r2-cifar10-short` (half width, {epochs} epochs, "
        f"{minutes:.0f} minutes of one CPU core), last checkpoint, {found['images']:,} images, "
        f"standard error {max(row['standard_error'] for row in found['rows']):.2f}; "
        f"{found['condition'].rstrip('.')}. ms: batch {profile['rows'][0]['batch']}, "
        f"{profile['rows'][0]['threads']} thread of {where['processor']}.",
    )


def denoiser() -> str:
    """What the shipped denoiser reaches."""
    found, profile = read("r3-gray25"), read("profile-r3-gray25")
    rows = settings(found, profile, macs_digits=3)
    side = profile["image_shape"][-1]
    trained = shipped("r3-gray25", "recipe")
    patches = trained["epochs"] * trained["patches_per_epoch"]
    return table(
        "| `r3-gray25`, steps | BSD68 PSNR (dB), sigma 25 | MACs per pixel (M) | parameters in use (M) | ms |",
        rows,
        f"One network, n = 1 run of `r3-gray25-short` ({trained['channels']} channels, {patches:,} patches, "
        f"where the paper has 12 million: its larger settings are not better yet), {found['images']} pictures. "
        f"ms: {side} x {side} pixels, {profile['rows'][0]['threads']} thread.",
    )


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


def training() -> str:
    """The training loop against a plain one."""
    found = read("training")
    rows = [f"| {name} | {measured(value, 1)} |" for name, value in found["images_per_second"].items()]
    rounds = found["ratio"]["n"]
    return table(
        "| loop | images per second |",
        rows,
        f"`recurconv train` / {found['peer']}: **{measured(found['ratio'], 2)}** ({rounds} rounds of "
        f"{found['iterations_per_round']} iterations, batch {found['batch']}, width {found['width']}). "
        + provenance(found),
    )


def inference() -> str:
    """R_2 against S_2, eager and compiled."""
    found = read("inference")
    time = {(c["network"], c["mode"], c["batch"], c["steps"]): c["milliseconds"] for c in found["cases"]}
    rows = [
        f"| {r['batch']} | {r['steps']} | "
        + " | ".join(
            measured(time[n, m, r["batch"], r["steps"]], 2) for n in ("R_2", "S_2") for m in ("eager", "compiled")
        )
        + f" | {measured(r['r_over_s_eager'], 2)} | {measured(r['r_over_s_compiled'], 2)} |"
        for r in found["ratios"]
    ]
    return table(
        "| batch | steps | R eager (ms) | R compiled | S eager | S compiled | R / S eager | R / S compiled |",
        rows,
        f"n = {found['ratios'][0]['r_over_s_eager']['n']} rounds. " + provenance(found),
    )


def growth() -> str:
    """Time and memory of single points."""
    found = read("growth")
    rows = [
        f"| {p['mode']} | {p['steps']} | {p['batch']} | {p['side']} | {p['macs'] / 1e9:.2f} | "
        f"{measured(p['milliseconds'], 0)} | {measured(p['megabytes'], 0)} |"
        for p in found["points"]
    ]
    return table(
        "| mode | steps | batch | side | GMACs | ms | peak memory (MB) |",
        rows,
        f"n = {found['points'][0]['milliseconds']['n']} processes for each point. " + provenance(found),
    )


TABLES: dict[str, Callable[[], str]] = {
    "r2-cifar10": classifier,
    "r3-gray25": denoiser,
    "training": training,
    "inference": inference,
    "growth": growth,
}


def filled(text: str) -> str:
    """``text`` with every table between its marks made anew."""
    return re.sub(
        r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    """Compare or write each document."""
    for document in DOCUMENTS:
        before = document.read_text(encoding="utf-8")
        after = filled(before)
        if "--check" in sys.argv and before != after:
            raise SystemExit(f"{document.name} is not what the results say; run python scripts/tables.py")
        if before != after:
            document.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
