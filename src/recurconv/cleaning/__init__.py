"""Make noisy pictures clean: arrays and tensors here, files by ``recurconv denoise``."""

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from recurconv.cleaning.cleaner import Cleaned, Cleaner, Sigma
from recurconv.cleaning.tiles import SIDE
from recurconv.network import Network

__all__ = ["Cleaned", "Cleaner", "denoise"]

Image = TypeVar("Image", NDArray[Any], torch.Tensor)


def denoise(
    image: Image,
    sigma: Sigma = "auto",
    steps: int | None = None,
    model: str | Path | Network | None = None,
    *,
    milliseconds: float | None = None,
    tile: int = SIDE,
) -> Image:
    """Make a noisy picture clean.

    It may have any size: it goes through the network in tiles that see as much of their surroundings as the network
    does, so that the result is that of the whole picture at once.

    Args:
        image: NumPy [H, W] or [H, W, 3], uint8, uint16, or float with black at 0 and white at 1; or a tensor
            [B, C, H, W] of 1 or 3 channels, on any device, whose images are taken one by one.
        sigma: standard deviation of the noise, 0 to 55 in 1/255 of white; "auto" estimates it. At 0, or where an
            estimate finds less than 1, the picture comes back as it is; so does one of less than 8 pixels a side,
            which is too small for an estimate.
        steps: a setting on the network's dial, from fast to good; by default the largest.
        model: a denoiser, or what ``recurconv.load`` takes. A gray one takes the channels of a colour picture one by
            one. By default "denoise-gray" or "denoise-color", and both where the noise of a colour picture is coarse in
            colour, as in JPEG photographs.
        milliseconds: instead of ``steps`` a budget for the network's time for each picture, measured on a part of it.
        tile: largest height and width of a tile, in pixels, without its surroundings.

    Returns:
        A new picture of the same kind, shape, dtype and device; float clipped to [0, 1], integers rounded to nearest.

    Raises:
        ValueError: an image of another shape or dtype, or float far from [0, 1]; an argument out of its range; no
            setting fits the budget.
        FileNotFoundError: there is no such model.
        ImportError: sigma is "auto", and scikit-image is not installed.
    """
    device = image.device if isinstance(image, torch.Tensor) else "cpu"
    cleaner = Cleaner(model, sigma=sigma, steps=steps, milliseconds=milliseconds, tile=tile, device=device)
    if not isinstance(image, torch.Tensor):
        return cleaner.clean(np.asarray(image)).pixels
    if image.ndim != 4 or image.shape[1] not in (1, 3) or not image.numel():
        raise ValueError(f"the tensor has shape {list(image.shape)}; give [B, C, H, W] with 1 or 3 channels")
    return torch.stack([_clean(cleaner, planes) for planes in image])


def _clean(cleaner: Cleaner, planes: torch.Tensor) -> torch.Tensor:
    """One image [C, H, W]."""
    # NumPy has no bfloat16; float32 holds each of its values.
    known = planes.detach().float() if planes.dtype == torch.bfloat16 else planes.detach()
    pixels = known.permute(1, 2, 0).cpu().numpy()
    clean = cleaner.clean(pixels[..., 0] if len(planes) == 1 else pixels).pixels
    return torch.from_numpy(clean.reshape(pixels.shape)).permute(2, 0, 1).to(planes.device, planes.dtype)
