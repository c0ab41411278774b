"""The update: parameter groups, and the rate over a run (section 3.3 of the paper)."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from recurconv.network import Network
from recurconv.recipes import Recipe


def make_optimizer(recipe: Recipe, network: Network) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, or Adam; shared kernels learn at ``shared_ratio`` times the rate.

    A parameter without a gradient is left as it is, weight decay and momentum included.

    Source: section 3.3 of the paper; the ratio there is 0.5.
    """
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
    sgd = torch.optim.SGD(
        groups, momentum=recipe.momentum, nesterov=nesterov, weight_decay=recipe.weight_decay, fused=fused
    )
    _fill_momentum(sgd)
    return sgd


def restore_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take up a state that ``state_dict`` gave, from this or another kind of device."""
    pairs = zip(state["param_groups"], optimizer.param_groups, strict=True)
    groups = [{**then, "fused": now["fused"]} for then, now in pairs]
    optimizer.load_state_dict({**state, "param_groups": groups})
    if isinstance(optimizer, torch.optim.SGD):
        _fill_momentum(optimizer)


def _fill_momentum(sgd: torch.optim.SGD) -> None:
    """Give each parameter without a momentum buffer one of zeros, which comes to the same as none.

    PyTorch makes a buffer at a parameter's first gradient. Its fused SGD fails where only some parameters have one, as
    here, where a norm group waits for the first iteration that uses it.
    """
    for group in sgd.param_groups:
        for parameter in group["params"] if group["momentum"] > 0 else ():
            sgd.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Give each parameter group ``factor`` times its own rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["rate"] * factor


def rate_factor(recipe: Recipe, iteration: int, iterations: int) -> float:
    """The rate's factor in (0, 1]: linear warm-up, then linear or cosine decay towards 0.

    Args:
        recipe: its ``warmup`` (a fraction of the iterations) and ``decay``.
        iteration: from 0 to iterations - 1.
        iterations: of the whole run.
    """
    warmup = round(recipe.warmup * iterations)
    if iteration < warmup:
        return (iteration + 1) / (warmup + 1)
    left = (iterations - iteration) / (iterations - warmup)
    return left if recipe.decay == "linear" else (1 - math.cos(math.pi * left)) / 2
