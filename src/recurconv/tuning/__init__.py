"""Thresholds of confidence, chosen on held-out images for a wanted cost or error."""

from recurconv.tuning.curves import Answers, Curve, Point
from recurconv.tuning.search import Tuning, tune

__all__ = ["Answers", "Curve", "Point", "Tuning", "tune"]
