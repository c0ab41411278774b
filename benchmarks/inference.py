"""Inference: R_2 with the dial (2, 3, 4), setting by setting, against the untied S_2 of as many steps.

    python benchmarks/inference.py

Both networks do the same arithmetic; R has a quarter to a half of S's weights. Each is measured eager and compiled
(``torch.compile`` of the network), with 1 and 64 images of 32x32 in a call. All cases are measured in every round, in
an order drawn anew, so that other load on the machine hits them alike; ratios are taken within a round. About ten
minutes on two cores, half of it compilation.
"""

import argparse
import itertools
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.utils.benchmark import Timer

import recurconv as rc
from common import arguments, provenance, show, summary
from recurconv.files import write_json

DIAL = (2, 3, 4)
MODES = ("eager", "compiled")


class Case(NamedTuple):
    """One thing to time."""

    network: str
    mode: str
    batch: int
    steps: int


def main() -> None:
    options = arguments(__doc__, "inference.json", device=True)
    options.add_argument("--rounds", type=int, help="passes over all cases; by default 10, or 3 with --quick")
    args = options.parse_args()
    batches, width, rounds = ((1, 4), 0.125, 3) if args.quick else ((1, 64), 1.0, 10)
    torch.set_num_threads(args.threads)
    # Every compiled case is a program of its own here: 2 networks x 3 settings x 2 batches of one forward function.
    torch._dynamo.config.recompile_limit = 64
    result: dict[str, Any] = {"provenance": provenance(args.threads, args.device), "width": width}
    networks = build(width, args.device)
    with torch.inference_mode():
        calls = {case: call(networks, case, args.device) for case in cases(batches)}
        first_calls = {case: seconds(calls[case]) for case in track(calls, "first calls (compilation)")}
        times = measure(calls, args.rounds or rounds, args.threads)
    macs = {row.steps: row.macs for row in rc.cost(networks["R_2", "eager", DIAL[0]])}
    result["cases"] = [
        {**case._asdict(), "macs": macs[case.steps], "first_call_seconds": first_calls[case]}
        | {"milliseconds": summary([1e3 * t for t in times[case]])}
        for case in calls
    ]
    result["ratios"] = ratios(times, batches)
    write_json(args.out, result)
    report(result, args)


def build(width: float, device: str) -> dict[tuple[str, str, int], nn.Module]:
    """The network for each (name, mode, steps); R_2 is one network for all steps."""
    tied = rc.r2(steps=DIAL, width=width).eval().to(device)
    untied = {steps: rc.s2(steps=steps, width=width).eval().to(device) for steps in DIAL}
    compiled = torch.compile(tied, fullgraph=True, dynamic=False)
    networks: dict[tuple[str, str, int], nn.Module] = {}
    for steps in DIAL:
        networks["R_2", "eager", steps] = tied
        networks["R_2", "compiled", steps] = compiled
        networks["S_2", "eager", steps] = untied[steps]
        networks["S_2", "compiled", steps] = torch.compile(untied[steps], fullgraph=True, dynamic=False)
    return networks


def cases(batches: tuple[int, ...]) -> list[Case]:
    return [Case(*parts) for parts in itertools.product(("R_2", "S_2"), MODES, batches, DIAL)]


def call(networks: dict[tuple[str, str, int], nn.Module], case: Case, device: str) -> Callable[[], torch.Tensor]:
    network = networks[case.network, case.mode, case.steps]
    images = torch.rand(case.batch, 3, 32, 32, device=device)
    return lambda: network(images, steps=case.steps)


def seconds(function: Callable[[], torch.Tensor]) -> float:
    start = time.perf_counter()
    function().cpu()
    return time.perf_counter() - start


def measure(calls: dict[Case, Callable[[], torch.Tensor]], rounds: int, threads: int) -> dict[Case, list[float]]:
    """For each case one median in every round, in seconds."""
    timers = {case: Timer("call()", globals={"call": calls[case]}, num_threads=threads) for case in calls}
    times: dict[Case, list[float]] = {case: [] for case in calls}
    shuffle = random.Random(0).shuffle
    order = list(calls)
    for _ in track(range(rounds), "rounds"):
        shuffle(order)
        for case in order:
            times[case].append(timers[case].blocked_autorange(min_run_time=0.2).median)
    return times


def ratios(times: dict[Case, list[float]], batches: tuple[int, ...]) -> list[dict[str, Any]]:
    """R's time over S's, and for R eager over compiled; each ratio within a round."""

    def ratio(above: Case, below: Case) -> dict[str, float]:
        return summary([a / b for a, b in zip(times[above], times[below], strict=True)])

    rows: list[dict[str, Any]] = []
    for batch, steps in itertools.product(batches, DIAL):
        row: dict[str, Any] = {"batch": batch, "steps": steps}
        for mode in MODES:
            row[f"r_over_s_{mode}"] = ratio(Case("R_2", mode, batch, steps), Case("S_2", mode, batch, steps))
        row["r_eager_over_compiled"] = ratio(Case("R_2", "eager", batch, steps), Case("R_2", "compiled", batch, steps))
        rows.append(row)
    return rows


def report(result: dict[str, Any], args: argparse.Namespace) -> None:
    """Print the table."""
    milliseconds = {
        (c["network"], c["mode"], c["batch"], c["steps"]): show(c["milliseconds"], 2) for c in result["cases"]
    }
    macs = {case["steps"]: case["macs"] for case in result["cases"]}
    table = Table(title=f"milliseconds a call, median ± interquartile range; {args.threads} threads")
    for name in ("batch", "steps", "MMACs", "mode", "R_2", "S_2", "R / S"):
        table.add_column(name, justify="right")
    for row, mode in itertools.product(result["ratios"], MODES):
        batch, steps = row["batch"], row["steps"]
        ours, theirs = (milliseconds[network, mode, batch, steps] for network in ("R_2", "S_2"))
        ratio = show(row[f"r_over_s_{mode}"], 2)
        table.add_row(str(batch), str(steps), f"{batch * macs[steps] / 1e6:.1f}", mode, ours, theirs, ratio)
    console = Console()
    console.print(table)
    console.print(f"written to {args.out}", soft_wrap=True)


if __name__ == "__main__":
    main()
