"""Training: the loop of the paper's algorithm 2."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.fabric import Fabric

from recurconv.distributed import average_gradients, make_fabric, precision_of, synchronise_norms
from recurconv.graphs import GraphedBackward
from recurconv.network import Network
from recurconv.objectives import Plan, accumulate_gradients, draw_plan
from recurconv.progress import Progress
from recurconv.recipes import Recipe
from recurconv.runs import RunFolder
from recurconv.tasks import TASKS, Task, build_network

SAVE_SECONDS = 120  # the most that a crash costs


class TrainingError(RuntimeError):
    """The loss or the gradient is no longer finite."""

    exit_status = 1


class InterruptionError(RuntimeError):
    """The user asked to stop; the state is saved."""

    exit_status = 130


def train(
    recipe: Recipe,
    data: Path,
    out: Path,
    *,
    resume: bool = False,
    device: str = "auto",
    download: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
) -> RunFolder:
    """Train a network by a recipe; under ``torchrun`` on all its processes.

    Args:
        recipe: the complete config.
        data: CIFAR's archive or folder, a folder of images by class, or a folder of pictures.
        out: the run folder, new or empty; with ``resume`` one that an earlier call wrote.
        resume: go on from the last checkpoint, to weights that are bit for bit those of an uninterrupted run on a CPU.
        device: "auto", "cpu", "cuda" or "cuda:N".
        download: fetch CIFAR if it is not at ``data``.
        quiet: lines instead of a progress bar.
        tensorboard: write event files into the run folder, too.

    Returns:
        The run folder, with the last checkpoint.

    Raises:
        FileExistsError: ``out`` is not empty.
        TrainingError: the loss or the gradient became NaN or infinite; the last checkpoint is kept.
        InterruptionError: Ctrl-C; the state is saved first.
        ValueError: something is wrong with the data, the device or the recipe.
    """
    fabric = make_fabric(device, recipe.precision)
    held_out = recipe.minival > 0
    task = TASKS[recipe.task](recipe, data, "train" if held_out else "trainval", fabric.device, download=download)
    task.iterations()  # complains of a batch size that does not fit, before anything is written
    choices = TASKS[recipe.task](recipe, data, "minival", fabric.device) if held_out else None
    run = RunFolder.open(out) if resume or fabric.global_rank > 0 else RunFolder.create(out, recipe)
    trainer = Trainer(recipe, run, fabric, task, choices)
    if resume:
        trainer.restore()
    if fabric.global_rank == 0:
        run.note_environment(
            condition=task.set.condition,
            device=str(fabric.device),
            precision=precision_of(recipe, fabric),
            processes=fabric.world_size,
            iteration=trainer.iteration,
        )
    with Progress(trainer.iteration, trainer.iterations, quiet or fabric.global_rank > 0, tensorboard, run) as progress:
        trainer.fit(progress)
    return run


def rate_factor(recipe: Recipe, iteration: int, iterations: int) -> float:
    """The rate's factor in (0, 1]: linear warm-up, then linear or cosine decay towards 0."""
    warmup = round(recipe.warmup * iterations)
    if iteration < warmup:
        return (iteration + 1) / (warmup + 1)
    left = (iterations - iteration) / (iterations - warmup)
    return left if recipe.decay == "linear" else (1 - math.cos(math.pi * left)) / 2


def make_optimizer(recipe: Recipe, network: Network) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, or Adam; shared kernels learn at ``shared_ratio`` times the rate (section 3.3)."""
    shared = network.shared_parameters()
    marked = set(map(id, shared))
    own = [parameter for parameter in network.parameters() if id(parameter) not in marked]
    groups = [
        {"params": parameters, "lr": rate, "rate": rate}
        for parameters, rate in ((own, recipe.rate), (shared, recipe.rate * recipe.shared_ratio))
        if parameters
    ]
    fused = next(network.parameters()).is_cuda
    if recipe.optimizer == "adam":
        return torch.optim.Adam(groups, weight_decay=recipe.weight_decay, fused=fused)
    nesterov = recipe.momentum > 0
    return torch.optim.SGD(
        groups, momentum=recipe.momentum, nesterov=nesterov, weight_decay=recipe.weight_decay, fused=fused
    )


class Trainer:
    """The state of a run, and its loop. All randomness is a function of (seed, epoch, iteration): none is stored."""

    def __init__(self, recipe: Recipe, run: RunFolder, fabric: Fabric, task: Task, choices: Task | None) -> None:
        self.recipe, self.run, self.fabric, self.task, self.choices = recipe, run, fabric, task, choices
        self.network = build_network(recipe, task).to(fabric.device).to(memory_format=torch.channels_last)
        synchronise_norms(self.network, fabric.device)
        self.parameters = list(self.network.parameters())
        self.optimizer = make_optimizer(recipe, self.network)
        self.per_epoch = task.iterations()
        self.iterations = recipe.epochs * self.per_epoch
        self.iteration = 0
        self.seconds = 0.0
        self.window: list[tuple[int, Plan, torch.Tensor, torch.Tensor]] = []
        if recipe.compile:
            self.network.compile_bodies()
        alone = fabric.device.type == "cuda" and fabric.world_size == 1
        self.backward = (
            GraphedBackward(self._backward, self.network) if alone and recipe.cuda_graphs else self._backward
        )

    def fit(self, progress: Progress) -> None:
        """Train from the current iteration to the end; save at least every two minutes and at each epoch's end."""
        self.network.train()
        saved = clock = time.monotonic()
        with interruptible(self.fabric.world_size == 1) as interrupted:
            while self.iteration < self.iterations:
                epoch, start = divmod(self.iteration, self.per_epoch)
                batches = self.task.training_batches(epoch, start, self.fabric.global_rank, self.fabric.world_size)
                for inputs, targets in batches:
                    self.step(inputs, targets)
                    clock, self.seconds = time.monotonic(), self.seconds + time.monotonic() - clock
                    if self.fabric.device.type == "cpu" or len(self.window) >= 20 or interrupted.is_set():
                        progress.advance(self.iteration, self.check())
                    if interrupted.is_set():
                        self.save()
                        raise InterruptionError(
                            f"stopped at iteration {self.iteration} of {self.iterations}; go on by --resume"
                        )
                    if clock - saved > SAVE_SECONDS:
                        self.save()
                        saved = time.monotonic()
                progress.advance(self.iteration, self.check())
                self.end_epoch(progress)
                saved = clock = time.monotonic()

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """One iteration: draw the setting, run it forward and backward, update once."""
        recipe = self.recipe
        plan = draw_plan(recipe, self.iteration, len(self.network.cells()))
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.backward(plan, inputs.contiguous(memory_format=torch.channels_last), targets)
        average_gradients(self.parameters)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, recipe.clip or math.inf)
        factor = rate_factor(recipe, self.iteration, self.iterations)
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * factor
        self.optimizer.step()
        self.iteration += 1
        self.window.append((self.iteration, plan, loss.clone(), norm))

    def _backward(self, plan: Plan, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with self.fabric.autocast():
            return accumulate_gradients(plan, self.task, self.network, inputs, targets)

    def check(self) -> float | None:
        """The mean loss since the last check; None if there was no iteration.

        Raises:
            TrainingError: a loss or a gradient was not finite. Nothing is saved before a check.
        """
        window, self.window = self.window, []
        for iteration, plan, loss, norm in window:
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = "loss" if not math.isfinite(loss) else "gradient"
                recipe = self.recipe
                raise TrainingError(
                    f"the {what} is {float(loss if what == 'loss' else norm)} at iteration {iteration} of "
                    f"{self.iterations}, steps={', '.join(str(term.steps) for term in plan)}; the last checkpoint is "
                    f"kept. Try a lower rate (now {recipe.rate}), clip (now {recipe.clip}; 0 is off), or more warmup "
                    f"(now {recipe.warmup})"
                )
        return sum(float(loss) for _, _, loss, _ in window) / len(window) if window else None

    def end_epoch(self, progress: Progress) -> None:
        """Measure on the held-out images, note it, save."""
        if self.fabric.global_rank == 0:
            epoch = self.iteration // self.per_epoch
            row: dict[str, Any] = {"iteration": self.iteration, "epoch": epoch, "seconds": round(self.seconds, 1)}
            row |= {"loss": progress.mean_loss(), "rate": self.optimizer.param_groups[0]["lr"]}
            if self.choices is not None:
                row[f"held_out {self.choices.metric}"] = self.measure(self.choices)
            self.run.append_metrics(row)
            progress.epoch(row)
        self.save()
        self.fabric.barrier()

    def measure(self, task: Task) -> dict[str, float]:
        """The mean metric at each setting."""
        self.network.eval()
        with torch.inference_mode():
            values = {str(steps): float(task.measure(self.network, steps)[0].mean()) for steps in self.network.dial}
        self.network.train()
        return values

    def save(self) -> None:
        """Write the state, then the network: a crash between the two leaves the state, from which --resume goes on."""
        self.check()
        if self.fabric.global_rank == 0:
            state = {
                "iteration": self.iteration,
                "iterations": self.iterations,
                "seconds": self.seconds,
                "network": self.network.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            }
            self.run.save_state(state)
            self.network.save_pretrained(self.run.path)

    def restore(self) -> None:
        """Take up the last checkpoint, if there is one."""
        state = self.run.load_state()
        if state is None:
            return
        if state["iterations"] != self.iterations:
            raise ValueError(
                f"{self.run.path} has {state['iterations']} iterations, with this data it would be {self.iterations}; "
                "give the data that it was started with"
            )
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.iteration, self.seconds = state["iteration"], state["seconds"]
        if self.fabric.global_rank == 0:
            self.run.rewind_metrics(self.iteration)
            self.network.save_pretrained(self.run.path)


@contextmanager
def interruptible(active: bool) -> Iterator[threading.Event]:
    """While inside, Ctrl-C sets the event instead of raising; a second one raises. Only in the main thread."""
    event = threading.Event()
    if not active or threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
