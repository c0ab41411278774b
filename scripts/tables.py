"""Write the tables of README.md anew from the files under results/; ``--check`` says whether they are as they would be.

    python scripts/tables.py [--check]
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def read(name: str) -> dict[str, Any]:
    """A result file."""
    found: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def milliseconds(name: str) -> dict[int, str]:
    """Median latency of each setting."""
    return {row["steps"]: f"{row['milliseconds']:.1f}" for row in read(f"profile-{name}")["rows"]}


def table(head: str, rows: list[str], note: str) -> str:
    """A Markdown table with a line below it."""
    columns = head.count("|") - 1
    return "\n".join([head, "|" + "---|" * columns, *rows, "", note])


def classifier() -> str:
    """What the shipped classifier reaches."""
    found, latency, profile = read("r2-cifar10"), milliseconds("r2-cifar10"), read("profile-r2-cifar10")
    rows = [
        f"| {row['steps']} | {row['value']:.2f} | {row['macs'] / 1e6:.1f} | {row['parameters'] / 1e6:.3f} | "
        f"{latency[row['steps']]} |"
        for row in found["rows"]
    ]
    where = profile["environment"]
    return table(
        "| `r2-cifar10`, steps | CIFAR-10 test error (%) | MACs (M) | parameters in use (M) | ms |",
        rows,
        f"One network, n = 1 run of the recipe `r2-cifar10-short` (half width, sized for CPU cores), last checkpoint, "
        f"{found['images']:,} images, standard error {max(row['standard_error'] for row in found['rows']):.2f}; "
        f"{found['condition'].rstrip('.')}. ms: batch {profile['rows'][0]['batch']}, "
        f"{profile['rows'][0]['threads']} thread of {where['processor']}.",
    )


def denoiser() -> str:
    """What the shipped denoiser reaches."""
    found, latency, profile = read("r3-gray25"), milliseconds("r3-gray25"), read("profile-r3-gray25")
    rows = [
        f"| {row['steps']} | {row['value']:.2f} | {row['macs'] / 1e6:.3f} | {row['parameters'] / 1e6:.3f} | "
        f"{latency[row['steps']]} |"
        for row in found["rows"]
    ]
    side = profile["image_shape"][-1]
    return table(
        "| `r3-gray25`, steps | BSD68 PSNR (dB), sigma 25 | MACs per pixel (M) | parameters in use (M) | ms |",
        rows,
        f"One network, n = 1 run of the recipe `r3-gray25-short` (32 channels, sized for CPU cores), {found['images']} "
        f"pictures. ms: {side} x {side} pixels, {profile['rows'][0]['threads']} thread.",
    )


TABLES: dict[str, Callable[[], str]] = {"r2-cifar10": classifier, "r3-gray25": denoiser}


def filled(text: str) -> str:
    """``text`` with every table between its marks made anew."""
    return re.sub(
        r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    before = README.read_text(encoding="utf-8")
    after = filled(before)
    if "--check" in sys.argv and before != after:
        raise SystemExit("README.md is not what the results say; run python scripts/tables.py")
    README.write_text(after, encoding="utf-8")
