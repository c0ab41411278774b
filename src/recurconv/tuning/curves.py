"""Error against mean MACs, of fixed settings and of confidence."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recurconv.runtime.confidence import stages

GRID = np.linspace(0, 1, 51)  # the shares of images that a threshold sends on
DIGITS = 4  # of a threshold


@dataclass(frozen=True)
class Point:
    """One way to run a classifier, and what it reaches on some images.

    Attributes:
        thresholds: for ``Dial.run(images, confidence=...)``; {k: 0.0} is the fixed setting k.
        macs: mean multiply-accumulates for an image, those of all its settings together.
        error: top-1, in %.
        standard_error: of ``error``; None for a single image.
        shares: the part of the images that each setting answers.
    """

    thresholds: dict[int, float]
    macs: float
    error: float
    standard_error: float | None
    shares: dict[int, float]


@dataclass(frozen=True, eq=False)
class Answers:
    """What each setting says of some images.

    Attributes:
        split, condition: which images they are, and the state of the data.
        sure: the largest probability of each image at each setting, float64 [N].
        right: whether each answer is right, bool [N].
        macs: of an image at each setting.
    """

    split: str
    condition: str
    sure: Mapping[int, NDArray[np.float64]]
    right: Mapping[int, NDArray[np.bool_]]
    macs: Mapping[int, float]

    @property
    def dial(self) -> tuple[int, ...]:
        """The settings, ascending."""
        return tuple(sorted(self.sure))

    @property
    def images(self) -> int:
        """How many there are."""
        return len(self.sure[self.dial[0]])

    def point(self, thresholds: Mapping[int, float]) -> Point:
        """What ``thresholds`` reach on these images, by the rule of ``Dial.run``."""
        left, right = np.ones(self.images, bool), np.zeros(self.images, bool)
        spent, shares = 0.0, {}
        for steps, threshold in stages(thresholds, self.dial).items():
            spent += self.macs[steps] * float(left.mean())
            done = left & (self.sure[steps] >= threshold)
            right[done] = self.right[steps][done]
            if done.any():
                shares[steps] = float(done.mean())
            left &= ~done
        spread = 100 * float(right.std(ddof=1)) / math.sqrt(self.images) if self.images > 1 else None
        return Point(dict(thresholds), spent, 100 * int((~right).sum()) / self.images, spread, shares)

    def fixed(self) -> list[Point]:
        """Each setting alone."""
        return [self.point({steps: 0.0}) for steps in self.dial]

    def pairs(self) -> list[Point]:
        """Every other setting before the largest, with a threshold for each 2 % of the images that go on."""
        return [
            self.point({low: float(threshold)})
            for low in self.dial[:-1]
            for threshold in np.unique(np.quantile(self.sure[low], GRID).round(DIGITS))
        ]


@dataclass(frozen=True)
class Curve:
    """What was found on one split: the fixed settings, the best pairs by rising MACs, and the choice."""

    split: str
    condition: str
    images: int
    fixed: tuple[Point, ...]
    confident: tuple[Point, ...]
    chosen: Point


def front(points: Iterable[Point]) -> list[Point]:
    """The points that no other beats in both MACs and error, by rising MACs."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.macs, point.error)):
        if not best or point.error < best[-1].error:
            best.append(point)
    return best


def choose(points: Iterable[Point], *, macs: float | None = None, error: float | None = None) -> Point:
    """The lowest error at ``macs`` in the mean, or the lowest mean MACs at ``error`` in %.

    Raises:
        ValueError: no point is as good as that.
    """
    best = front(points)
    fitting = [p for p in best if (macs is None or p.macs <= macs) and (error is None or p.error <= error)]
    if not fitting:
        raise ValueError(
            f"macs={macs:.4g} is less than the smallest setting needs, {best[0].macs:.4g}; give more"
            if macs is not None
            else f"error={error:g} is below the lowest on these images, {best[-1].error:.4g}; give more"
        )
    return fitting[0] if macs is None else fitting[-1]
