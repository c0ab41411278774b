"""Colour noise that is coarser than a pixel, as in most JPEG photographs: they hold colour at half the size."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from recurconv.networks import Denoiser

LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in brightness: ITU-R BT.601, which JPEG takes
LUMA_NOISE = math.sqrt(sum(weight**2 for weight in LUMA))  # of brightness, where each channel has noise of 1


class CoarseColour(nn.Module):
    """A colour denoiser of two: a gray one for brightness, a colour one for the colour at half the size.

    Networks for colour pictures know noise that differs from pixel to pixel and from channel to channel. Where colour
    was stored at half the size, its noise is blotches of 2x2 pixels, which they take for the picture. At half the size
    it is noise of single pixels again, and brightness has it at full size.

    It is called as a ``Denoiser`` is, and has what tiles need of one.

    Args:
        gray, color: denoisers of 1 and of 3 channels that take the noise level, with one dial.
    """

    image_channels = 3
    takes_sigma = True

    def __init__(self, gray: Denoiser, color: Denoiser) -> None:
        super().__init__()
        self.gray, self.color = gray, color
        self.dial = gray.dial
        self.alignment = 2 * math.lcm(gray.alignment, color.alignment)

    def setting(self, steps: int | None) -> int:
        """``steps`` on the dial; the largest for None. ValueError where it is not on it."""
        return self.gray.setting(steps)

    def reach(self, steps: int | None = None) -> int:
        """Pixels on each side of an output pixel that it depends on."""
        # Of the small picture one pixel more, between which is interpolated; and the other pixel of the 2x2.
        return max(self.gray.reach(steps), 2 * (self.color.reach(steps) + 1) + 1)

    def forward(self, images: torch.Tensor, steps: int | None = None, sigma: float | None = None) -> torch.Tensor:
        """Run both networks at one setting.

        Args:
            images: noisy, float [B, 3, H, W] in [0, 1].
            steps: a count on the dial, by default the largest.
            sigma: of the noise in red, green and blue before colour was made small, in 1/255; None: unknown.

        Returns:
            The estimate of the clean images, [B, 3, H, W], not clipped.
        """
        height, width = images.shape[-2:]
        small = F.avg_pool2d(F.pad(images, (0, width % 2, 0, height % 2), mode="replicate"), 2)
        small = self.color(small, steps, sigma=None if sigma is None else sigma / 2)  # the mean of four has half of it
        colour = F.interpolate(small - luma(small), scale_factor=2, mode="bilinear")[..., :height, :width]
        brightness = self.gray(luma(images), steps, sigma=None if sigma is None else sigma * LUMA_NOISE)
        return brightness + colour  # type: ignore[no-any-return]


def luma(images: torch.Tensor) -> torch.Tensor:
    """Brightness, [B, 1, H, W], of images [B, 3, H, W]."""
    weights = torch.tensor(LUMA, dtype=images.dtype, device=images.device)
    return (images * weights.reshape(3, 1, 1)).sum(1, keepdim=True)
