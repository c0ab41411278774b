"""The paper's figures, drawn from the results; readable in gray, a figure for each preset.

Each function takes the book and a preset and returns a Matplotlib figure, or None where what it shows was not run.
"""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recurconv.reporting.book import Book, paper_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A line's look tells what it is without colour: recurrent, standard, deeply supervised; the paper's are dashed, hollow.
LOOKS: dict[str, dict[str, Any]] = {
    "R": {"color": "black", "linestyle": "-", "marker": "o"},
    "S": {"color": "0.45", "linestyle": "-.", "marker": "s"},
    "deep": {"color": "0.25", "linestyle": ":", "marker": "^"},
}
SIGMAS = (15, 25, 50)
COUNTS = (1, 2, 3, 4)
ASIDE = {"R": -0.04, "S": 0.04}  # so that bars do not hide each other
NAMES = {"mean": "running mean μ", "variance": "running variance σ²", "scale": "scale γ", "shift": "shift β"}


@dataclass(frozen=True)
class Drawing:
    """A figure of the paper: its title, what it shows in a sentence, the cells that it needs, and how it is drawn."""

    title: str
    caption: str
    cells: tuple[str, ...]
    draw: "Callable[[Book, str], Figure | None]"


def norm_over_steps(book: Book, preset: str) -> "Figure | None":
    """Figure 2: the first norm layer of C_1 over steps."""
    found = _variables(book, "figure2/r2-4/cifar10", preset, "norm_over_steps")
    return found and _norm_panels(found, "unrolling step of $C_1$")


def norm_by_steps(book: Book, preset: str) -> "Figure | None":
    """Figure 3: the first norm layer of T_2 by the step count of C_1."""
    found = _variables(book, "figure3/r4-dial/cifar100", preset, "norm_by_steps")
    return found and _norm_panels(found, "steps of $C_1$")


def _norm_panels(found: Mapping[str, Any], counted: str) -> "Figure":
    """The four variables: a thin line for each channel, the mean over channels with a spread of one deviation."""
    import numpy as np

    figure, panels = _panels(1, 4, (11, 3.1))
    steps = found["steps"]
    for axes, (name, label) in zip(panels, NAMES.items(), strict=True):
        values = np.array(found[name])  # [steps, channels]
        axes.plot(steps, values, color="0.7", linewidth=0.5, zorder=1)
        axes.errorbar(
            steps,
            values.mean(1),
            values.std(1),
            color="black",
            marker="o",
            capsize=4,
            zorder=2,
            label="mean ± standard deviation over channels",
        )
        axes.set(xlabel=counted, ylabel=label, xticks=steps)
        axes.margins(x=0.12)
    figure.legend(handles=_channel_handles(panels[0]), loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _channel_handles(axes: "Axes") -> list[Any]:
    from matplotlib.lines import Line2D

    return [*axes.get_legend_handles_labels()[0], Line2D([], [], color="0.7", linewidth=0.5, label="a channel")]


def denoised(book: Book, preset: str) -> "Figure | None":
    """Figure 4: a detail of the sample picture, noisy, denoised at each setting, clean."""
    found = _variables(book, "figure4/r3-dial/sigma25", preset, "denoised")
    if not found:
        return None
    pictures = [(f"noisy, {_decibel(found['noisy_psnr'])}", found["noisy"])]
    for steps, one in found["settings"].items():
        pictures.append((f"{steps} step{'s' if steps != '1' else ''}, {_decibel(one['psnr'])}", one["image"]))
    pictures.append(("clean", found["clean"]))
    columns = -(-len(pictures) // 2)
    figure, panels = _panels(2, columns, (3 * columns, 5.2))
    for axes in panels:
        axes.set_axis_off()
    for axes, (title, picture) in zip(panels, pictures, strict=False):
        axes.imshow(_pixels(picture), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, fontsize=10)
    return figure


def _decibel(value: float | None) -> str:
    return "PSNR not finite" if value is None else f"{value:.2f} dB"


def psnr_by_count(book: Book, preset: str) -> "Figure | None":
    """Figure 5: PSNR of R_3^n and S_3^n at each noise level for which there is one."""
    lines = {(sigma, kind): _psnr_line(book, preset, kind, sigma) for sigma in SIGMAS for kind in "RS"}
    levels = [sigma for sigma in SIGMAS if lines[sigma, "R"] or lines[sigma, "S"]]
    if not levels:
        return None
    figure, panels = _panels(1, len(levels), (3.8 * len(levels), 3.4))
    for axes, sigma in zip(panels, levels, strict=True):
        for kind in "RS":
            if line := lines[sigma, kind]:
                counts, means, spreads = zip(*line, strict=True)
                places = [n + ASIDE[kind] for n in counts]
                axes.errorbar(places, means, spreads, capsize=3, label=f"${kind}_3^n$", **LOOKS[kind])
        if (value := paper_value(f"figure5/r3-4/sigma{sigma}", 4)) is not None and preset == "full":
            axes.plot([4], [value], label="$R_3^4$, paper", **_hollow("R"))
        axes.set(title=f"σ = {sigma}", xlabel="steps n", ylabel="PSNR on BSD68 (dB)", xticks=COUNTS, xlim=(0.7, 4.3))
        axes.legend(fontsize=8)
    return figure


def _psnr_line(book: Book, preset: str, kind: str, sigma: int) -> list[tuple[int, float, float]]:
    """(n, mean, spread) of each n that has a finite PSNR."""
    found = [(n, book.summary(f"figure5/{kind.lower()}3-{n}/sigma{sigma}", n, preset)) for n in COUNTS]
    return [(n, summary.mean, summary.spread or 0.0) for n, summary in found if summary.mean is not None]


def features(book: Book, preset: str) -> "Figure | None":
    """Figure 6: feature maps at the end of each step of C_2 and C_3."""
    found = _variables(book, "figure6/r4-dial/cifar100", preset, "features")
    if not found:
        return None
    images, steps = found["images"], found["steps"]
    cells = [name for name in ("C_2", "C_3") if name in images[0]]
    figure, panels = _panels(len(images), 1 + len(cells), (3.2 * (1 + len(cells)), 3.1 * len(images)))
    for number, axes in enumerate(panels):
        row, column = divmod(number, 1 + len(cells))
        shown = images[row]
        pixels = _pixels(shown["image"] if column == 0 else shown[cells[column - 1]]["maps"])
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        if column == 0:
            axes.set_title("test image", fontsize=10)
        else:
            _label_maps(axes, cells[column - 1], shown[cells[column - 1]]["channels"], steps, pixels.shape)
    return figure


def _label_maps(axes: "Axes", cell: str, channels: Sequence[int], steps: int, shape: tuple[int, ...]) -> None:
    """Steps below, channels beside, a white line between maps."""
    height, width = shape[0] / len(channels), shape[1] / steps
    axes.set_title(f"${cell}$", fontsize=10)
    axes.set_xticks([(step + 0.5) * width - 0.5 for step in range(steps)], [f"step {n}" for n in range(1, steps + 1)])
    axes.set_yticks([(row + 0.5) * height - 0.5 for row in range(len(channels))], [f"channel {c}" for c in channels])
    axes.tick_params(length=0, labelsize=8)
    for step in range(1, steps):
        axes.axvline(step * width - 0.5, color="white", linewidth=2)
    for row in range(1, len(channels)):
        axes.axhline(row * height - 0.5, color="white", linewidth=2)


def accuracy_by_flops(book: Book, preset: str) -> "Figure | None":
    """Figure 7: accuracy against FLOPs, both relative to the largest setting of the same kind of network.

    Beside deep supervision, which loses far more, R_4 and S_4^n are one line: they have a panel of their own, too.
    """
    curves = {kind: list(points(book, preset, places).values()) for kind, places in PLACES.items()}
    near = [kind for kind in ("R", "S") if curves[kind]]
    groups = [kinds for kinds in ([kind for kind in PLACES if curves[kind]], near if curves["deep"] else []) if kinds]
    if not groups:
        return None
    figure, panels = _panels(1, len(groups), (5.2 * len(groups), 4.2))
    for axes, kinds in zip(panels, groups, strict=True):
        for kind in ("R", "S") if preset == "full" else ():  # below our own
            printed = {n: paper_value(cell, n) for cell, n in PLACES[kind]}
            curve = list(_relative(book, preset, PLACES[kind], printed).values())
            axes.plot(*zip(*curve, strict=True), label=f"{LABELS[kind]}, paper", **_hollow(kind))
        for kind in kinds:
            axes.plot(*zip(*curves[kind], strict=True), label=LABELS[kind], **LOOKS[kind])
        axes.set(xlabel="relative FLOPs", ylabel="relative accuracy, CIFAR-100")
        axes.legend(fontsize=8)
    return figure


PLACES: dict[str, list[tuple[str, int]]] = {
    "R": [("figure7/r4-dial/cifar100", n) for n in (1, 2, 3)],
    "S": [(f"figure7/s4-{n}/cifar100", n) for n in (1, 2, 3)],
    "deep": [("figure7/s4-deep/cifar100", n) for n in (2, 3, 4)],
}
LABELS = {"R": "$R_4$, one network", "S": "$S_4^n$, a network for each n", "deep": "$S_4^3$, deeply supervised"}


def points(book: Book, preset: str, places: Sequence[tuple[str, int]]) -> dict[int, tuple[float, float]]:
    """By setting (relative FLOPs, relative accuracy); none where the largest, to which they relate, was not run."""
    return _relative(book, preset, places, {n: book.summary(cell, n, preset).mean for cell, n in places})


def _relative(
    book: Book, preset: str, places: Sequence[tuple[str, int]], errors: Mapping[int, float | None]
) -> dict[int, tuple[float, float]]:
    """From errors in % by setting; MACs as the code counts them."""
    macs = {n: book.macs(cell, n, preset) for cell, n in places}
    _, largest = places[-1]
    full = errors[largest]
    if full is None or full == 100:
        return {}
    return {n: (macs[n] / macs[largest], (100 - own) / (100 - full)) for n, own in errors.items() if own is not None}


def _hollow(kind: str) -> dict[str, Any]:
    return {**LOOKS[kind], "linestyle": "--", "markerfacecolor": "none", "markersize": 10}


def _variables(book: Book, cell: str, preset: str, key: str) -> Any:
    """What the first run that has it measured for a figure."""
    return next((run.variables[key] for run in book.runs(cell, preset) if key in run.variables), None)


def _pixels(text: str) -> Any:
    """A PNG in base64 -> floats in [0, 1]."""
    from matplotlib.image import imread

    return imread(io.BytesIO(base64.b64decode(text)), format="png")


def _panels(rows: int, columns: int, size: tuple[float, float]) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _files(figure: "Figure", kind: str) -> bytes:
    """The figure as a PNG or SVG file; the same figure gives the same bytes."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "recurconv"}):
        figure.savefig(file, format=kind, dpi=110, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return file.getvalue()


FIGURES = {
    "figure2": Drawing(
        "Figure 2: variables of the first norm layer over steps",
        "The first norm layer of C_1 in R_2^4, CIFAR-10, at each unrolling step.",
        ("figure2/r2-4/cifar10",),
        norm_over_steps,
    ),
    "figure3": Drawing(
        "Figure 3: variables of a norm layer by the steps of the cell before",
        "The first norm layer of T_2 in R_4 with a dial, CIFAR-100, for each step count of C_1.",
        ("figure3/r4-dial/cifar100",),
        norm_by_steps,
    ),
    "figure4": Drawing(
        "Figure 4: a denoised picture at each setting",
        "R_3 with a dial, sigma 25: a detail of the package's sample picture (CC0), and the whole picture's PSNR.",
        ("figure4/r3-dial/sigma25",),
        denoised,
    ),
    "figure5": Drawing(
        "Figure 5: PSNR by the number of steps",
        "R_3^n and S_3^n on BSD68; bars are the standard deviation over seeds.",
        tuple(f"figure5/{kind}3-{n}/sigma{sigma}" for sigma in SIGMAS for kind in "rs" for n in COUNTS),
        psnr_by_count,
    ),
    "figure6": Drawing(
        "Figure 6: how features evolve",
        "R_4 with a dial, CIFAR-100, at 3 steps: the channels with the largest mean at the end of C_2 and of C_3.",
        ("figure6/r4-dial/cifar100",),
        features,
    ),
    "figure7": Drawing(
        "Figure 7: cost-adjustable inference compared",
        "Accuracy against FLOPs (2 x MACs), each relative to the largest setting of the same kind of network.",
        tuple(dict.fromkeys(cell for places in PLACES.values() for cell, _ in places)),
        accuracy_by_flops,
    ),
}


def draw(name: str, book: Book, preset: str) -> dict[str, bytes]:
    """A figure's files by their ending, "png" and "svg"; none where it was not run.

    Raises:
        ValueError: what a result holds for the figure is broken.
    """
    drawing = FIGURES[name]
    try:
        figure = drawing.draw(book, preset)
    except Exception as error:  # of any kind: it comes from a file
        files = ", ".join(str(run.file) for cell in drawing.cells for run in book.runs(cell, preset) if run.variables)
        if not files:  # then it does not
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{files}: what {name} shows is broken ({reason}); move it away, and make it anew") from None
    return {} if figure is None else {kind: _files(figure, kind) for kind in ("png", "svg")}
