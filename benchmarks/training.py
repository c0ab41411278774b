"""Training: this package's loop against the plain PyTorch loop that a user would write, images per second.

    python benchmarks/training.py --data cifar-10-batches-py

Both train the same R_2 with the dial (2, 3, 4) on CIFAR-10 in batches of one size, with SGD, Nesterov momentum and
clipping. Ours is the recipe r2-cifar10 but for batch size and rate, so with compiled bodies. The plain loop has
torchvision's transforms, a DataLoader with two workers, eager mode, and on CUDA bf16 autocast (on a CPU in fp32 and,
where the processor multiplies in bf16, in bf16: the faster of them is the peer).
The two take turns, round by round, so that other load on the machine hits them alike; ratios are taken within a round.
About five minutes on two cores.
"""

import dataclasses
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2 as transforms

import recurconv as rc
from common import arguments, provenance, show, summary
from recurconv import recipes
from recurconv.data import load_cifar
from recurconv.distributed import make_fabric, wants_bf16
from recurconv.files import write_json
from recurconv.runs import RunFolder
from recurconv.tasks import Classification
from recurconv.training import Trainer

PROBABILITIES = (0.2, 0.3, 0.5)


class Images(Dataset[tuple[torch.Tensor, int]]):
    """What ``torchvision.datasets.CIFAR10`` gives, for copies of the set that it does not take for the official one."""

    def __init__(self, data: Path) -> None:
        held = load_cifar(data, "cifar10", "trainval")
        self.images = [transforms.functional.to_pil_image(image) for image in held.images]
        self.labels = held.labels.tolist()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.PILToTensor(),
                transforms.ToDtype(torch.float32, scale=True),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def plain(data: Path, batch: int, width: float, device: str, bf16: bool) -> Iterator[None]:
    """The loop that a user would write; yields after each iteration."""
    loader = DataLoader(
        Images(data),
        batch,
        shuffle=True,
        num_workers=2,
        drop_last=True,
        persistent_workers=True,
        pin_memory=device != "cpu",
    )
    net = rc.r2(num_classes=10, steps=(2, 3, 4), width=width).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    while True:
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            steps = random.choices(net.dial, PROBABILITIES)[0]
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(net(images, steps), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            loss.item()
            yield


def ours(data: Path, batch: int, width: float, device: str, folder: Path) -> Iterator[None]:
    """The trainer of ``recurconv train``; yields after each iteration."""
    recipe = dataclasses.replace(recipes.get("r2-cifar10"), batch_size=batch, width=width, rate=0.05, epochs=1000)
    fabric = make_fabric(device, "auto")
    task = Classification(recipe, data, "trainval", fabric.device)
    trainer = Trainer(recipe, RunFolder(folder), fabric, task, None)
    trainer.network.train()
    for epoch in range(recipe.epochs):
        for inputs, targets in task.training_batches(epoch, 0, 0, 1):
            trainer.step(inputs, targets)
            if device == "cpu" or len(trainer.window) >= 20:
                trainer.check()
            yield


def main() -> None:
    options = arguments(__doc__, "training.json", device=True)
    options.add_argument("--data", type=Path, required=True, help="CIFAR-10, archive or folder")
    options.add_argument("--tune", action="store_true", help="let cuDNN choose kernels by trying them, in both loops")
    options.add_argument("--rounds", type=int, help="turns of each loop; by default 8, or 3 with --quick")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    torch.backends.cudnn.benchmark = args.tune
    batch = 128 if args.device == "cpu" else 512
    width, rounds, iterations = (0.125, 3, 2) if args.quick else (1.0, 8, 4 if args.device == "cpu" else 100)
    fast = wants_bf16("auto", args.device.partition(":")[0])
    with tempfile.TemporaryDirectory() as folder:
        loops = {"recurconv train": ours(args.data, batch, width, args.device, Path(folder))}
        if args.device == "cpu":
            loops["plain loop, fp32"] = plain(args.data, batch, width, "cpu", bf16=False)
        if fast:
            loops["plain loop, bf16"] = plain(args.data, batch, width, args.device, bf16=True)
        rates = measure(loops, batch, args.rounds or rounds, iterations, args.device)
    peer = max((name for name in rates if name.startswith("plain")), key=lambda name: summary(rates[name])["median"])
    ratio = summary([a / b for a, b in zip(rates["recurconv train"], rates[peer], strict=True)])
    result: dict[str, Any] = {
        "provenance": provenance(args.threads, args.device),
        "batch": batch,
        "width": width,
        "cudnn_benchmark": args.tune,
        "iterations_per_round": iterations,
        "images_per_second": {name: summary(values) for name, values in rates.items()},
        "peer": peer,
        "ratio": ratio,
    }
    write_json(args.out, result)
    table = Table("loop", "images/s", title=f"Training R_2 x{width} on {args.device}, batch {batch}")
    for name, values in rates.items():
        table.add_row(name, show(summary(values)))
    Console().print(table, f"recurconv train / {peer}: {show(ratio, 2)}")


def measure(
    loops: dict[str, Iterator[None]], batch: int, rounds: int, iterations: int, device: str
) -> dict[str, list[float]]:
    """Images per second of each loop in each round."""
    for loop in track(loops.values(), "first iterations"):
        for _ in range(iterations if device == "cpu" else 60):  # compilation, graphs, workers
            next(loop)
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for _ in track(range(rounds), "rounds"):
        for name in random.sample(list(loops), len(loops)):
            start = time.perf_counter()
            for _ in range(iterations):
                next(loops[name])
            if device != "cpu":
                torch.cuda.synchronize()
            rates[name].append(batch * iterations / (time.perf_counter() - start))
    return rates


if __name__ == "__main__":
    main()
