"""Several processes: Fabric's set-up, averaged gradients, batch norm over all ranks."""

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_functional
from lightning.fabric import Fabric
from torch import nn

from recurconv.recipes import Recipe


def make_fabric(device: str, precision: str) -> Fabric:
    """A launched Fabric for one CPU, one GPU, or what ``torchrun`` started.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:N".
        precision: "auto", "fp32" or "bf16"; "auto" is bf16 where the hardware multiplies in it.

    Raises:
        ValueError: there is no such device.
    """
    accelerator, _, index = device.partition(":")
    if accelerator not in ("auto", "cpu", "cuda") or (index and not index.isdigit()):
        raise ValueError(f"device={device!r} is not known; choose auto, cpu, cuda or cuda:N")
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}: PyTorch sees no CUDA device here; choose cpu")
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    wanted: Any = [int(index)] if index else ranks
    fabric = Fabric(
        accelerator=accelerator,
        devices=wanted,
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else "auto",
        precision="bf16-mixed" if wants_bf16(precision, accelerator) else "32-true",
    )
    fabric.launch()
    return fabric


def wants_bf16(precision: str, accelerator: str) -> bool:
    """Whether to run in bf16. On a CPU without instructions for it, bf16 is emulated and many times slower."""
    if precision != "auto":
        return precision == "bf16"
    if accelerator == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def precision_of(recipe: Recipe, fabric: Fabric) -> str:
    """ "bf16" or "fp32": what "auto" came to."""
    return "bf16" if wants_bf16(recipe.precision, fabric.device.type) else "fp32"


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """Replace each gradient by its mean over the ranks, in one message.

    All ranks draw the same settings, so the same parameters have gradients everywhere; groups that an iteration does
    not use have None on every rank and stay untouched. (DistributedDataParallel would need a search for unused
    parameters for this, and refuses several backward passes in an iteration.)
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if dist.is_initialized() and dist.get_world_size() > 1 and gradients:
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        means = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))


class CrossRankBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose statistics are those of all ranks' batches: ``nn.SyncBatchNorm`` for any device.

    PyTorch's own takes CUDA tensors only. All ranks must have batches of one size.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> the same shape."""
        if not self.training or not dist.is_initialized():
            return super().forward(x)
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
        return out if self.bias is None else out + self.bias.view(1, -1, 1, 1)


def _mean_over_ranks(x: torch.Tensor) -> torch.Tensor:
    """The mean over all ranks; gradients flow through it, to every rank."""
    return dist_functional.all_reduce(x) / dist.get_world_size()  # type: ignore[no-untyped-call, no-any-return]


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
