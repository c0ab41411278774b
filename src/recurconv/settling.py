"""Norm statistics of a trained network, taken anew at every setting."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def settle_norms(
    net: nn.Module,
    batches: Iterable[torch.Tensor | Sequence[Any]],
    *,
    call: Callable[[torch.Tensor, int], object] | None = None,
) -> None:
    """Take the running statistics of every batch norm anew, for the weights as they are, at every setting.

    The averages of training lag behind the weights, most where batches are small and a setting is seldom drawn, and
    each step multiplies the error. After the weights were averaged (``torch.optim.swa_utils``) they are needed, too:
    PyTorch's own ``update_bn`` runs the default setting alone and leaves the norm groups of all others without
    statistics. Compiled bodies run eagerly; each module is in its former mode afterwards.

    Args:
        net: a network with a dial; its weights are not changed.
        batches: images [B, C, H, W] on the device of ``net``, or tuples and lists that begin with them, such as
            (images, labels); the mean over the batches is taken.
        call: runs the network, ``call(images, steps)``; by default ``net(images, steps=steps)``.

    Raises:
        ValueError: no batches, or no dial; the statistics stay as they were.

    Source: Yu & Huang, *Universally Slimmable Networks and Improved Training Techniques*, 2019.
    """
    dial: tuple[int, ...] | None = getattr(net, "dial", None)
    if not dial:
        raise ValueError(f"{type(net).__name__} has no dial; give a network that has one, not what wraps it")
    run = call or (lambda images, steps: net(images, steps=steps))
    batches = iter(batches)
    first = list(itertools.islice(batches, 1))
    if not first:
        raise ValueError("there are no batches; give at least one")
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    before = [(norm.training, norm.momentum) for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
        norm.momentum = None  # the mean over all batches
    # Compiled bodies run as they are: a compilation for these few batches would break at a momentum of None.
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for batch in itertools.chain(first, batches):
                images = batch if isinstance(batch, torch.Tensor) else batch[0]
                for steps in dial:
                    run(images, steps)
    finally:
        for norm, (training, momentum) in zip(norms, before, strict=True):
            norm.train(training)
            norm.momentum = momentum
