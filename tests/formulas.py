"""MACs by formulas that are independent of PyTorch: the architectures written out. And a module to count."""

import torch
from torch import nn


def convolution(c_in: int, c_out: int, side: int, kernel: int = 3) -> int:
    return kernel * kernel * c_in * c_out * side * side


def r2_macs(steps: int, side: int = 32, num_classes: int = 10, width: float = 1.0) -> int:
    channels = round(64 * width)
    total = convolution(3, channels, side)
    for cell in (1, 2):
        for step in range(steps):
            total += 2 * convolution(channels, channels, side)
            if step + 1 == -(-steps // 2):
                side //= 2
        if cell == 1:
            channels, side = 4 * channels, side // 2
    return total + channels * num_classes


def r3_macs(steps: int, side: int = 32) -> int:
    return 2 * convolution(1, 64, side) + 3 * steps * convolution(64, 64, side)


def r4_macs(steps: int, side: int = 32, num_classes: int = 100, groups: int = 4) -> int:
    channels = 64
    total = convolution(3, channels, side) + 2 * convolution(channels, channels, side)
    for group in range(groups):
        if group > 0:
            side = -(-side // 2)
            total += convolution(channels, 2 * channels, side, kernel=1) + convolution(channels, 2 * channels, side)
            channels *= 2
            total += convolution(channels, channels, side)
        total += steps * 2 * convolution(channels, channels, side)
    return total + channels * num_classes


class Thrice(nn.Module):
    """One module that runs three times."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, groups=2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv(self.conv(self.conv(images)))
