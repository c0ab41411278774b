"""Where a model with the dial stores what its settings share: latency, load time, memory and size of each way.

    python benchmarks/shared_weights.py

Static models of each setting are the measure. Against them one model with the dial whose branches share their weights
through a data file, through flat tensors in the model, or plainly as constants of the outer graph (which
``recurconv export`` does not do). Latency: one 32x32 image, 1 thread, every way in turn, round by round. Load time and
memory: processes of their own; memory is what the process holds beyond onnxruntime itself. About two minutes.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from recurconv import Network

WARM_UPS = 2
STATIC, TWO_FILES, ONE_FILE, OUTER = "static models", "data file", "flat in the model", "constants of the outer graph"


def main() -> None:
    if sys.argv[1:2] == ["--load"]:  # a process of its own: load this model, print the cost
        print(json.dumps(loaded(Path(sys.argv[2]))))
        return
    # Imported here, so that those processes start fast and hold no PyTorch.
    from rich.console import Console
    from rich.progress import track

    import recurconv as rc
    from common import arguments, provenance, summary
    from recurconv.files import write_json

    args = arguments(__doc__, "shared-weights.json").parse_args()
    origin = provenance(1, "cpu")
    net = rc.r2(width=0.25 if args.quick else 1.0).eval()
    rounds, loads = (3, 1) if args.quick else (60, 9)
    with tempfile.TemporaryDirectory() as folder:
        paths = written(net, Path(folder))
        rows = [
            {"way": way, **sizes(own), "load": {k: summary(v) for k, v in cost_of_loading(own, loads).items()}}
            for way, own in track(paths.items(), "loading")
        ]
        latencies = latency(paths, track(range(rounds + WARM_UPS), "rounds"))
    for row in rows:
        row["milliseconds"] = {str(steps): summary(latencies[row["way"], steps]) for steps in net.dial}
        row["ratio"] = {str(steps): ratio(latencies, row["way"], steps) for steps in net.dial}
    write_json(args.out, {"provenance": origin, "network": "r2", "width": 0.25 if args.quick else 1.0, "rows": rows})
    Console().print(f"written to {args.out}", soft_wrap=True)


def written(net: "Network", folder: Path) -> dict[str, dict[int | None, Path]]:
    """The files of each way: one for each setting, or one for all under None."""
    from recurconv.export import join_settings, static_model

    models = {steps: static_model(net, steps) for steps in net.dial}
    joined = {
        TWO_FILES: join_settings(models, data_file="dial.onnx.data"),
        ONE_FILE: join_settings(models),
        OUTER: (as_outer_constants(join_settings(models).model), b""),
    }
    paths: dict[str, dict[int | None, Path]] = {STATIC: {}}
    for steps, model in models.items():
        paths[STATIC][steps] = folder / f"{steps}.onnx"
        paths[STATIC][steps].write_bytes(model.SerializeToString())
    for number, (way, (model, data)) in enumerate(joined.items()):
        path = folder / str(number) / "dial.onnx"
        path.parent.mkdir()
        path.write_bytes(model.SerializeToString())
        if data:
            path.with_name("dial.onnx.data").write_bytes(data)
        paths[way] = {None: path}
    return paths


def as_outer_constants(model: Any) -> Any:
    """The model with flat tensors, without those that give each its shape back."""
    shared = {tensor.name: tensor for tensor in model.graph.initializer}

    def simplify(graph: Any) -> None:
        constants = {tensor.name: tensor for tensor in graph.initializer}
        plain: dict[str, str] = {}
        for node in list(graph.node):
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    simplify(attribute.g)
            if node.op_type == "Reshape" and node.input[0] in shared:
                shape = np.frombuffer(constants[node.input[1]].raw_data, np.int64)
                shared[node.input[0]].dims[:] = shape.tolist()
                plain[node.output[0]] = node.input[0]
                graph.node.remove(node)
        for node in graph.node:
            node.input[:] = [plain.get(name, name) for name in node.input]

    simplify(model.graph)
    return model


def opened(path: Path) -> Any:
    """A session on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def sizes(paths: dict[int | None, Path]) -> dict[str, int]:
    """Bytes of all files, and of the largest model with its data."""
    each = [sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) for path in paths.values()]
    return {"bytes": sum(each), "bytes_largest": max(each)}


def cost_of_loading(paths: dict[int | None, Path], times: int) -> dict[str, list[float]]:
    """Loading all ``paths`` one by one in fresh processes, ``times`` times: sums of seconds and of megabytes."""
    runs = [[_process(path) for path in paths.values()] for _ in range(times)]
    return {key: [sum(cost[key] for cost in costs) for costs in runs] for key in ("seconds", "megabytes")}


def _process(path: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--load", str(path)], capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def loaded(path: Path) -> dict[str, float]:
    """Processor seconds to load a model, and megabytes that the process holds more afterwards."""
    import onnxruntime  # noqa: F401  (what it needs itself is not counted)

    before, start = held(), time.process_time()
    session = opened(path)
    seconds = time.process_time() - start
    feeds = {"image": np.zeros((1, 3, 32, 32), np.float32)}
    if len(session.get_inputs()) > 1:
        feeds["steps"] = np.array(4)
    session.run(None, feeds)
    return {"seconds": seconds, "megabytes": held() - before}


def held() -> float:
    """Megabytes of this process that are no files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) / 1024


def latency(paths: dict[str, dict[int | None, Path]], rounds: Iterable[int]) -> dict[tuple[str, int], list[float]]:
    """Milliseconds of each way and setting, in each round."""
    sessions = {(way, steps): opened(path) for way, own in paths.items() for steps, path in own.items()}
    image = np.random.default_rng(0).random((1, 3, 32, 32), np.float32)
    settings = [steps for steps in paths[STATIC] if steps is not None]
    measured: dict[tuple[str, int], list[float]] = {(way, steps): [] for way in paths for steps in settings}
    for number in rounds:
        for steps in settings:
            for way in paths:
                static = (way, steps) in sessions
                session = sessions[way, steps if static else None]
                feeds = {"image": image} if static else {"image": image, "steps": np.array(steps)}
                start = time.perf_counter()
                session.run(None, feeds)
                if number >= WARM_UPS:
                    measured[way, steps].append((time.perf_counter() - start) * 1e3)
    return measured


def ratio(latencies: dict[tuple[str, int], list[float]], way: str, steps: int) -> float:
    """The median ratio to the static model of the same round."""
    own, static = latencies[way, steps], latencies[STATIC, steps]
    return float(np.median(np.array(own) / np.array(static)))


if __name__ == "__main__":
    main()
