"""Stops a run whose numbers are no longer finite, before anything of it is saved."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from recurconv.objectives import Plan
from recurconv.recipes import Recipe


class TrainingError(RuntimeError):
    """The loss, the gradient or a weight is no longer finite."""

    exit_status = 1


class Done(NamedTuple):
    """An iteration that was done: its number from 1, its plan, its loss and its gradient's norm, both scalars."""

    iteration: int
    plan: Plan
    loss: torch.Tensor
    norm: torch.Tensor


def finite_losses(window: Sequence[Done], recipe: Recipe) -> list[float]:
    """The losses of some iterations; waits for a GPU once.

    Raises:
        TrainingError: a loss or a gradient is not finite; the message says where first, and what to try.
    """
    if not window:
        return []
    values = torch.stack([torch.stack((done.loss, done.norm)) for done in window]).tolist()
    for done, (loss, norm) in zip(window, values, strict=True):
        if not (math.isfinite(loss) and math.isfinite(norm)):
            what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
            steps = ", ".join(str(term.steps) for term in done.plan)
            raise _error(f"{what} at iteration {done.iteration}, steps={steps}", recipe)
    return [loss for loss, _ in values]


def check_weights(network: nn.Module, iteration: int, recipe: Recipe) -> None:
    """Raise TrainingError if a weight or a running statistic is not finite, as after a last step that was too long."""
    floats = {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
    if nn.utils.get_total_norm(floats.values(), math.inf).isfinite():  # the largest value; waits for a GPU once
        return
    for name, tensor in floats.items():
        if not tensor.isfinite().all():
            raise _error(f"{name} is no longer finite after iteration {iteration}", recipe)


def _error(what: str, recipe: Recipe) -> TrainingError:
    return TrainingError(
        f"{what}; the last checkpoint is kept. Start anew with a lower rate (it was {recipe.rate}), with clip (it was "
        f"{recipe.clip}; 0 is off), or with more warmup (it was {recipe.warmup})"
    )
