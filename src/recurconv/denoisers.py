"""Denoisers beyond the paper: R_3 at half resolution, for any noise level, gray or colour."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from recurconv.cell import as_dial, default_norm
from recurconv.network import Cell, builder, check_count
from recurconv.networks import Denoiser, ResidualBody, recurrent_cells
from recurconv.usage import NormUsage

LARGEST_SIGMA = 55.0  # that the noise level is scaled by, in 1/255
START = 0.1  # of the usual scale: where the last convolution of a body and the tail start


class HalfResolutionDenoiser(Denoiser):
    """Three residual cells on 2x2 pixels at a time, told the noise level.

    2x2 pixels become channels (space-to-depth), so that a convolution costs a quarter for each channel and sees twice
    as far; a last channel holds the noise level. 3x3 head -> three recurrent cells of pre-activation residual bodies
    -> 3x3 tail and depth-to-space, which predict what to add to the noisy image. Images of odd size are extended by
    repeating their last row or column.

    Source: the half resolution and the noise level map are FFDNet's (Zhang et al., 2018), the cells the paper's.
    """

    alignment = 2
    takes_sigma = True

    def __init__(self, cells: Sequence[Cell], channels: int, image_channels: int) -> None:
        super().__init__(cells, channels, image_channels)
        self.head = nn.Conv2d(4 * image_channels + 1, channels, 3, padding=1)
        self.tail = nn.Conv2d(channels, 4 * image_channels, 3, padding=1)
        _start_low(self.tail)

    def forward(
        self,
        images: torch.Tensor,
        steps: int | Sequence[int] | None = None,
        sigma: float | torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run the network at one setting.

        Args:
            images: noisy, float [B, C, H, W] in [0, 1].
            steps: a count on the dial, by default the largest; or one count per cell.
            sigma: standard deviation of the noise in 1/255, one number or [B]; None, or a negative one, where it is
                unknown.

        Returns:
            The estimate of the clean images, [B, C, H, W], not clipped.

        Raises:
            ValueError: as for every network; or ``sigma`` of another shape.
        """
        counts = self.counts(steps)
        self._check(images)
        if sigma is None:  # made on the device: a copy from the host cannot be recorded in a CUDA graph
            level = images.new_full((), -1.0)
        else:
            level = torch.as_tensor(sigma, dtype=images.dtype, device=images.device)
        if level.ndim > 1 or level.numel() not in (1, images.shape[0]):
            count = images.shape[0]  # not len(images), which torch.export takes for a constant
            raise ValueError(f"sigma has shape {list(level.shape)}; give one number, or one for each of {count}")
        # Unknown is -1, well apart from the known levels, which lie in [0, 1].
        level = torch.where(level < 0, -1.0, level / LARGEST_SIGMA).reshape(-1, 1, 1, 1)
        return self.remove(self.normalize(images), level, counts)

    def remove(self, x: torch.Tensor, level: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Noisy images [B, C, H, W] and scaled noise levels [B or 1, 1, 1, 1] -> the estimate of the clean ones."""
        height, width = x.shape[-2:]
        x = F.pad(x, (0, width % 2, 0, height % 2), mode="replicate")
        h = F.pixel_unshuffle(x, 2)
        h = self.head(torch.cat([h, level.expand(h.shape[0], 1, *h.shape[-2:])], 1))
        h = self.cell1(h, counts[0])
        h = self.cell2(h, counts[1], row=counts[0])
        h = self.cell3(h, counts[2], row=counts[1])
        return (x + F.pixel_shuffle(self.tail(h), 2))[..., :height, :width]

    def unroll(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """As ``remove``, for an unknown noise level."""
        return self.remove(x, x.new_full((1, 1, 1, 1), -1.0), counts)

    def reach(self, steps: int | None = None) -> int:
        """How far an output pixel sees: pixels on each side of it that it depends on, at one setting.

        Raises:
            ValueError: ``steps`` is off the dial.
        """
        # Two 3x3 convolutions in a step, one in head and tail, at half resolution; and the other pixel of the 2x2.
        return 2 * (2 + 2 * sum(self.counts(steps))) + 1


@builder
def r3_half(
    steps: int | Sequence[int] = (1, 2, 3, 4),
    norm: NormUsage | None = None,
    channels: int = 64,
    image_channels: int = 1,
    *,
    unified: bool = True,
) -> HalfResolutionDenoiser:
    """R_3 at half resolution, with residual bodies and a noise level: half the cost of R_3 and better.

    Arguments as in ``recurconv.r3``.
    """
    check_count("channels", channels, "a whole number of at least 1")
    dial = as_dial(steps)
    norm = default_norm(norm, dial)
    bodies = [ResidualBody(channels, bias=norm == "none") for _ in range(3)]
    for body in bodies:
        _start_low(body.conv2)
    return HalfResolutionDenoiser(recurrent_cells(bodies, dial, norm, unified), channels, image_channels)


def _start_low(convolution: nn.Conv2d) -> None:
    """Let training start near the identity: without this, sums over the steps of a residual body grow too large."""
    with torch.no_grad():
        convolution.weight.mul_(START)
