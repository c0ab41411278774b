"""Several processes: Fabric's set-up, means over ranks, what all ranks do alike, batch norm over all ranks."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch import nn

from recurconv.devices import choose_device
from recurconv.recipes import Recipe

T = TypeVar("T")


def make_fabric(device: str, precision: str) -> Fabric:
    """A launched Fabric for one CPU, one GPU, or what ``torchrun`` started.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:N".
        precision: "auto", "fp32" or "bf16"; "auto" is bf16 where the hardware multiplies in it.

    Raises:
        ValueError: there is no such device.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    target = choose_device(device, processes)
    devices: Any = processes if target.index is None else [target.index]
    fabric = Fabric(
        accelerator=target.type,
        devices=devices,
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else "auto",
        precision="bf16-mixed" if wants_bf16(precision, target.type) else "32-true",
    )
    fabric.launch()
    return fabric


def wants_bf16(precision: str, accelerator: str) -> bool:
    """Whether to run in bf16. On a CPU without instructions for it, bf16 is emulated and many times slower."""
    if precision != "auto":
        return precision == "bf16"
    if accelerator == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def precision_of(recipe: Recipe, fabric: Fabric) -> str:
    """ "bf16" or "fp32": what "auto" came to."""
    return "bf16" if wants_bf16(recipe.precision, fabric.device.type) else "fp32"


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def on_all_ranks(action: Callable[[], T]) -> T:
    """Call ``action`` on every rank; where it fails on one, every rank raises, so that none waits for it.

    Raises:
        RuntimeError: it failed on another rank; the message tells which and why.
        Exception: what it raised on this one.
    """
    result: list[T] = []
    failure: Exception | None = None
    try:
        result.append(action())
    except Exception as error:  # whatever it is, the others must know
        failure = error
    reasons: list[str | None] = [None] * _ranks()
    if len(reasons) > 1:
        dist.all_gather_object(reasons, str(failure) if failure else None)
    if failure is not None:
        raise failure
    for rank, reason in enumerate(reasons):
        if reason is not None:
            raise RuntimeError(f"rank {rank} failed: {reason}")
    return result[0]


def on_any_rank(flag: bool, device: torch.device) -> bool:
    """Whether ``flag`` is true on one rank or more; the same answer on all of them."""
    if _ranks() == 1:
        return flag
    flags = torch.tensor(int(flag), device=device)
    dist.all_reduce(flags)
    return bool(flags)


def average_over_ranks(parameters: list[nn.Parameter], loss: torch.Tensor) -> torch.Tensor:
    """Replace each gradient by its mean over the ranks, in one message; return the mean of their losses.

    All ranks draw the same settings, so the same parameters have gradients everywhere; groups that an iteration does
    not use have None on every rank and stay untouched. (DistributedDataParallel would need a search for unused
    parameters for this, and refuses several backward passes in an iteration.)
    """
    if _ranks() == 1:
        return loss
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([loss.reshape(1), *(gradient.reshape(-1) for gradient in gradients)])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    mean_loss, *means = torch.split(flat, [1, *(gradient.numel() for gradient in gradients)])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view(gradient.shape))
    return mean_loss[0]


class CrossRankBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose statistics are those of all ranks' batches: ``nn.SyncBatchNorm`` for any device.

    PyTorch's own takes CUDA tensors only. All ranks must have batches of one size.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> the same shape."""
        if not self.training or not dist.is_initialized():
            return super().forward(x)
        dtype = x.dtype
        x = x.to(torch.promote_types(dtype, torch.float32))  # as PyTorch's own, under autocast to bf16, too
        count = x.numel() // x.shape[1] * dist.get_world_size()
        mean = _mean_over_ranks(x.mean((0, 2, 3)))
        centred = x - mean.view(1, -1, 1, 1)
        variance = _mean_over_ranks(centred.square().mean((0, 2, 3)))
        if self.track_running_stats:
            with torch.no_grad():
                assert self.num_batches_tracked is not None
                self.num_batches_tracked += 1
                rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean, rate)  # type: ignore[union-attr]
                self.running_var.lerp_(variance * count / (count - 1), rate)  # type: ignore[union-attr]
        scale = torch.rsqrt(variance + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        out = centred * scale.view(1, -1, 1, 1)
        return (out if self.bias is None else out + self.bias.view(1, -1, 1, 1)).to(dtype)


class _SumOverRanks(torch.autograd.Function):
    """The sum over all ranks; gradients flow through it, to every rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _SumOverRanks.forward(ctx, gradient)


def _mean_over_ranks(x: torch.Tensor) -> torch.Tensor:
    return _SumOverRanks.apply(x) / dist.get_world_size()  # type: ignore[no-any-return]


def synchronise_norms(network: nn.Module, device: torch.device) -> None:
    """Make the batch norms of ``network`` see the batches of all ranks; names and values of tensors stay."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    if device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]  # in place: the network itself is no norm
        return
    for module in network.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = CrossRankBatchNorm2d
