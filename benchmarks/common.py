"""What the benchmarks share: where a number comes from, medians with their spread, atomic files."""

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import recurconv as rc

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def arguments(description: str, out: str) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark takes; ``out`` is the result file's name."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a narrow network and few points: to try the script")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch on the CPU")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", type=Path, default=RESULTS / out, help="the result file")
    return parser


def provenance(threads: int, device: str) -> dict[str, Any]:
    """Hardware, versions, commit and date of a measurement.

    ``dirty``: the code differs from that of the commit. ``load``: the machine's load average at this moment.
    """
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--", "src", "benchmarks")),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 2),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "recurconv": rc.__version__,
    }


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, interquartile range and number of ``values``."""
    low, _, high = statistics.quantiles(values, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return {"median": statistics.median(values), "iqr": high - low, "n": len(values)}


def show(value: dict[str, float], digits: int = 1) -> str:
    """A summary for people: ``median ± interquartile range``."""
    return f"{value['median']:.{digits}f} ± {value['iqr']:.{digits}f}"


def write(path: Path, result: dict[str, Any]) -> None:
    """Write JSON in one go: a reader finds the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.replace(path)


def _git(*command: str) -> str | None:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
