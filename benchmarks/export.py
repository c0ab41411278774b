"""Exported networks: every form at every setting, and one dial against three separate networks.

    python benchmarks/export.py --threads 1

R_2, R_4 and the half-resolution denoiser, untrained (speed does not depend on it), each as eager PyTorch, with compiled
bodies, compiled as a whole, as a program of torch.export, as a static ONNX model of the setting, as ONNX with the dial,
and as that in int8. All cases of a network are measured in every round, in an order drawn anew; ratios are taken within
a round. The matrix products measured with them, 1024 x 1024 x 1024, are what the machine can do. Then S_2^2, S_2^3 and
S_2^4 side by side against the dial of R_2: disk, memory, loading, switching. About nine minutes on one core, much of it
compilation; what is measured of each network is written at once.
"""

import argparse
import copy
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from rich.console import Console
from rich.progress import track
from rich.table import Table

import recurconv as rc
from common import arguments, provenance, show, summary
from recurconv.denoisers import r3_half
from recurconv.export import export_onnx, join_settings, static_model
from recurconv.export.int8 import int8_model, session
from recurconv.export.int8_images import Sample
from recurconv.export.tracing import program, takes_sigma
from recurconv.export.writing import write_model
from recurconv.files import write_json
from recurconv.network import Network

SIDE = 1024  # of the matrices
PRODUCTS = ("fp32 matrix product", "int8 matrix product")
Call = Callable[[], object]


class Subject(NamedTuple):
    """A network to measure, and with what."""

    name: str
    network: Network
    side: int  # of its images, in pixels
    batches: tuple[int, ...]


class Case(NamedTuple):
    """One thing to time."""

    form: str
    batch: int
    steps: int


def subjects(quick: bool) -> list[Subject]:
    if quick:
        return [Subject("R_2", rc.r2(width=1 / 8, steps=(1, 2)), 16, (1, 2))]
    return [
        Subject("R_2", rc.r2(), 32, (1, 64)),
        Subject("denoiser", r3_half(channels=48), 256, (1,)),
        Subject("R_4", rc.r4(), 32, (1, 8)),
    ]


def main() -> None:
    options = arguments(__doc__, "export.json")
    options.add_argument("--rounds", type=int, help="passes over all cases; by default 10, or 2 with --quick")
    args = options.parse_args()
    rounds = args.rounds or (2 if args.quick else 10)
    torch.set_num_threads(args.threads)
    # Each compiled case is a program of its own of one forward function.
    torch._dynamo.config.recompile_limit = 64
    result: dict[str, Any] = {"provenance": provenance(args.threads), "networks": {}}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for subject in subjects(args.quick):
            subject.network.eval()
            result["networks"][subject.name] = one(subject, Path(folder), rounds, args)
            write_json(args.out, result)
            report(subject.name, result["networks"][subject.name])
        result["side_by_side"] = side_by_side(Path(folder), rounds, args)
        write_json(args.out, result)
    Console().print(json.dumps(result["side_by_side"], indent=1))
    Console().print(f"written to {args.out}", soft_wrap=True)


def one(subject: Subject, folder: Path, rounds: int, args: argparse.Namespace) -> dict[str, Any]:
    """Every form of one network."""
    files = write_files(subject, folder)
    calls = dict(every_call(subject, files, args.threads))
    first = {case: seconds(call) for case, call in track(calls.items(), f"{subject.name}: first calls (compilation)")}
    times = measure({**products(args.threads), **calls}, rounds)
    shape = (subject.network.image_channels, subject.side, subject.side)
    macs = {row.steps: row.macs for row in rc.cost(subject.network, shape)}
    rates = {name: summary([SIDE**3 / t for t in times[name]]) for name in PRODUCTS}

    def row(case: Case) -> dict[str, Any]:
        top = times[PRODUCTS[case.form == "int8 dial"]]
        return {
            **case._asdict(),
            "macs": macs[case.steps] * case.batch,
            "first_call_seconds": first[case],
            "milliseconds": summary([1e3 * t for t in times[case]]),
            "share": summary(
                [macs[case.steps] * case.batch / t / (SIDE**3 / p) for t, p in zip(times[case], top, strict=True)]
            ),
        }

    def ratio(above: str, below: str, case: Case) -> dict[str, float]:
        pairs = zip(times[case._replace(form=above)], times[case._replace(form=below)], strict=True)
        return summary([a / b for a, b in pairs])

    settings = [case for case in calls if case.form == "dial"]
    forms = dict.fromkeys(case.form for case in calls)
    return {
        "shape": shape,
        "macs_per_second": rates,
        "bytes": {form: sum(file.stat().st_size for file in parts(path)) for form, path in files.items()},
        "cases": [row(case) for case in calls],
        "ratios": [
            {
                "batch": case.batch,
                "steps": case.steps,
                "dial_over_static": ratio("dial", "static", case),
                "fp32_over_int8": ratio("dial", "int8 dial", case),
                "eager_over_dial": ratio("eager", "dial", case),
            }
            for case in settings
        ],
        "ranks_as_macs": {form: ranked(form, times) for form in forms},
        "peak_megabytes": memory(subject, files, args.threads),
    }


def write_files(subject: Subject, folder: Path) -> dict[str, Path]:
    """The static model of each setting, the dial in fp32 and the dial in int8."""
    network = subject.network
    images = np.random.default_rng(0).random((2, network.image_channels, subject.side, subject.side), np.float32)
    shown = [Sample({"image": images, **noise_level(network)})]
    files, fp32, int8 = {}, {}, {}
    for steps in track(network.dial, f"{subject.name}: exporting"):
        fp32[steps] = static_model(network, steps)
        int8[steps] = int8_model(fp32[steps], network, shown)
        files[f"static {steps}"] = folder / f"{subject.name}-{steps}.onnx"
        onnx.save(fp32[steps], files[f"static {steps}"])
    for form, models in (("dial", fp32), ("int8 dial", int8)):
        files[form] = folder / f"{subject.name}-{form.replace(' ', '-')}.onnx"
        joined = join_settings(models, data_file=f"{files[form].name}.data")
        write_model(joined, files[form], network, precision="int8" if form == "int8 dial" else "fp32")
    return files


def noise_level(network: Network) -> dict[str, Any]:
    return {"sigma": np.array(25, np.float32)} if takes_sigma(network) else {}


def parts(path: Path) -> list[Path]:
    """A model file and its data file, if there is one."""
    return [file for file in (path, path.with_name(f"{path.name}.data")) if file.exists()]


def every_call(subject: Subject, files: Mapping[str, Path], threads: int) -> Iterator[tuple[Case, Call]]:
    network = subject.network
    bodies = copy.deepcopy(network)
    bodies.compile_bodies()
    whole = torch.compile(network, fullgraph=True, dynamic=False)
    forms: dict[str, Callable[..., torch.Tensor]] = {"eager": network, "bodies": bodies, "whole": whole}
    programs = {steps: program(network, steps).module() for steps in network.dial}
    sessions = {name: session(path, threads=threads) for name, path in files.items()}
    for batch in subject.batches:
        images = torch.rand(batch, network.image_channels, subject.side, subject.side)
        feeds = {"image": images.numpy(), **noise_level(network)}
        told = {name: torch.from_numpy(value) for name, value in noise_level(network).items()}
        for steps in network.dial:
            for form, run in forms.items():
                if form != "whole" or batch == 1 or subject.name == "R_2":
                    yield Case(form, batch, steps), lambda run=run, i=images, s=steps, t=told: run(i, s, **t)
            given = (images, *told.values())
            yield Case("pt2", batch, steps), lambda p=programs[steps], g=given: p(*g)
            opened = sessions[f"static {steps}"]
            yield Case("static", batch, steps), lambda o=opened, f=feeds: o.run(None, f)
            for form in ("dial", "int8 dial"):
                asked = {**feeds, "steps": np.array(steps, np.int64)}
                yield Case(form, batch, steps), lambda o=sessions[form], f=asked: o.run(None, f)


def products(threads: int) -> dict[str, Call]:
    """Matrix products: PyTorch's in fp32, onnxruntime's of uint8 and int8."""
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    values = np.random.default_rng(0).integers(-64, 64, (SIDE, SIDE), np.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["c"])],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, [SIDE, SIDE])],
        [helper.make_tensor_value_info("c", TensorProto.INT32, [SIDE, SIDE])],
        [onnx.numpy_helper.from_array(values, "b")],
    )
    opened = session(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), threads=threads
    )
    feeds = {"a": values.view(np.uint8)}
    return {PRODUCTS[0]: lambda: a @ b, PRODUCTS[1]: lambda: opened.run(None, feeds)}


def seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(calls: Mapping[Any, Call], rounds: int) -> dict[Any, list[float]]:
    """For each case one median in every round, in seconds."""
    times: dict[Any, list[float]] = {case: [] for case in calls}
    shuffle = random.Random(0).shuffle
    order = list(calls)
    for _ in track(range(rounds), "rounds"):
        shuffle(order)
        for case in order:
            runs = [seconds(calls[case])]
            while sum(runs) < 0.05 or (len(runs) < 3 and sum(runs) < 0.5):
                runs.append(seconds(calls[case]))
            times[case].append(statistics.median(runs))
    return times


def ranked(form: str, times: Mapping[Any, list[float]]) -> bool:
    """Whether a larger setting takes longer, at every batch."""
    known = [case for case in times if isinstance(case, Case) and case.form == form]
    for batch in {case.batch for case in known}:
        medians = [statistics.median(times[case]) for case in sorted(known) if case.batch == batch]
        if medians != sorted(medians):
            return False
    return True


def memory(subject: Subject, files: Mapping[str, Path], threads: int) -> dict[str, float]:
    """Peak memory of a process that loads a form and runs each setting once with one image; "nothing" runs none."""
    shape = [1, subject.network.image_channels, subject.side, subject.side]
    dial = list(subject.network.dial)
    told = "sigma" if takes_sigma(subject.network) else None
    models = {"nothing": [], "static": [[str(files[f"static {dial[-1]}"]), None]]}
    models |= {form: [[str(files[form]), dial]] for form in ("dial", "int8 dial")}
    found = {form: resident(paths, shape, told, threads)["megabytes"] for form, paths in models.items()}
    return {form: round(value, 1) for form, value in found.items()}


def resident(models: list[list[Any]], shape: list[int], told: str | None, threads: int) -> dict[str, float]:
    """What a fresh process says that loads models, runs each setting once, and then alternates between them."""
    spec = json.dumps({"models": models, "shape": shape, "sigma": told, "threads": threads})
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("export_process.py"), spec],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def side_by_side(folder: Path, rounds: int, args: argparse.Namespace) -> dict[str, Any]:
    """One dial of R_2 against an untied S_2 for each setting."""
    width, dial, side = (1 / 8, (1, 2), 16) if args.quick else (1.0, (2, 3, 4), 32)
    ours = folder / "r2.onnx"
    export_onnx(rc.r2(width=width, steps=dial).eval(), ours, single_file=False)
    theirs = []
    for steps in track(dial, "S_2: exporting"):
        theirs.append(folder / f"s2-{steps}.onnx")
        export_onnx(rc.s2(width=width, steps=steps).eval(), theirs[-1], steps=steps)
    found: dict[str, Any] = {}
    kinds = {"dial of R_2": [[str(ours), list(dial)]], "three S_2": [[str(path), None] for path in theirs]}
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in track(range(rounds), "one dial or three networks"):
        for kind, models in kinds.items():
            runs[kind].append(resident(models, [1, 3, side, side], None, args.threads))
    for kind, models in kinds.items():
        found[kind] = {
            "megabytes_on_disk": sum(file.stat().st_size for path, _ in models for file in parts(Path(path))) / 1e6,
            **{name: summary([run[name] for run in runs[kind]]) for name in runs[kind][0]},
        }
    return found


def report(name: str, found: Mapping[str, Any]) -> None:
    """Print the table of one network."""
    cases = {(c["form"], c["batch"], c["steps"]): c for c in found["cases"]}
    forms = list(found["ranks_as_macs"])
    table = Table(title=f"{name}: milliseconds a call")
    for column in ("batch", "steps", *forms, "dial / static", "fp32 / int8", "share", "int8 share"):
        table.add_column(column, justify="right")
    for row in found["ratios"]:
        batch, steps = row["batch"], row["steps"]
        known = [cases.get((form, batch, steps)) for form in forms]
        shares = [show(cases[form, batch, steps]["share"], 2) for form in ("dial", "int8 dial")]
        ratios = [show(row[key], 2) for key in ("dial_over_static", "fp32_over_int8")]
        table.add_row(
            str(batch), str(steps), *(show(c["milliseconds"], 2) if c else "-" for c in known), *ratios, *shares
        )
    console = Console(width=180)
    console.print(table)
    console.print({key: found[key] for key in ("bytes", "peak_megabytes", "ranks_as_macs")})


if __name__ == "__main__":
    main()
