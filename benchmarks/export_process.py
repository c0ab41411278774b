"""A process of benchmarks/export.py: load models, run each, alternate; print peak memory and times as JSON.

It imports what a server would, onnxruntime and NumPy, so that its memory is theirs and the models'.
"""

import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

CALLS = 30


def main() -> None:
    spec = json.loads(sys.argv[1])
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, spec["threads"]
    start = time.perf_counter()
    opened = [
        (onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]), dial)
        for path, dial in spec["models"]
    ]
    loading = time.perf_counter() - start
    feeds = {"image": np.random.default_rng(0).random(spec["shape"], np.float32)}
    if spec["sigma"]:
        feeds["sigma"] = np.array(25, np.float32)
    calls: list[Callable[[], object]] = []
    for running, dial in opened:
        for steps in dial or [None]:
            own = feeds if steps is None else {**feeds, "steps": np.array(steps, np.int64)}
            calls.append(lambda running=running, own=own: running.run(None, own))
    for call in calls:
        call()
    found = {"megabytes": peak_megabytes(), "load_milliseconds": 1e3 * loading}
    if len(calls) > 1:
        found["switching_milliseconds"] = switching(calls)
    print(json.dumps(found))


def peak_megabytes() -> float:
    """The kernel's high-water mark of this process; ru_maxrss would hold that of the process that started it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def switching(calls: list[Callable[[], object]]) -> float:
    """What a call takes more right after one of another setting than after one of its own: the mean over settings."""
    repeated, alternated = ([[] for _ in calls] for _ in range(2))
    for _ in range(CALLS):
        for position, call in enumerate(calls):
            alternated[position].append(milliseconds(call))
            repeated[position].append(milliseconds(call))
    extra = [statistics.median(a) - statistics.median(r) for a, r in zip(alternated, repeated, strict=True)]
    return statistics.mean(extra)


def milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
