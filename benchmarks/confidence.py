"""What confidence saves: error against mean MACs, and the time of a batch.

python benchmarks/confidence.py --data FOLDER

Exports a shipped classifier, chooses the threshold on the images that its training held out, and measures it on the
test set. Then a batch of test images is timed at the smallest and the largest setting and with confidence, in turn, in
an order drawn anew each round; ratios are taken within a round. About three minutes on one core.
"""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

import recurconv as rc
from common import arguments, provenance, show, summary
from recurconv.data import load_cifar
from recurconv.export import export_onnx
from recurconv.files import write_json
from recurconv.tuning import tune
from recurconv.tuning.figure import draw

MODEL, DATASET, BATCH, ROUNDS, HELD_OUT = "r2-cifar10", "cifar10", 64, 30, 1000


def main() -> None:
    options = arguments(__doc__, f"confidence-{MODEL}.json")
    options.add_argument("--data", type=Path, required=True, help="CIFAR-10's archive or folder")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    where = provenance(args.threads)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{MODEL}.onnx"
        with console.status(f"exporting {MODEL}") as status:
            export_onnx(rc.load(MODEL), path, say=status.update)
            report = "minival" if args.quick else "test"
            tuning = tune(path, args.data, report=report, held_out=HELD_OUT, threads=args.threads, say=status.update)
        dial = rc.Dial(path, threads=args.threads)
        found = {"provenance": where, **tuning.as_dict(), "batch": times(dial, tuning.thresholds, args)}
    write_json(args.out, found)
    draw(tuning, args.out.with_suffix(".png"))
    for name, value in found["batch"]["ratio_to_largest"].items():
        print(f"{name}: {show(value, 2)} of the time of the largest setting, batch {BATCH}")
    print(f"written to {args.out}")


def times(dial: rc.Dial, thresholds: dict[int, float], args: Any) -> dict[str, Any]:
    """Milliseconds of a batch each way, and ratios to the largest setting's."""
    images = load_cifar(args.data, DATASET, "test").images[:BATCH].float().div(255).numpy()
    small, large = dial.dial[0], dial.dial[-1]
    ways: dict[str, Callable[[], Any]] = {
        f"steps={small}": lambda: dial.run(images, steps=small),
        f"steps={large}": lambda: dial.run(images, steps=large),
        "confidence": lambda: dial.run(images, confidence=thresholds),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for way in ways.values():
        way()
    for _ in track(range(3 if args.quick else ROUNDS), "timing", console=Console(stderr=True)):
        random.shuffle(order)
        for name in order:
            taken[name].append(ways[name]().milliseconds)
    largest = taken[f"steps={large}"]
    went_on = float((ways["confidence"]().steps_per_image != min(thresholds)).mean())
    return {
        "images": len(images),
        "went_on": went_on,
        "milliseconds": {name: summary(own) for name, own in taken.items()},
        "ratio_to_largest": {
            name: summary([a / b for a, b in zip(own, largest, strict=True)]) for name, own in taken.items()
        },
    }


if __name__ == "__main__":
    main()
