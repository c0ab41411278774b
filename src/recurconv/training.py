"""Training: the loop of the paper's algorithm 2."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch.nn.modules.batchnorm import _BatchNorm

from recurconv import distributed
from recurconv.divergence import Done, check_weights, finite_losses
from recurconv.graphs import GraphedBackward
from recurconv.interruption import InterruptionError, interruptible
from recurconv.objectives import Plan, accumulate_gradients, draw_plan
from recurconv.optimisation import make_optimizer, rate_factor, restore_optimizer, set_rate
from recurconv.progress import Progress
from recurconv.recipes import Recipe
from recurconv.runs import RunFolder
from recurconv.settling import settle_norms
from recurconv.tasks import TASKS, Batch, Task, build_network, measure_settings

SAVE_SECONDS = 120  # the most that a crash costs


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
    seconds: float = math.inf,
) -> RunFolder:
    """Train a network by a recipe; under ``torchrun`` on all its processes.

    Args:
        recipe: the complete config.
        data: CIFAR's archive or folder, a folder of images by class, or a folder of pictures.
        out: the run folder, new or empty; with ``resume`` one that an earlier call wrote.
        resume: go on from the last checkpoint, on a CPU with as many threads to the bits of an uninterrupted run.
        device: "auto", "cpu", "cuda" or "cuda:N".
        download: fetch CIFAR if it is not at ``data``.
        quiet: lines instead of a progress bar.
        tensorboard: write event files into the run folder, too.
        seconds: stop after so long, counted from the call, as if by Ctrl-C.

    Returns:
        The run folder, with the last checkpoint.

    Raises:
        FileExistsError: ``out`` is not empty.
        BlockingIOError: another process trains in ``out``.
        FileNotFoundError: there is no such data, or no run to resume.
        ValueError: the data, the device or the recipe do not fit; nothing is written.
        TrainingError: the loss, the gradient or a weight became NaN or infinite; the last checkpoint is kept.
        OSError: the disk is full, say; the last checkpoint is kept.
        InterruptionError: Ctrl-C, or the time is over; the state is saved first.
    """
    deadline = time.monotonic() + seconds
    fabric = distributed.make_fabric(device, recipe.precision)
    first = fabric.global_rank == 0

    def task(split: str, download: bool = False) -> Task:
        return TASKS[recipe.task](recipe, data, split, fabric.device, download=download)

    def prepare() -> tuple[Trainer, Progress]:
        run = RunFolder.open(out) if resume else RunFolder(out)
        if first and not resume:
            run.check_new(out)  # before minutes of reading
        tasks = (task("train"), task("minival")) if recipe.minival > 0 else (task(recipe.trained_on), None)
        trainer = Trainer(recipe, run, fabric, *tasks)
        if resume:
            if first:
                held.enter_context(run.held())
            trainer.restore()
        events = out / "tensorboard" if tensorboard and first else None
        return trainer, Progress(trainer.iteration, trainer.iterations, quiet=quiet or not first, tensorboard=events)

    if download:
        distributed.on_all_ranks(lambda: task("trainval", download=True) if fabric.local_rank == 0 else None)
    with contextlib.ExitStack() as held:
        trainer, progress = distributed.on_all_ranks(prepare)
        if trainer.iteration == trainer.iterations:
            if first:
                progress.note(f"{out} is finished: all its {trainer.iterations} iterations are done")
            return trainer.run
        if first and not resume:
            held.enter_context(RunFolder.create(out, recipe).held())
        if first:
            where = {"device": str(fabric.device), "precision": distributed.precision_of(recipe, fabric)}
            condition, processes = trainer.task.set.condition, fabric.world_size
            trainer.run.note_environment(**where, condition=condition, processes=processes, iteration=trainer.iteration)
        with progress:
            trainer.fit(progress, deadline)
    return trainer.run


class Trainer:
    """The state of a run, and its loop. All randomness is a function of (seed, epoch, iteration): none is stored.

    Args:
        recipe: the config.
        run: where to save; nothing is written there before ``fit``.
        fabric: device, precision and processes, launched.
        task: the images to train on.
        choices: the held-out images, measured at each epoch's end; None for none.

    Raises:
        ValueError: the recipe does not fit the data.
    """

    def __init__(self, recipe: Recipe, run: RunFolder, fabric: Fabric, task: Task, choices: Task | None) -> None:
        self.recipe, self.run, self.fabric, self.task, self.choices = recipe, run, fabric, task, choices
        self.network = build_network(recipe, task).to(fabric.device).to(memory_format=torch.channels_last)
        distributed.synchronise_norms(self.network, fabric.device)
        self.parameters = list(self.network.parameters())
        self.optimizer = make_optimizer(recipe, self.network)
        self.per_epoch = task.iterations()
        self.iterations = recipe.epochs * self.per_epoch
        self.iteration = 0  # how many are done
        self.epoch_loss = 0.0  # sum over the iterations of this epoch
        self.seconds = 0.0  # of training; evaluation is not counted
        self.window: list[Done] = []  # iterations that are not checked yet
        self._batches()  # complains now of what does not fit, and so does a call of the network
        with torch.inference_mode():
            self.network.eval()(torch.zeros(1, *task.cost_shape()[0], device=fabric.device), self.network.dial[0])
        self.norms = [module for module in self.network.modules() if isinstance(module, _BatchNorm)]
        self.freezes = self.iterations - round(recipe.frozen_norms * self.iterations)
        if recipe.compile:
            self.network.compile_bodies()
        self._start()

    def fit(self, progress: Progress, deadline: float = math.inf) -> None:
        """Train from the current iteration to the end; save at each epoch's end and at least every two minutes.

        On a GPU, where a save may take as long as an epoch, at epochs' ends ten seconds apart.

        Args:
            progress: told of every iteration.
            deadline: the time of ``time.monotonic`` at which to stop as if by Ctrl-C.
        """
        on_cpu = self.fabric.device.type == "cpu"
        check_every = 1 if on_cpu else 20  # a check waits for the GPU
        saved = clock = time.monotonic()
        with interruptible() as interrupted:
            while self.iteration < self.iterations:
                for inputs, targets in self._batches():
                    if self.iteration == self.freezes:
                        self.freeze_norms()
                    self.step(inputs, targets)
                    epoch_ends = self.iteration % self.per_epoch == 0
                    if not epoch_ends and self.iteration % check_every:
                        continue
                    progress.advance(self.iteration, self.check())
                    clock, self.seconds = time.monotonic(), self.seconds + time.monotonic() - clock
                    wish = interrupted.is_set() or clock > deadline
                    stop = distributed.on_any_rank(wish, self.fabric.device)
                    if self.iteration == self.iterations == self.freezes:
                        self.settle_norms()
                    if epoch_ends:
                        self.end_epoch(progress)
                    rest = SAVE_SECONDS if not epoch_ends else 0 if on_cpu else 10
                    if stop or clock - saved >= rest or self.iteration == self.iterations:
                        self.save()
                        saved = time.monotonic()
                    if epoch_ends:
                        self.fabric.barrier()  # the others wait for the first one
                    clock = time.monotonic()
                    if stop and self.iteration < self.iterations:
                        done = f"stopped at iteration {self.iteration} of {self.iterations}"
                        raise InterruptionError(f"{done}; {self.run.path} is saved, go on with it by --resume")

    def _batches(self) -> Iterator[Batch]:
        """The rest of the epoch; each rank has its share of each batch."""
        epoch, start = divmod(self.iteration, self.per_epoch)
        return self.task.training_batches(epoch, start, self.fabric.global_rank, self.fabric.world_size)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """One iteration: draw the setting, run it forward and backward, update once."""
        plan = draw_plan(self.recipe, self.iteration, len(self.network.cells()))
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.backward(plan, inputs.contiguous(memory_format=torch.channels_last), targets)
        loss = distributed.average_over_ranks(self.parameters, loss)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip or math.inf)
        set_rate(self.optimizer, rate_factor(self.recipe, self.iteration, self.iterations))
        self.optimizer.step()
        self.iteration += 1
        self.window.append(Done(self.iteration, plan, loss.clone(), norm))

    def _backward(self, plan: Plan, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return accumulate_gradients(plan, self.task, self.network, inputs, targets, self.fabric.autocast)

    def _start(self) -> None:
        """Put the network into train mode, its norms as this iteration has them."""
        self.network.train()
        for norm in self.norms:
            norm.train(self.iteration < self.freezes)
        graphed = self.recipe.cuda_graphs and self.fabric.device.type == "cuda" and self.fabric.world_size == 1
        self.backward = GraphedBackward(self._backward, self.network) if graphed else self._backward

    def freeze_norms(self) -> None:
        """From here on norms take their running statistics, taken anew for these weights, as in evaluation.

        The statistics of a batch tell a network how noisy that batch is, say, and a single picture's do not.
        """
        self.settle_norms()
        self._start()

    def settle_norms(self) -> None:
        """Take the norms' running statistics anew, over ``norm_batches`` batches after the last; not where it is 0."""
        if not self.recipe.norm_batches:
            return
        batches = self.task.training_batches(self.recipe.epochs, 0, self.fabric.global_rank, self.fabric.world_size)

        def call(inputs: torch.Tensor, steps: int) -> None:
            with self.fabric.autocast():
                self.task.run(self.network, inputs.contiguous(memory_format=torch.channels_last), steps)

        settle_norms(self.network, itertools.islice(batches, self.recipe.norm_batches), call=call)

    def check(self) -> float | None:
        """The mean loss since the last check; None if there was no iteration.

        Raises:
            TrainingError: a loss or a gradient was not finite.
        """
        window, self.window = self.window, []
        losses = finite_losses(window, self.recipe)
        for loss in losses:  # one by one: the sum must not depend on when it was checked
            self.epoch_loss += loss
        return sum(losses) / len(losses) if losses else None

    def end_epoch(self, progress: Progress) -> None:
        """Measure on the held-out images and note it."""
        check_weights(self.network, self.iteration, self.recipe)
        if self.fabric.global_rank == 0:
            row: dict[str, Any] = {"iteration": self.iteration, "epoch": self.iteration // self.per_epoch}
            row |= {"seconds": round(self.seconds, 1), "loss": self.epoch_loss / self.per_epoch}
            row |= {"rate": self.optimizer.param_groups[0]["lr"]}
            if self.choices is not None:
                row[f"held_out {self.choices.metric}"] = measure_settings(self.network, self.choices)
            self.run.append_metrics(row)
            progress.epoch(row)
        self.epoch_loss = 0.0

    def save(self) -> None:
        """Write the state and the network; where that fails, or something is not finite, the former ones stay."""
        self.check()
        check_weights(self.network, self.iteration, self.recipe)
        if self.fabric.global_rank == 0:
            state = {"iteration": self.iteration, "epoch_loss": self.epoch_loss, "seconds": self.seconds}
            tensors = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
            self.run.save({**self._facts(), **state, **tensors}, self.network)

    def restore(self) -> None:
        """Take up the last checkpoint, if there is one.

        Raises:
            ValueError: the run was started with another recipe or other data, or its state is broken.
        """
        state = self.run.load_state(self._facts())
        if state is not None:
            self.network.load_state_dict(state["network"])
            restore_optimizer(self.optimizer, state["optimizer"])
            self.iteration, self.seconds = state["iteration"], state["seconds"]
            self.epoch_loss = state.get("epoch_loss", 0.0)
            self._start()
        if self.fabric.global_rank == 0:
            self.run.rewind(self.iteration, self.network)

    def _facts(self) -> dict[str, Any]:
        """What stays the same over a run."""
        recipe = dataclasses.asdict(self.recipe)
        return {"recipe": recipe, "condition": self.task.set.condition, "iterations": self.iterations}
