"""The largest setting that fits a time budget, kept honest by what calls take."""

import math
import time
from collections.abc import Sequence

from recurconv.runtime.calibration import Calibration, Shape

# How much of a surprise is taken for load on the machine, which passes, and for a fault in one setting's calibration,
# which stays; and the largest surprise that one call may be, since a single hiccup says little.
LOAD, OWN, LARGEST = 0.3, 0.05, math.log(3)
KEPT = 0.995  # of what is known of a setting, at every call
STALE = 0.5  # seconds


class Pace:
    """Expects what a call takes at each setting, for one class of shapes.

    Expected milliseconds = calibrated x load x own. ``load`` is one factor for all settings, ``own`` one for each;
    both start at 1. After every call the surprise, log(measured / expected), cut at a factor of 3, moves log ``load``
    by 0.3 of it and log ``own`` of the setting that ran by 0.05 of it. So a few slow calls make every setting look
    slower, and a smaller one is chosen; and since any setting's calls tell of the load, fast calls at the smaller
    setting bring the larger one back as soon as the load is gone, without trials that would break the budget. Log
    ``own`` fades by 0.5 % a call, so that a setting that was slow once is tried again, some ten calls or more later.

    Args:
        calibration: what was measured on this machine.
        dial: the settings, ascending.
    """

    def __init__(self, calibration: Calibration, dial: Sequence[int]) -> None:
        self.calibration, self.dial = calibration, dial
        self._load = 0.0  # logarithms of the factors
        self._own = dict.fromkeys(dial, 0.0)
        self._observed = time.monotonic()

    def expected(self, steps: int, shape: Shape) -> float:
        """Milliseconds that a call at ``steps`` should take now."""
        return self.calibration.expected(steps, shape) * math.exp(self._load + self._own[steps])

    def choose(self, budget: float, shape: Shape) -> int | None:
        """The largest setting expected to take at most ``budget`` milliseconds; None if there is none."""
        return max((steps for steps in self.dial if self.expected(steps, shape) <= budget), default=None)

    def is_stale(self) -> bool:
        """Whether no call told anything for a while."""
        return time.monotonic() - self._observed > STALE

    def observe(self, steps: int, shape: Shape, milliseconds: float) -> None:
        """Learn from what a call took."""
        self._observed = time.monotonic()
        surprise = math.log(max(milliseconds, 1e-6) / self.expected(steps, shape))
        surprise = max(-LARGEST, min(LARGEST, surprise))
        self._load += LOAD * surprise
        self._own = {other: own * KEPT for other, own in self._own.items()}
        self._own[steps] += OWN * surprise
