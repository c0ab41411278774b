"""The usages of norm layers that the paper compares; apart from ``norms`` so that recipes load without PyTorch."""

from typing import Literal

NormUsage = Literal["none", "shared", "independent", "double"]
