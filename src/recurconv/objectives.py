"""What an iteration minimises: which settings it visits, and the loss at each.

Algorithm 2 of the paper draws one unified step count per iteration. Section 4.2 names two alternatives, a count of its
own for each cell, and the loss summed over all settings weighted by their probabilities. "Sandwich" goes beyond it
(Yu & Huang, 2019): the largest setting learns from the labels, the smallest and one between from the largest's output.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch

from recurconv.data.augment import iteration_generator
from recurconv.network import Network
from recurconv.recipes import Recipe
from recurconv.tasks import Task


class Term(NamedTuple):
    """One forward pass of an iteration."""

    steps: int | tuple[int, ...]
    weight: float
    distilled: bool = False  # from the output of the first term, instead of from the targets


Plan = tuple[Term, ...]


def draw_plan(recipe: Recipe, iteration: int, cells: int) -> Plan:
    """The terms of an iteration, a function of (seed, iteration) alone, so the same on every rank and after a resume.

    Args:
        recipe: its sampling, settings and probabilities.
        iteration: over the whole run, from 0.
        cells: number of recurrent cells, for "per-cell" sampling.

    Returns:
        Under "unified" one term with one step count, under "per-cell" one with a count for each cell; under
        "weighted" a term for each setting, its weight its probability; under "sandwich" the largest setting, then
        the smallest and one drawn evenly from those between, with equal weights. Weights sum to 1.

    Source: algorithm 2 and section 4.2 of the paper.
    """
    settings, draws = recipe.settings, recipe.draws
    if recipe.sampling == "weighted":
        return tuple(Term(steps, weight) for steps, weight in zip(settings, draws, strict=True))
    # The last number keeps this stream apart from those of the data, which have three.
    generator = iteration_generator(recipe.seed, iteration, 0, 1)
    if recipe.sampling == "sandwich":
        between = settings[1:-1]
        middle = [between[int(torch.randint(len(between), (), generator=generator))]] if between else []
        smaller = [settings[0], *middle]
        weight = 1 / (1 + len(smaller))
        return (Term(settings[-1], weight), *(Term(steps, weight, distilled=True) for steps in smaller))
    count = cells if recipe.sampling == "per-cell" else 1
    drawn = torch.multinomial(torch.tensor(draws, dtype=torch.float64), count, replacement=True, generator=generator)
    counts = tuple(settings[int(index)] for index in drawn)
    return (Term(counts if recipe.sampling == "per-cell" else counts[0], 1.0),)


def accumulate_gradients(
    plan: Plan,
    task: Task,
    network: Network,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> torch.Tensor:
    """Forward and backward of each term in turn, so that only one graph is held at a time.

    Parameters that no term uses keep ``grad`` None.

    Args:
        plan: what ``draw_plan`` returned.
        task: its loss and distance.
        network: in train mode, its gradients None.
        inputs: [B, C, H, W].
        targets: labels [B], or clean images.
        autocast: makes the context of each forward pass; losses are taken in float32.

    Returns:
        The loss of the iteration, the weighted sum over the terms, a scalar, detached.
    """
    total = torch.zeros((), device=inputs.device)
    teacher = None
    for term in plan:
        with autocast():
            outputs = task.run(network, inputs, term.steps)
        outputs = outputs.float()
        if term.distilled:
            assert teacher is not None
            loss = task.distance(outputs, teacher)
        else:
            loss = task.loss(outputs, targets)
            teacher = outputs.detach()
        (term.weight * loss).backward()  # type: ignore[no-untyped-call]
        total = total + term.weight * loss.detach()
    return total
