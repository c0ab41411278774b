"""The demo: a noisy picture made clean at every setting of the shipped denoiser."""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from recurconv import costs, loading
from recurconv.checkpoint import write_atomically
from recurconv.data.augment import iteration_generator
from recurconv.data.denoising import psnr
from recurconv.data.pictures import sample_picture

MODEL = "r3-gray25"
SIGMA = 25.0


@dataclass(frozen=True)
class Shown:
    """One picture of the demo; ``steps`` 0 is the noisy one."""

    steps: int
    macs: float
    milliseconds: float
    psnr: float
    image: torch.Tensor


def denoise_sample(runs: int = 3) -> tuple[torch.Tensor, list[Shown]]:
    """Denoise the sample picture at every setting.

    Args:
        runs: timed calls at each setting; the median counts.

    Returns:
        The clean picture [H, W] in [0, 1], and the noisy one followed by the result at each setting.
    """
    network = loading.load(MODEL)
    clean = torch.from_numpy(sample_picture()).float().div(255)
    noise = torch.randn(clean.shape, generator=iteration_generator(0))
    noisy = clean + SIGMA / 255 * noise
    shown = [Shown(0, 0.0, 0.0, _psnr(clean, noisy), noisy)]
    spent = {row.steps: row.macs for row in costs.cost(network, (1, *clean.shape))}
    with torch.inference_mode():
        network(noisy[None, None], network.dial[-1])  # the first call sets things up
        for steps in network.dial:
            times = []
            for _ in range(runs):
                start = time.perf_counter()
                result = network(noisy[None, None], steps)[0, 0]
                times.append((time.perf_counter() - start) * 1000)
            shown.append(Shown(steps, spent[steps], median(times), _psnr(clean, result), result))
    return clean, shown


def _psnr(clean: torch.Tensor, image: torch.Tensor) -> float:
    return float(psnr(clean[None, None], image[None, None]))


def draw(clean: torch.Tensor, shown: list[Shown], out: Path) -> None:
    """Write one figure: the noisy picture, each setting, the clean one.

    Args:
        clean: [H, W] in [0, 1].
        shown: what ``denoise_sample`` gives.
        out: the PNG or SVG to write.
    """
    from matplotlib.figure import Figure

    panels = [
        *((f"noisy, sigma {SIGMA:.0f}: {s.psnr:.2f} dB" if s.steps == 0 else _title(s), s.image) for s in shown),
        ("clean", clean),
    ]
    columns = 3
    rows = -(-len(panels) // columns)
    height, width = clean.shape
    figure = Figure(figsize=(4 * columns, (4 * height / width + 0.35) * rows), layout="constrained")
    for axes, (title, image) in zip(figure.subplots(rows, columns).flat, panels, strict=False):
        axes.imshow(image.clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, fontsize=11)
    for axes in figure.axes:
        axes.set_axis_off()
    kind = out.suffix.lstrip(".") or "png"
    write_atomically(out, lambda path: figure.savefig(path, dpi=120, format=kind))


def _title(shown: Shown) -> str:
    return f"{shown.steps} step{'s' if shown.steps > 1 else ''}: {shown.psnr:.2f} dB, {shown.milliseconds:.0f} ms"
