"""What the report's figures need of a trained network, reduced to small arrays that fit a JSON.

The report runs without PyTorch, so that it cannot look into a network; a finished run of ``recurconv reproduce`` keeps
these beside its numbers. Pictures are PNG files in base64.
"""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recurconv.cell import RecurrentCell
from recurconv.data.augment import iteration_generator
from recurconv.data.denoising import psnr
from recurconv.data.pictures import sample_picture
from recurconv.network import Network
from recurconv.networks import Denoiser, FourCellClassifier, TwoCellClassifier
from recurconv.recipes import Recipe
from recurconv.tasks import TASKS

DETAIL = (slice(64, 160), slice(150, 278))  # rows and columns of the sample picture that the figure shows
IMAGES, CHANNELS = 3, 3  # that the figure of feature maps shows
DIGITS = 4  # significant ones of a norm variable

# The variables of a norm layer, by their names in the paper's section 3.2 (mu, sigma squared, gamma, beta).
VARIABLES = {"mean": "running_mean", "variance": "running_var", "scale": "weight", "shift": "bias"}


def extras_for(recipe: Recipe, network: Network, data: Path) -> dict[str, Any]:
    """What the figures show of this network; {} where none shows any. Under 100 kB as JSON.

    Args:
        recipe: what the network was trained by.
        network: trained; it comes back in the mode it was in.
        data: where the recipe's data is; a denoiser does without, it is shown on the package's sample picture.

    Returns:
        Under these keys, each where the network has it:

        - ``norm_over_steps`` (figure 2 of the paper), of a classifier whose C_1 has a norm group for each step:
          ``mean``, ``variance``, ``scale`` and ``shift`` of C_1's first norm layer at the largest setting, a list of
          one number per channel for each of ``steps``.
        - ``norm_by_steps`` (figure 3), of an R_4 with a dial and double norm: the same of T_2's first norm layer, for
          each step count of C_1 in ``steps``.
        - ``denoised`` (figure 4), of a denoiser: a detail of the sample picture, ``clean``, ``noisy`` and for each of
          ``settings`` an ``image``, with the PSNR in dB of the whole picture.
        - ``features`` (figure 6), of a classifier with recurrent cells: for some test images, the maps at the end of
          each step of C_2 (and C_3 of an R_4) at the largest setting, of the channels with the largest mean at the end.

    Raises:
        ValueError, FileNotFoundError: the data cannot be read.
    """
    mode = network.training
    network.eval()
    try:
        with torch.inference_mode():
            if isinstance(network, Denoiser):
                return {"denoised": _denoised(network, recipe.sigma)}
            return {**_norms(network), **_features(recipe, network, data)}
    finally:
        network.train(mode)


def _norms(network: Network) -> dict[str, Any]:
    found: dict[str, Any] = {}
    first, steps = network.cells()[0], network.dial[-1]
    if isinstance(first, RecurrentCell) and first.bank.norm in ("independent", "double"):
        groups = [first.bank[steps, step] for step in range(steps)]
        found["norm_over_steps"] = {"steps": [*range(1, steps + 1)], **_variables(groups)}
    if isinstance(network, FourCellClassifier) and network.transition2.bank.norm == "double":
        groups = [network.transition2.bank[row, 0] for row in network.dial]
        found["norm_by_steps"] = {"steps": list(network.dial), **_variables(groups)}
    return found


def _variables(groups: list[nn.Module]) -> dict[str, list[list[float]]]:
    """Each variable of the first norm layer of each group."""
    layers = [next(group.children()) for group in groups]
    return {
        name: [[float(f"{v:.{DIGITS}g}") for v in getattr(layer, own).tolist()] for layer in layers]
        for name, own in VARIABLES.items()
    }


def _denoised(network: Denoiser, sigma: float) -> dict[str, Any]:
    """The sample picture with seeded noise, denoised at every setting."""
    device = next(network.parameters()).device
    clean = torch.from_numpy(sample_picture()).float().div(255)
    noisy = clean + sigma / 255 * torch.randn(clean.shape, generator=iteration_generator(0))
    settings = {}
    for steps in network.dial:
        image = network(noisy[None, None].to(device), steps)[0, 0].float().cpu()
        settings[str(steps)] = {"psnr": _psnr(clean, image), "image": _gray_png(image[DETAIL])}
    return {
        "sigma": sigma,
        "clean": _gray_png(clean[DETAIL]),
        "noisy": _gray_png(noisy[DETAIL]),
        "noisy_psnr": _psnr(clean, noisy),
        "settings": settings,
    }


def _psnr(clean: torch.Tensor, image: torch.Tensor) -> float | None:
    value = round(float(psnr(clean[None, None], image[None, None])), 3)
    return value if abs(value) < float("inf") else None


def _features(recipe: Recipe, network: Network, data: Path) -> dict[str, Any]:
    """Feature maps of a network with recurrent cells, over the steps of C_2 and C_3."""
    if not isinstance(network, TwoCellClassifier | FourCellClassifier):
        return {}
    cells = [cell for cell in network.cells()[1:3] if isinstance(cell, RecurrentCell)]
    if not cells:
        return {}
    images = _some_images(recipe, data, next(network.parameters()).device)
    maps = {f"C_{number}": _recorded(cell.body) for number, cell in enumerate(cells, 2)}
    network(images)
    shown = []
    for number, image in enumerate(images):
        row: dict[str, Any] = {"image": _colour_png(image)}
        for name, finish in maps.items():
            row[name] = _most_active([step[number] for step in finish()])
        shown.append(row)
    return {"features": {"steps": network.dial[-1], "images": shown}}


def _recorded(body: nn.Module) -> Callable[[], list[torch.Tensor]]:
    """Watch what a cell's body returns at each step of the next call; the function returned gives it."""
    seen: list[torch.Tensor] = []
    handle = body.register_forward_hook(lambda body, args, output: seen.append(output.float().cpu()))

    def finish() -> list[torch.Tensor]:
        handle.remove()
        return seen

    return finish


def _some_images(recipe: Recipe, data: Path, device: torch.device) -> torch.Tensor:
    """A few test images, float [B, 3, H, W] in [0, 1], the same ones for every network."""
    task = TASKS[recipe.task](recipe, data, "test", device)
    images, _ = next(iter(task.set.evaluation_batches(250, device=device)))  # type: ignore[attr-defined]
    chosen = torch.randperm(len(images), generator=iteration_generator(0))[:IMAGES]
    return images[chosen.to(images.device)]  # type: ignore[no-any-return]


def _most_active(steps: list[torch.Tensor]) -> dict[str, Any]:
    """[C, H, W] after each step -> the channels with the largest mean at the end, and their maps as one picture.

    In the picture a row is a channel and a column a step; a row's smallest value is black and its largest white. After
    pooling within the cell, maps are shown as large as those before.
    """
    channels = steps[-1].mean((1, 2)).topk(min(CHANNELS, len(steps[-1]))).indices
    height, width = steps[0].shape[1:]
    maps = torch.stack([_enlarged(step[channels], height, width) for step in steps])  # [steps, channels, H, W]
    low, high = maps.amin((0, 2, 3), keepdim=True), maps.amax((0, 2, 3), keepdim=True)
    maps = (maps - low) / (high - low).clamp_min(torch.finfo(torch.float32).tiny)
    picture = maps.permute(1, 2, 0, 3).reshape(len(channels) * height, len(steps) * width)
    return {"channels": channels.tolist(), "maps": _gray_png(picture)}


def _enlarged(maps: torch.Tensor, height: int, width: int) -> torch.Tensor:
    return nn.functional.interpolate(maps[None], (height, width), mode="nearest")[0]


def _gray_png(image: torch.Tensor) -> str:
    """Float [H, W], clipped to [0, 1] -> a PNG file in base64."""
    return _png(image.clamp(0, 1).mul(255).round().byte())


def _colour_png(image: torch.Tensor) -> str:
    """Float [3, H, W] in [0, 1] -> a PNG file in base64."""
    return _png(image.cpu().permute(1, 2, 0).mul(255).round().byte())


def _png(pixels: torch.Tensor) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels.contiguous().numpy()).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
