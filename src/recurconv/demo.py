"""The demo: a noisy picture made clean at every setting of the shipped denoiser."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from recurconv import costs, loading
from recurconv.data.augment import iteration_generator
from recurconv.data.denoising import psnr
from recurconv.data.pictures import sample_picture
from recurconv.files import write_atomically
from recurconv.network import Network

MODEL = "denoise-gray"
SIGMA = 25.0  # of the noise, in 1/255
PATIENCE = 2.0  # seconds of timed calls, after which no other round starts
FORMATS = (".png", ".svg", ".pdf")  # of the figure

# The detail of the sample picture that the figure enlarges: rows and columns of a face and a camera.
DETAIL = (slice(74, 138), slice(150, 246))
ENLARGED = 4

# The layout of the figure, in pixels at 100 dots per inch. Every pixel of a picture is a whole number of them.
COLUMNS, GAP, TITLE, DOTS = 3, 12, 34, 100


@dataclass(frozen=True)
class Denoised:
    """What one setting makes of the noisy picture.

    ``macs`` and ``milliseconds`` are for the whole picture, ``psnr`` is in dB, ``image`` [H, W], not clipped.
    """

    steps: int
    macs: int
    milliseconds: float
    psnr: float
    image: torch.Tensor


@dataclass(frozen=True)
class Demonstration:
    """The sample picture, clean and noisy, float [H, W], and what each setting makes of it."""

    clean: torch.Tensor
    noisy: torch.Tensor
    noisy_psnr: float
    settings: tuple[Denoised, ...]


def check_figure(out: Path) -> None:
    """Complain of a figure that cannot be written, before the work is done.

    Raises:
        ValueError: another format than PNG, SVG or PDF, or a folder.
    """
    if out.suffix.lower() not in FORMATS:
        raise ValueError(f"{out} is to be the figure; give it a name that ends in {', '.join(FORMATS)}")
    if out.is_dir():
        raise ValueError(f"{out} is a folder; give the name of the figure in it")


def denoise_sample(runs: int = 3, say: Callable[[str], object] = lambda progress: None) -> Demonstration:
    """Denoise the sample picture at every setting.

    Args:
        runs: timed calls at each setting, fewer on a slow machine; the median counts.
        say: told what is being done.
    """
    network = loading.load(MODEL)
    clean = torch.from_numpy(sample_picture()).float().div(255)
    noisy = clean + SIGMA / 255 * torch.randn(clean.shape, generator=iteration_generator(0))
    spent = {row.steps: row.macs for row in costs.cost(network, (1, *clean.shape))}
    say(f"denoising at {len(network.dial)} settings")
    images, times = _timed(network, noisy, runs)
    settings = [
        Denoised(steps, spent[steps], median(times[steps]), _psnr(clean, image), image)
        for steps, image in images.items()
    ]
    return Demonstration(clean, noisy, _psnr(clean, noisy), tuple(settings))


def _timed(network: Network, noisy: torch.Tensor, runs: int) -> tuple[dict[int, torch.Tensor], dict[int, list[float]]]:
    """The result at each setting, and its times in milliseconds. In turn, so that other load hits all settings."""
    images: dict[int, torch.Tensor] = {}
    times: dict[int, list[float]] = {steps: [] for steps in network.dial}
    with torch.inference_mode():
        network(noisy[None, None], network.dial[0], sigma=SIGMA)  # the first call sets things up
        began = time.perf_counter()
        for done in range(runs):
            if done and time.perf_counter() - began > PATIENCE:
                break
            for steps in network.dial:
                start = time.perf_counter()
                images[steps] = network(noisy[None, None], steps, sigma=SIGMA)[0, 0]
                times[steps].append((time.perf_counter() - start) * 1000)
    return images, times


def _psnr(clean: torch.Tensor, image: torch.Tensor) -> float:
    return float(psnr(clean[None, None], image[None, None]))


def draw(shown: Demonstration, out: Path) -> None:
    """Write one figure: the noisy picture, each setting, the clean one; below each a detail, enlarged.

    Args:
        shown: what ``denoise_sample`` gives.
        out: the PNG, SVG or PDF to write; folders on the way are made.

    Raises:
        ValueError: as for ``check_figure``.
        OSError: it cannot be written.
    """
    check_figure(out)
    from matplotlib.figure import Figure

    panels = [
        (f"noisy: {shown.noisy_psnr:.2f} dB", shown.noisy),
        *((_title(setting), setting.image) for setting in shown.settings),
        ("clean", shown.clean),
    ]
    height, width = shown.clean.shape
    enlarged = ENLARGED * (DETAIL[0].stop - DETAIL[0].start)
    panel = TITLE + height + GAP // 2 + enlarged + GAP
    size = (COLUMNS * (width + GAP) + GAP, -(-len(panels) // COLUMNS) * panel + GAP)
    figure = Figure(figsize=(size[0] / DOTS, size[1] / DOTS), dpi=DOTS, facecolor="white")
    for number, (title, image) in enumerate(panels):
        row, column = divmod(number, COLUMNS)
        left, top = GAP + column * (width + GAP), GAP + row * panel + TITLE
        whole = _place(figure, image, left, top, height)
        whole.set_title(title, fontsize=14, pad=7)
        _frame(whole)
        _place(figure, image[DETAIL], left, top + height + GAP // 2, enlarged)
    try:
        write_atomically(out, lambda path: figure.savefig(path, dpi=DOTS, format=out.suffix[1:].lower()))
    except OSError as error:  # which may name a temporary file
        raise OSError(f"{out} cannot be written: {error.strerror or error}") from None


def _place(figure: Any, image: torch.Tensor, left: int, top: int, height: int) -> Any:
    """Draw a picture at whole pixels of the figure, which no layout engine does, so that noise looks as it is."""
    width = height * image.shape[1] // image.shape[0]
    total = figure.get_size_inches() * DOTS
    axes = figure.add_axes((left / total[0], 1 - (top + height) / total[1], width / total[0], height / total[1]))
    axes.imshow(image.clamp(0, 1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    axes.set_axis_off()
    return axes


def _frame(axes: Any) -> None:
    """Mark the detail, black and white so that it is seen on bright and on dark ground."""
    from matplotlib.patches import Rectangle

    rows, columns = DETAIL
    for color, line in (("black", 3.0), ("white", 1.2)):
        corner, extent = (columns.start - 0.5, rows.start - 0.5), (columns.stop - columns.start, rows.stop - rows.start)
        axes.add_patch(Rectangle(corner, *extent, fill=False, edgecolor=color, linewidth=line))


def _title(setting: Denoised) -> str:
    count = f"{setting.steps} step{'s' if setting.steps > 1 else ''}"
    return f"{count}: {setting.psnr:.2f} dB, {setting.milliseconds:.0f} ms"
