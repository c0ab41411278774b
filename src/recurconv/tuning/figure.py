"""The figure of a tuning: error against mean MACs."""

from pathlib import Path
from typing import Any

from recurconv.files import write_atomically
from recurconv.tuning.curves import Curve
from recurconv.tuning.search import Tuning

FORMATS = (".png", ".svg", ".pdf")
WIDTH, HEIGHT = 4.8, 3.8  # of a panel, in inches


def check_figure(out: Path) -> None:
    """Complain of a figure that cannot be written, before the work is done.

    Raises:
        ValueError: another format than PNG, SVG or PDF.
    """
    if out.suffix.lower() not in FORMATS:
        raise ValueError(f"{out} is to be the figure; give it a name that ends in {', '.join(FORMATS)}")


def draw(tuning: Tuning, out: Path) -> None:
    """Write the figure: a panel for each split, with the fixed settings, confidence and the choice.

    Raises:
        ValueError: as for ``check_figure``.
        OSError: it cannot be written.
    """
    check_figure(out)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH * len(tuning.curves), HEIGHT), layout="constrained")
    panels = figure.subplots(1, len(tuning.curves), squeeze=False)[0]
    for axes, curve in zip(panels, tuning.curves, strict=True):
        _panel(axes, curve)
    panels[0].legend(frameon=False)
    write_atomically(out, lambda path: figure.savefig(path, dpi=150, format=out.suffix[1:].lower()))


def _panel(axes: Any, curve: Curve) -> None:
    axes.plot(
        [p.macs / 1e6 for p in curve.fixed], [p.error for p in curve.fixed], "o--", color="0.45", label="fixed steps"
    )
    for point in curve.fixed:
        (steps,) = point.thresholds
        where = (point.macs / 1e6, point.error)
        axes.annotate(f"{steps}", where, xytext=(7, 5), textcoords="offset points", color="0.2", fontsize=9)
    x, y = [p.macs / 1e6 for p in curve.confident], [p.error for p in curve.confident]
    axes.plot(x, y, ".-", color="C0", label="confidence")
    axes.plot(curve.chosen.macs / 1e6, curve.chosen.error, "*", color="C3", markersize=13, label="chosen")
    axes.set(xlabel="mean MACs for an image (M)", ylabel="error (%)", title=f"{curve.split}, {curve.images:,} images")
    axes.margins(0.14, 0.08)
    axes.spines[["top", "right"]].set_visible(False)
